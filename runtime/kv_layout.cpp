// The page: sizes and checks.
#include <ropewalk/kv_pages.hpp>

#include <cinttypes>
#include <limits>

#include "runtime/pages.hpp"
#include "runtime/refuse.hpp"
#include "runtime/views.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

status check_range(const char* name, int64_t value, int64_t least, int64_t most) noexcept {
    if (value >= least && value <= most) return {};
    return refuse(status_code::invalid_argument, "%s is %" PRId64 "; must be %" PRId64 " .. %" PRId64, name, value, least, most);
}

status check_stride(const char* name, int64_t value, int64_t record_bytes) noexcept {
    if (value == 0 || (value >= record_bytes && value % page_alignment == 0)) return {};
    return refuse(status_code::invalid_argument, "%s is %" PRId64 "; must be 0 or a multiple of 64 and at least a record (%" PRId64 " bytes)", name,
                  value, record_bytes);
}

status check_v_in_k(const kv_layout& layout) noexcept {
    if (simd::quantised(static_cast<int>(layout.k_type))) {
        return refuse(status_code::invalid_argument, "layout.k_type is %s; with v_in_k it must be fp32, bf16 or fp16", name(layout.k_type).data());
    }
    if (layout.v_type != layout.k_type) {
        return refuse(status_code::invalid_argument, "layout.v_type is %s; with v_in_k it must be k_type, %s", name(layout.v_type).data(),
                      name(layout.k_type).data());
    }
    if (layout.v_dim > layout.k_dim) {
        return refuse(status_code::invalid_argument, "layout.v_dim is %d; with v_in_k it must be at most k_dim, %d", layout.v_dim, layout.k_dim);
    }
    if (layout.hadamard) return refuse(status_code::invalid_argument, "layout.hadamard is set; with v_in_k it must not be: V has blocks of its own");
    return {};
}

}  // namespace

status kv_layout::validate() const noexcept {
    if (const status s = runtime::check_kv_type("layout.k_type", k_type); !s.ok()) return s;
    if (const status s = runtime::check_kv_type("layout.v_type", v_type); !s.ok()) return s;
    if (const status s = check_range("layout.kv_heads", kv_heads, 1, std::numeric_limits<int32_t>::max()); !s.ok()) return s;
    if (const status s = check_range("layout.k_dim", k_dim, 1, simd::max_head_dim); !s.ok()) return s;
    if (const status s = check_range("layout.v_dim", v_dim, 1, simd::max_head_dim); !s.ok()) return s;
    if (hadamard && (k_dim % 16 != 0 || v_dim % 16 != 0)) {
        return refuse(status_code::invalid_argument, "layout.hadamard needs dims that are multiples of 16; k_dim is %d, v_dim %d", k_dim, v_dim);
    }
    if (v_in_k) {
        if (const status s = check_v_in_k(*this); !s.ok()) return s;
    }
    if (page_tokens < 16 || page_tokens > 256 || (page_tokens & (page_tokens - 1)) != 0) {
        return refuse(status_code::invalid_argument, "layout.page_tokens is %d; must be 16, 32, 64, 128 or 256", page_tokens);
    }
    if (const status s = check_stride("layout.head_stride", head_stride, record_bytes()); !s.ok()) return s;
    if (const status s = check_stride("layout.page_stride", page_stride, record_bytes()); !s.ok()) return s;
    if (head_stride > std::numeric_limits<int64_t>::max() / kv_heads) {
        return refuse(status_code::invalid_argument, "layout.head_stride is %" PRId64 "; %d heads must fit 64-bit offsets", head_stride, kv_heads);
    }
    return {};
}

// Panels of fp16 and fp8 may end in the middle of a line; the V part begins with the next.
int64_t kv_layout::k_part_bytes() const noexcept {
    const int type = static_cast<int>(k_type);
    return runtime::round_up(page_tokens / panel_tokens * simd::panel_bytes(type, simd::stored_k_dim(type, k_dim)), page_alignment);
}

int64_t kv_layout::v_part_bytes() const noexcept {
    const int type = static_cast<int>(v_type);
    return v_in_k ? 0 : simd::v_bytes(type, simd::stored_v_dim(type, v_dim), page_tokens);
}

int64_t kv_layout::k_scale_bytes() const noexcept { return simd::k_scale_bytes(static_cast<int>(k_type), page_tokens); }

int64_t kv_layout::v_scale_bytes() const noexcept {
    const int type = static_cast<int>(v_type);
    return simd::v_scale_bytes(type, simd::stored_v_dim(type, v_dim), page_tokens);
}

namespace runtime {

status check_pages(const kv_pages& pages) noexcept {
    const kv_layout& layout = pages.layout;
    if (const status s = layout.validate(); !s.ok()) return s;
    if (pages.count < 0) return refuse(status_code::invalid_argument, "pages.count is %d; must be at least 0", pages.count);
    if (pages.count == 0) return {};
    if (pages.base == nullptr) return refuse(status_code::invalid_argument, "pages.base is null; must point to %d pages", pages.count);
    if (reinterpret_cast<std::uintptr_t>(pages.base) % page_alignment != 0) {
        return refuse(status_code::invalid_argument, "pages.base is %p; must be 64-byte aligned", static_cast<void*>(pages.base));
    }
    const int64_t head_stride = layout.head_stride_bytes(), page_stride = layout.page_stride_bytes(), record = layout.record_bytes();
    using wide = runtime::wide_int;
    if (wide{pages.count - 1} * page_stride + wide{layout.kv_heads - 1} * head_stride + record > std::numeric_limits<int64_t>::max()) {
        return refuse(status_code::invalid_argument, "layout has strides %" PRId64 ", %" PRId64 " for %d pages; byte offsets must fit 64 bits",
                      page_stride, head_stride, pages.count);
    }
    // In units of 64 bytes records are rows of a [pages, heads, record] tensor.
    const const_head_view records(pages.base, dtype::fp32, pages.count, layout.kv_heads, static_cast<int32_t>(record / page_alignment),
                                  page_stride / page_alignment, head_stride / page_alignment);
    if (!rows_overlap(records)) return {};
    return refuse(status_code::invalid_argument,
                  "layout.page_stride is %" PRId64 " and head_stride %" PRId64 "; records of %" PRId64 " bytes must not overlap", page_stride,
                  head_stride, record);
}

}  // namespace runtime

}  // namespace ropewalk
