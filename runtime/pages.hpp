// Checks and addresses of KV pages, shared by everything that touches them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ropewalk/kv_pages.hpp>
#include <ropewalk/status.hpp>
#include "simd/core/kernels.hpp"

namespace ropewalk::runtime {

// A valid layout, a base that is there and 64-byte aligned, count >= 0, records that neither overlap nor leave the address space.
[[nodiscard]] status check_pages(const kv_pages& pages) noexcept;

// How many neighbouring elements share a 32-bit word: g of kv_pages.hpp.
inline int32_t word_elements(dtype type) noexcept { return simd::word_elements(static_cast<int>(type)); }

constexpr int64_t round_up(int64_t value, int64_t multiple) noexcept { return (value + multiple - 1) / multiple * multiple; }

// Dims as stored. The panel stride of the K part is 16 * padded_k_dim elements.
inline int32_t padded_k_dim(const kv_layout& layout) noexcept { return static_cast<int32_t>(round_up(layout.k_dim, word_elements(layout.k_type))); }
inline int32_t padded_v_dim(const kv_layout& layout) noexcept { return static_cast<int32_t>(round_up(layout.v_dim, simd::panel)); }

// First byte of a head's K part and V part. `page` and `head` must be in range.
inline std::byte* k_part(const kv_pages& pages, int64_t page, int32_t head) noexcept {
    return pages.base + page * pages.layout.page_stride_bytes() + head * pages.layout.head_stride_bytes();
}
inline std::byte* v_part(const kv_pages& pages, int64_t page, int32_t head) noexcept {
    return k_part(pages, page, head) + pages.layout.k_part_bytes();
}

}  // namespace ropewalk::runtime
