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

// Elements that one core rotates in about 4 us: a block, large against the 50 ns of taking it from the cursor.
constexpr int64_t block_elements = 24 * 1024;
// Below this a second worker, which a sleeping pool delivers 25 to 40 us late, cannot help.
constexpr int64_t alone_elements = 8 * block_elements;

// How far ahead the kernels prefetch, in whole tokens: the next tokens in memory order are the next ones in time.
constexpr int64_t ahead_bytes = 8 * 1024;

// One tensor and how its heads are turned.
struct rotated_tensor {
    head_view view;
    simd::rotate_function rotate;
    int32_t first_dim;
    int64_t ahead_tokens = 0;

    rotated_tensor(const head_view& view_, int32_t pairs, const simd::kernel_table& kernels, const rope_options& options) noexcept
        : view(view_), rotate(nullptr), first_dim(options.first_dim) {
        if (view.heads == 0 || pairs == 0) return;  // the type of an absent tensor is unchecked
        rotate = kernels.rope.rotate[static_cast<int>(view.type)][static_cast<int>(options.pairing)];
        ahead_tokens = std::max<int64_t>(ahead_bytes / (int64_t{2} * view.heads * pairs * element_bytes(view.type)), 1);
    }

    void turn(int64_t token, const float* row, int32_t pairs) const noexcept {
        if (view.heads == 0) return;
        std::byte* x = runtime::row_address(view, token, 0) + int64_t{first_dim} * element_bytes(view.type);
        const int64_t ahead = token + ahead_tokens < view.tokens ? ahead_tokens * view.token_stride : 0;
        rotate({x, view.head_stride, view.heads, pairs, row, row + pairs, ahead});
    }
};

status check_tensor(const char* name, const head_view& view, std::size_t tokens, const char* reason, const rope_table& table,
                    const rope_options& options) noexcept {
    if (const status s = runtime::check_view(name, view, runtime::view_use::write); !s.ok()) return s;
    if (view.heads == 0) return {};
    if (const status s = runtime::check_shape(name, view, {.tokens = static_cast<int64_t>(tokens)}, reason); !s.ok()) return s;
    return runtime::check_rope_slice(name, view.dim, table, options);
}

// Turns token t of q and k by angles[t]. Everything is checked.
void turn_all(const rope_table& table, rope_action action, std::span<const int64_t> angles, const rotated_tensor& q, const rotated_tensor& k,
              executor& on) noexcept {
    const int32_t pairs = table.pairs();
    const auto tokens = static_cast<int64_t>(angles.size());
    const int64_t token_elements = (int64_t{q.view.heads} + k.view.heads) * 2 * pairs;
    if (token_elements == 0) return;
    const runtime::rope_row_source source(table, action);
    const auto turn_block = [&](int64_t first, int64_t last) {
        float scratch[2 * runtime::max_rope_pairs];
        for (int64_t t = first; t < last; ++t) {
            const int64_t angle = angles[static_cast<std::size_t>(t)];
            if (angle == 0 && action == rope_action::shift) continue;
            const float* row = source.row(angle, scratch);
            q.turn(t, row, pairs);
            k.turn(t, row, pairs);
        }
    };
    const bool alone = tokens <= alone_elements / token_elements;
    runtime::for_each_block(on, tokens, alone ? tokens : std::max<int64_t>(block_elements / token_elements, 1), turn_block);
}

}  // namespace

status rope_apply(const rope_table& table, std::span<const int64_t> positions, head_view q, head_view k, const rope_options& options,
                  executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_rope(table, options); !s.ok()) return s;
    if (s = check_tensor("q", q, positions.size(), "one token per position", table, options); !s.ok()) return s;
    if (s = check_tensor("k", k, positions.size(), "one token per position", table, options); !s.ok()) return s;
    if (q.heads != 0 && k.heads != 0 && q.data == k.data && !positions.empty()) {
        return refuse(status_code::invalid_argument, "q.data and k.data are both %p; must be different tensors", q.data);
    }
    if (s = runtime::check_positions("positions", positions, table); !s.ok()) return s;
    turn_all(table, options.inverse ? rope_action::inverse : rope_action::rotate, positions, {q, table.pairs(), *kernels, options},
             {k, table.pairs(), *kernels, options}, on);
    return {};
}

status rope_shift(const rope_table& table, std::span<const int64_t> deltas, head_view k, const rope_options& options, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_rope(table, options); !s.ok()) return s;
    if (options.inverse) return refuse(status_code::invalid_argument, "options.inverse is true; must be false: negate the deltas instead");
    if (s = check_tensor("k", k, deltas.size(), "one token per delta", table, options); !s.ok()) return s;
    if (s = runtime::check_deltas(deltas, table); !s.ok()) return s;
    turn_all(table, rope_action::shift, deltas, {k, table.pairs(), *kernels, options}, {{}, table.pairs(), *kernels, options}, on);
    return {};
}

}  // namespace ropewalk
