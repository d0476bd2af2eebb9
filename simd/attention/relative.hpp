// Vector relative terms of a block's scores, added tile by tile between Q.K and softmax:
//   (q_i + v) . R[idx(delta)] + k_j . C[idx(delta)] + (q_i + s) . E[segments differ],    delta = position_i - j
// (and u, added to q before Q.K). What is needed of the tables at a time is the rows of a tile's distances, tokens + 127 of them: scratch is O(tile).
//
// R: 16 distances are a panel, as 16 keys are in Q.K; a row of q meets the 9 panels of its own 143 distances, so that 96 tokens cost 9/8 of Q.K and
// not the rectangle of 223. Row i's scores begin i columns further left in the block's distances, which a row stride of one more undoes on the way
// out: what is added to the scores lies in the order of the keys.
// C: the rows of the table are the queries, the keys stay panels as they are stored, in any type; the terms of a panel, tokens + 15 rows of 16 keys,
// are added along their diagonals.
// Where all distances of a tile have one row (far behind a clamp), R gives one number a query, C one a key.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/core/kernels.hpp"

namespace ropewalk::simd {

struct attend_shape;
struct attend_tensors;
struct attend_block;

// Which terms a plan has. `given` alone: u at most.
struct relative_shape {
    bool given = false, rows = false, columns = false, segments = false;  // R, C, E
};

// Tensor [rows, heads, k_dim]; strides in elements, head_stride 0 where all heads have one. No data: absent.
struct relative_table {
    const std::byte* data = nullptr;
    int type = fp32;
    int64_t row_stride = 0, head_stride = 0;
};

struct relative_inputs {
    relative_table rows, columns, segments;                    // R, C [*, heads, k_dim], E [2, heads, k_dim]
    relative_table content_bias, position_bias, segment_bias;  // u, v, s [1, heads, k_dim]
    const int32_t* index = nullptr;                            // [index_count]: idx(first_delta + i), -1: no row, the term is 0; clamped at both ends
    int64_t index_count = 0, first_delta = 0;
    const uint8_t* q_segments = nullptr;  // [tokens]
    const uint8_t* k_segments = nullptr;  // by attend_block::kv_row
};

// A panel of keys of the tile.
struct key_panel {
    const std::byte* k;
    const float* scales;  // of a token-scaled type
};

// Bytes of scratch for blocks of up to `rows` rows, a multiple of 64; 0 without terms.
int64_t relative_scratch_bytes(const attend_shape& shape, int32_t rows) noexcept;

// The terms of one attend() call, whose rows are those of one block.
class relative_walker {
public:
    relative_walker(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block& block, int32_t rows,
                    std::byte* scratch) noexcept;

    // Keeps q [k_dim] of row r with the biases that its terms have, and adds u to it.
    void load_row(int32_t r, int32_t head, float* q) noexcept;
    // After the last row.
    void load_segments() noexcept;
    // Adds the terms of keys begin .. + 16 * count to raw scores [rows][tile_tokens].
    void add(int64_t begin, const key_panel* panels, int32_t count, float* scores) noexcept;

private:
    struct memory {
        float *q, *q_segment;                // [rows][k_dim]: q + v, q + s
        float* window;                       // [group][tokens][window_stride] terms of R, from 15 keys before `begin` on
        float *constants, *pairs;            // [rows][16]: of R where a tile has one row; of E
        float *panel, *panel_rows;           // 16 rows of a table: packed, and on their way
        float *columns, *column_terms;       // rows of C [tokens + 127][k_pad]; [tokens + 15][16] or [128]
        float *row_segments, *key_segments;  // [rows], [tile_tokens]
        int64_t bytes;
    };
    static memory carve(const attend_shape& shape, int64_t rows, std::byte* base) noexcept;
    friend int64_t relative_scratch_bytes(const attend_shape& shape, int32_t rows) noexcept;

    [[nodiscard]] int32_t index_of(int64_t delta) const;
    void load_table_row(const relative_table& table, int32_t head, int32_t index, float* row) const;
    void add_bias(const relative_table& bias, int32_t head, float* q) const;
    void load_column(int32_t head, int32_t index, float* row) const;
    void pack(const relative_table& table, int32_t head, const int32_t* indices) const;
    void dots(const float* q, int32_t g, int32_t first, int32_t count, float* out, int64_t out_stride) const;
    void per_row(const relative_table& table, const float* q, const int32_t* indices, float* out) const;
    void key_dots(const float* q, int32_t count, const key_panel& keys, float* out) const;
    void add_row_terms(int64_t begin, int32_t panels, float* scores) const;
    void add_column_terms(int64_t begin, const key_panel* panels, int32_t count, float* scores) const;
    void add_constants(int32_t index, const key_panel* panels, int32_t count, float* scores);
    void add_segments(int64_t begin, int32_t panels, float* scores) const;
    template <class F>
    void for_heads(const relative_table& table, F f) const;

    const kernel_table& kernels_;
    const attend_shape& shape_;
    const relative_inputs& inputs_;
    const attend_block& block_;
    int32_t rows_, tokens_;
    memory w_;
    int32_t constant_index_;  // whose terms are in w_.constants
};

}  // namespace ropewalk::simd
