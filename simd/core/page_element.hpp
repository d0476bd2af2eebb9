// Single values of a K or V part, straight from the format of kv_pages.hpp: for the reference kernels and for what is not on the path of a step.
//
// Not for ISA objects: these inline functions have one name for all targets.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/core/element.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {

// Element e of the word that begins at `word`: its value in a type without scales, else its code.
template <int type>
float load_code(const std::byte* word, int32_t e) {
    if constexpr (type == int8) {
        return static_cast<float>(static_cast<int8_t>(word[e]));
    } else if constexpr (type == int4) {
        return static_cast<float>(std::to_integer<int>(word[e % 4]) >> (e < 4 ? 0 : 4) & 15);
    } else if constexpr (type == fp8) {
        return fp8_to_float(std::to_integer<uint8_t>(word[e]));
    } else {
        typename element<type>::storage bits;
        std::memcpy(&bits, word + e * type_bytes(type), sizeof bits);
        return element<type>::load(bits);
    }
}

template <int type>
void store_code(float code, std::byte* word, int32_t e) {
    if constexpr (type == int8) {
        word[e] = static_cast<std::byte>(static_cast<int8_t>(code));
    } else if constexpr (type == int4) {
        const int shift = e < 4 ? 0 : 4;
        const int kept = std::to_integer<int>(word[e % 4]) & 0xf0 >> shift;
        word[e % 4] = static_cast<std::byte>(kept | static_cast<int>(code) << shift);
    } else if constexpr (type == fp8) {
        word[e] = static_cast<std::byte>(float_to_fp8(code));
    } else {
        const auto bits = element<type>::store(code);
        std::memcpy(word + e * type_bytes(type), &bits, sizeof bits);
    }
}

// What a code stands for: scale * code, or scale * (code - 8) + mid, rounded once.
struct code_scale {
    float scale = 1.0f, mid = 0.0f;
};
template <int type>
float decode(float code, code_scale s) {
    if constexpr (type == int4) return std::fma(code - 8.0f, s.scale, s.mid);
    return token_scaled(type) ? code * s.scale : code;
}

inline uint16_t load_half(const std::byte* p) {
    uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
}

// Where a value lies: word and element, and its scale.
struct place {
    int64_t word;  // bytes from the start of the elements
    int32_t e;
    const std::byte *scale, *mid;  // null where there is none; fp32 for token-scaled types, else fp16
};

template <int type>
place k_place(const kv_part& part, int32_t stored, int32_t token, int32_t d) {
    constexpr int32_t g = word_elements(type);
    const int64_t first = token / panel * panel_bytes(type, stored),
                  word = first + k_step_offset(type, d / g) + token % panel * (g * type_bits(type) / 8);
    if constexpr (type == int4) {
        const std::byte* line = part.elements + first + k_step_offset(type, d / scale_group * 4) + int4_scale_offset;
        return {word, d % g, line + token % panel * 2, line + (panel + token % panel) * 2};
    }
    return {word, d % g, token_scaled(type) ? part.scales + token * 4 : nullptr, nullptr};
}

template <int type>
place v_place(const kv_part& part, int32_t stored, int32_t token, int32_t d) {
    constexpr int32_t g = word_elements(type);
    const int64_t word = (int64_t{token / g} * stored + d) * (g * type_bits(type) / 8);
    if constexpr (type == int4) {
        const int64_t group = d / scale_group, groups = stored / scale_group;
        return {word, token % g, part.scales + (group * part.page_tokens + token) * 2,
                part.scales + ((groups + group) * part.page_tokens + token) * 2};
    }
    return {word, token % g, token_scaled(type) ? part.scales + token * 4 : nullptr, nullptr};
}

template <int type>
code_scale scale_at(const place& at) {
    code_scale s;
    if constexpr (type == int4) {
        s = {fp16_to_float(load_half(at.scale)), fp16_to_float(load_half(at.mid))};
    } else if constexpr (token_scaled(type)) {
        std::memcpy(&s.scale, at.scale, sizeof s.scale);
    }
    return s;
}

template <int type>
float value_at(const kv_part& part, const place& at) {
    return decode<type>(load_code<type>(part.elements + at.word, at.e), scale_at<type>(at));
}

template <int type>
float k_value(const kv_part& part, int32_t stored, int32_t token, int32_t d) {
    return value_at<type>(part, k_place<type>(part, stored, token, d));
}
template <int type>
float v_value(const kv_part& part, int32_t stored, int32_t token, int32_t d) {
    return value_at<type>(part, v_place<type>(part, stored, token, d));
}

// Parts that are only read, as the kernels get them.
inline kv_part read_only(const void* elements, const void* scales, int32_t page_tokens) {
    return {static_cast<std::byte*>(const_cast<void*>(elements)), static_cast<std::byte*>(const_cast<void*>(scales)), page_tokens};
}

// Calls f(std::integral_constant<int, type>) for a type of pages.
template <class F>
auto with_kv_type(int type, F f) {
    switch (type) {
        case bf16: return f(std::integral_constant<int, bf16>{});
        case fp16: return f(std::integral_constant<int, fp16>{});
        case int8: return f(std::integral_constant<int, int8>{});
        case int4: return f(std::integral_constant<int, int4>{});
        case fp8: return f(std::integral_constant<int, fp8>{});
        default: return f(std::integral_constant<int, fp32>{});
    }
}

}  // namespace ropewalk::simd::scalar
