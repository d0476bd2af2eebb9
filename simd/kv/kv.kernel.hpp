// Conversion of rows, and packing of fp32 rows into the K and V parts of a page (layout: kv_pages.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/core/kernels.hpp"
#include "simd/core/quantise.hpp"
#include "simd/core/row.hpp"
#include "simd/core/shuffle.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

// A row as vectors, zero from its end to the next multiple of 32.
class padded_row {
public:
    padded_row() = default;
    ROPEWALK_INLINE padded_row(const float* row, int32_t n) : row_(row), whole_(n / panel * panel) {
        std::memset(tail_, 0, sizeof tail_);
        if (n != whole_) std::memcpy(tail_, row + whole_, static_cast<std::size_t>(n - whole_) * sizeof(float));
    }
    ROPEWALK_INLINE vf at(int32_t d) const { return load(d < whole_ ? row_ + d : tail_ + (d - whole_)); }

private:
    const float* row_;
    int32_t whole_;
    float tail_[2 * panel];
};

// ---- quantisation --------------------------------------------------------------------------------------------------------------------------

ROPEWALK_INLINE bool finite(float x) { return x * 0.0f == 0.0f; }

// A row on its way into a page: values(d) are what store_as takes, codes(d) the element's bits in the low end of each word, of dims d .. d + lanes
// - 1.
template <int type>
class page_row {
public:
    page_row() = default;
    ROPEWALK_INLINE page_row(const float* row, int32_t n) : row_(row, n) {
        if constexpr (token_scaled(type)) find_scale(n);
    }
    ROPEWALK_INLINE vf values(int32_t d) const {
        if constexpr (token_scaled(type)) return finite_ ? row_.at(d) * vf(range_.inverse) : zero();
        return row_.at(d);
    }
    ROPEWALK_INLINE vi codes(int32_t d) const {
        if constexpr (type == int8) return nearest(values(d)) & vi(0xff);
        return to_bf16_words(values(d));
    }
    ROPEWALK_INLINE float scale() const { return range_.scale; }

private:
    void find_scale(int32_t n) {
        constexpr auto most = static_cast<float>(largest_code(type));
        vf largest = zero(), sum = zero();
        for (int32_t d = 0; d < n; d += lanes) {
            largest = maximum(xsimd::abs(row_.at(d)), largest);
            sum = fmadd(row_.at(d), zero(), sum);  // NaN if one is Inf or NaN
        }
        finite_ = xsimd::all(sum == sum);
        range_ = code_range_of(reduce_maximum(largest), finite_, most);
    }

    padded_row row_;
    code_range range_;
    bool finite_;
};

inline constexpr int32_t most_groups = max_head_dim / scale_group;

template <>
class page_row<int4> {
public:
    page_row() = default;
    page_row(const float* row, int32_t n) : row_(row, n), dims_(n) {
        alignas(64) float lowest[most_groups] = {}, highest[most_groups] = {};
        for (int32_t g = 0; g * scale_group < n; ++g) find_range(row + g * scale_group, n - g * scale_group, lowest[g], highest[g]);
        for (int32_t g = 0; g * scale_group < n; g += lanes) {
            store_fp16(scale_ + g, divide(load(highest + g) - load(lowest + g), vf(15.0f)));
            const vf scale = load_fp16(scale_ + g);
            store_fp16(mid_ + g, fmadd(scale, vf(8.0f), load(lowest + g) + zero()));  // + 0: no negative zero
            store(mid_value_ + g, load_fp16(mid_ + g));
            store(inverse_ + g, select(scale > zero(), divide(vf(1.0f), scale), zero()));
            store(highest + g, scale);
        }
        for (int32_t g = 0; g * scale_group < n; ++g) {
            finite_[g] = finite(highest[g]) && finite(mid_value_[g]);
            if (!finite_[g]) scale_[g] = mid_[g] = 0x7e00;
        }
    }
    ROPEWALK_INLINE vi codes(int32_t d) const {
        const int32_t g = d / scale_group;
        if (!finite_[g]) return vi(8);
        const vf mid(mid_value_[g]);
        vf x = row_.at(d);
        if (d + lanes > dims_) x = select(iota() + vf(static_cast<float>(d)) < vf(static_cast<float>(dims_)), x, mid);
        return xsimd::min(xsimd::max(nearest((x - mid) * vf(inverse_[g])) + vi(8), vi(0)), vi(15));
    }
    const uint16_t* scales() const { return scale_; }
    const uint16_t* mids() const { return mid_; }

private:
    // Of the first n values, at most a group; NaN if one is Inf or NaN.
    static void find_range(const float* x, int32_t n, float& lowest, float& highest) {
        if (n > scale_group) n = scale_group;
        vf low(x[0]), high(x[0]), sum = zero();
        int32_t i = 0;
        for (; i + lanes <= n; i += lanes) {
            low = minimum(load(x + i), low);
            high = maximum(load(x + i), high);
            sum = fmadd(load(x + i), zero(), sum);
        }
        for (; i < n; ++i) {
            low = minimum(vf(x[i]), low);
            high = maximum(vf(x[i]), high);
            sum = fmadd(vf(x[i]), zero(), sum);
        }
        lowest = -reduce_maximum(zero() - low);
        highest = xsimd::all(sum == sum) ? reduce_maximum(high) : __builtin_nanf("");
    }

    padded_row row_;
    int32_t dims_;
    uint16_t scale_[most_groups], mid_[most_groups];
    float inverse_[most_groups], mid_value_[most_groups];
    bool finite_[most_groups];
};

// ---- K: tokens in lanes --------------------------------------------------------------------------------------------------------------------

// Types whose words are moved as they are; the others are moved as fp32 and narrowed at the end.
template <int type>
inline constexpr bool moves_words = type == fp32 || word_elements(type) > 1;
template <int type>
inline constexpr int32_t word_bytes = word_elements(type) * type_bits(type) / 8;

// One step's tokens of a panel.
template <int type>
ROPEWALK_INLINE void store_step(std::byte* step, int vector, vi words) {
    if constexpr (moves_words<type>) {
        store_words(step + vector * lanes * 4, words);
    } else {
        store_as<type>(step + vector * lanes * word_bytes<type>, as_float(words));
    }
}

// 16 rows of `steps` words, row_stride words apart, become steps first_step .. of a panel. Rows hold at least `lanes` words; of those beyond `steps`,
// if any, nothing is stored. The last square overlaps the one before.
template <int type>
ROPEWALK_INLINE void transpose_rows(const void* rows, int64_t row_stride, int32_t steps, std::byte* out, int32_t first_step) {
    const auto* words = static_cast<const std::byte*>(rows);
    const int32_t stored = steps < lanes ? steps : lanes;
    for (int32_t j = 0; j < steps; j += lanes) {
        const int32_t at = j + lanes <= steps || j == 0 ? j : steps - lanes;
        for (int vector = 0; vector < panel_vectors; ++vector) {
            vi square[lanes];
            for (int i = 0; i < lanes; ++i) square[i] = load_words(words + ((vector * lanes + i) * row_stride + at) * 4);
            transpose(square);
            if (stored == lanes) {
                for (int i = 0; i < lanes; ++i) store_step<type>(out + k_step_offset(type, first_step + at + i), vector, square[i]);
            } else {
                for (int i = 0; i < lanes; ++i) {
                    if (i < stored) store_step<type>(out + k_step_offset(type, first_step + at + i), vector, square[i]);
                }
            }
        }
    }
}

// Elements of a row that are converted before they are moved: 16 rows of them take 4 KiB as bf16.
inline constexpr int32_t chunk_elements = 128;

// Dims d .. d + n - 1 of a row as they lie in a page's words, one after the other; `out` has room for n rounded up to 16 elements.
template <int type>
ROPEWALK_INLINE void encode(const page_row<type>& row, int32_t d, int32_t n, std::byte* out) {
    if constexpr (type == int8) {
        for (int32_t i = 0; i < n; i += lanes) store_u8(out + i, row.codes(d + i));
    } else if constexpr (type == int4) {
        std::byte codes[chunk_elements];
        for (int32_t i = 0; i < n; i += lanes) store_u8(codes + i, row.codes(d + i));
        for (int32_t i = 0; i < n; i += 8) {
            uint32_t low, high;
            std::memcpy(&low, codes + i, 4);
            std::memcpy(&high, codes + i + 4, 4);
            low |= high << 4;
            std::memcpy(out + i / 2, &low, 4);
        }
    } else {
        for (int32_t i = 0; i < n; i += lanes) store_as<type>(out + i * word_bytes<type> / word_elements(type), row.values(d + i));
    }
}

// The scales of one token of a K part.
template <int type>
ROPEWALK_INLINE void store_k_scales(const page_row<type>& row, int32_t stored, const kv_part& part, int32_t token) {
    if constexpr (type == int4) {
        std::byte* line = part.elements + token / panel * panel_bytes(type, stored) + int4_scale_offset;
        for (int32_t g = 0; g < stored / scale_group; ++g, line += int4_scale_offset + 64) {
            std::memcpy(line + token % panel * 2, row.scales() + g, 2);
            std::memcpy(line + (panel + token % panel) * 2, row.mids() + g, 2);
        }
    } else if constexpr (token_scaled(type)) {
        reinterpret_cast<float*>(part.scales)[token] = row.scale();
    }
}

template <int type>
void pack_panel(const float* rows, int64_t row_stride, int32_t k_dim, const kv_part& part, int32_t token) {
    const int32_t stored = stored_k_dim(type, k_dim);
    std::byte* out = part.elements + token / panel * panel_bytes(type, stored);
    if constexpr (type == fp32 || type == fp16) {
        if (k_dim >= lanes) return transpose_rows<type>(rows, row_stride, k_dim, out, 0);
    }
    constexpr int32_t g = moves_words<type> ? word_elements(type) : 1;
    constexpr int held = moves_words<type> ? type : fp32;
    page_row<type> page_rows[panel];
    for (int32_t row = 0; row < panel; ++row) {
        page_rows[row] = page_row<type>(rows + row * row_stride, k_dim);
        store_k_scales<type>(page_rows[row], stored, part, token + row);
    }
    for (int32_t d = 0; d < stored; d += chunk_elements) {
        alignas(64) std::byte copy[panel][chunk_elements / g * 4];
        const int32_t n = stored - d < chunk_elements ? stored - d : chunk_elements;
        for (int32_t row = 0; row < panel; ++row) {
            if (n < chunk_elements) std::memset(copy[row], 0, sizeof copy[row]);
            if constexpr (held == type) {
                encode<type>(page_rows[row], d, n, copy[row]);
            } else {
                for (int32_t i = 0; i < n; i += lanes) store(reinterpret_cast<float*>(copy[row]) + i, page_rows[row].values(d + i));
            }
        }
        transpose_rows<type>(copy, chunk_elements / g, (n + g - 1) / g, out, d / g);
    }
}

// One token: a word of every step.
template <int type>
void pack_token(const float* row, int32_t k_dim, const kv_part& part, int32_t token) {
    constexpr int32_t g = word_elements(type);
    const int32_t stored = stored_k_dim(type, k_dim);
    const page_row<type> page(row, k_dim);
    store_k_scales<type>(page, stored, part, token);
    std::byte* out = part.elements + token / panel * panel_bytes(type, stored) + token % panel * word_bytes<type>;
    for (int32_t d = 0; d < stored; d += chunk_elements) {
        const int32_t n = stored - d < chunk_elements ? stored - d : chunk_elements;
        alignas(64) std::byte copy[chunk_elements / g * word_bytes<type>];
        encode<type>(page, d, n, copy);
        for (int32_t j = 0; j < n / g; ++j) std::memcpy(out + k_step_offset(type, d / g + j), copy + j * word_bytes<type>, word_bytes<type>);
    }
}

template <int type>
void pack_k(const float* rows, int64_t row_stride, int32_t k_dim, const kv_part& part, int32_t first, int32_t count) {
    for (int32_t token = first; token < first + count;) {
        const float* row = rows + (token - first) * row_stride;
        if (token % panel == 0 && first + count - token >= panel) {
            pack_panel<type>(row, row_stride, k_dim, part, token);
            token += panel;
        } else {
            pack_token<type>(row, k_dim, part, token);
            ++token;
        }
    }
}

// ---- V: dims in lanes ----------------------------------------------------------------------------------------------------------------------

// Two tokens that fill their words.
void pack_v_pair(const float* even_row, const float* odd_row, int32_t v_dim, std::byte* out) {
    const padded_row even(even_row, v_dim), odd(odd_row, v_dim);
    for (int32_t d = 0; d < v_dim; d += panel) {
        for (int32_t i = d; i < d + panel; i += lanes) store_words(out + i * 4, join_bf16(even.at(i), odd.at(i)));
    }
}

// Where element e of a word lies in it.
template <int type>
constexpr int32_t element_shift(int32_t e) {
    return type == int4 ? e % 4 * 8 + e / 4 * 4 : e * type_bits(type);
}

template <int type>
ROPEWALK_INLINE void store_v_scales(const page_row<type>& row, int32_t stored, const kv_part& part, int32_t token) {
    if constexpr (type == int4) {
        const int32_t groups = stored / scale_group;
        auto* scales = reinterpret_cast<uint16_t*>(part.scales) + token;
        for (int32_t g = 0; g < groups; ++g) {
            scales[g * part.page_tokens] = row.scales()[g];
            scales[(groups + g) * part.page_tokens] = row.mids()[g];
        }
    } else if constexpr (token_scaled(type)) {
        reinterpret_cast<float*>(part.scales)[token] = row.scale();
    }
}

// Tokens of one word: their elements; the partners keep their own.
template <int type>
void pack_v_word(const float* rows, int64_t row_stride, int32_t v_dim, const kv_part& part, int32_t first, int32_t count) {
    constexpr int32_t g = word_elements(type);
    const int32_t stored = stored_v_dim(type, v_dim);
    page_row<type> page_rows[g];
    uint32_t own = 0;
    for (int32_t i = 0; i < count; ++i) {
        page_rows[i] = page_row<type>(rows + i * row_stride, v_dim);
        store_v_scales<type>(page_rows[i], stored, part, first + i);
        own |= ((1u << type_bits(type)) - 1) << element_shift<type>((first + i) % g);
    }
    std::byte* out = part.elements + first / g * (int64_t{stored} * 4);
    for (int32_t d = 0; d < stored; d += lanes) {
        vi words = load_words(out + d * 4) & vi(static_cast<int32_t>(~own));
        for (int32_t i = 0; i < count; ++i) words = words | page_rows[i].codes(d) << element_shift<type>((first + i) % g);
        store_words(out + d * 4, words);
    }
}

template <int type>
void pack_v(const float* rows, int64_t row_stride, int32_t v_dim, const kv_part& part, int32_t first, int32_t count) {
    constexpr int32_t g = word_elements(type);
    const int32_t stored = stored_v_dim(type, v_dim), end = first + count;
    for (int32_t token = first; token < end;) {
        const float* row = rows + (token - first) * row_stride;
        if constexpr (g == 1) {
            const page_row<type> page(row, v_dim);
            store_v_scales<type>(page, stored, part, token);
            std::byte* out = part.elements + token * (int64_t{stored} * word_bytes<type>);
            for (int32_t d = 0; d < stored; d += lanes) store_as<type>(out + d * word_bytes<type>, page.values(d));
            ++token;
        } else {
            const int32_t next = (token / g + 1) * g, together = (next < end ? next : end) - token;
            if (type == bf16 && together == g) {
                pack_v_pair(row, row + row_stride, v_dim, part.elements + token / g * (int64_t{stored} * 4));
            } else {
                pack_v_word<type>(row, row_stride, v_dim, part, token, together);
            }
            token += together;
        }
    }
}

// Fast Walsh-Hadamard transform: log2(block) passes of sums and differences. Blocks are at least 16, a multiple of every vector.
void hadamard(float* row, int32_t dim) {
    const int32_t block = hadamard_block(dim);
    for (int32_t half = 1; half < lanes; half *= 2) {
        for (float* x = row; x < row + dim; x += 2 * half) {
            for (int32_t i = 0; i < half; ++i) {
                const float a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
    for (int32_t half = lanes; half < block; half *= 2) {
        for (float* x = row; x < row + dim; x += 2 * half) {
            for (int32_t i = 0; i < half; i += lanes) {
                const vf a = load(x + i), b = load(x + half + i);
                store(x + i, a + b);
                store(x + half + i, a - b);
            }
        }
    }
    const vf factor(1.0f / __builtin_sqrtf(static_cast<float>(block)));
    for (int32_t d = 0; d < dim; d += lanes) store(row + d, load(row + d) * factor);
}

template <int type>
void fill_page_type(kv_kernels& table) {
    table.pack_k[type] = pack_k<type>;
    table.pack_v[type] = pack_v<type>;
}

template <int type>
void fill_tensor_type(kv_kernels& table) {
    table.load_row[type] = load_row<type>;
    table.store_row[type] = store_row<type>;
    fill_page_type<type>(table);
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
