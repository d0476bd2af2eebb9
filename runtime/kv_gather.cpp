// kv_gather: reads slots back into rows. Not on the path of a decode step, so the page is read element by element in baseline code.
#include <ropewalk/kv_pages.hpp>

#include <algorithm>

#include "runtime/blocks.hpp"
#include "runtime/kv_slots.hpp"
#include "runtime/pages.hpp"
#include "simd/core/dispatch.hpp"
#include "simd/core/element.hpp"

namespace ropewalk {

namespace {

constexpr int32_t most_dims = 1024;
constexpr int64_t block_elements = 16 * 1024;

// n elements of a page, `step` elements apart, to fp32.
template <int type>
void read_strided(const std::byte* from, int64_t step, int32_t group, float* row, int32_t n) noexcept {
    using cell = simd::scalar::element<type>;
    const auto* elements = reinterpret_cast<const typename cell::storage*>(from);
    for (int32_t d = 0; d < n; ++d) row[d] = cell::load(elements[d / group * step + d % group]);
}

// `group` neighbouring elements, then `step` from the start of one group to the next.
void read_elements(dtype type, const std::byte* from, int64_t step, int32_t group, float* row, int32_t n) noexcept {
    switch (type) {
        case dtype::fp32: return read_strided<simd::fp32>(from, step, group, row, n);
        case dtype::bf16: return read_strided<simd::bf16>(from, step, group, row, n);
        case dtype::fp16: return read_strided<simd::fp16>(from, step, group, row, n);
    }
}

// K part [page_tokens / 16][k_dim / g][16][g].
void read_k(const kv_pages& pages, int64_t slot, int32_t head, float* row) noexcept {
    const kv_layout& layout = pages.layout;
    const int64_t page = slot / layout.page_tokens, token = slot % layout.page_tokens;
    const int32_t g = runtime::word_elements(layout.k_type);
    const int64_t first = token / panel_tokens * panel_tokens * runtime::padded_k_dim(layout) + token % panel_tokens * g;
    read_elements(layout.k_type, runtime::k_part(pages, page, head) + first * element_bytes(layout.k_type), panel_tokens * g, g, row, layout.k_dim);
}

// V part [page_tokens / g][v_dim][g].
void read_v(const kv_pages& pages, int64_t slot, int32_t head, float* row) noexcept {
    const kv_layout& layout = pages.layout;
    const int64_t page = slot / layout.page_tokens, token = slot % layout.page_tokens;
    const int32_t g = runtime::word_elements(layout.v_type);
    const int64_t first = token / g * g * runtime::padded_v_dim(layout) + token % g;
    read_elements(layout.v_type, runtime::v_part(pages, page, head) + first * element_bytes(layout.v_type), g, 1, row, layout.v_dim);
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
        float row[most_dims];
        for (int64_t token = first; token < last; ++token) {
            const int64_t slot = slots[static_cast<std::size_t>(token)];
            if (slot == no_slot) continue;
            for (int32_t head = 0; head < heads; ++head) {
                if (k.heads != 0) {
                    read_k(pages, slot, head, row);
                    kernels->kv.store_row[static_cast<int>(k.type)](row, runtime::row_address(k, token, head), pages.layout.k_dim);
                }
                if (v.heads != 0) {
                    read_v(pages, slot, head, row);
                    kernels->kv.store_row[static_cast<int>(v.type)](row, runtime::row_address(v, token, head), pages.layout.v_dim);
                }
            }
        }
    });
    return {};
}

}  // namespace ropewalk
