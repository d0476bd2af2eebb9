// What an attention plan holds: blocks of rows, items of work, and where things lie in the workspace.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/attention.hpp>
#include "simd/attention/attend.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk {

struct attention_plan::state {
    // One (sequence, run of query tokens, KV head).
    struct block {
        simd::attend_block rows;  // page_ids is filled in by run(): a plan that moves must not point into itself
        int64_t page_first = 0;   // of the sequence, in page_ids
        int64_t chunk_first = 0;  // of 512 keys, that any of its rows sees
        int64_t chunk_last = 0;
        int32_t items = 1;    // more than one: results go through partials
        int32_t counter = 0;  // of the block, if split
        int64_t partial = 0;  // floats from the start of the partials, if split
    };
    // What a worker takes at a time.
    struct item {
        int32_t block = 0;
        int64_t chunk_first = 0;
        int64_t chunk_last = 0;
    };

    const simd::kernel_table* kernels = nullptr;
    simd::attend_shape shape{};
    kv_layout layout;           // paged
    int32_t page_count = 0;     // paged
    int64_t kv_rows = 0;        // plain: rows that K and V must have
    std::vector<float> slopes;  // includes log2(e)
    std::vector<float> sinks;
    std::vector<int32_t> page_ids;
    std::vector<block> blocks;
    std::vector<item> items;
    std::vector<double> costs;  // of the blocks in ns; kept for its memory
    int32_t workers = 1;
    int32_t max_rows = 0;
    int64_t q_tokens = 0;
    int64_t kv_bytes = 0;
    double flops = 0.0;

    // Workspace: cursor, counters of split blocks, partials, scratch of each worker.
    int32_t counters = 0;
    int64_t counters_offset = 0;
    int64_t partials_offset = 0;
    int64_t scratch_offset = 0;
    int64_t scratch_bytes = 0;  // per worker
    int64_t workspace_bytes = 0;
};

}  // namespace ropewalk
