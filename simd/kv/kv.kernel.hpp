// Conversion of rows, and packing of fp32 rows into the K and V parts of a page (layout: kv_pages.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/core/kernels.hpp"
#include "simd/core/shuffle.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

template <int type>
using storage = std::conditional_t<type == fp32, float, uint16_t>;

// ---- rows -------------------------------------------------------------------------------------------------------------------------------

// Converts n elements; the last vector overlaps the one before, and fewer than a vector go through a padded copy.
template <int from, int to>
void convert(const storage<from>* source, storage<to>* target, int64_t n) {
    if (n < lanes) {
        storage<from> in[lanes] = {};
        storage<to> out[lanes];
        std::memcpy(in, source, static_cast<std::size_t>(n) * sizeof(*in));
        store_as<to>(out, load_as<from>(in));
        std::memcpy(target, out, static_cast<std::size_t>(n) * sizeof(*out));
        return;
    }
    for (int64_t i = 0; i + lanes <= n; i += lanes) store_as<to>(target + i, load_as<from>(source + i));
    if (n % lanes != 0) store_as<to>(target + n - lanes, load_as<from>(source + n - lanes));
}

template <int type>
void load_row(const void* source, float* row, int64_t n) {
    convert<type, fp32>(static_cast<const storage<type>*>(source), row, n);
}

template <int type>
void store_row(const float* row, void* target, int64_t n) {
    convert<fp32, type>(row, static_cast<storage<type>*>(target), n);
}

// ---- K: tokens in lanes --------------------------------------------------------------------------------------------------------------------

// Bytes of one step of a panel: [16 tokens][g].
template <int type>
inline constexpr int32_t step_bytes = word_elements(type) * type_bytes(type) * panel;

// One step's tokens of a panel: words of fp32 or of two bf16 as they are, fp16 narrowed from fp32.
template <int type>
ROPEWALK_INLINE void store_step(std::byte* step, int vector, vi words) {
    if constexpr (type == fp16) {
        store_fp16(step + vector * lanes * 2, as_float(words));
    } else {
        store_words(step + vector * lanes * 4, words);
    }
}

// 16 rows of `steps` words, row_stride words apart, become `steps` steps of a panel. Rows hold at least `lanes` words; of those beyond `steps`,
// if any, nothing is stored. The last square overlaps the one before.
template <int type>
ROPEWALK_INLINE void transpose_rows(const void* rows, int64_t row_stride, int32_t steps, std::byte* out) {
    const auto* words = static_cast<const std::byte*>(rows);
    const int32_t stored = steps < lanes ? steps : lanes;
    for (int32_t j = 0; j < steps; j += lanes) {
        const int32_t at = j + lanes <= steps || j == 0 ? j : steps - lanes;
        for (int vector = 0; vector < panel_vectors; ++vector) {
            vi square[lanes];
            for (int i = 0; i < lanes; ++i) square[i] = load_words(words + ((vector * lanes + i) * row_stride + at) * 4);
            transpose(square);
            if (stored == lanes) {
                for (int i = 0; i < lanes; ++i) store_step<type>(out + (at + i) * step_bytes<type>, vector, square[i]);
            } else {
                for (int i = 0; i < lanes; ++i) {
                    if (i < stored) store_step<type>(out + (at + i) * step_bytes<type>, vector, square[i]);
                }
            }
        }
    }
}

// Elements of a row that are converted before they are moved: 16 rows of them take 4 KiB as bf16.
inline constexpr int32_t chunk_elements = 128;

template <int type>
void pack_panel(const float* rows, int64_t row_stride, int32_t k_dim, std::byte* out) {
    if (type != bf16 && k_dim >= lanes) return transpose_rows<type>(rows, row_stride, k_dim, out);
    constexpr int32_t g = word_elements(type);
    for (int32_t d = 0; d < k_dim; d += chunk_elements) {
        constexpr int32_t held = type == bf16 ? bf16 : fp32;               // fp16 is narrowed after the transpose
        constexpr int32_t copied = type == bf16 ? chunk_elements : lanes;  // of the others only rows below a vector come here
        const int32_t n = k_dim - d < copied ? k_dim - d : copied;
        storage<held> copy[panel][copied];
        for (int32_t row = 0; row < panel; ++row) {
            if (n < copied) std::memset(copy[row], 0, sizeof copy[row]);
            convert<fp32, held>(rows + row * row_stride + d, copy[row], n);
        }
        transpose_rows<type>(copy, copied / g, (n + g - 1) / g, out + d / g * step_bytes<type>);
    }
}

// One token: a word of every step.
template <int type>
void pack_token(const float* row, int32_t k_dim, std::byte* out, int32_t lane) {
    constexpr int32_t g = word_elements(type);
    constexpr std::size_t word = static_cast<std::size_t>(g) * type_bytes(type);
    out += static_cast<std::size_t>(lane) * word;
    for (int32_t d = 0; d < k_dim; d += chunk_elements) {
        const int32_t n = k_dim - d < chunk_elements ? k_dim - d : chunk_elements;
        storage<type> copy[chunk_elements];
        const storage<type>* from = copy;
        if constexpr (type == fp32) {
            from = row + d;
        } else {
            if (n % g != 0) copy[n] = 0;
            convert<fp32, type>(row + d, copy, n);
        }
        for (int32_t j = 0; j < n; j += g) std::memcpy(out + (d + j) / g * step_bytes<type>, from + j, word);
    }
}

template <int type>
void pack_k(const float* rows, int64_t row_stride, int32_t k_dim, std::byte* k_part, int32_t first, int32_t count) {
    constexpr int32_t g = word_elements(type);
    const int64_t panel_bytes = int64_t{(k_dim + g - 1) / g} * step_bytes<type>;
    for (int32_t token = first; token < first + count;) {
        std::byte* out = k_part + token / panel * panel_bytes;
        const float* row = rows + (token - first) * row_stride;
        if (token % panel == 0 && first + count - token >= panel) {
            pack_panel<type>(row, row_stride, k_dim, out);
            token += panel;
        } else {
            pack_token<type>(row, k_dim, out, token % panel);
            ++token;
        }
    }
}

// ---- V: dims in lanes ----------------------------------------------------------------------------------------------------------------------

// A row as vectors, zero from its end to the next multiple of 16.
class padded_row {
public:
    ROPEWALK_INLINE padded_row(const float* row, int32_t n) : row_(row), whole_(n / panel * panel) {
        if (n == whole_) return;
        std::memset(tail_, 0, sizeof tail_);
        std::memcpy(tail_, row + whole_, static_cast<std::size_t>(n - whole_) * sizeof(float));
    }
    ROPEWALK_INLINE vf at(int32_t d) const { return load(d < whole_ ? row_ + d : tail_ + (d - whole_)); }

private:
    const float* row_;
    int32_t whole_;
    float tail_[panel];
};

// Two tokens that fill their words.
void pack_v_words(const float* even_row, const float* odd_row, int32_t v_dim, std::byte* out) {
    const padded_row even(even_row, v_dim), odd(odd_row, v_dim);
    for (int32_t d = 0; d < v_dim; d += panel) {
        for (int32_t i = d; i < d + panel; i += lanes) store_words(out + i * 4, join_bf16(even.at(i), odd.at(i)));
    }
}

// One token: its half of every word; the partner keeps its own.
void pack_v_half(const float* token_row, int32_t v_dim, std::byte* out, bool odd) {
    const padded_row row(token_row, v_dim);
    const vi partner(static_cast<int32_t>(odd ? 0x0000ffffu : 0xffff0000u));
    for (int32_t d = 0; d < v_dim; d += panel) {
        for (int32_t i = d; i < d + panel; i += lanes) {
            const vi own = odd ? to_bf16_words(row.at(i)) << 16 : to_bf16_words(row.at(i));
            store_words(out + i * 4, (load_words(out + i * 4) & partner) | own);
        }
    }
}

template <int type>
void pack_v(const float* rows, int64_t row_stride, int32_t v_dim, std::byte* v_part, int32_t first, int32_t count) {
    const int64_t line_bytes = int64_t{(v_dim + panel - 1) / panel} * panel * word_elements(type) * type_bytes(type);
    for (int32_t token = first; token < first + count; ++token) {
        std::byte* out = v_part + token / word_elements(type) * line_bytes;
        const float* row = rows + (token - first) * row_stride;
        if constexpr (type != bf16) {
            const padded_row padded(row, v_dim);
            for (int32_t d = 0; d < v_dim; d += panel) {
                for (int32_t i = d; i < d + panel; i += lanes) store_as<type>(out + i * type_bytes(type), padded.at(i));
            }
        } else if (token % 2 == 0 && token + 1 < first + count) {
            pack_v_words(row, row + row_stride, v_dim, out);
            ++token;
        } else {
            pack_v_half(row, v_dim, out, token % 2 != 0);
        }
    }
}

template <int type>
void fill_type(kv_kernels& table) {
    table.load_row[type] = load_row<type>;
    table.store_row[type] = store_row<type>;
    table.pack_k[type] = pack_k<type>;
    table.pack_v[type] = pack_v<type>;
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
