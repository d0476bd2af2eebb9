// Panels of K (tokens in lanes) become groups of V (dims in lanes): for pages in which V is a view of K.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd/core/kernels.hpp"
#include "simd/core/shuffle.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

// A vector of one step's words, of fp16 zero-extended; zeros behind the last step.
template <int type>
ROPEWALK_INLINE vi step_words(const std::byte* panel_start, int32_t steps, int32_t step, int vector) {
    if (step >= steps) return vi(0);
    const std::byte* at = panel_start + k_step_offset(type, step);
    if constexpr (type == fp16) return load_u16(at + vector * lanes * 2);
    return load_words(at + vector * lanes * 4);
}

// A square of words: `lanes` dims of a vector of token groups. A vector that is longer than the groups of a panel holds two runs of dims.
template <int type>
void k_to_v(const std::byte* k, int32_t k_dim, int32_t panels, int32_t v_dim, std::byte* v) {
    constexpr int g = word_elements(type), word_bytes = g * type_bits(type) / 8, groups = panel / g;
    constexpr int across = lanes < groups ? lanes : groups, runs = lanes / across;
    static_assert(runs == 1 || (runs == 2 && g == 2 && panel_vectors == 1));
    const int32_t steps = k_dim / g;
    for (int32_t p = 0; p < panels; ++p, k += panel_bytes(type, k_dim), v += v_bytes(type, v_dim, panel)) {
        for (int32_t d = 0; d < v_dim; d += runs * lanes) {
            for (int32_t group = 0; group < groups; group += across) {
                vi square[lanes];
                ROPEWALK_UNROLL for (int i = 0; i < lanes; i += g) {
                    const int32_t step = (d + i) / g, vector = group * g / lanes;
                    const vi words = step_words<type>(k, steps, step, vector);
                    if constexpr (g == 1) {
                        square[i] = words;
                    } else {
                        const vi next = step_words<type>(k, steps, runs == 2 ? step + lanes / g : step, runs == 2 ? 0 : vector + 1);
                        const vi even = as_int(even_lanes(as_float(words), as_float(next))), odd = as_int(odd_lanes(as_float(words), as_float(next)));
                        square[i] = join_rounded(even << 16, odd << 16);
                        square[i + 1] = join_rounded(even, odd);
                    }
                }
                transpose(square);
                ROPEWALK_UNROLL for (int i = 0; i < lanes; ++i) {
                    const int32_t dim = d + i / across * lanes;
                    if (runs == 2 && dim >= v_dim) continue;
                    std::byte* out = v + (int64_t{group + i % across} * v_dim + dim) * word_bytes;
                    if constexpr (type == fp16) {
                        store_u16(out, square[i]);
                    } else {
                        store_words(out, square[i]);
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
