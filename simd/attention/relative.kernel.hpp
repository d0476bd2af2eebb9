// Adding vector relative terms to the scores of a tile. One source for every target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/attention/tiles.hpp"
#include "simd/core/kernels.hpp"
#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

void add_rows(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* term, int64_t term_stride) {
    for (int32_t r = 0; r < rows; ++r, scores += score_stride, term += term_stride) {
        for (int32_t t = 0; t < tokens; t += panel) {
            ROPEWALK_UNROLL for (int32_t i = t; i < t + panel; i += lanes) store(scores + i, load(scores + i) + load(term + i));
        }
    }
}

// Lane i of x[n] becomes lane i of x[n - i], for n >= lanes - 1: a blend for each bit of i. `rest` is what is left of the lanes' indices.
template <int Bit, int Count>
ROPEWALK_INLINE void skew(vf (&x)[Count], vf rest) {
    if constexpr (Bit > 0) {
        const vf bit(static_cast<float>(Bit));
        const vmask set = rest >= bit;
        _Pragma("GCC unroll 32") for (int n = Count - 1; n >= Bit; --n) x[n] = select(set, x[n - Bit], x[n]);
        skew<Bit / 2>(x, select(set, rest - bit, rest));
    }
}

void add_diagonals(float* scores, int64_t score_stride, int32_t rows, const float* term) {
    constexpr int count = 2 * lanes - 1;
    for (int32_t first = 0; first < rows; first += lanes) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            const float* from = term + int64_t{first + panel - lanes - v * lanes} * panel + v * lanes;
            vf x[count];
            _Pragma("GCC unroll 32") for (int n = 0; n < count; ++n) x[n] = load(from + n * panel);
            skew<lanes / 2>(x, iota());
            float* s = scores + first * score_stride + v * lanes;
            ROPEWALK_UNROLL for (int i = 0; i < lanes; ++i) {
                if (first + i < rows) store(s + i * score_stride, load(s + i * score_stride) + x[lanes - 1 + i]);
            }
        }
    }
}

void add_pairs(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* pair, int64_t pair_stride, const float* row_segments,
               const float* segments) {
    for (int32_t r = 0; r < rows; ++r, scores += score_stride, pair += pair_stride) {
        const vf same(pair[0]);
        if (segments == nullptr) {
            for (int32_t t = 0; t < tokens; t += lanes) store(scores + t, load(scores + t) + same);
            continue;
        }
        const vf other(pair[1]), own(row_segments[r]);
        for (int32_t t = 0; t < tokens; t += lanes) store(scores + t, load(scores + t) + select(load(segments + t) == own, same, other));
    }
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
