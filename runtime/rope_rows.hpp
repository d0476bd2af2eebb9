// The rows of cos and sin that a rotation uses: shared by rope_apply, rope_shift and kv_append.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>
#include "simd/core/kernels.hpp"

namespace ropewalk::runtime {

// Bounds the scratch of one row to 8 KiB, so that it may lie on a stack.
inline constexpr int32_t max_rope_pairs = simd::max_rope_pairs;
inline constexpr int32_t max_rope_axes = 4;
// The same for a row with FoPE, which has cos and sin of every head.
inline constexpr int32_t max_row_floats = 8192;

// A row is `turns` times cos [pairs], sin [pairs]: 1; with xPos 2, of q and of k; with FoPE one of each head.
[[nodiscard]] int32_t row_turns(const rope_spec& spec) noexcept;
[[nodiscard]] inline int32_t row_floats(const rope_spec& spec) noexcept { return row_turns(spec) * 2 * static_cast<int32_t>(spec.inv_freq.size()); }

// Which turns of a row the heads of a tensor take: `count` of them from `first` on, each for as many consecutive heads.
struct turn_range {
    int32_t first, count;
};
[[nodiscard]] turn_range turns_of_q(const rope_spec& spec) noexcept;
[[nodiscard]] turn_range turns_of_k(const rope_spec& spec) noexcept;

// out [row_floats] = the row of the angles distance * inv_freq, times amplitude. The same bits as a row of a table with that amplitude.
void compute_rope_row(const rope_spec& spec, int64_t distance, double amplitude, float* out) noexcept;

// The row of a spec with xPos or FoPE from cos [pairs], sin [pairs] of a plain one; products and sums in double, rounded once.
void mix_rope_row(const rope_spec& spec, int64_t position, const float* plain, float* out) noexcept;
// The parts of a spec that make its rows more than a plain rotation.
[[nodiscard]] status check_mix(const rope_spec& spec) noexcept;
// Positions below this have rows: fewer than 2^31 with xPos.
[[nodiscard]] int64_t mix_position_limit(const rope_spec& spec, int64_t limit) noexcept;

// What is done with the table's rotation R(p): amplitude * turn by the angle.
enum class rope_action {
    rotate,   // R(p)
    inverse,  // R(p)^-1: turns back and divides by the amplitude
    shift,    // turns by p, either sign, without the amplitude
};
[[nodiscard]] inline rope_action action_of(const rope_options& options) noexcept {
    return options.inverse ? rope_action::inverse : rope_action::rotate;
}

// The kernel that reads and writes pairs as the options and the action want.
[[nodiscard]] simd::rotate_function rotation_of(const simd::kernel_table& kernels, dtype type, const rope_options& options,
                                                rope_action action) noexcept;

class rope_row_source {
public:
    // positions [axes][tokens], accepted by check_positions or check_deltas.
    rope_row_source(const rope_table& table, rope_action action, bool conjugate, std::span<const int64_t> positions,
                    const simd::kernel_table& kernels) noexcept;

    // The row of a token. It is the table's own memory where it can be, else it is formed in scratch [row_floats]. Of a row that the last call has
    // left in the same scratch only those axes are formed whose position is another: along a row of an image, one.
    const float* row(int64_t token, float* scratch) noexcept;
    // All positions of the token are 0.
    [[nodiscard]] bool still(int64_t token) const noexcept;

private:
    const float* turned(int64_t position, float* scratch) const noexcept;
    const float* composed(const int64_t* position, float* scratch) noexcept;

    const rope_table& table_;
    const simd::kernel_table& kernels_;
    const int64_t* positions_;
    int32_t axes_;
    int64_t tokens_;
    double amplitude_;
    bool of_table_;  // the table's amplitude is the wanted one
    bool backwards_;
    const uint8_t* axis_of_pair_;
    const float* composed_ = nullptr;     // scratch that holds the row of ..
    int64_t composed_of_[max_rope_axes];  // .. these positions
};

// The table has not been moved from, options are legal and the slice fits into the head of tensor `name`.
[[nodiscard]] status check_rope(const rope_table& table, const rope_options& options) noexcept;
[[nodiscard]] status check_rope_slice(const char* name, int32_t dim, const rope_table& table, const rope_options& options) noexcept;
// FoPE: the heads of the tensor are shared out among the table's.
[[nodiscard]] status check_rope_heads(const char* name, int32_t heads, const rope_table& table) noexcept;
// positions [axes][tokens] of a table with several axes.
[[nodiscard]] status check_streams(const char* name, std::size_t given, int64_t tokens, const rope_table& table) noexcept;
// Every position lies in 0 .. most, which of a table is max_position(); every delta within that distance of 0.
[[nodiscard]] status check_positions(const char* name, std::span<const int64_t> positions, int64_t most) noexcept;
[[nodiscard]] status check_deltas(std::span<const int64_t> deltas, const rope_table& table) noexcept;

}  // namespace ropewalk::runtime
