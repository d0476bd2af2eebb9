// What kv_append and kv_gather check about slots and the tensors that go with them.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/kv_pages.hpp>
#include <ropewalk/status.hpp>
#include "runtime/views.hpp"

namespace ropewalk::runtime {

// Pages, slots and the shapes of k and v [slots.size(), kv_heads, k_dim / v_dim]. Either tensor may be absent, not both.
[[nodiscard]] status check_transfer(const kv_pages& pages, std::span<const int64_t> slots, const const_head_view& k, const const_head_view& v,
                                    view_use use) noexcept;

// Refuses a slot that is named twice. Exact as long as the slots form at most 64 runs of consecutive slots (a batch of 64 sequences, or a prefill of
// 64 pages in any order); beyond that a run is compared with the 64 before it. A full check would need memory or O(n^2).
[[nodiscard]] status check_distinct(std::span<const int64_t> slots) noexcept;

}  // namespace ropewalk::runtime
