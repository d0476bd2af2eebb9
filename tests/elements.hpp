// Elements of any dtype as doubles, and every target whose kernels run here. Written apart from the library's conversions, from the definition of the
// formats, so that the two check each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <ropewalk/isa.hpp>
#include <ropewalk/types.hpp>
#include "simd/core/dispatch.hpp"

namespace ropewalk::test {

inline constexpr dtype all_types[] = {dtype::fp32, dtype::bf16, dtype::fp16};
inline constexpr target all_targets[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};

// The targets whose kernels a test should go through: all that run here, or the one that ROPEWALK_ISA names, which is how ctest runs every binary
// once for each target.
inline std::vector<target> available_targets() {
    const char* wanted = std::getenv("ROPEWALK_ISA");
    std::vector<target> found;
    for (const target t : all_targets) {
        if (simd::kernels_of(t) != nullptr && (wanted == nullptr || wanted == name(t))) found.push_back(t);
    }
    return found;
}

// Those that are compared with the scalar one.
inline std::vector<target> vector_targets() {
    std::vector<target> found = available_targets();
    std::erase(found, target::scalar);
    return found;
}

// Significant bits after the leading one and least exponent of a normal number.
struct element_format {
    int fraction_bits, least_exponent;
};
inline element_format format_of(dtype type) {
    return type == dtype::fp32 ? element_format{23, -126} : type == dtype::bf16 ? element_format{7, -126} : element_format{10, -14};
}
// Half a unit in the last place of 1: the relative error of rounding to nearest.
inline double unit_roundoff(dtype type) { return std::ldexp(1.0, -format_of(type).fraction_bits - 1); }
// The absolute error of rounding a subnormal number.
inline double subnormal_error(dtype type) { return std::ldexp(1.0, format_of(type).least_exponent - format_of(type).fraction_bits - 1); }

// Not inlined: g++ 12 would warn that the fp32 branch reads beyond a 16-bit element.
[[gnu::noinline]] inline double element_value(dtype type, const void* from) {
    if (type == dtype::fp32) {
        float value;
        std::memcpy(&value, from, sizeof value);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, from, sizeof bits);
    const element_format f = format_of(type);
    const int exponent_bits = 15 - f.fraction_bits, all_ones = (1 << exponent_bits) - 1;
    const int exponent = bits >> f.fraction_bits & all_ones, fraction = bits & ((1 << f.fraction_bits) - 1);
    const double sign = bits >> 15 != 0 ? -1.0 : 1.0;
    if (exponent == all_ones) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, f.least_exponent - f.fraction_bits);
    return sign * std::ldexp((1 << f.fraction_bits) + fraction, exponent - 1 + f.least_exponent - f.fraction_bits);
}

// Nearest element of the type, ties to even, for finite values: by rounding a multiple of the value's own unit.
[[gnu::noinline]] inline void set_element(dtype type, void* to, double value) {
    const element_format f = format_of(type);
    int exponent = f.least_exponent;
    if (value != 0.0) exponent = std::max(std::ilogb(value), f.least_exponent);
    const double unit = std::ldexp(1.0, exponent - f.fraction_bits);
    const double rounded = std::nearbyint(value / unit) * unit;
    if (type == dtype::fp32) {
        const auto single = static_cast<float>(rounded);
        std::memcpy(to, &single, sizeof single);
        return;
    }
    const double magnitude = std::abs(rounded);
    uint16_t bits = std::signbit(value) ? 0x8000 : 0;
    const int exponent_bits = 15 - f.fraction_bits;
    if (magnitude >= std::ldexp(1.0, (1 << (exponent_bits - 1)))) {
        bits = static_cast<uint16_t>(bits | ((1 << exponent_bits) - 1) << f.fraction_bits);
    } else if (magnitude != 0.0) {
        const int e = std::max(std::ilogb(magnitude), f.least_exponent);
        const auto fraction = static_cast<int>(std::ldexp(magnitude, f.fraction_bits - e));  // leading one included unless subnormal
        bits = static_cast<uint16_t>(bits | (((e - f.least_exponent) << f.fraction_bits) + fraction));
    }
    std::memcpy(to, &bits, sizeof bits);
}

}  // namespace ropewalk::test
