// The rows of cos and sin that a rotation uses: shared by rope_apply, rope_shift and kv_append.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::runtime {

// Bounds the scratch of one row to 8 KiB, so that it may lie on a stack.
inline constexpr int32_t max_rope_pairs = 1024;

// out = cos [pairs] then sin [pairs] of the angles distance * inv_freq, times amplitude. The same bits as a row of a table with that amplitude.
void compute_rope_row(const rope_spec& spec, int64_t distance, double amplitude, float* out) noexcept;

// What is done with the table's rotation R(p): amplitude * turn by the angle.
enum class rope_action {
    rotate,   // R(p)
    inverse,  // R(p)^-1: turns back and divides by the amplitude
    shift,    // turns by p, either sign, without the amplitude
};

class rope_row_source {
public:
    rope_row_source(const rope_table& table, rope_action action) noexcept;

    // cos [pairs] then sin [pairs]. The row is the table's own memory where it can be, else it is formed in scratch [2 * pairs]. The position
    // must have been accepted by check_positions or check_deltas.
    const float* row(int64_t position, float* scratch) const noexcept;

private:
    const rope_table& table_;
    double amplitude_;
    bool of_table_;  // the table's amplitude is the wanted one
    bool inverse_;
};

// The table has not been moved from, options are legal and the slice fits into the head of tensor `name`.
[[nodiscard]] status check_rope(const rope_table& table, const rope_options& options) noexcept;
[[nodiscard]] status check_rope_slice(const char* name, int32_t dim, const rope_table& table, const rope_options& options) noexcept;
// Every position lies in 0 .. max_position(); every delta within that distance of 0.
[[nodiscard]] status check_positions(const char* name, std::span<const int64_t> positions, const rope_table& table) noexcept;
[[nodiscard]] status check_deltas(std::span<const int64_t> deltas, const rope_table& table) noexcept;

}  // namespace ropewalk::runtime
