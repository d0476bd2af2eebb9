#include "runtime/views.hpp"

#include <cinttypes>
#include <cstdio>
#include <limits>
#include <utility>

#include "runtime/refuse.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::runtime {

namespace {

using wide = wide_int;

constexpr wide magnitude(wide value) { return value < 0 ? -value : value; }

bool offsets_fit(const const_head_view& view) {
    // Element strides near 2^63 would overflow the products below only beyond 2^127, which __int128 still holds.
    const wide tokens = view.tokens > 0 ? view.tokens - 1 : 0;
    const wide elements = magnitude(view.token_stride) * tokens + magnitude(view.head_stride) * wide{view.heads - 1} + view.dim;
    return elements <= wide{std::numeric_limits<int64_t>::max() / element_bytes(view.type)};
}

// "*" for an extent that may be anything.
struct extent_text {
    char text[24];
    explicit extent_text(int64_t extent) noexcept {
        if (extent == any_extent) {
            std::snprintf(text, sizeof text, "*");
        } else {
            std::snprintf(text, sizeof text, "%" PRId64, extent);
        }
    }
};

}  // namespace

// Rows start at t * token_stride + h * head_stride; they overlap when the starts of two of them differ by
// less than dim. For each distance in the shorter extent, the nearest multiple of the other stride decides.
// The two nested orders, which is what nearly every caller has, are recognised without the loop.
bool rows_overlap(const const_head_view& view) noexcept {
    wide outer_stride = magnitude(view.token_stride), inner_stride = magnitude(view.head_stride);
    int64_t outer = view.tokens, inner = view.heads;
    const wide dim = view.dim;
    const auto nested = [dim](wide far, wide near, int64_t near_count) {
        return (near_count <= 1 || near >= dim) && far >= near * (near_count - 1) + dim;
    };
    if (outer <= 1 && inner <= 1) return false;
    if (outer <= 1) return inner_stride < dim;
    if (inner <= 1) return outer_stride < dim;
    if (nested(outer_stride, inner_stride, inner) || nested(inner_stride, outer_stride, outer)) return false;
    if (outer_stride < dim || inner_stride < dim) return true;
    if (inner > outer) {
        std::swap(inner, outer);
        std::swap(inner_stride, outer_stride);
    }
    for (int64_t i = 1; i < inner; ++i) {
        const wide offset = inner_stride * i;
        const wide below = offset / outer_stride;  // the two multiples of outer_stride around offset
        const wide last = outer - 1;
        if (below <= last && offset - below * outer_stride < dim) return true;
        if (below + 1 <= last && (below + 1) * outer_stride - offset < dim) return true;
    }
    return false;
}

status check_kv_type(const char* name, dtype type) noexcept {
    const int value = static_cast<int>(type);
    if (value >= 0 && value < simd::kv_type_count) return {};
    return refuse(status_code::invalid_argument, "%s is %d; must be a dtype (0 fp32, 1 bf16, 2 fp16, 3 int8, 4 int4, 5 fp8)", name, value);
}

status check_type(const char* name, dtype type, uint32_t allowed) noexcept {
    const int value = static_cast<int>(type);
    if (!known(type)) return refuse(status_code::invalid_argument, "%s is %d; must be a tensor's dtype (0 fp32, 1 bf16, 2 fp16)", name, value);
    if ((allowed & type_bit(type)) != 0) return {};
    return refuse(status_code::invalid_argument, "%s is %s; must be %s%s%s", name, ropewalk::name(type).data(),
                  (allowed & type_bit(dtype::fp32)) != 0 ? "fp32 " : "", (allowed & type_bit(dtype::bf16)) != 0 ? "bf16 " : "",
                  (allowed & type_bit(dtype::fp16)) != 0 ? "fp16" : "");
}

status check_view(const char* name, const const_head_view& view, view_use use) noexcept {
    constexpr status_code invalid = status_code::invalid_argument;
    if (view.heads == 0) return {};
    if (!known(view.type)) {
        return refuse(invalid, "%s.type is %d; must be a dtype (0 fp32, 1 bf16, 2 fp16)", name, static_cast<int>(view.type));
    }
    if (view.heads < 0) return refuse(invalid, "%s.heads is %d; must be at least 0", name, view.heads);
    if (view.tokens < 0) return refuse(invalid, "%s.tokens is %" PRId64 "; must be at least 0", name, view.tokens);
    if (view.dim < 1) return refuse(invalid, "%s.dim is %d; must be at least 1", name, view.dim);
    if (view.dim_stride != 1) return refuse(invalid, "%s.dim_stride is %" PRId64 "; must be 1", name, view.dim_stride);
    if (view.tokens == 0) return {};
    if (view.data == nullptr) return refuse(invalid, "%s.data is null; must point to %" PRId64 " tokens", name, view.tokens);
    if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(element_bytes(view.type)) != 0) {
        return refuse(invalid, "%s.data is %p; must be aligned to its %d-byte elements", name, view.data, element_bytes(view.type));
    }
    if (!offsets_fit(view)) {
        return refuse(invalid, "%s has strides %" PRId64 ", %" PRId64 "; its byte offsets must fit 64 bits", name, view.token_stride,
                      view.head_stride);
    }
    if (use == view_use::write && rows_overlap(view)) {
        return refuse(invalid, "%s has strides [%" PRId64 ", %" PRId64 "] for shape [%" PRId64 ", %d, %d]; rows that are written must not overlap",
                      name, view.token_stride, view.head_stride, view.tokens, view.heads, view.dim);
    }
    return {};
}

status check_shape(const char* name, const const_head_view& view, const view_shape& expected, const char* reason) noexcept {
    const auto fits = [](int64_t value, int64_t wanted) { return wanted == any_extent || value == wanted; };
    if (fits(view.tokens, expected.tokens) && fits(view.heads, expected.heads) && fits(view.dim, expected.dim)) return {};
    return refuse(status_code::invalid_argument, "%s has shape [%" PRId64 ", %d, %d]; must be [%s, %s, %s]: %s", name, view.tokens, view.heads,
                  view.dim, extent_text(expected.tokens).text, extent_text(expected.heads).text, extent_text(expected.dim).text, reason);
}

}  // namespace ropewalk::runtime
