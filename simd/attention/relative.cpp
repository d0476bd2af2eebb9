#include "simd/attention/relative.hpp"

#include <algorithm>
#include <cstring>

#include "simd/attention/attend.hpp"

namespace ropewalk::simd {
namespace {

// Floats of a row of `window`: the 128 keys of a tile, 15 of the panel that they begin in, 15 of the one that they end in.
constexpr int64_t window_stride = tile_tokens + 2 * panel;
constexpr int32_t no_index = -2;

}  // namespace

relative_walker::memory relative_walker::carve(const attend_shape& shape, int64_t rows, std::byte* base) noexcept {
    memory w{};
    const auto take = [&](bool needed, int64_t floats) {
        auto* at = base == nullptr ? nullptr : reinterpret_cast<float*>(base + w.bytes);
        if (needed) w.bytes += (floats * 4 + 63) / 64 * 64;
        return at;
    };
    const relative_shape& terms = shape.relative;
    const int64_t tokens = (rows + shape.group - 1) / shape.group;
    w.q = take(terms.rows, rows * shape.k_dim);
    w.q_segment = take(terms.segments, rows * shape.k_dim);
    w.window = take(terms.rows, tokens * shape.group * window_stride);
    w.constants = take(terms.rows, rows * panel);
    w.pairs = take(terms.segments, rows * panel);
    w.panel = take(terms.rows || terms.segments, int64_t{panel} * shape.k_dim);
    w.panel_rows = take(terms.given, int64_t{panel} * shape.k_dim);
    w.columns = take(terms.columns, (tokens + tile_tokens - 1) * shape.k_pad);
    w.column_terms = take(terms.columns, ((tokens + panel - 1) / panel * panel + panel - 1) * panel);
    w.row_segments = take(terms.segments, rows);
    w.key_segments = take(terms.segments, tile_tokens);
    return w;
}

int64_t relative_scratch_bytes(const attend_shape& shape, int32_t rows) noexcept { return relative_walker::carve(shape, rows, nullptr).bytes; }

relative_walker::relative_walker(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block& block,
                                 int32_t rows, std::byte* scratch) noexcept
    : kernels_(kernels),
      shape_(shape),
      inputs_(tensors.relative),
      block_(block),
      rows_(rows),
      tokens_(rows / shape.group),
      w_(carve(shape, rows, scratch)),
      constant_index_(no_index) {}

int32_t relative_walker::index_of(int64_t delta) const {
    return inputs_.index[std::clamp<int64_t>(delta - inputs_.first_delta, 0, inputs_.index_count - 1)];
}

void relative_walker::load_table_row(const relative_table& table, int32_t head, int32_t index, float* row) const {
    if (index < 0) {
        std::memset(row, 0, static_cast<std::size_t>(shape_.k_dim) * 4);
        return;
    }
    kernels_.kv.load_row[table.type](table.data + (index * table.row_stride + head * table.head_stride) * type_bytes(table.type), row, shape_.k_dim);
}

void relative_walker::add_bias(const relative_table& bias, int32_t head, float* q) const {
    if (bias.data == nullptr) return;
    load_table_row(bias, head, 0, w_.panel_rows);
    kernels_.attention.fold(q, w_.panel_rows, 1.0f, 1.0f, shape_.k_dim);
}

void relative_walker::load_row(int32_t r, int32_t head, float* q) noexcept {
    const auto keep = [&](float* rows, const relative_table& bias) {
        float* row = rows + int64_t{r} * shape_.k_dim;
        std::memcpy(row, q, static_cast<std::size_t>(shape_.k_dim) * 4);
        add_bias(bias, head, row);
    };
    if (shape_.relative.rows) keep(w_.q, inputs_.position_bias);
    if (shape_.relative.segments) keep(w_.q_segment, inputs_.segment_bias);
    add_bias(inputs_.content_bias, head, q);
}

// Calls f(head, first, last) for each head of the table that the block's heads have: it is that of heads [first, last) of the group.
template <class F>
void relative_walker::for_heads(const relative_table& table, F f) const {
    const int32_t head = block_.kv_head * shape_.group;
    if (table.head_stride == 0) return f(head, 0, shape_.group);
    for (int32_t g = 0; g < shape_.group; ++g) f(head + g, g, g + 1);
}

// 16 rows of a table become a panel. Rows that lie evenly, as those of neighbouring distances mostly do, need no copy.
void relative_walker::pack(const relative_table& table, int32_t head, const int32_t* indices) const {
    const kv_part part{reinterpret_cast<std::byte*>(w_.panel), nullptr, panel};
    const int32_t step = indices[1] - indices[0];
    bool even = table.type == fp32 && indices[0] >= 0;
    for (int32_t i = 1; i < panel; ++i) even = even && indices[i] >= 0 && indices[i] - indices[i - 1] == step;
    if (even) {
        const auto* first = reinterpret_cast<const float*>(table.data) + indices[0] * table.row_stride + head * table.head_stride;
        return kernels_.kv.pack_k[fp32](first, step * table.row_stride, shape_.k_dim, part, 0, panel);
    }
    for (int32_t i = 0; i < panel; ++i) load_table_row(table, head, indices[i], w_.panel_rows + int64_t{i} * shape_.k_dim);
    kernels_.kv.pack_k[fp32](w_.panel_rows, shape_.k_dim, shape_.k_dim, part, 0, panel);
}

// Tokens [first, first + count) of head g of the group times the packed panel.
void relative_walker::dots(const float* q, int32_t g, int32_t first, int32_t count, float* out, int64_t out_stride) const {
    const int64_t stride = int64_t{shape_.group} * shape_.k_dim;
    kernels_.attention.qk[fp32][fma_fp32]({q + first * stride + int64_t{g} * shape_.k_dim,
                                           stride,
                                           count,
                                           shape_.k_dim,
                                           reinterpret_cast<const std::byte*>(w_.panel),
                                           nullptr,
                                           1,
                                           out,
                                           out_stride,
                                           {}});
}

// Every row of the block times the same rows of a table: out [rows][16].
void relative_walker::per_row(const relative_table& table, const float* q, const int32_t* indices, float* out) const {
    for_heads(table, [&](int32_t head, int32_t first, int32_t last) {
        pack(table, head, indices);
        for (int32_t g = first; g < last; ++g) dots(q, g, 0, tokens_, out + g * panel, int64_t{shape_.group} * panel);
    });
}

// Rows of the column table, as stored keys are wide, times a panel of keys: out [count][16].
void relative_walker::key_dots(const float* q, int32_t count, const key_panel& keys, float* out) const {
    kernels_.attention.qk[shape_.k_type][fma_fp32]({q, shape_.k_pad, count, shape_.k_pad, keys.k, keys.scales, 1, out, panel, {}});
}

void relative_walker::load_segments() noexcept {
    if (!shape_.relative.segments) return;
    int32_t indices[panel] = {0, 1};
    std::fill(indices + 2, indices + panel, -1);
    per_row(inputs_.segments, w_.q_segment, indices, w_.pairs);
    for (int32_t r = 0; r < rows_; ++r) w_.row_segments[r] = inputs_.q_segments[block_.q_row + r / shape_.group];
}

void relative_walker::add(int64_t begin, const key_panel* panels, int32_t count, float* scores) noexcept {
    if (shape_.relative.rows || shape_.relative.columns) {
        const int64_t most = block_.position + tokens_ - 1 - begin, least = block_.position - begin - (count * panel - 1);
        const int32_t index = index_of(least);
        int64_t delta = least;
        while (delta < most && index_of(delta + 1) == index) ++delta;
        if (delta == most) {
            add_constants(index, panels, count, scores);
        } else {
            if (shape_.relative.rows) add_row_terms(begin, count, scores);
            if (shape_.relative.columns) add_column_terms(begin, panels, count, scores);
        }
    }
    if (shape_.relative.segments) add_segments(begin, count, scores);
}

// Column x of the block's distances is that of token i and key begin + x + i - shift: a panel begins where token 0, 16, .. does.
void relative_walker::add_row_terms(int64_t begin, int32_t panels, float* scores) const {
    const int32_t shift = std::min(tokens_, panel) - 1, last_column = panels * panel - 1 + shift;
    for_heads(inputs_.rows, [&](int32_t head, int32_t first, int32_t last) {
        for (int32_t x = -((tokens_ - 1) / panel) * panel; x <= last_column; x += panel) {
            int32_t indices[panel];
            for (int32_t i = 0; i < panel; ++i) indices[i] = index_of(block_.position - begin - (x + i - shift));
            pack(inputs_.rows, head, indices);
            const int32_t token = std::max(0, shift - (panel - 1) - x), end = std::min(tokens_, last_column - x + 1);
            for (int32_t g = first; g < last; ++g) {
                float* window = w_.window + (int64_t{g} * tokens_ + token) * window_stride;
                dots(w_.q, g, token, end - token, window + x + token + panel - 1 - shift, window_stride + 1);
            }
        }
        for (int32_t g = first; g < last; ++g) {
            kernels_.attention.relative.add_rows(scores + g * tile_tokens, int64_t{shape_.group} * tile_tokens, tokens_, panels * panel,
                                                 w_.window + int64_t{g} * tokens_ * window_stride + panel - 1, window_stride);
        }
    });
}

void relative_walker::add_column_terms(int64_t begin, const key_panel* panels, int32_t count, float* scores) const {
    const int64_t least = block_.position - begin - (count * panel - 1);
    const int32_t distances = tokens_ + count * panel - 1;
    for_heads(inputs_.columns, [&](int32_t head, int32_t first, int32_t last) {
        for (int32_t i = 0; i < distances; ++i) load_column(head, index_of(least + i), w_.columns + int64_t{i} * shape_.k_pad);
        for (int32_t p = 0; p < count; ++p) {
            key_dots(w_.columns + int64_t{count - 1 - p} * panel * shape_.k_pad, tokens_ + panel - 1, panels[p], w_.column_terms);
            for (int32_t g = first; g < last; ++g) {
                kernels_.attention.relative.add_diagonals(scores + g * tile_tokens + p * panel, int64_t{shape_.group} * tile_tokens, tokens_,
                                                          w_.column_terms);
            }
        }
    });
}

// A row of C as q meets stored keys: turned if they are, zero where they are padded.
void relative_walker::load_column(int32_t head, int32_t index, float* row) const {
    load_table_row(inputs_.columns, head, index, row);
    if (shape_.hadamard) kernels_.kv.hadamard(row, shape_.k_dim);
    std::fill(row + shape_.k_dim, row + shape_.k_pad, 0.0f);
}

void relative_walker::add_constants(int32_t index, const key_panel* panels, int32_t count, float* scores) {
    if (shape_.relative.rows) {
        if (index != constant_index_) {
            int32_t indices[panel] = {index};
            std::fill(indices + 1, indices + panel, -1);
            per_row(inputs_.rows, w_.q, indices, w_.constants);
            constant_index_ = index;
        }
        kernels_.attention.relative.add_pairs(scores, tile_tokens, rows_, count * panel, w_.constants, panel, nullptr, nullptr);
    }
    if (!shape_.relative.columns) return;
    for_heads(inputs_.columns, [&](int32_t head, int32_t first, int32_t last) {
        load_column(head, index, w_.columns);
        for (int32_t p = 0; p < count; ++p) key_dots(w_.columns, 1, panels[p], w_.column_terms + p * panel);
        for (int32_t g = first; g < last; ++g) {
            kernels_.attention.relative.add_rows(scores + g * tile_tokens, int64_t{shape_.group} * tile_tokens, tokens_, count * panel,
                                                 w_.column_terms, 0);
        }
    });
}

void relative_walker::add_segments(int64_t begin, int32_t panels, float* scores) const {
    const int64_t keys = std::min<int64_t>(panels * panel, block_.kv_len - begin);
    for (int64_t t = 0; t < panels * panel; ++t) w_.key_segments[t] = t < keys ? inputs_.k_segments[block_.kv_row + begin + t] : 0.0f;
    kernels_.attention.relative.add_pairs(scores, tile_tokens, rows_, panels * panel, w_.pairs, panel, w_.row_segments, w_.key_segments);
}

}  // namespace ropewalk::simd
