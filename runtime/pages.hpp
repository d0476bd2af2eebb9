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

constexpr int64_t round_up(int64_t value, int64_t multiple) noexcept { return (value + multiple - 1) / multiple * multiple; }

// A head's K part and V part. `page` and `head` must be in range.
inline std::byte* record(const kv_pages& pages, int64_t page, int32_t head) noexcept {
    return pages.base + page * pages.layout.page_stride_bytes() + head * pages.layout.head_stride_bytes();
}
inline simd::kv_part k_part(const kv_pages& pages, int64_t page, int32_t head) noexcept {
    const kv_layout& layout = pages.layout;
    std::byte* at = record(pages, page, head);
    return {at, at + layout.k_part_bytes() + layout.v_part_bytes(), layout.page_tokens};
}
inline simd::kv_part v_part(const kv_pages& pages, int64_t page, int32_t head) noexcept {
    const kv_layout& layout = pages.layout;
    std::byte* at = record(pages, page, head) + layout.k_part_bytes();
    return {at, at + layout.v_part_bytes() + layout.k_scale_bytes(), layout.page_tokens};
}

}  // namespace ropewalk::runtime
