// What an attention plan holds: blocks of rows, items of work, and where things lie in the workspace.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/attention.hpp>
#include "runtime/attention_bias.hpp"
#include "simd/attention/attend.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk {

struct attention_plan::state {
    // Rows that share a pass over K and V: 96 is a multiple of every strip height, and enough that 16-bit panels are widened for 1 % of the work.
    static constexpr int32_t most_rows = 96;

    // One (sequence, run of query tokens, KV head).
    struct block {
        simd::attend_block rows;  // without pointers into the plan: see rows_of()
        int64_t page_first = 0;   // of the sequence, in page_ids
        int64_t tree_first = 0;   // of the block's first token, in tree_masks
        int64_t tree_tokens = 0;  // of the sequence, in tree_depths; -1: a mask over keys
        int64_t chunk_first = 0;  // of 512 keys, that any of its rows sees
        int64_t chunk_last = 0;
        int32_t parts = 0;     // items that leave partials for this block; none if its one item finishes it
        int32_t counter = 0;   // of finished parts
        int64_t partial = 0;   // floats from the start of the partials
        int64_t fold_end = 0;  // the first part folds its chunks [chunk_first, fold_end) into one partial

        // Which of the block's partials is that of a chunk; of chunk_last: how many there are.
        [[nodiscard]] int64_t partial_index(int64_t chunk) const { return chunk < fold_end ? 0 : chunk - fold_end + 1; }
    };
    // What a worker takes at a time: chunks of `count` neighbouring blocks, whose pages they are.
    struct item {
        int32_t block = 0;
        int32_t count = 1;
        int64_t chunk_first = 0;
        int64_t chunk_last = 0;
    };
    // A sequence, or sequences that share pages: runs up to `run_end`, and `blocks` blocks for each KV head, all with these same runs.
    struct family {
        std::size_t run_end = 0;
        int32_t blocks = 0;
    };
    // A sequence of few rows: its chunks [chunk_first, chunk_last) are full, those before `common` are also the next one's in order.
    struct candidate {
        int64_t key = 0;  // chunk_first and the page that it begins with
        int32_t sequence = 0;
        int32_t chunk_first = 0;
        int32_t chunk_last = 0;
        int32_t common = 0;
    };

    const simd::kernel_table* kernels = nullptr;
    simd::attend_shape shape{};
    kv_layout layout;           // paged
    int32_t page_count = 0;     // paged
    int64_t kv_rows = 0;        // plain: rows that K and V must have
    std::vector<float> slopes;  // includes log2(e)
    std::vector<float> sinks;
    std::vector<int32_t> relative_index;  // attention_problem::relative
    int64_t relative_first = 0;           // distance of its first entry
    int64_t relative_rows = 0;            // that its tables must have
    std::vector<uint8_t> q_segments;
    std::vector<uint8_t> k_segments;
    attention_bias bias;
    int64_t most_keys = 0;  // of a sequence
    std::vector<int32_t> page_ids;
    std::vector<uint64_t> tree_masks;  // as given, less what the window hides; then masks over keys
    std::vector<int32_t> tree_depths;  // [q_tokens] if there are trees
    std::vector<int32_t> key_ranges;   // [q_tokens][2] if there are ranges or masks
    std::vector<block> blocks;
    std::vector<item> items;
    // Of building; kept for their memory.
    std::vector<item> runs;     // what is cut into items; blocks count from the family's first
    std::vector<double> costs;  // of the runs in ns
    std::vector<int64_t> cuts;  // of the runs: into how many items
    std::vector<family> families;
    std::vector<candidate> candidates;  // sorted; what is shared lies together
    std::vector<char> grouped;          // [sequences], or empty: nothing is shared
    int32_t workers = 1;
    int32_t max_rows = 0;
    int64_t q_tokens = 0;
    int64_t kv_bytes = 0;
    double flops = 0.0;

    // Workspace: cursor, counters of split blocks, partials, scratch of each worker.
    int32_t counters = 0;
    int64_t counters_offset = 0;
    int64_t partials_offset = 0;
    int64_t partials = 0;  // floats
    int64_t scratch_offset = 0;
    int64_t scratch_bytes = 0;  // per worker
    int64_t workspace_bytes = 0;

    // What attend() takes. Good for as long as the plan is not rebuilt.
    simd::attend_block rows_of(const block& b) const noexcept {
        simd::attend_block rows = b.rows;
        if (shape.page_tokens != 0) rows.page_ids = page_ids.data() + b.page_first;
        if (rows.drafted != 0) {
            rows.tree_masks = tree_masks.data() + b.tree_first;
            if (b.tree_tokens >= 0) rows.tree_depths = tree_depths.data() + b.tree_tokens;
        }
        if (!key_ranges.empty()) rows.key_ranges = key_ranges.data() + 2 * rows.q_row;
        return rows;
    }
};

}  // namespace ropewalk
