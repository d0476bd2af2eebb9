// ALiBi slopes, in double from the closed form; the rules of Press and MPT give the same numbers for the head counts that models use.
#include <ropewalk/alibi.hpp>

#include <bit>
#include <cmath>
#include <cstdint>

#include <ropewalk/types.hpp>

#include "runtime/refuse.hpp"

namespace ropewalk {

namespace {

// Entry index (from 1) of the geometric series 2^(-M k / length).
float entry(uint64_t index, uint64_t length, double max_exponent) noexcept {
    return static_cast<float>(std::exp2(-max_exponent * static_cast<double>(index) / static_cast<double>(length)));
}

void press(std::span<float> slopes, double max_exponent) noexcept {
    const uint64_t heads = slopes.size(), power = std::bit_floor(heads);
    for (uint64_t h = 0; h < heads; ++h) {
        slopes[h] = h < power ? entry(h + 1, power, max_exponent) : entry(2 * (h - power) + 1, 2 * power, max_exponent);
    }
}

void mpt(std::span<float> slopes, double max_exponent) noexcept {
    const uint64_t heads = slopes.size(), power = std::bit_ceil(heads);
    for (uint64_t h = 0; h < heads; ++h) {
        const uint64_t taken = 2 * (h + 1);  // entries 2, 4, .., power, then 1, 3, ..
        const uint64_t index = power == heads ? h + 1 : taken <= power ? taken : taken - power - 1;
        slopes[h] = entry(index, power, max_exponent);
    }
}

}  // namespace

status alibi_slopes(std::span<float> slopes, alibi_rule rule, double max_exponent) noexcept {
    if (slopes.empty()) return runtime::refuse(status_code::invalid_argument, "slopes has 0 entries; must have one per query head");
    if (slopes.data() == nullptr)
        return runtime::refuse(status_code::invalid_argument, "slopes.data() is null; must point to %zu floats", slopes.size());
    if (!std::isfinite(max_exponent) || max_exponent <= 0.0) {
        return runtime::refuse(status_code::invalid_argument, "max_exponent is %g; must be finite and positive", max_exponent);
    }
    switch (rule) {
        case alibi_rule::press: press(slopes, max_exponent); return {};
        case alibi_rule::mpt: mpt(slopes, max_exponent); return {};
        case alibi_rule::falcon:
            press(slopes, max_exponent);
            for (float& slope : slopes) slope = bf16_to_float(float_to_bf16(slope));
            return {};
    }
    return runtime::refuse(status_code::invalid_argument, "rule is %d; must be 0 (press), 1 (mpt) or 2 (falcon)", static_cast<int>(rule));
}

}  // namespace ropewalk
