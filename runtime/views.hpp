// Validation of the tensors that a caller hands in, shared by every operation, and the address arithmetic that follows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk::runtime {

// For products of extents and strides that nobody has checked yet.
__extension__ typedef __int128 wide_int;

// What the operation does with the tensor. Rows that are written must not overlap; rows that are only read may (a head stride of 0
// broadcasts one head).
enum class view_use { read, write };

// Checks that `view` can be addressed: a known type, tokens and heads >= 0, dim >= 1, dim_stride 1, a base that is there and aligned to its element,
// offsets that fit int64_t, rows apart if written. `name` is what the caller's documentation calls the argument. An absent tensor
// (heads == 0) passes whatever its other fields say; an empty one (tokens == 0) may have a null base.
[[nodiscard]] status check_view(const char* name, const const_head_view& view, view_use use) noexcept;

// True if two of the view's rows share an element. Exact, in min(tokens, heads) steps. tokens, heads, dim >= 1.
[[nodiscard]] bool rows_overlap(const const_head_view& view) noexcept;

// Extents that the operation expects; any_extent where it takes what comes.
inline constexpr int32_t any_extent = -1;
struct view_shape {
    int64_t tokens = any_extent;
    int32_t heads = any_extent;
    int32_t dim = any_extent;
};
// "k has shape [3, 2, 64]; must be [4, 2, *]: <reason>". `reason` says where the expected extents come from.
[[nodiscard]] status check_shape(const char* name, const const_head_view& view, const view_shape& expected, const char* reason) noexcept;

// Bit for each dtype, for operations that do not take all of them.
constexpr uint32_t type_bit(dtype type) noexcept { return 1u << static_cast<uint32_t>(type); }
inline constexpr uint32_t any_type = 0x7u;
[[nodiscard]] status check_type(const char* name, dtype type, uint32_t allowed = any_type) noexcept;

// Any type that pages may have.
[[nodiscard]] status check_kv_type(const char* name, dtype type) noexcept;

// True if the element type is one that this version knows (a caller may cast any integer to dtype).
constexpr bool known(dtype type) noexcept { return element_bytes(type) != 0; }

// Address of element (token, head, 0).
template <class Void>
auto row_address(const basic_head_view<Void>& view, int64_t token, int32_t head) noexcept {
    using byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return static_cast<byte*>(view.data) + (token * view.token_stride + head * view.head_stride) * element_bytes(view.type);
}

}  // namespace ropewalk::runtime
