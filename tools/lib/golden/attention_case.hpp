// One attention problem in dense fp32 rows, and every way the library has to compute it.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/attention.hpp>
#include <ropewalk/executor.hpp>
#include <ropewalk/relative_attention.hpp>
#include <ropewalk/status.hpp>
#include "tools/lib/golden/comparison.hpp"

namespace ropewalk::toolkit {

// A ragged batch: sequence s brings q_lens[s] rows of q and kv_lens[s] rows of k and v, packed one sequence after the other. Query rows stand at the
// end of their keys unless q_starts says otherwise.
struct attention_case {
    attention_problem problem;  // its slopes and sinks point to what the check holds
    std::vector<int64_t> q_lens, kv_lens;
    std::vector<float> q;              // [sum q_lens, heads, k_dim]
    std::vector<float> k;              // [sum kv_lens, kv_heads, k_dim]
    std::vector<float> v;              // [sum kv_lens, kv_heads, v_dim]; empty: the first v_dim dims of k
    std::vector<uint64_t> tree_masks;  // attention_batch, empty: no trees
    std::vector<int64_t> tree_indptr;
    std::vector<int64_t> q_starts;
    std::vector<uint64_t> key_masks;  // attention_batch, empty: no masks
    std::vector<int64_t> key_mask_indptr;
    relative_tensors relative;                    // where the problem has relative terms
    std::vector<uint8_t> q_segments, k_segments;  // [sum q_lens], [sum kv_lens]
};

struct attention_output {
    std::vector<float> out;  // [sum q_lens, heads, v_dim]
    std::vector<float> lse;  // [sum q_lens, heads]
};

// True if keep [q_tokens, kv_tokens] is what the span lets end-aligned rows see.
bool is_span(const std::vector<int64_t>& keep, const attention_span& span, int64_t q_tokens, int64_t kv_tokens);

// Plain K and V.
result<attention_output> run_contiguous(const attention_case& c, executor& on);

// The same K and V written into fp32 pages, V not if it is a view of K in them. Page ids are permuted and every byte that no token owns is NaN, so
// reading what was not written shows.
result<attention_output> run_paged(const attention_case& c, int32_t page_tokens, executor& on, bool v_in_k = false);

// Contiguous and in pages of 16, 64 and 128 tokens, also without V if c.v is empty: bits that differ between them are failures in `checks`. Returns
// the contiguous result.
result<attention_output> run_all_ways(const attention_case& c, comparison& checks, executor& on);

}  // namespace ropewalk::toolkit
