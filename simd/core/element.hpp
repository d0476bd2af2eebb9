// Scalar conversion of the element types, for the reference kernels and for baseline code. Integer arithmetic only, so that it gives on every host
// what F16C and Advanced SIMD give: to nearest even, subnormals kept, NaN quiet with the top of its payload.
//
// Not for ISA objects: these inline functions have one name for all targets.
#pragma once

#include <cstdint>
#include <cstring>

#include <ropewalk/types.hpp>
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {

inline float bits_to_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float fp16_to_float(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 0x1fu, fraction = half & 0x3ffu;
    if (exponent == 0x1f) return bits_to_float(sign | 0x7f800000u | fraction << 13 | (fraction != 0 ? 0x400000u : 0u));
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal: exact
    return bits_to_float(sign | float_to_bits(magnitude));
}

inline uint16_t float_to_fp16(float value) {
    const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    const auto half = [sign](uint32_t rest) { return static_cast<uint16_t>(sign | rest); };
    if (magnitude > 0x7f800000u) return half(0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) return half(0x7c00u);  // from 65520 on the nearest is infinity
    if (magnitude >= 0x38800000u) return half((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
    if (magnitude < 0x33000000u) return half(0);  // below 2^-25
    // Subnormal: units of 2^-24. `shift` is 14 to 24.
    const uint32_t fraction = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
    const uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return half(kept + (rest > tie || (rest == tie && (kept & 1u) != 0) ? 1u : 0u));
}

// OCP E4M3: bias 7, no infinity, 0x7f and 0xff are NaN (which pages never hold: kv_pages.hpp).
inline float fp8_to_float(uint8_t bits) {
    if ((bits & 0x7fu) == 0x7fu) return bits_to_float(0x7fc00000u | uint32_t{bits & 0x80u} << 24);
    return fp16_to_float(static_cast<uint16_t>((bits & 0x80u) << 8 | (bits & 0x7fu) << 7)) * 256.0f;  // fp16 has one exponent bit more, bias 15
}
// |value| <= 448.
inline uint8_t float_to_fp8(float value) {
    const uint32_t bits = float_to_bits(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    // Below 2^-6 in units of 2^-9, which is the spacing of floats at 2^14.
    const uint32_t code = magnitude < 0x3c800000u ? float_to_bits(bits_to_float(magnitude) + 16384.0f) - 0x46800000u
                                                  : ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - 960u;
    return static_cast<uint8_t>(sign | code);
}

// element<type>: how an element lies in memory, and the way to fp32 and back.
template <int type>
struct element {
    using storage = uint16_t;
    static float load(uint16_t bits) { return type == bf16 ? bf16_to_float(bits) : fp16_to_float(bits); }
    static uint16_t store(float value) { return type == bf16 ? float_to_bf16(value) : float_to_fp16(value); }
};
template <>
struct element<fp32> {
    using storage = float;
    static float load(float value) { return value; }
    static float store(float value) { return value; }
};

}  // namespace ropewalk::simd::scalar
