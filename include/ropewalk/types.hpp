// Element types and the views through which ropewalk reads and writes the caller's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

// The C++ API. Operations on memory of yours, a KV cache that owns pages, and what a model's configuration says of positions.
namespace ropewalk {

// Types of elements. The numbers are part of the file format and of the C ABI; they never change.
enum class dtype : int32_t {
    fp32 = 0,
    bf16 = 1,  // the upper 16 bits of an fp32
    fp16 = 2,  // IEEE binary16
    // Only in KV pages, quantised on append (kv_pages.hpp):
    int8 = 3,  // 8-bit integers, one fp32 scale per token and head
    int4 = 4,  // 4-bit codes, a scale and a mid per token, head and 32 dims
    fp8 = 5,   // 8-bit floats (OCP E4M3), one fp32 scale per token and head
};

// E.g. "bf16".
constexpr std::string_view name(dtype type) noexcept {
    switch (type) {
        case dtype::fp32: return "fp32";
        case dtype::bf16: return "bf16";
        case dtype::fp16: return "fp16";
        case dtype::int8: return "int8";
        case dtype::int4: return "int4";
        case dtype::fp8: return "fp8";
    }
    return "unknown";
}

// Bytes of one element of a tensor; 0 for a type that tensors cannot have.
constexpr int32_t element_bytes(dtype type) noexcept {
    switch (type) {
        case dtype::fp32: return 4;
        case dtype::bf16: return 2;
        case dtype::fp16: return 2;
        default: return 0;
    }
}

// A tensor [tokens, heads, dim] in the caller's memory, e.g. Q inside a packed QKV buffer. Strides count elements, not bytes, and may be anything
// that keeps rows apart; the innermost stride must be 1 or the call is refused. The base needs the alignment of its element type only.
// A view with heads == 0 stands for "this tensor is absent"; tokens == 0 is an empty tensor.
template <class Void>
struct basic_head_view {
    Void* data = nullptr;
    dtype type = dtype::fp32;
    int64_t tokens = 0;
    int32_t heads = 0;
    int32_t dim = 0;
    int64_t token_stride = 0;
    int64_t head_stride = 0;
    int64_t dim_stride = 1;

    constexpr basic_head_view() noexcept = default;
    constexpr basic_head_view(Void* data_, dtype type_, int64_t tokens_, int32_t heads_, int32_t dim_, int64_t token_stride_, int64_t head_stride_,
                              int64_t dim_stride_ = 1) noexcept
        : data(data_),
          type(type_),
          tokens(tokens_),
          heads(heads_),
          dim(dim_),
          token_stride(token_stride_),
          head_stride(head_stride_),
          dim_stride(dim_stride_) {}

    // A mutable view is usable where a read-only one is asked for.
    template <class Other, class = std::enable_if_t<std::is_const_v<Void> && std::is_same_v<const Other, Void>>>
    constexpr basic_head_view(const basic_head_view<Other>& other) noexcept
        : basic_head_view(other.data, other.type, other.tokens, other.heads, other.dim, other.token_stride, other.head_stride, other.dim_stride) {}
};

using head_view = basic_head_view<void>;              // of a tensor that is written
using const_head_view = basic_head_view<const void>;  // of one that is only read

// The view of a dense [tokens, heads, dim] tensor.
inline head_view dense_view(void* data, dtype type, int64_t tokens, int32_t heads, int32_t dim) noexcept {
    return {data, type, tokens, heads, dim, int64_t{heads} * dim, dim};
}
inline const_head_view dense_view(const void* data, dtype type, int64_t tokens, int32_t heads, int32_t dim) noexcept {
    return {data, type, tokens, heads, dim, int64_t{heads} * dim, dim};
}

// Bit patterns of the 16-bit types, rounded to nearest even; NaN stays NaN.
inline float bf16_to_float(uint16_t bits) noexcept {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    __builtin_memcpy(&value, &wide, sizeof value);
    return value;
}
inline uint16_t float_to_bf16(float value) noexcept {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace ropewalk
