// kv_gather: reads slots back into rows. Not on the path of a decode step, so the page is read element by element in baseline code.
#include <ropewalk/kv_pages.hpp>

#include <algorithm>

#include "runtime/blocks.hpp"
#include "runtime/kv_slots.hpp"
#include "runtime/pages.hpp"
#include "simd/core/dispatch.hpp"
#include "simd/core/page_element.hpp"

namespace ropewalk {

namespace runtime {

void read_k(const kv_pages& pages, int64_t slot, int32_t head, float* row) noexcept {
    const kv_layout& layout = pages.layout;
    const simd::kv_part part = k_part(pages, slot / layout.page_tokens, head);
    const auto token = static_cast<int32_t>(slot % layout.page_tokens);
    simd::scalar::with_kv_type(static_cast<int>(layout.k_type), [&](auto type) {
        const int32_t stored = simd::stored_k_dim(type, layout.k_dim);
        for (int32_t d = 0; d < layout.k_dim; ++d) row[d] = simd::scalar::k_value<type>(part, stored, token, d);
    });
}

}  // namespace runtime

namespace {

constexpr int64_t block_elements = 16 * 1024;

// One token of a head to fp32.
void read_v(const kv_pages& pages, int64_t slot, int32_t head, float* row) noexcept {
    const kv_layout& layout = pages.layout;
    const simd::kv_part part = runtime::v_part(pages, slot / layout.page_tokens, head);
    const auto token = static_cast<int32_t>(slot % layout.page_tokens);
    simd::scalar::with_kv_type(static_cast<int>(layout.v_type), [&](auto type) {
        const int32_t stored = simd::stored_v_dim(type, layout.v_dim);
        for (int32_t d = 0; d < layout.v_dim; ++d) row[d] = simd::scalar::v_value<type>(part, stored, token, d);
    });
}

}  // namespace

status kv_gather(const kv_pages& pages, std::span<const int64_t> slots, head_view k, head_view v, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_transfer(pages, slots, k, v, runtime::view_use::write); !s.ok()) return s;
    const int32_t heads = pages.layout.kv_heads;
    const int64_t token_elements = heads * (int64_t{pages.layout.k_dim} + pages.layout.v_dim);
    const int64_t block = std::max<int64_t>(block_elements / token_elements, 1);
    runtime::for_each_block(on, static_cast<int64_t>(slots.size()), block, [&](int64_t first, int64_t last) {
        float row[simd::max_head_dim];
        for (int64_t token = first; token < last; ++token) {
            const int64_t slot = slots[static_cast<std::size_t>(token)];
            if (slot == no_slot) continue;
            for (int32_t head = 0; head < heads; ++head) {
                if (k.heads != 0) {
                    runtime::read_k(pages, slot, head, row);
                    if (pages.layout.hadamard) kernels->kv.hadamard(row, pages.layout.k_dim);
                    kernels->kv.store_row[static_cast<int>(k.type)](row, runtime::row_address(k, token, head), pages.layout.k_dim);
                }
                if (v.heads != 0) {
                    pages.layout.v_in_k ? runtime::read_k(pages, slot, head, row) : read_v(pages, slot, head, row);
                    if (pages.layout.hadamard) kernels->kv.hadamard(row, pages.layout.v_dim);
                    kernels->kv.store_row[static_cast<int>(v.type)](row, runtime::row_address(v, token, head), pages.layout.v_dim);
                }
            }
        }
    });
    return {};
}

}  // namespace ropewalk
