#include <ropewalk/query_temperature.hpp>

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "runtime/blocks.hpp"
#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

constexpr int64_t position_limit = int64_t{1} << 31;

status check(const head_view& q, std::span<const int64_t> positions) noexcept {
    if (const status s = runtime::check_view("q", q, runtime::view_use::write); !s.ok()) return s;
    if (q.heads == 0) return {};
    if (const status s = runtime::check_shape("q", q, {.tokens = static_cast<int64_t>(positions.size())}, "one token per position"); !s.ok()) {
        return s;
    }
    return runtime::check_positions("positions", positions, position_limit - 1);
}

// Row by row through fp32, in pieces that fit the stack.
void scale_token(const head_view& q, int64_t token, float factor, const simd::kv_kernels& kernels) noexcept {
    constexpr int32_t piece = 1024;
    alignas(64) float row[piece];
    const auto type = static_cast<int>(q.type);
    for (int32_t head = 0; head < q.heads; ++head) {
        std::byte* x = runtime::row_address(q, token, head);
        for (int32_t first = 0; first < q.dim; first += piece, x += piece * element_bytes(q.type)) {
            const int32_t count = std::min(piece, q.dim - first);
            kernels.load_row[type](x, row, count);
            for (int32_t d = 0; d < count; ++d) row[d] *= factor;
            kernels.store_row[type](row, x, count);
        }
    }
}

}  // namespace

double query_temperature::at(int64_t position) const noexcept {
    return 1.0 + beta * std::log1p(static_cast<double>((position + offset) / floor_length));
}

status query_temperature::validate() const noexcept {
    if (!std::isfinite(beta) || beta < 0.0) return refuse(status_code::invalid_argument, "beta is %g; must be finite and at least 0", beta);
    if (floor_length < 1) return refuse(status_code::invalid_argument, "floor_length is %" PRId64 "; must be at least 1", floor_length);
    if (offset < 0 || offset > position_limit) {
        return refuse(status_code::invalid_argument, "offset is %" PRId64 "; must be 0 .. 2^31", offset);
    }
    return {};
}

status scale_queries(head_view q, std::span<const int64_t> positions, const query_temperature& temperature, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = temperature.validate(); !s.ok()) return s;
    if (s = check(q, positions); !s.ok()) return s;
    if (q.heads == 0) return {};
    const int64_t token_elements = int64_t{q.heads} * q.dim;
    const auto scale_block = [&](int64_t first, int64_t last) {
        for (int64_t t = first; t < last; ++t) {
            const auto factor = static_cast<float>(temperature.at(positions[static_cast<std::size_t>(t)]));
            if (factor != 1.0f) scale_token(q, t, factor, kernels->kv);
        }
    };
    runtime::for_each_token_block(on, q.tokens, token_elements, scale_block);
    return {};
}

}  // namespace ropewalk
