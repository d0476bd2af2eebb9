// Attention of one block of rows over a run of chunks: walks tiles and pages, calls the kernels of a target, folds chunks in order. Pure functions
// over raw pointers; compiled once, for the baseline: all arithmetic on tensors is in the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/attention/relative.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::simd {

// The arithmetic of a product with K or V of the type. It follows from types, precision (attention_precision) and target only.
int choose_arithmetic(const attention_kernels& kernels, int kv_type, int q_type, bool fast) noexcept;

// Where the values of a bias come from: see attend_bias.
enum class bias_kind { none, distance, grid, rows };

// What all blocks of a plan have in common.
struct attend_shape {
    int32_t heads, kv_heads, group;  // group = heads / kv_heads
    int32_t k_dim, v_dim;
    int32_t k_pad, v_pad;  // as stored
    int q_type, k_type, v_type, out_type;
    int qk_arithmetic, pv_arithmetic;
    float scale;          // includes log2(e)
    float softcap;        // includes log2(e); 0 is off
    int64_t left, right;  // a query at p sees p - left .. p + right
    int64_t chunk;        // of these, those in its own run of so many positions; 0 is off
    bool alibi, sinks;
    bias_kind bias;
    float bias_factor;         // includes log2(e), and the scale where the bias comes before it
    bool bias_before_softcap;  // also ALiBi
    bool hadamard;             // K and V are stored turned (kv_layout::hadamard)
    bool v_in_k;               // pages hold no V: it is the first dims of K (kv_layout::v_in_k)
    relative_shape relative;
    // Pages; page_tokens == 0 stands for plain K/V.
    int32_t page_tokens;
    int64_t page_stride, head_stride, v_offset, k_scale_offset, v_scale_offset;  // bytes
};

// Rows of one KV head: query tokens first_token .. + tokens of one sequence, times the heads of the group. Row r is token r / group, head r % group.
struct attend_block {
    int64_t q_row;  // of the block's first token in q, out, lse
    int32_t tokens;
    int32_t kv_head;
    int64_t position;  // of the first token, counted from key 0 of the sequence
    int32_t kv_len;
    const int32_t* page_ids;  // paged
    int64_t kv_row;           // of key 0 in k_segments and, plain, in k and v
    float* partials;          // unless attend() finishes the block: where it leaves its results
    // Tree: the last `drafted` keys belong to the sequence's query tokens, and bits tell which of them a token sees. 0: no tree.
    // Without depths this is a mask over keys that keep their positions (all of the sequence's), and key_ranges bounds its bits.
    int32_t drafted = 0;
    const uint64_t* tree_masks = nullptr;  // [tokens][tree_words(drafted)]: bit j of a row, it sees drafted key j <= its own
    const int32_t* tree_depths = nullptr;  // [drafted] positions of the drafted keys, relative to kv_len - drafted
    const int32_t* key_ranges = nullptr;   // [tokens][2]: a token sees nothing outside keys [first, last). Null: no such limits
};

constexpr int64_t tree_words(int64_t drafted) { return (drafted + 63) / 64; }  // of a row of bits
constexpr int64_t first_drafted(const attend_block& block) { return int64_t{block.kv_len} - block.drafted; }

// Values that are added to scores, each times attend_shape::bias_factor. Strides in elements.
//   distance  head h at data + h * head_stride: the values of position differences (key - query) first .. first + count - 1, between tile_tokens
//             copies of the first and as many of the last, so that a row of a tile is one contiguous piece of it
//   grid      head h at data + h * head_stride, 4 readable floats beyond: [2 height - 1][2 width - 1] by differences (key - query) of y and x, lowest
//             first; then, if class_token: of query 0, of key 0, of both. Tokens stand row by row, behind the class token
//   rows      query token t and head h at data + t * token_stride + h * head_stride: [keys]
struct attend_bias {
    const float* data;
    int64_t head_stride, token_stride;
    int64_t first, count;
    int32_t height, width;
    bool class_token;
    int64_t keys;
};

// The tensors of a run. Strides in elements.
struct attend_tensors {
    const std::byte* q;
    int64_t q_token_stride, q_head_stride;
    std::byte* out;
    int64_t out_token_stride, out_head_stride;
    float* lse;           // [tokens][heads] or null
    const float* slopes;  // [heads], includes log2(e)
    const float* sinks;   // [heads], natural units
    attend_bias bias;
    const std::byte* pages;  // paged
    const std::byte* k;      // plain
    const std::byte* v;
    int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    relative_inputs relative;
};

// What attend() does with the results of its chunks: writes out and lse (the chunks are all that the one block sees), leaves them folded into one
// partial (they begin with the first chunk that the blocks see), or leaves a partial for each, one after the other.
enum class chunk_results { finished, folded, each };

// Result of one chunk or of a run of them, per row: maximum, sum of weights (in log2 units relative to the maximum), weighted values [v_pad].
struct attend_partial {
    float* m;
    float* l;
    float* o;
};

// Keys [first, last) that a token of the block sees (of a tree: with holes), or any of them, as token indices; empty if first >= last.
struct key_range {
    int64_t first, last;
};
int64_t first_position(const attend_shape& shape, int64_t position) noexcept;  // that a query at `position` sees
key_range visible_keys(const attend_shape& shape, const attend_block& block, int32_t token) noexcept;
key_range visible_keys(const attend_shape& shape, const attend_block& block) noexcept;

// Bytes of scratch that attend() needs for blocks of up to `rows` rows, a multiple of 64. Scratch is 64-byte aligned.
int64_t attend_scratch_bytes(const attend_shape& shape, int32_t rows) noexcept;

// Floats of a partial of `rows` rows: m, l, o.
constexpr int64_t partial_floats(int64_t rows, int64_t v_pad) { return rows * (v_pad + 2); }
constexpr attend_partial partial_at(float* base, int64_t rows) { return {base, base + rows, base + 2 * rows}; }

// Chunks [chunk_first, chunk_last) of `count` blocks of one KV head, in one pass over K and V. More than one block: the pages of these chunks are the
// same for all, full and free of drafted keys, there are no relative terms, and results go through partials. A row's result is the same whatever rows
// it shares the pass with.
void attend(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block* blocks, int32_t count,
            int64_t chunk_first, int64_t chunk_last, chunk_results results, std::byte* scratch) noexcept;

// Folds the `count` partials of a block, the first of which may stand for several chunks, in order, and writes out and lse.
void finish_block(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block& block, int64_t count,
                  std::byte* scratch) noexcept;

}  // namespace ropewalk::simd
