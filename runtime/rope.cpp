// rope_apply and rope_shift: validate everything, then rotate blocks of tokens.
#include <ropewalk/rope.hpp>

#include <algorithm>
#include <cinttypes>

#include "runtime/blocks.hpp"
#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {

using runtime::refuse;
using runtime::rope_action;

namespace {

// How far ahead the kernels prefetch, in whole tokens: the next tokens in memory order are the next ones in time.
constexpr int64_t ahead_bytes = 8 * 1024;

// One tensor and how its heads are turned.
struct rotated_tensor {
    head_view view;
    simd::rotate_function rotate = nullptr;
    runtime::turn_range turns;
    int32_t first_dim, distance;
    int64_t ahead_tokens = 0;

    rotated_tensor(const head_view& view_, runtime::turn_range turns_, int32_t pairs, rope_action action, const simd::kernel_table& kernels,
                   const rope_options& options) noexcept
        : view(view_), turns(turns_), first_dim(options.first_dim), distance(options.pair_distance) {
        if (view.heads == 0 || pairs == 0) return;  // the type of an absent tensor is unchecked
        rotate = runtime::rotation_of(kernels, view.type, options, action);
        ahead_tokens = std::max<int64_t>(ahead_bytes / (int64_t{2} * view.heads * pairs * element_bytes(view.type)), 1);
    }

    void turn(int64_t token, const float* row, int32_t pairs) const noexcept {
        if (view.heads == 0) return;
        const int64_t ahead = token + ahead_tokens < view.tokens ? ahead_tokens * view.token_stride : 0;
        const int32_t heads = view.heads / turns.count;
        row += int64_t{turns.first} * 2 * pairs;
        for (int32_t head = 0; head < view.heads; head += heads, row += 2 * pairs) {
            std::byte* x = runtime::row_address(view, token, head) + int64_t{first_dim} * element_bytes(view.type);
            rotate({x, view.head_stride, heads, pairs, row, row + pairs, ahead, distance});
        }
    }
};

// What a call takes one of for each token and axis.
struct stream_argument {
    const char *name, *reason;
    std::span<const int64_t> values;
};

status check_tensor(const char* name, const head_view& view, const stream_argument& streams, const rope_table& table,
                    const rope_options& options) noexcept {
    if (const status s = runtime::check_view(name, view, runtime::view_use::write); !s.ok()) return s;
    if (view.heads == 0) return {};
    const std::size_t given = streams.values.size();
    const status tokens = table.axes() > 1 ? runtime::check_streams(streams.name, given, view.tokens, table)
                                           : runtime::check_shape(name, view, {.tokens = static_cast<int64_t>(given)}, streams.reason);
    if (!tokens.ok()) return tokens;
    if (const status s = runtime::check_rope_heads(name, view.heads, table); !s.ok()) return s;
    return runtime::check_rope_slice(name, view.dim, table, options);
}

// Turns the tokens of q and k by angles [axes][tokens]. Everything is checked.
void turn_all(const rope_table& table, rope_action action, const rope_options& options, std::span<const int64_t> angles, const head_view& q_view,
              const head_view& k_view, const simd::kernel_table& kernels, executor& on) noexcept {
    const int32_t pairs = table.pairs();
    const rope_spec& spec = table.spec();
    const auto tokens = static_cast<int64_t>(angles.size()) / table.axes();
    const int64_t token_elements = (int64_t{q_view.heads} + k_view.heads) * 2 * pairs;
    if (token_elements == 0) return;
    const rotated_tensor q(q_view, runtime::turns_of_q(spec), pairs, action, kernels, options);
    const rotated_tensor k(k_view, runtime::turns_of_k(spec), pairs, action, kernels, options);
    const auto turn_block = [&](int64_t first, int64_t last) {
        runtime::rope_row_source source(table, action, options.conjugate, angles, kernels);
        alignas(64) float scratch[runtime::max_row_floats];
        for (int64_t t = first; t < last; ++t) {
            if (action == rope_action::shift && source.still(t)) continue;
            const float* row = source.row(t, scratch);
            q.turn(t, row, pairs);
            k.turn(t, row, pairs);
        }
    };
    runtime::for_each_token_block(on, tokens, token_elements, turn_block);
}

}  // namespace

status rope_apply(const rope_table& table, std::span<const int64_t> positions, head_view q, head_view k, const rope_options& options,
                  executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_rope(table, options); !s.ok()) return s;
    const stream_argument streams{"positions", "one token per position", positions};
    if (s = check_tensor("q", q, streams, table, options); !s.ok()) return s;
    if (s = check_tensor("k", k, streams, table, options); !s.ok()) return s;
    if (q.heads != 0 && k.heads != 0 && q.data == k.data && !positions.empty()) {
        return refuse(status_code::invalid_argument, "q.data and k.data are both %p; must be different tensors", q.data);
    }
    if (s = runtime::check_positions("positions", positions, table.max_position()); !s.ok()) return s;
    turn_all(table, runtime::action_of(options), options, positions, q, k, *kernels, on);
    return {};
}

status rope_shift(const rope_table& table, std::span<const int64_t> deltas, head_view k, const rope_options& options, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_rope(table, options); !s.ok()) return s;
    if (options.inverse) return refuse(status_code::invalid_argument, "options.inverse is true; must be false: negate the deltas instead");
    if (!table.spec().pure_rotation()) {
        return refuse(status_code::invalid_argument, "table has xPos or FoPE; a shift needs a pure rotation");
    }
    if (s = check_tensor("k", k, {"deltas", "one token per delta", deltas}, table, options); !s.ok()) return s;
    if (s = runtime::check_deltas(deltas, table); !s.ok()) return s;
    turn_all(table, rope_action::shift, options, deltas, {}, k, *kernels, on);
    return {};
}

}  // namespace ropewalk
