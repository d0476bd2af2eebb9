// What kv_append, kv_gather and kv_shift check about slots and the tensors that go with them, and how they read a key.
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

// no_slot or 0 .. limit - 1.
[[nodiscard]] status check_slots(std::span<const int64_t> slots, int64_t limit) noexcept;

// row [k_dim] = K of one token and head as it is stored (with kv_layout::hadamard: turned).
void read_k(const kv_pages& pages, int64_t slot, int32_t head, float* row) noexcept;

}  // namespace ropewalk::runtime
