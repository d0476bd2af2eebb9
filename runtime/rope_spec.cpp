// Frequency families of RoPE. Formulas: reference in rope.hpp. Exact specs are formed in double from the closed form (no running products); hf_f32
// specs take the same steps in the order of transformers (modeling_rope_utils.py) with each result rounded to fp32.
#include <ropewalk/rope.hpp>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <limits>
#include <new>
#include <numbers>

#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

// What every step of a spec goes through: nothing (exact), or rounding to fp32. An fp32 sum, product or quotient is the double one of fp32 operands,
// rounded: double has more than twice the bits.
class stepwise {
public:
    explicit stepwise(phase_mode phases) noexcept : fp32_(phases == phase_mode::hf_f32) {}
    double operator()(double x) const noexcept { return fp32_ ? static_cast<double>(static_cast<float>(x)) : x; }

private:
    bool fp32_;
};

status check_at_least(const char* name, double value, double least) noexcept {
    if (std::isfinite(value) && value >= least) return {};
    return refuse(status_code::invalid_argument, "%s is %g; must be finite and at least %g", name, value, least);
}

status check_positive(const char* name, double value) noexcept {
    if (std::isfinite(value) && value > 0.0) return {};
    return refuse(status_code::invalid_argument, "%s is %g; must be finite and positive", name, value);
}

status check_base(const char* dim_name, int32_t rotary_dim, double theta, phase_mode phases) noexcept {
    if (rotary_dim < 0 || rotary_dim % 2 != 0 || rotary_dim > 2 * runtime::max_rope_pairs) {
        return refuse(status_code::invalid_argument, "%s is %d; must be even and 0 .. %d", dim_name, rotary_dim, 2 * runtime::max_rope_pairs);
    }
    if (phases == phase_mode::hf_f32 && theta > static_cast<double>(std::numeric_limits<float>::max())) {
        return refuse(status_code::invalid_argument, "theta is %g; must be finite in fp32 for hf_f32", theta);
    }
    return check_positive("theta", theta);
}

// The exponent of NTK's theta': d / (d - 2).
status check_ntk_dim(int32_t rotary_dim) noexcept {
    if (rotary_dim != 2) return {};
    return refuse(status_code::invalid_argument, "rotary_dim is 2; must not be 2 for NTK scaling, whose exponent d / (d - 2) is then infinite");
}

status check_length(int64_t length) noexcept {
    if (length >= 0) return {};
    return refuse(status_code::invalid_argument, "length is %" PRId64 "; must be at least 0", length);
}

// A spec whose frequency of pair i is frequency(i).
template <class function>
result<rope_spec> make_spec(int32_t pairs, phase_mode phases, function frequency) noexcept {
    try {
        rope_spec spec;
        spec.phases = phases;
        spec.inv_freq.resize(static_cast<std::size_t>(pairs));
        for (int32_t i = 0; i < pairs; ++i) spec.inv_freq[static_cast<std::size_t>(i)] = frequency(i);
        if (const status s = spec.validate(); !s.ok()) return s;
        return spec;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %d frequencies", pairs);
    }
}

// What the frequencies of most families are made from.
struct base_frequencies {
    int32_t dim;
    double theta;
    phase_mode phases;
    stepwise r{phases};

    // theta^(-2i/dim)
    double operator()(int32_t i) const noexcept { return divided(i, 1.0); }
    // theta^(-2i/dim) / divisor, which transformers forms as the inverse of a product. torch's fp32 power is off by a few hundredths of an ulp before
    // it is rounded, so that near the middle of two values it may be either; the inverses of two neighbours may lie two ulps apart: then the one
    // between.
    double divided(int32_t i, double divisor) const noexcept {
        if (phases == phase_mode::exact) return std::pow(theta, -2.0 * i / dim) / divisor;
        const double power = std::pow(r(theta), r(2.0 * i / dim)), error = 0x1p-28 * power;
        const auto inverse = [&](double near) { return r(1.0 / r(r(divisor) * r(near))); };
        const double most = inverse(power - error), least = inverse(power + error), middle = r((most + least) / 2.0);
        return middle == most || middle == least ? inverse(power) : middle;
    }
};

status check_factors(const char* name, std::span<const double> factors, std::size_t pairs) noexcept {
    if (factors.size() != pairs) {
        return refuse(status_code::invalid_argument, "%s has %zu entries; must be %zu, one per pair", name, factors.size(), pairs);
    }
    for (std::size_t i = 0; i < pairs; ++i) {
        if (std::isfinite(factors[i]) && factors[i] > 0.0) continue;
        return refuse(status_code::invalid_argument, "%s[%zu] is %g; must be finite and positive", name, i, factors[i]);
    }
    return {};
}

}  // namespace

// ---- divided -------------------------------------------------------------------------------------------------------------------------------------

result<rope_spec> rope_spec::standard(int32_t rotary_dim, double theta, phase_mode phases) noexcept {
    if (const status s = check_base("rotary_dim", rotary_dim, theta, phases); !s.ok()) return s;
    return make_spec(rotary_dim / 2, phases, base_frequencies{rotary_dim, theta, phases});
}

result<rope_spec> rope_spec::linear(int32_t rotary_dim, double theta, double factor, phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    if (const status s = check_base("rotary_dim", rotary_dim, theta, phases); !s.ok()) return s;
    const base_frequencies base{rotary_dim, theta, phases};
    return make_spec(rotary_dim / 2, phases, [&](int32_t i) { return base.r(base(i) / base.r(factor)); });
}

namespace {

status check_llama3(const rope_spec::llama3_parameters& p) noexcept {
    if (const status s = check_at_least("factor", p.factor, 1.0); !s.ok()) return s;
    if (const status s = check_at_least("low_freq_factor", p.low_freq_factor, 0.0); !s.ok()) return s;
    if (!std::isfinite(p.high_freq_factor) || p.high_freq_factor < p.low_freq_factor) {
        return refuse(status_code::invalid_argument, "high_freq_factor is %g; must be finite and at least low_freq_factor (%g)", p.high_freq_factor,
                      p.low_freq_factor);
    }
    return check_positive("original_max_position", p.original_max_position);
}

double llama3_frequency(double inv_freq, const rope_spec::llama3_parameters& p, phase_mode phases) noexcept {
    const stepwise r(phases);
    const double turn = 2.0 * std::numbers::pi;
    // L / wavelength; transformers forms wavelength and quotient by reciprocals.
    const double turns = phases == phase_mode::exact ? p.original_max_position * inv_freq / turn
                                                     : r(r(1.0 / r(r(1.0 / inv_freq) * r(turn))) * r(p.original_max_position));
    // Branches before the blend: with high == low the blend would divide by zero, and only the empty middle branch protects it.
    if (turns >= r(p.high_freq_factor)) return inv_freq;
    if (turns < r(p.low_freq_factor)) return r(inv_freq / r(p.factor));
    const double t = r(r(turns - r(p.low_freq_factor)) / r(p.high_freq_factor - p.low_freq_factor));
    return r(r(r(r(1.0 - t) * inv_freq) / r(p.factor)) + r(t * inv_freq));
}

}  // namespace

result<rope_spec> rope_spec::llama3(const llama3_parameters& parameters, phase_mode phases) noexcept {
    if (const status s = check_llama3(parameters); !s.ok()) return s;
    if (const status s = check_base("rotary_dim", parameters.rotary_dim, parameters.theta, phases); !s.ok()) return s;
    const base_frequencies base{parameters.rotary_dim, parameters.theta, phases};
    return make_spec(parameters.rotary_dim / 2, phases, [&](int32_t i) { return llama3_frequency(base(i), parameters, phases); });
}

result<rope_spec> rope_spec::proportional(int32_t head_dim, double theta, double partial_rotary_factor, double factor, phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    if (!(partial_rotary_factor >= 0.0 && partial_rotary_factor <= 1.0)) {
        return refuse(status_code::invalid_argument, "partial_rotary_factor is %g; must be 0 .. 1", partial_rotary_factor);
    }
    if (const status s = check_base("head_dim", head_dim, theta, phases); !s.ok()) return s;
    const auto turning = static_cast<int32_t>(partial_rotary_factor * head_dim / 2.0);
    const base_frequencies base{head_dim, theta, phases};
    return make_spec(head_dim / 2, phases, [&](int32_t i) { return i < turning ? base.r(base(i) / base.r(factor)) : 0.0; });
}

// ---- NTK: scaled through theta -------------------------------------------------------------------------------------------------------------------

result<rope_spec> rope_spec::ntk(int32_t rotary_dim, double theta, double factor, phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    if (const status s = check_ntk_dim(rotary_dim); !s.ok()) return s;
    return standard(rotary_dim, theta * std::pow(factor, rotary_dim / (rotary_dim - 2.0)), phases);
}

result<rope_spec> rope_spec::ntk_mixed(int32_t rotary_dim, double theta, double factor, double mixed_b, phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    if (const status s = check_at_least("mixed_b", mixed_b, 0.0); !s.ok()) return s;
    if (const status s = check_base("rotary_dim", rotary_dim, theta, phases); !s.ok()) return s;
    const base_frequencies base{rotary_dim, theta, phases};
    return make_spec(rotary_dim / 2, phases, [&](int32_t i) {
        return base.r(base(i) / base.r(std::exp(std::log(factor) * std::pow((i + 1) / (rotary_dim / 2.0), mixed_b))));
    });
}

result<rope_spec> rope_spec::ntk_alpha(int32_t rotary_dim, double theta, double alpha, phase_mode phases) noexcept {
    if (const status s = check_at_least("alpha", alpha, 1.0); !s.ok()) return s;
    return ntk(rotary_dim, theta, alpha, phases);
}

result<rope_spec> rope_spec::dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, int64_t length,
                                         phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    if (const status s = check_positive("max_position", max_position); !s.ok()) return s;
    if (const status s = check_length(length); !s.ok()) return s;
    if (const status s = check_ntk_dim(rotary_dim); !s.ok()) return s;
    const double longest = std::max(static_cast<double>(length), max_position);
    const double growth = factor * longest / max_position - (factor - 1.0);
    return standard(rotary_dim, theta * std::pow(growth, rotary_dim / (rotary_dim - 2.0)), phases);
}

result<rope_spec> rope_spec::theta_scale(int32_t rotary_dim, double theta, double factor, double original_max_position, phase_mode phases) noexcept {
    if (const status s = check_at_least("factor", factor, 1.0); !s.ok()) return s;
    const double turn = 2.0 * std::numbers::pi;
    if (!std::isfinite(original_max_position) || original_max_position <= turn) {
        return refuse(status_code::invalid_argument, "original_max_position is %g; must be finite and greater than 2 pi", original_max_position);
    }
    if (const status s = check_positive("theta", theta); !s.ok()) return s;
    return standard(rotary_dim, std::pow(theta, std::log(original_max_position * factor / turn) / std::log(original_max_position / turn)), phases);
}

// ---- YaRN ----------------------------------------------------------------------------------------------------------------------------------------

namespace {

// The pairs between which YaRN's ramp rises from 0 (kept) to 1 (divided by the factor).
struct yarn_ramp {
    double low, high;

    double operator()(int32_t i, stepwise r) const noexcept { return std::clamp(r(r(i - r(low)) / r(high - low)), 0.0, 1.0); }
};

// The pair that turns `rotations` times within the original length.
double yarn_pair(double rotations, const rope_spec::yarn_parameters& p) noexcept {
    return p.rotary_dim * std::log(p.original_max_position / (rotations * 2.0 * std::numbers::pi)) / (2.0 * std::log(p.theta));
}

result<yarn_ramp> yarn_ramp_of(const rope_spec::yarn_parameters& p) noexcept {
    const double low = yarn_pair(p.beta_fast, p), high = yarn_pair(p.beta_slow, p);
    // Both limits are dims in all stacks, though compared with pairs.
    yarn_ramp ramp{std::max(p.truncate ? std::floor(low) : low, 0.0), std::min(p.truncate ? std::ceil(high) : high, p.rotary_dim - 1.0)};
    if (ramp.low > ramp.high && p.rotary_dim != 0) {
        return refuse(status_code::invalid_argument, "original_max_position is %g; the ramp then runs backwards, from pair %g to %g of %d",
                      p.original_max_position, ramp.low, ramp.high, p.rotary_dim / 2);
    }
    if (ramp.low == ramp.high) ramp.high += 0.001;
    return ramp;
}

status check_yarn(const rope_spec::yarn_parameters& p, phase_mode phases) noexcept {
    if (const status s = check_base("rotary_dim", p.rotary_dim, p.theta, phases); !s.ok()) return s;
    if (!(p.theta > 1.0)) return refuse(status_code::invalid_argument, "theta is %g; must be greater than 1 for YaRN", p.theta);
    if (const status s = check_at_least("factor", p.factor, 1.0); !s.ok()) return s;
    if (const status s = check_positive("original_max_position", p.original_max_position); !s.ok()) return s;
    if (const status s = check_positive("attention_factor", p.attention_factor); !s.ok()) return s;
    if (const status s = check_positive("beta_slow", p.beta_slow); !s.ok()) return s;
    if (std::isfinite(p.beta_fast) && p.beta_fast >= p.beta_slow) return {};
    return refuse(status_code::invalid_argument, "beta_fast is %g; must be finite and at least beta_slow (%g)", p.beta_fast, p.beta_slow);
}

// blend(frequencies, pair, ramp) makes a frequency.
template <class function>
result<rope_spec> make_yarn(const rope_spec::yarn_parameters& p, phase_mode phases, function blend) noexcept {
    if (const status s = check_yarn(p, phases); !s.ok()) return s;
    const result<yarn_ramp> ramp = yarn_ramp_of(p);
    if (!ramp.ok()) return ramp.state();
    const base_frequencies base{p.rotary_dim, p.theta, phases};
    result<rope_spec> spec = make_spec(p.rotary_dim / 2, phases, [&](int32_t i) { return blend(base, i, (*ramp)(i, base.r)); });
    if (!spec.ok()) return spec;
    spec->amplitude = p.attention_factor;
    if (const status s = spec->validate(); !s.ok()) return s;
    return spec;
}

}  // namespace

result<rope_spec> rope_spec::yarn(const yarn_parameters& parameters, phase_mode phases) noexcept {
    return make_yarn(parameters, phases, [&](const base_frequencies& base, int32_t i, double ramp) {
        const stepwise& r = base.r;
        const double kept = r(1.0 - ramp);
        return r(r(base.divided(i, parameters.factor) * r(1.0 - kept)) + r(base(i) * kept));
    });
}

result<rope_spec> rope_spec::yarn_log(const yarn_parameters& parameters, phase_mode phases) noexcept {
    return make_yarn(parameters, phases, [&](const base_frequencies& base, int32_t i, double ramp) {
        return base.r(base(i) * std::exp(-ramp * std::log(parameters.factor)));
    });
}

// ---- factors for each pair -----------------------------------------------------------------------------------------------------------------------

namespace {

status check_longrope(const rope_spec::longrope_parameters& p, phase_mode phases) noexcept {
    if (const status s = check_base("rotary_dim", p.rotary_dim, p.theta, phases); !s.ok()) return s;
    const auto pairs = static_cast<std::size_t>(p.rotary_dim / 2);
    if (const status s = check_factors("short_factor", p.short_factor, pairs); !s.ok()) return s;
    if (const status s = check_factors("long_factor", p.long_factor, pairs); !s.ok()) return s;
    if (const status s = check_at_least("factor", p.factor, 1.0); !s.ok()) return s;
    if (const status s = check_positive("original_max_position", p.original_max_position); !s.ok()) return s;
    if (const status s = check_at_least("attention_factor", p.attention_factor, 0.0); !s.ok()) return s;
    if (p.attention_factor != 0.0 || p.factor == 1.0 || p.original_max_position > 1.0) return {};
    return refuse(status_code::invalid_argument, "original_max_position is %g; must be greater than 1, or attention_factor be given",
                  p.original_max_position);
}

}  // namespace

result<rope_spec> rope_spec::longrope(const longrope_parameters& parameters, int64_t length, phase_mode phases) noexcept {
    if (const status s = check_longrope(parameters, phases); !s.ok()) return s;
    if (const status s = check_length(length); !s.ok()) return s;
    const bool beyond = static_cast<double>(length) > parameters.original_max_position;
    const std::span<const double> factors = beyond ? parameters.long_factor : parameters.short_factor;
    const base_frequencies base{parameters.rotary_dim, parameters.theta, phases};
    result<rope_spec> spec =
        make_spec(parameters.rotary_dim / 2, phases, [&](int32_t i) { return base.divided(i, factors[static_cast<std::size_t>(i)]); });
    if (!spec.ok()) return spec;
    spec->amplitude =
        parameters.attention_factor != 0.0 ? parameters.attention_factor : longrope_amplitude(parameters.factor, parameters.original_max_position);
    if (const status s = spec->validate(); !s.ok()) return s;
    return spec;
}

result<rope_spec> rope_spec::divided(std::span<const double> factors) const noexcept {
    if (const status s = validate(); !s.ok()) return s;
    if (const status s = check_factors("factors", factors, inv_freq.size()); !s.ok()) return s;
    try {
        rope_spec spec = *this;
        const stepwise r(phases);
        for (std::size_t i = 0; i < factors.size(); ++i) spec.inv_freq[i] = r(spec.inv_freq[i] / r(factors[i]));
        if (const status s = spec.validate(); !s.ok()) return s;
        return spec;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu frequencies", factors.size());
    }
}

// ---- validation, amplitudes ----------------------------------------------------------------------------------------------------------------------

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
    if (phases != phase_mode::exact && phases != phase_mode::hf_f32) {
        return refuse(status_code::invalid_argument, "phases is %d; must be 0 (exact) or 1 (hf_f32)", static_cast<int>(phases));
    }
    if (!axis_of_pair.empty() && axis_of_pair.size() != inv_freq.size()) {
        return refuse(status_code::invalid_argument, "axis_of_pair has %zu entries; must be 0 or %zu, one per pair", axis_of_pair.size(),
                      inv_freq.size());
    }
    for (std::size_t i = 0; i < axis_of_pair.size(); ++i) {
        if (axis_of_pair[i] > 3) return refuse(status_code::invalid_argument, "axis_of_pair[%zu] is %d; must be 0 .. 3", i, axis_of_pair[i]);
    }
    return {};
}

double yarn_amplitude(double factor, double slope) noexcept { return factor > 1.0 ? slope * std::log(factor) + 1.0 : 1.0; }

double yarn_amplitude_ratio(double factor, double mscale, double mscale_all_dim) noexcept {
    return yarn_amplitude(factor, 0.1 * mscale) / yarn_amplitude(factor, 0.1 * mscale_all_dim);
}

double longrope_amplitude(double factor, double original_max_position) noexcept {
    return factor > 1.0 ? std::sqrt(1.0 + std::log(factor) / std::log(original_max_position)) : 1.0;
}

}  // namespace ropewalk
