// Frequency families of RoPE. Formulas: reference in rope.hpp; everything in double, from the closed form (no running products).
#include <ropewalk/rope.hpp>

#include <cmath>
#include <new>
#include <numbers>

#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

status check_base(int32_t rotary_dim, double theta) noexcept {
    if (rotary_dim < 0 || rotary_dim % 2 != 0 || rotary_dim > 2 * runtime::max_rope_pairs) {
        return refuse(status_code::invalid_argument, "rotary_dim is %d; must be even and 0 .. %d", rotary_dim, 2 * runtime::max_rope_pairs);
    }
    if (!std::isfinite(theta) || theta <= 0.0) {
        return refuse(status_code::invalid_argument, "theta is %g; must be finite and positive", theta);
    }
    return {};
}

status check_factor(double factor) noexcept {
    if (std::isfinite(factor) && factor >= 1.0) return {};
    return refuse(status_code::invalid_argument, "factor is %g; must be finite and at least 1", factor);
}

status check_llama3(const rope_spec::llama3_parameters& p) noexcept {
    if (const status s = check_factor(p.factor); !s.ok()) return s;
    if (!std::isfinite(p.low_freq_factor) || p.low_freq_factor < 0.0) {
        return refuse(status_code::invalid_argument, "low_freq_factor is %g; must be finite and at least 0", p.low_freq_factor);
    }
    if (!std::isfinite(p.high_freq_factor) || p.high_freq_factor < p.low_freq_factor) {
        return refuse(status_code::invalid_argument, "high_freq_factor is %g; must be finite and at least low_freq_factor (%g)", p.high_freq_factor,
                      p.low_freq_factor);
    }
    if (!std::isfinite(p.original_max_position) || p.original_max_position <= 0.0) {
        return refuse(status_code::invalid_argument, "original_max_position is %g; must be finite and positive", p.original_max_position);
    }
    return {};
}

double llama3_frequency(double inv_freq, const rope_spec::llama3_parameters& p) noexcept {
    const double turns = p.original_max_position * inv_freq / (2.0 * std::numbers::pi);  // L / wavelength
    // Branches before the blend: with high == low the blend would divide by zero, and only the empty middle branch protects it.
    if (turns >= p.high_freq_factor) return inv_freq;
    if (turns < p.low_freq_factor) return inv_freq / p.factor;
    const double t = (turns - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
    return (1.0 - t) * inv_freq / p.factor + t * inv_freq;
}

}  // namespace

result<rope_spec> rope_spec::standard(int32_t rotary_dim, double theta) noexcept {
    if (const status s = check_base(rotary_dim, theta); !s.ok()) return s;
    try {
        rope_spec spec;
        spec.inv_freq.resize(static_cast<std::size_t>(rotary_dim / 2));
        for (int32_t i = 0; i < rotary_dim / 2; ++i) spec.inv_freq[static_cast<std::size_t>(i)] = std::pow(theta, -2.0 * i / rotary_dim);
        if (const status s = spec.validate(); !s.ok()) return s;
        return spec;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %d frequencies", rotary_dim / 2);
    }
}

result<rope_spec> rope_spec::linear(int32_t rotary_dim, double theta, double factor) noexcept {
    if (const status s = check_factor(factor); !s.ok()) return s;
    result<rope_spec> spec = standard(rotary_dim, theta);
    if (spec.ok()) {
        for (double& frequency : spec->inv_freq) frequency /= factor;
    }
    return spec;
}

result<rope_spec> rope_spec::llama3(const llama3_parameters& parameters) noexcept {
    if (const status s = check_llama3(parameters); !s.ok()) return s;
    result<rope_spec> spec = standard(parameters.rotary_dim, parameters.theta);
    if (spec.ok()) {
        for (double& frequency : spec->inv_freq) frequency = llama3_frequency(frequency, parameters);
    }
    return spec;
}

status rope_spec::validate() const noexcept {
    if (inv_freq.size() > static_cast<std::size_t>(runtime::max_rope_pairs)) {
        return refuse(status_code::invalid_argument, "inv_freq has %zu entries; must be at most %d", inv_freq.size(), runtime::max_rope_pairs);
    }
    for (std::size_t i = 0; i < inv_freq.size(); ++i) {
        // 2^52 radians a position: far beyond sense, and 2^31 of them are still finite.
        if (!(inv_freq[i] >= 0.0 && inv_freq[i] <= 0x1p52)) {
            return refuse(status_code::invalid_argument, "inv_freq[%zu] is %g; must be 0 .. 2^52", i, inv_freq[i]);
        }
    }
    // cos and sin times the amplitude are stored as fp32.
    if (!(amplitude >= 0x1p-100 && amplitude <= 0x1p100)) {
        return refuse(status_code::invalid_argument, "amplitude is %g; must be positive, 2^-100 .. 2^100", amplitude);
    }
    return runtime::check_mix(*this);
}

}  // namespace ropewalk
