#include "runtime/rope_rows.hpp"

#include <cinttypes>

#include "runtime/refuse.hpp"

namespace ropewalk::runtime {

namespace {

double wanted_amplitude(double amplitude, rope_action action) noexcept {
    switch (action) {
        case rope_action::rotate: return amplitude;
        case rope_action::inverse: return 1.0 / amplitude;
        case rope_action::shift: return 1.0;
    }
    return amplitude;
}

}  // namespace

simd::rotate_function rotation_of(const simd::kernel_table& kernels, dtype type, const rope_options& options, rope_action action) noexcept {
    int layout = static_cast<int>(options.pairing);
    if (options.pairing == rope_pairing::interleaved_in_half_out) {
        layout = action == rope_action::rotate  ? simd::interleaved_to_half
                 : action == rope_action::shift ? simd::half_pairs
                                                : simd::half_to_interleaved;
    }
    return kernels.rope.rotate[static_cast<int>(type)][layout];
}

rope_row_source::rope_row_source(const rope_table& table, rope_action action, bool conjugate, std::span<const int64_t> positions,
                                 const simd::kernel_table& kernels) noexcept
    : table_(table),
      kernels_(kernels),
      positions_(positions.data()),
      axes_(table.axes()),
      tokens_(static_cast<int64_t>(positions.size()) / axes_),
      amplitude_(wanted_amplitude(table.spec().amplitude, action)),
      of_table_(amplitude_ == table.spec().amplitude),
      backwards_((action == rope_action::inverse) != conjugate),
      axis_of_pair_(table.spec().axis_of_pair.data()) {}

bool rope_row_source::still(int64_t token) const noexcept {
    int64_t any = 0;
    for (int32_t axis = 0; axis < axes_; ++axis) any |= positions_[axis * tokens_ + token];
    return any == 0;
}

const float* rope_row_source::row(int64_t token, float* scratch) noexcept {
    const int64_t* position = positions_ + token;
    int64_t apart = 0;
    for (int32_t axis = 1; axis < axes_; ++axis) apart |= position[axis * tokens_] ^ *position;
    if (apart != 0) return composed(position, scratch);
    composed_ = nullptr;
    return turned(*position, scratch);
}

const float* rope_row_source::composed(const int64_t* position, float* scratch) noexcept {
    float formed[2 * max_rope_pairs];
    for (int32_t axis = 0; axis < axes_; ++axis, position += tokens_) {
        if (scratch == composed_ && composed_of_[axis] == *position) continue;
        composed_of_[axis] = *position;
        kernels_.rope.compose({turned(*position, formed), axis_of_pair_, axis, table_.pairs(), scratch});
    }
    composed_ = scratch;
    return scratch;
}

const float* rope_row_source::turned(int64_t position, float* scratch) const noexcept {
    const int64_t distance = position < 0 ? -position : position;
    const float* found = scratch;
    if (of_table_) {
        found = table_.find_row(distance, scratch);
    } else {
        compute_rope_row(table_.spec(), distance, amplitude_, scratch);
    }
    if (backwards_ == (position < 0)) return found;  // turned back twice or not at all
    const int32_t pairs = table_.pairs();
    for (int32_t turn = 0; turn < row_turns(table_.spec()); ++turn, found += 2 * pairs) {
        float* out = scratch + turn * 2 * pairs;
        for (int32_t i = 0; i < pairs; ++i) {
            out[i] = found[i];
            out[pairs + i] = -found[pairs + i];
        }
    }
    return scratch;
}

namespace {

status check_pairing(const rope_options& options, int32_t pairs) noexcept {
    const auto pairing = static_cast<int32_t>(options.pairing);
    if (pairing < 0 || pairing > 2) {
        return refuse(status_code::invalid_argument, "options.pairing is %d; must be 0 (half), 1 (interleaved) or 2 (interleaved in, half out)",
                      pairing);
    }
    if (options.pair_distance == 0) return {};
    if (options.pairing != rope_pairing::half) {
        return refuse(status_code::invalid_argument, "options.pair_distance is %d; must be 0 unless options.pairing is 0 (half)",
                      options.pair_distance);
    }
    if (options.pair_distance < pairs) {
        return refuse(status_code::invalid_argument, "options.pair_distance is %d; must be 0 or at least %d, the pairs of the table",
                      options.pair_distance, pairs);
    }
    return {};
}

}  // namespace

status check_rope(const rope_table& table, const rope_options& options) noexcept {
    if (table.max_position() < 0) return refuse(status_code::invalid_argument, "table is empty; it must not have been moved from");
    if (const status s = check_pairing(options, table.pairs()); !s.ok()) return s;
    if (options.first_dim < 0) return refuse(status_code::invalid_argument, "options.first_dim is %d; must be at least 0", options.first_dim);
    if (options.inverse && !table.spec().pure_rotation()) {
        return refuse(status_code::invalid_argument, "options.inverse is true; must be false with xPos and FoPE, which are no pure rotations");
    }
    return {};
}

status check_rope_slice(const char* name, int32_t dim, const rope_table& table, const rope_options& options) noexcept {
    const int32_t distance = options.pair_distance;
    const int64_t end = int64_t{options.first_dim} + (distance != 0 ? distance : table.pairs()) + table.pairs();
    if (end <= dim) return {};
    if (distance == 0) {
        return refuse(status_code::invalid_argument, "%s.dim is %d; must be at least first_dim + rotary_dim = %d + %d", name, dim, options.first_dim,
                      2 * table.pairs());
    }
    return refuse(status_code::invalid_argument, "%s.dim is %d; must be at least first_dim + pair_distance + pairs = %d + %d + %d", name, dim,
                  options.first_dim, distance, table.pairs());
}

status check_rope_heads(const char* name, int32_t heads, const rope_table& table) noexcept {
    const int32_t tables = turns_of_k(table.spec()).count;
    if (heads % tables == 0) return {};
    return refuse(status_code::invalid_argument, "%s.heads is %d; must be a multiple of the table's %d (FoPE)", name, heads, tables);
}

status check_streams(const char* name, std::size_t given, int64_t tokens, const rope_table& table) noexcept {
    const int64_t axes = table.axes();
    if (static_cast<int64_t>(given) == axes * tokens) return {};
    return refuse(status_code::invalid_argument, "%s has %zu entries; must be [axes][tokens] = %" PRId64 " x %" PRId64, name, given, axes, tokens);
}

status check_positions(const char* name, std::span<const int64_t> positions, int64_t most) noexcept {
    for (std::size_t i = 0; i < positions.size(); ++i) {
        if (positions[i] < 0 || positions[i] > most) {
            return refuse(status_code::out_of_range, "%s[%zu] is %" PRId64 "; must be 0 .. %" PRId64, name, i, positions[i], most);
        }
    }
    return {};
}

status check_deltas(std::span<const int64_t> deltas, const rope_table& table) noexcept {
    const int64_t most = table.max_position();
    for (std::size_t i = 0; i < deltas.size(); ++i) {
        if (deltas[i] < -most || deltas[i] > most) {
            return refuse(status_code::out_of_range, "deltas[%zu] is %" PRId64 "; must be within %" PRId64 " of 0", i, deltas[i], most);
        }
    }
    return {};
}

}  // namespace ropewalk::runtime
