// Adding vector relative terms, element by element: the scalar target.
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {
namespace {

void add_rows(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* term, int64_t term_stride) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < tokens; ++t) scores[r * score_stride + t] += term[r * term_stride + t];
    }
}

void add_diagonals(float* scores, int64_t score_stride, int32_t rows, const float* term) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < panel; ++t) scores[r * score_stride + t] += term[(r - t + panel - 1) * panel + t];
    }
}

void add_pairs(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* pair, int64_t pair_stride, const float* row_segments,
               const float* segments) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < tokens; ++t) {
            const bool other = segments != nullptr && segments[t] != row_segments[r];
            scores[r * score_stride + t] += pair[r * pair_stride + (other ? 1 : 0)];
        }
    }
}

}  // namespace

void fill_relative_attention(relative_kernels& table) { table = {add_rows, add_diagonals, add_pairs}; }

}  // namespace ropewalk::simd::scalar
