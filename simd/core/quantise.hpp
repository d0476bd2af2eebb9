// The rule by which rows become codes of a type whose largest code is `most`: one for pages, queries and probabilities.
#pragma once

#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

struct code_range {
    float scale, inverse;  // value = scale * code, code = value * inverse
};

// `largest` is the largest magnitude of the row and `finite` tells that no value is Inf or NaN; else the scale is NaN, so that nothing of the row
// survives. Rows below 2^-100, whose inverse could overflow, become 0.
ROPEWALK_INLINE code_range code_range_of(float largest, bool finite, float most) {
    if (!finite) return {__builtin_nanf(""), 0.0f};
    if (largest < 0x1p-100f) return {0.0f, 0.0f};
    return {largest / most, most / largest};
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
