// Rows of xPos and FoPE. Formulas: rope.hpp.
#include <algorithm>
#include <cmath>

#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"

namespace ropewalk::runtime {

namespace {

constexpr double xpos_largest_exponent = 100.0;  // amplitudes of 2^-100 .. 2^100, as rope_spec::amplitude

double zeta(const rope_spec& spec, std::size_t pair) noexcept {
    const auto d = static_cast<double>(spec.rotary_dim());
    return (2.0 * static_cast<double>(pair) + 0.4 * d) / (1.4 * d);
}

// How far from the center positions may be. The first pair decays fastest.
double xpos_reach(const xpos_scaling& xpos) noexcept { return xpos.base * xpos_largest_exponent / std::log2(1.4 / 0.4); }

void mix_xpos(const rope_spec& spec, int64_t position, const float* plain, float* out) noexcept {
    const std::size_t pairs = spec.inv_freq.size();
    const double power = (static_cast<double>(position) - spec.xpos.center) / spec.xpos.base;
    for (std::size_t i = 0; i < pairs; ++i) {
        const double of_q = std::pow(zeta(spec, i), power);
        for (std::size_t part = i; part < 2 * pairs; part += pairs) {  // cos, sin
            out[part] = static_cast<float>(plain[part] * of_q);
            out[2 * pairs + part] = static_cast<float>(plain[part] / of_q);
        }
    }
}

// out [pairs] = mixed from plain [pairs], `still` from `frequencies` on.
void mix_head(const float* mix, std::size_t frequencies, std::size_t pairs, const float* plain, float still, float* out) noexcept {
    double sums[max_rope_pairs] = {};
    for (std::size_t i = 0; i < frequencies; ++i) {
        for (std::size_t o = 0; o < frequencies; ++o) sums[o] += double{plain[i]} * mix[i * frequencies + o];
    }
    for (std::size_t o = 0; o < pairs; ++o) out[o] = o < frequencies ? static_cast<float>(sums[o]) : still;
}

void mix_fope(const rope_spec& spec, const float* plain, float* out) noexcept {
    const std::size_t pairs = spec.inv_freq.size();
    const auto frequencies = static_cast<std::size_t>(spec.fope.frequencies);
    for (std::size_t h = 0; h < static_cast<std::size_t>(spec.fope.heads); ++h, out += 2 * pairs) {
        const std::size_t first = h * frequencies * frequencies;
        mix_head(spec.fope.cos_mix.data() + first, frequencies, pairs, plain, 1.0f, out);
        mix_head(spec.fope.sin_mix.data() + first, frequencies, pairs, plain + pairs, 0.0f, out + pairs);
    }
}

status check_xpos(const xpos_scaling& xpos) noexcept {
    if (!std::isfinite(xpos.base) || xpos.base < 0.0) {
        return refuse(status_code::invalid_argument, "xpos.base is %g; must be finite and positive, or 0: no xPos", xpos.base);
    }
    if (!(xpos.center >= 0.0 && xpos.center <= xpos_reach(xpos))) {
        return refuse(status_code::invalid_argument, "xpos.center is %g; must be 0 .. %g, which is 55 bases", xpos.center, xpos_reach(xpos));
    }
    return {};
}

status check_fope(const rope_spec& spec) noexcept {
    const fope_mix& fope = spec.fope;
    const std::size_t pairs = spec.inv_freq.size();
    if (fope.heads < 0 || static_cast<std::size_t>(fope.heads) * 2 * pairs > max_row_floats) {
        return refuse(status_code::invalid_argument, "fope.heads is %d; must be at least 0, and times rotary_dim (%d) at most %d", fope.heads,
                      spec.rotary_dim(), max_row_floats);
    }
    if (fope.frequencies < 0 || static_cast<std::size_t>(fope.frequencies) > pairs) {
        return refuse(status_code::invalid_argument, "fope.frequencies is %d; must be 0 .. %zu, the pairs", fope.frequencies, pairs);
    }
    const std::size_t size = static_cast<std::size_t>(fope.heads) * static_cast<std::size_t>(fope.frequencies * fope.frequencies);
    for (const auto* mix : {&fope.cos_mix, &fope.sin_mix}) {
        const char* name = mix == &fope.cos_mix ? "fope.cos_mix" : "fope.sin_mix";
        if (mix->size() != size) {
            return refuse(status_code::invalid_argument, "%s has %zu entries; must be heads x frequencies x frequencies = %zu", name, mix->size(),
                          size);
        }
        const auto bad = std::find_if(mix->begin(), mix->end(), [](float x) { return !std::isfinite(x); });
        if (bad != mix->end()) return refuse(status_code::invalid_argument, "%s[%td] is %g; must be finite", name, bad - mix->begin(), double{*bad});
    }
    return {};
}

}  // namespace

int32_t row_turns(const rope_spec& spec) noexcept { return spec.xpos.base != 0.0 ? 2 : std::max(spec.fope.heads, 1); }
turn_range turns_of_q(const rope_spec& spec) noexcept { return {0, std::max(spec.fope.heads, 1)}; }
turn_range turns_of_k(const rope_spec& spec) noexcept { return {spec.xpos.base != 0.0 ? 1 : 0, std::max(spec.fope.heads, 1)}; }

void mix_rope_row(const rope_spec& spec, int64_t position, const float* plain, float* out) noexcept {
    if (spec.xpos.base != 0.0) return mix_xpos(spec, position, plain, out);
    mix_fope(spec, plain, out);
}

status check_mix(const rope_spec& spec) noexcept {
    if (const status s = check_fope(spec); !s.ok()) return s;
    if (spec.xpos.base != 0.0) {
        if (const status s = check_xpos(spec.xpos); !s.ok()) return s;
    }
    if (spec.pure_rotation()) return {};
    if (spec.xpos.base != 0.0 && spec.fope.heads != 0) {
        return refuse(status_code::invalid_argument, "fope.heads is %d; must be 0 with xPos (xpos.base %g)", spec.fope.heads, spec.xpos.base);
    }
    if (!spec.axis_of_pair.empty()) {
        return refuse(status_code::invalid_argument, "axis_of_pair has %zu entries; must be empty with xPos or FoPE", spec.axis_of_pair.size());
    }
    if (spec.amplitude != 1.0) {
        return refuse(status_code::invalid_argument, "amplitude is %g; must be 1 with xPos or FoPE", spec.amplitude);
    }
    return {};
}

int64_t mix_position_limit(const rope_spec& spec, int64_t limit) noexcept {
    if (spec.xpos.base == 0.0) return limit;
    const double last = std::floor(spec.xpos.center + xpos_reach(spec.xpos));
    return last >= static_cast<double>(limit) ? limit : static_cast<int64_t>(last) + 1;
}

}  // namespace ropewalk::runtime
