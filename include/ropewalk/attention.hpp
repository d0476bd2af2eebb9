// Blocked attention with online softmax over pages or over plain K/V: plan once a step, run once a layer.
//
//   score(i, j) = softcap(scale * q_i . k_j) - slope_h * |position_i - j|      over the keys j that query i sees
//                                            or + bias_h(j - position_i)       (attention_bias.hpp; also inside of softcap or scale)
//   with vector terms beside q_i . k_j where a problem has them (relative_attention.hpp)
//   out_i       = sum_j softmax_j(score) v_j,      lse_i = ln sum_j exp(score)
//
// Conventions: query head h reads KV head h / (heads / kv_heads). A row that sees no key gives out 0 and lse -inf. Scores and sums are fp32.
// The result of a row has the same bits whatever the number of threads, the batch it runs in, how its prefill was chunked and which pages
// hold its keys (on one target): softmax tiles of 128 and chunks of 512 tokens lie at fixed token indices of the sequence, each score is one
// chain over the head dimension, chunks are folded in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include <ropewalk/attention_bias.hpp>
#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/kv_pages.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

// Which keys a query at position p sees: p - left <= j <= p + right and, with a chunk, j / chunk == p / chunk (local attention of Llama 4). Position
// arithmetic only: keys outside are never read.
struct attention_span {
    static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();
    int64_t left = unlimited;  // >= 0
    int64_t right = 0;         // >= 0
    int64_t chunk = 0;         // >= 0; 0 is off. Chunks begin at the sequence's first key: evict whole ones only

    static constexpr attention_span full() noexcept { return {unlimited, unlimited}; }  // all keys
    static constexpr attention_span causal() noexcept { return {unlimited, 0}; }        // those up to the query's own position
    // window keys including the query's own position, as Hugging Face counts; window >= 1.
    static constexpr attention_span sliding_window(int64_t window) noexcept { return {window - 1, 0}; }
    // Keys at most so far away, before and after.
    static constexpr attention_span symmetric(int64_t distance) noexcept { return {distance, distance}; }
    // Causal, within chunks of so many positions (attention_chunk_size); positions >= 1.
    static constexpr attention_span chunked(int64_t positions) noexcept { return {unlimited, 0, positions > 0 ? positions : -1}; }
    bool operator==(const attention_span&) const = default;
};

// How q and the probabilities enter products with stored keys and values.
//   standard  An fp32 query is never rounded. A bf16 query meets bf16 pages in bf16 pair dots, a 16-bit query int8 pages in integer dots with q and p
//             at 16 bits (error near that of fp32), where the target has the instructions; all else is fp32 arithmetic.
//   fast      Also rounds fp32 queries, and meets int4 pages in integer dots with q and p at 8 bits: errors up to a few 1e-3 of max |v|.
enum class attention_precision : int32_t { standard = 0, fast = 1 };

struct relative_terms;    // relative_attention.hpp
struct relative_tensors;  // likewise

// What is computed: the shape of a layer's attention and its options, the same for all sequences of a batch.
struct attention_problem {
    int32_t heads = 0;  // query heads, a multiple of kv_heads
    int32_t kv_heads = 0;
    int32_t k_dim = 0;  // 1 .. 1024; width of q and k
    int32_t v_dim = 0;  // 1 .. 1024; width of v and out
    dtype q_type = dtype::fp32;
    dtype out_type = dtype::fp32;
    float scale = 0.0f;    // of the scores; 0 means 1 / sqrt(k_dim). Finite, not negative
    float softcap = 0.0f;  // cap * tanh(score / cap) before bias and mask (Gemma 2); 0 is off. Finite, not negative
    attention_span span;   // causal unless set
    attention_precision precision = attention_precision::standard;
    // [heads] or null. The slopes of alibi.hpp; null is off. Copied by the plan.
    const float* alibi_slopes = nullptr;
    // A bias of `heads` heads (the plan keeps a copy, which shares its table), or null; not beside alibi_slopes. run() may replace it layer by layer.
    // Over a grid, sequences have no trees.
    const attention_bias* bias = nullptr;
    bias_place place = bias_place::after_softcap;  // of bias and alibi_slopes
    // [heads] or null: per-head logit that takes part in the softmax but has no value (gpt-oss sinks). 0 is a legal sink. lse includes it.
    const float* sinks = nullptr;
    // Vector relative terms (relative_attention.hpp), or null. Copied by the plan.
    const relative_terms* relative = nullptr;
};

// A ragged batch of sequences that each bring q_len query tokens and have kv_len keys; prefill, chunked prefill and decode may be mixed. Row r of q
// belongs to sequence s with q_indptr[s] <= r < q_indptr[s + 1]. By default the last query token stands at the last key (end-aligned):
// position kv_len - q_len + i. Spans are read by build() only and may die after it.
//
// Cascade: sequences of few query tokens (decode, verification of drafts) whose page ids agree from the first chunk of 512 tokens that they see on
// read the full chunks that they have in common once, in passes of up to 96 rows, with the bits of each sequence alone.
struct attention_batch {
    std::span<const int64_t> q_indptr;  // [sequences + 1], ascending from 0
    std::span<const int64_t> kv_lens;   // [sequences], >= 0, < 2^31
    // [sequences] position of the first query token, or empty: end-aligned. Positions here count from the sequence's first key, key j has position j,
    // whatever position rope gave it: masks and ALiBi depend on differences only.
    std::span<const int64_t> q_starts;
    // Paged keys: page table in CSR form; sequence s owns page_ids[page_indptr[s] .. page_indptr[s + 1]), at least ceil(kv_len / page_tokens).
    std::span<const int64_t> page_indptr;  // [sequences + 1], ascending from 0
    std::span<const int32_t> page_ids;
    // Plain keys: rows kv_indptr[s] .. + kv_len of the K and V views. Exactly one of page_indptr and kv_indptr is given.
    std::span<const int64_t> kv_indptr;  // [sequences + 1], ascending from 0
    // Token trees for speculative verification (tree attention of SpecInfer, arXiv 2305.09781, and Medusa, arXiv 2401.10774): the query tokens
    // of a sequence are the nodes of a tree of drafts, and each sees its ancestors and itself instead of all tokens before it. Masks are bits:
    // sequence s owns words tree_masks[tree_indptr[s] .. tree_indptr[s + 1]), [q_len][ceil(q_len / 64)], of which bit j % 64 of word j / 64 of row i
    // says that query token i sees the sequence's drafted key kv_len - q_len + j. A token sees itself (bit i of row i is set) and only tokens before
    // it (no bit above i). Its position follows its depth: kv_len - q_len + (bits in row i) - 1, and that of its key likewise; span.left and ALiBi
    // use these. Keys before kv_len - q_len are seen as the span says; span.right hides and shows nothing in a tree. Such a sequence has kv_len >=
    // q_len and is end-aligned: q_starts is empty or has kv_len - q_len. One with an empty range has no tree; both spans are empty where none has.
    // The words of a chain (row i: bits 0 .. i) give the bits of causal attention.
    std::span<const uint64_t> tree_masks = {};
    std::span<const int64_t> tree_indptr = {};  // [sequences + 1], ascending from 0
    // Keys that a query token sees at most, of those that the span shows it: indices key_first <= j < key_last in its sequence, 0 .. kv_len each, in
    // the order of q's rows. Empty: from 0, up to kv_len. None where first >= last. Prefix-LM: full span, key_last = max(prefix, position + 1).
    // Documents packed into one sequence: key_first = where the token's document begins. Left padding: key_first = the padding.
    std::span<const int64_t> key_first = {};  // [q tokens]
    std::span<const int64_t> key_last = {};   // [q tokens]
    // Masks of any form (permuted order of XLNet, blocks): sequence s owns words key_masks[key_mask_indptr[s] .. key_mask_indptr[s + 1]),
    // [q_len][ceil(kv_len / 64)], of which bit j % 64 of word j / 64 of row i says that query token i sees key j, if span and ranges show it too.
    // Bits from kv_len on are not looked at. A sequence with an empty range has no mask; one with a mask has no tree. Both spans are empty where none
    // has.
    std::span<const uint64_t> key_masks = {};
    std::span<const int64_t> key_mask_indptr = {};  // [sequences + 1], ascending from 0
    // Segments of query tokens and keys where problem.relative has segment terms, else empty. Key j of sequence s is at kv_indptr[s] + j, or with
    // pages at page_indptr[s] * page_tokens + j.
    std::span<const uint8_t> q_segments = {};  // [query tokens]
    std::span<const uint8_t> k_segments = {};  // [kv_indptr.back()], or [page_ids * page_tokens]
};

// What to do in a step: offsets only, no pointers to tensors, so one plan serves every layer of the same geometry. Building reuses the memory of the
// plan, so a plan that is kept allocates only while it grows. A built plan is read-only: any number of threads may run it at the same
// time, each run with a workspace of its own.
class ROPEWALK_API attention_plan {
public:
    attention_plan() noexcept;
    ~attention_plan();
    attention_plan(attention_plan&&) noexcept;
    attention_plan& operator=(attention_plan&&) noexcept;

    // Pages of `layout`. page ids are checked against page_count.
    [[nodiscard]] status build(const attention_problem& problem, const attention_batch& batch, const kv_layout& layout, int32_t page_count,
                               int32_t concurrency = default_executor().concurrency()) noexcept;
    // Plain K [rows, kv_heads, k_dim] and V [rows, kv_heads, v_dim] of the given types, without a cache.
    [[nodiscard]] status build(const attention_problem& problem, const attention_batch& batch, dtype k_type, dtype v_type,
                               int32_t concurrency = default_executor().concurrency()) noexcept;

    // Bytes that run() needs, 64-byte aligned; depends on the plan only.
    [[nodiscard]] std::size_t workspace_bytes() const noexcept;
    // Rows of q, of all sequences.
    [[nodiscard]] int64_t q_tokens() const noexcept;
    // Bytes of K and V that the step reads from memory, each counted once per KV head and sequence, and multiply-adds times two; for benchmarks.
    // Where sequences of few rows have the same pages in the chunks that they see first, these are read, and count, once for all of them.
    [[nodiscard]] int64_t kv_bytes() const noexcept;
    [[nodiscard]] double flops() const noexcept;

    struct state;
    // Internal.
    [[nodiscard]] const state* internals() const noexcept { return state_.get(); }

private:
    std::unique_ptr<state> state_;
};

// What differs between the layers that one plan serves.
struct attention_layer {
    // In place of the plan's bias, and of its form: heads and, over a grid, extents are the same (UMT5: a table for each layer). Null: the plan's.
    const attention_bias* bias = nullptr;
    // The tensors of the plan's relative terms; null exactly if it has none.
    const relative_tensors* relative = nullptr;
};

// q [tokens, heads, k_dim], out [tokens, heads, v_dim]; lse [tokens, heads] dense, natural logarithm, or empty. out may not overlap q. The pages must
// have the layout that the plan was built for. Allocates nothing, uses at most the plan's concurrency. On an error nothing is written.
[[nodiscard]] ROPEWALK_API status run(const attention_plan& plan, const_head_view q, const kv_pages& pages, head_view out, std::span<float> lse,
                                      std::span<std::byte> workspace, executor& on = default_executor()) noexcept;
[[nodiscard]] ROPEWALK_API status run(const attention_plan& plan, const_head_view q, const_head_view k, const_head_view v, head_view out,
                                      std::span<float> lse, std::span<std::byte> workspace, executor& on = default_executor()) noexcept;
[[nodiscard]] ROPEWALK_API status run(const attention_plan& plan, const_head_view q, const kv_pages& pages, head_view out, std::span<float> lse,
                                      std::span<std::byte> workspace, const attention_layer& layer, executor& on = default_executor()) noexcept;
[[nodiscard]] ROPEWALK_API status run(const attention_plan& plan, const_head_view q, const_head_view k, const_head_view v, head_view out,
                                      std::span<float> lse, std::span<std::byte> workspace, const attention_layer& layer,
                                      executor& on = default_executor()) noexcept;

// Merges two partial results of the same rows over disjoint keys: what one pass over all keys would give. a, b and out [tokens, heads, v_dim] of
// any types, lse_* [tokens, heads]. Merging with an empty part (lse -inf) returns the other bit for bit. out may be a or b.
// Parts computed with sinks count the sink twice; merge before adding it.
[[nodiscard]] ROPEWALK_API status merge(const_head_view a, std::span<const float> lse_a, const_head_view b, std::span<const float> lse_b,
                                        head_view out, std::span<float> lse) noexcept;

}  // namespace ropewalk
