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

rope_row_source::rope_row_source(const rope_table& table, rope_action action) noexcept
    : table_(table),
      amplitude_(wanted_amplitude(table.spec().amplitude, action)),
      of_table_(amplitude_ == table.spec().amplitude),
      inverse_(action == rope_action::inverse) {}

const float* rope_row_source::row(int64_t position, float* scratch) const noexcept {
    const int64_t distance = position < 0 ? -position : position;
    const float* found = scratch;
    if (of_table_) {
        found = table_.find_row(distance, scratch);
    } else {
        compute_rope_row(table_.spec(), distance, amplitude_, scratch);
    }
    if (inverse_ == (position < 0)) return found;  // turned back twice or not at all
    const int32_t pairs = table_.pairs();
    for (int32_t i = 0; i < pairs; ++i) {
        scratch[i] = found[i];
        scratch[pairs + i] = -found[pairs + i];
    }
    return scratch;
}

status check_rope(const rope_table& table, const rope_options& options) noexcept {
    if (table.max_position() < 0) return refuse(status_code::invalid_argument, "table is empty; it must not have been moved from");
    const auto pairing = static_cast<int32_t>(options.pairing);
    if (pairing != 0 && pairing != 1) {
        return refuse(status_code::invalid_argument, "options.pairing is %d; must be 0 (half) or 1 (interleaved)", pairing);
    }
    if (options.first_dim < 0) return refuse(status_code::invalid_argument, "options.first_dim is %d; must be at least 0", options.first_dim);
    return {};
}

status check_rope_slice(const char* name, int32_t dim, const rope_table& table, const rope_options& options) noexcept {
    const int64_t end = int64_t{options.first_dim} + 2 * table.pairs();
    if (end <= dim) return {};
    return refuse(status_code::invalid_argument, "%s.dim is %d; must be at least first_dim + rotary_dim = %d + %d", name, dim, options.first_dim,
                  2 * table.pairs());
}

status check_positions(const char* name, std::span<const int64_t> positions, const rope_table& table) noexcept {
    const int64_t most = table.max_position();
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
