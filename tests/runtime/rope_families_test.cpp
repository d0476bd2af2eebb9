// Frequency families of RoPE and their two phase modes. Names that begin with a letter and a number are rows of the field reports. Expected values
// come from the formulas in long double, or are printed in the report.
#include <ropewalk/rope.hpp>
#include <ropewalk/rope_cache.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/allocations.hpp"
#include "tests/results.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

// A power and at most four more operations in double.
constexpr double formula_error = 16 * 0x1p-52;

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();

double frequency(int32_t dim, long double theta, std::size_t i) {
    return static_cast<double>(std::pow(theta, -2.0L * static_cast<long double>(i) / static_cast<long double>(dim)));
}

void expect_base(const rope_spec& spec, long double theta) {
    for (std::size_t i = 0; i < spec.inv_freq.size(); ++i) {
        const double wanted = frequency(spec.rotary_dim(), theta, i);
        EXPECT_NEAR(spec.inv_freq[i], wanted, formula_error * wanted) << i;
    }
}

class rope_families : public seeded {};

// ---- NTK -----------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, ntk_keeps_the_first_pair_and_divides_the_last) {
    // theta'^(-(d-2)/d) = theta^(-(d-2)/d) / factor
    const rope_spec ntk = made(rope_spec::ntk(128, 1e4, 8)), plain = made(rope_spec::standard(128, 1e4));
    EXPECT_EQ(ntk.inv_freq[0], 1.0);
    EXPECT_NEAR(ntk.inv_freq[63], plain.inv_freq[63] / 8, formula_error * plain.inv_freq[63]);
    expect_base(ntk, 1e4L * std::pow(8.0L, 128.0L / 126.0L));
    EXPECT_EQ(made(rope_spec::ntk(128, 1e4, 1)).inv_freq, plain.inv_freq);
    EXPECT_EQ(made(rope_spec::ntk_alpha(128, 1e4, 1000)).inv_freq, made(rope_spec::ntk(128, 1e4, 1000)).inv_freq);
}

TEST_F(rope_families, mixed_ntk_divides_each_pair_by_its_own_factor) {
    const rope_spec mixed = made(rope_spec::ntk_mixed(64, 1e4, 16, 0.625)), plain = made(rope_spec::standard(64, 1e4));
    for (std::size_t i = 0; i < 32; ++i) {
        const long double a = std::log(16.0L) / std::pow(32.0L, 0.625L);
        const auto wanted = static_cast<double>(plain.inv_freq[i] / std::exp(a * std::pow(static_cast<long double>(i + 1), 0.625L)));
        EXPECT_NEAR(mixed.inv_freq[i], wanted, formula_error * wanted) << i;
    }
    EXPECT_NEAR(mixed.inv_freq[31], plain.inv_freq[31] / 16, formula_error * plain.inv_freq[31]);
}

TEST_F(rope_families, A15_dynamic_ntk_bases) {
    for (const auto& [length, base] : {std::pair{int64_t{4096}, 10000.0}, {int64_t{4097}, 10004.9603}, {int64_t{8192}, 30527.7367}}) {
        const rope_spec spec = made(rope_spec::dynamic_ntk(128, 1e4, 2, 4096, length));
        EXPECT_NEAR(std::pow(spec.inv_freq[32], -2.0), base, 1e-8 * base) << length;  // theta^(-1/2)
    }
    EXPECT_EQ(made(rope_spec::dynamic_ntk(128, 1e4, 2, 4096, 0)).inv_freq, made(rope_spec::standard(128, 1e4)).inv_freq);
}

TEST_F(rope_families, theta_scale_stretches_the_exponent) {
    const long double turn = 2 * std::numbers::pi_v<long double>;
    expect_base(made(rope_spec::theta_scale(128, 1e4, 16, 8192)), std::pow(1e4L, std::log(8192 * 16 / turn) / std::log(8192 / turn)));
    EXPECT_EQ(made(rope_spec::theta_scale(128, 1e4, 1, 8192)).inv_freq, made(rope_spec::standard(128, 1e4)).inv_freq);
}

// ---- YaRN ----------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, A08_the_ramp_of_yarn_rises_from_fast_to_slow) {
    const rope_spec yarn = made(rope_spec::yarn({.factor = 4})), plain = made(rope_spec::standard(128, 1e4));
    for (std::size_t i = 0; i <= 20; ++i) EXPECT_EQ(yarn.inv_freq[i], plain.inv_freq[i]) << i;
    for (std::size_t i = 46; i < 64; ++i) EXPECT_EQ(yarn.inv_freq[i], plain.inv_freq[i] / 4) << i;
    EXPECT_NEAR(yarn.inv_freq[20], 0.0562341325, 1e-6 * 0.0562341325);
    EXPECT_NEAR(yarn.inv_freq[33], 5.412277021e-3, 1e-6 * 5.412277021e-3);
    EXPECT_NEAR(yarn.inv_freq[46], 3.333803580e-4, 1e-6 * 3.333803580e-4);
    EXPECT_NEAR(yarn.inv_freq[63], 2.886954962e-5, 1e-6 * 2.886954962e-5);
}

TEST_F(rope_families, A04_the_ramp_counts_pairs) {
    // d = 64: corr(32) = 10.47, corr(1) = 22.51, so that pair 16 is 6/13 up the ramp. Counted in elements it would be pair 8.
    const rope_spec yarn = made(rope_spec::yarn({.rotary_dim = 64, .factor = 4})), plain = made(rope_spec::standard(64, 1e4));
    EXPECT_EQ(yarn.inv_freq[8], plain.inv_freq[8]);
    EXPECT_NEAR(yarn.inv_freq[16], plain.inv_freq[16] * (7.0 / 13 + 6.0 / 13 / 4), formula_error);
}

TEST_F(rope_families, yarn_without_truncation_has_limits_between_pairs) {
    const rope_spec::yarn_parameters gpt_oss{.rotary_dim = 64, .theta = 150000, .factor = 32, .truncate = false};
    const rope_spec yarn = made(rope_spec::yarn(gpt_oss)), plain = made(rope_spec::standard(64, 150000));
    const auto pair = [](long double rotations) {
        return 64 * std::log(4096 / (rotations * 2 * std::numbers::pi_v<long double>)) / (2 * std::log(150000.0L));
    };
    const long double low = pair(32), high = pair(1);
    EXPECT_NEAR(static_cast<double>(low), 8.093, 5e-4);
    EXPECT_NEAR(static_cast<double>(high), 17.398, 5e-4);
    for (std::size_t i = 0; i < 32; ++i) {
        const long double ramp = std::clamp((static_cast<long double>(i) - low) / (high - low), 0.0L, 1.0L);
        const auto wanted = static_cast<double>(plain.inv_freq[i] * (1 - ramp) + plain.inv_freq[i] / 32 * ramp);
        EXPECT_NEAR(yarn.inv_freq[i], wanted, 64 * formula_error * wanted) << i;  // 1 - ramp near 0 loses up to log2(32) bits
    }
}

TEST_F(rope_families, yarn_with_equal_limits_is_a_step) {
    const rope_spec::yarn_parameters step{.factor = 8, .beta_fast = 4, .beta_slow = 4, .truncate = false};
    const rope_spec yarn = made(rope_spec::yarn(step)), plain = made(rope_spec::standard(128, 1e4));
    const double limit = 128 * std::log(4096 / (8 * std::numbers::pi)) / (2 * std::log(1e4));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(yarn.inv_freq[i], static_cast<double>(i) < limit ? plain.inv_freq[i] : plain.inv_freq[i] / 8) << i;
}

TEST_F(rope_families, scaled_by_one_is_unscaled) {
    const rope_spec yarn = made(rope_spec::yarn({})), plain = made(rope_spec::standard(128, 1e4));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(yarn.inv_freq[i], plain.inv_freq[i], 0x1p-52 * plain.inv_freq[i]) << i;
    EXPECT_EQ(made(rope_spec::yarn_log({})).inv_freq, plain.inv_freq);
    const std::vector<double> ones(64, 1.0);
    const rope_spec longrope = made(rope_spec::longrope({.short_factor = ones, .long_factor = ones}, 100000));
    EXPECT_EQ(longrope.inv_freq, plain.inv_freq);
    EXPECT_EQ(longrope.amplitude, 1.0);
    EXPECT_EQ(made(rope_spec::linear(128, 1e4, 1)).inv_freq, plain.inv_freq);
    EXPECT_EQ(made(rope_spec::llama3({.theta = 1e4, .factor = 1})).inv_freq[40], plain.inv_freq[40]);
}

TEST_F(rope_families, yarn_log_blends_logarithms) {
    const rope_spec log = made(rope_spec::yarn_log({.factor = 4})), plain = made(rope_spec::standard(128, 1e4));
    EXPECT_EQ(log.inv_freq[20], plain.inv_freq[20]);
    EXPECT_NEAR(log.inv_freq[33], plain.inv_freq[33] / 2, formula_error);  // half way: the geometric mean of w and w / 4
    EXPECT_NEAR(log.inv_freq[50], plain.inv_freq[50] / 4, formula_error);
}

// ---- amplitudes ----------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, A05_an_explicit_attention_factor_is_the_magnitude) {
    for (const double attention : {1.0, yarn_amplitude(64)}) {
        const rope_spec spec = made(rope_spec::yarn({.rotary_dim = 64, .factor = 64, .attention_factor = attention}));
        const rope_table table = *rope_table::growing(spec);
        strided_tensor x(dtype::fp32, 1, 1, 64);
        x.fill([] { return 0.125; });  // norm 1
        const int64_t position = 1234;
        ASSERT_TRUE(rope_apply(table, {&position, 1}, x.view(), {}).ok());
        double norm = 0.0;
        for (int32_t d = 0; d < 64; ++d) norm += x.value(0, 0, d) * x.value(0, 0, d);
        EXPECT_NEAR(std::sqrt(norm), attention == 1.0 ? 1.0 : 1.41588831, 1e-6);
    }
}

TEST_F(rope_families, A07_both_readings_of_mscale_are_reachable) {
    EXPECT_EQ(yarn_amplitude_ratio(16, 1, 1), 1.0);
    EXPECT_NEAR(yarn_amplitude(16), 1.27725887, 1e-8);
    EXPECT_NEAR(yarn_amplitude_ratio(40, 1.0, 0.707), (0.1 * std::log(40) + 1) / (0.0707 * std::log(40) + 1), formula_error);
    EXPECT_NEAR(yarn_amplitude(16, 0.07), 0.07 * std::log(16) + 1, formula_error);  // TeleChat 3
    EXPECT_EQ(yarn_amplitude(1), 1.0);
    EXPECT_EQ(yarn_amplitude(0.25), 1.0);
    EXPECT_EQ(longrope_amplitude(1, 4096), 1.0);
    EXPECT_NEAR(longrope_amplitude(32, 4096), 1.19023807, 5e-9);
}

// ---- LongRoPE ------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, A12_factors_follow_the_length_of_the_sequence_not_the_capacity) {
    const std::vector<double> near(48, 1.0), far(48, 8.0);
    const rope_spec::longrope_parameters parameters{96, 1e4, near, far, 32, 4096};
    const rope_spec spec = made(rope_spec::longrope(parameters, 100)), plain = made(rope_spec::standard(96, 1e4));
    EXPECT_NEAR(spec.amplitude, 1.19023807, 5e-9);
    std::vector<float> cos(48), sin(48), first_cos, first_sin;
    for (const int64_t capacity : {1024, 8192, 131072}) {
        const rope_table table = *rope_table::growing(spec, capacity);
        ASSERT_TRUE(table.row(99, cos, sin).ok());
        if (first_cos.empty()) first_cos = cos, first_sin = sin;
        EXPECT_EQ(cos, first_cos) << capacity;
        EXPECT_EQ(sin, first_sin) << capacity;
    }
    for (std::size_t i = 0; i < 48; ++i) {
        EXPECT_NEAR(cos[i], 1.19023807 * std::cos(99 * plain.inv_freq[i]), 0x1p-24 + 5e-9) << i;
        EXPECT_NEAR(sin[i], 1.19023807 * std::sin(99 * plain.inv_freq[i]), 0x1p-24 + 5e-9) << i;
    }
}

TEST_F(rope_families, longrope_switches_beyond_its_original_length) {
    std::vector<double> near(32), far(32);
    for (std::size_t i = 0; i < 32; ++i) near[i] = 0.9 + 0.01 * static_cast<double>(i), far[i] = 1.0 + static_cast<double>(i);
    const rope_spec::longrope_parameters parameters{64, 1e4, near, far, 32, 4096, 1.5};
    for (const int64_t length : {0, 4096, 4097, 100000}) {
        const rope_spec spec = made(rope_spec::longrope(parameters, length));
        EXPECT_EQ(spec.amplitude, 1.5);
        for (std::size_t i = 0; i < 32; ++i) {
            const double wanted = frequency(64, 1e4, i) / (length > 4096 ? far[i] : near[i]);
            EXPECT_NEAR(spec.inv_freq[i], wanted, formula_error * wanted) << length << " " << i;
        }
    }
}

// ---- others --------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, proportional_spreads_its_pairs_over_the_whole_head) {
    const rope_spec spec = made(rope_spec::proportional(512, 1e6, 0.25));
    ASSERT_EQ(spec.rotary_dim(), 512);
    for (std::size_t i = 0; i < 256; ++i) {
        const double wanted = i < 64 ? frequency(512, 1e6, i) : 0.0;
        EXPECT_NEAR(spec.inv_freq[i], wanted, formula_error * wanted) << i;
    }
    const auto turning = [](const rope_spec& made) {
        return std::count_if(made.inv_freq.begin(), made.inv_freq.end(), [](double f) { return f > 0; });
    };
    EXPECT_EQ(turning(made(rope_spec::proportional(200, 1e4, 0.29))), 28);  // 0.29 * 200 is 57.99999999999999 in double
    EXPECT_EQ(turning(made(rope_spec::proportional(200, 1e4, 0.0))), 0);
    EXPECT_EQ(turning(made(rope_spec::proportional(200, 1e4, 1.0))), 100);
    EXPECT_EQ(made(rope_spec::proportional(64, 1e4, 1.0, 4)).inv_freq, made(rope_spec::linear(64, 1e4, 4)).inv_freq);
}

TEST_F(rope_families, explicit_factors_divide) {
    const rope_spec plain = made(rope_spec::standard(128, 5e5)), llama3 = made(rope_spec::llama3({}));
    std::vector<double> factors(64);
    for (std::size_t i = 0; i < 64; ++i) factors[i] = plain.inv_freq[i] / llama3.inv_freq[i];  // what a GGUF file's rope_freqs holds
    const rope_spec divided = made(plain.divided(factors));
    for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(divided.inv_freq[i], llama3.inv_freq[i], 0x1p-51 * llama3.inv_freq[i]) << i;
    EXPECT_EQ(refusal_of(plain.divided(std::span(factors).first(63))), "factors has 63 entries; must be 64, one per pair");
    factors[5] = 0.0;
    EXPECT_EQ(refusal_of(plain.divided(factors)), "factors[5] is 0; must be finite and positive");
}

// ---- hf_f32 --------------------------------------------------------------------------------------------------------------------------------

// One spec of every family.
std::vector<rope_spec> all_families(phase_mode phases) {
    const std::vector<double> near(32, 1.05), far(32, 7.3);
    return {made(rope_spec::standard(64, 5e5, phases)),
            made(rope_spec::linear(64, 1e4, 3, phases)),
            made(rope_spec::llama3({.rotary_dim = 64}, phases)),
            made(rope_spec::ntk(64, 1e4, 3, phases)),
            made(rope_spec::ntk_mixed(64, 1e4, 3, 0.6, phases)),
            made(rope_spec::ntk_alpha(64, 1e4, 3, phases)),
            made(rope_spec::dynamic_ntk(64, 1e4, 3, 4096, 5000, phases)),
            made(rope_spec::yarn({.rotary_dim = 64, .factor = 3, .attention_factor = 1.1}, phases)),
            made(rope_spec::yarn_log({.rotary_dim = 64, .factor = 3}, phases)),
            made(rope_spec::theta_scale(64, 1e4, 3, 4096, phases)),
            made(rope_spec::longrope({64, 1e4, near, far, 3, 4096}, 5000, phases)),
            made(rope_spec::proportional(64, 1e4, 0.5, 3, phases)),
            made(made(rope_spec::standard(64, 1e4, phases)).divided(far))};
}

TEST_F(rope_families, hf_f32_frequencies_are_fp32_and_near_the_exact_ones) {
    const std::vector<rope_spec> exact = all_families(phase_mode::exact), rounded = all_families(phase_mode::hf_f32);
    for (std::size_t family = 0; family < exact.size(); ++family) {
        EXPECT_EQ(exact[family].phases, phase_mode::exact);
        EXPECT_EQ(rounded[family].phases, phase_mode::hf_f32);
        for (std::size_t i = 0; i < 32; ++i) {
            const double f = rounded[family].inv_freq[i], truth = exact[family].inv_freq[i];
            EXPECT_EQ(f, static_cast<double>(static_cast<float>(f))) << family << " " << i;
            // The rounded exponent errs by 2^-25 and is multiplied by ln(theta) <= 13.2; YaRN and llama3 blend, which amplifies up to the factor.
            EXPECT_NEAR(f, truth, 64 * 0x1p-24 * truth) << family << " " << i;
        }
    }
}

TEST_F(rope_families, hf_f32_rows_are_those_of_the_rounded_product) {
    for (const rope_spec& spec : all_families(phase_mode::hf_f32)) {
        const rope_table kept = *rope_table::growing(spec, 512), never_kept = *rope_table::growing(spec, 0, 0);
        std::vector<float> cos(32), sin(32), other_cos(32), other_sin(32);
        for (const int64_t p : {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{511}, int64_t{131071}, (int64_t{1} << 24) + 1, between(0, 1 << 30)}) {
            ASSERT_TRUE(kept.row(p, cos, sin).ok());
            ASSERT_TRUE(never_kept.row(p, other_cos, other_sin).ok());
            EXPECT_EQ(cos, other_cos);
            EXPECT_EQ(sin, other_sin);
            for (std::size_t i = 0; i < 32; ++i) {
                const auto phase = static_cast<double>(static_cast<float>(static_cast<double>(static_cast<float>(p)) * spec.inv_freq[i]));
                const auto amplitude = static_cast<float>(spec.amplitude);
                EXPECT_EQ(cos[i], static_cast<float>(std::cos(phase)) * amplitude) << p << " " << i;
                EXPECT_EQ(sin[i], static_cast<float>(std::sin(phase)) * amplitude) << p << " " << i;
            }
        }
    }
}

TEST_F(rope_families, position_0_turns_nothing_and_has_the_amplitude) {
    for (const phase_mode phases : {phase_mode::exact, phase_mode::hf_f32}) {
        for (const rope_spec& spec : all_families(phases)) {
            std::vector<float> cos(32), sin(32);
            ASSERT_TRUE(rope_table::growing(spec)->row(0, cos, sin).ok());
            EXPECT_EQ(cos, std::vector<float>(32, static_cast<float>(spec.amplitude)));
            EXPECT_EQ(sin, std::vector<float>(32, 0.0f));
        }
    }
}

TEST_F(rope_families, the_two_phase_modes_part_from_32k_on) {
    const rope_table exact = *rope_table::growing(made(rope_spec::standard(128, 1e4))),
                     rounded = *rope_table::growing(made(rope_spec::standard(128, 1e4, phase_mode::hf_f32)));
    const auto worst = [&](int64_t position) {
        std::vector<float> a(64), b(64), sin(64);
        EXPECT_TRUE(exact.row(position, a, sin).ok() && rounded.row(position, b, sin).ok());
        float most = 0.0f;
        for (std::size_t i = 0; i < 64; ++i) most = std::max(most, std::abs(a[i] - b[i]));
        return most;
    };
    EXPECT_LT(worst(64), 1e-5f);
    EXPECT_GT(worst(131071), 1e-3f);
}

// ---- refusals ------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_families, refused_factors_lengths_and_dims) {
    EXPECT_EQ(refusal_of(rope_spec::ntk(64, 1e4, 0.5)), "factor is 0.5; must be finite and at least 1");
    EXPECT_EQ(refusal_of(rope_spec::ntk(2, 1e4, 2)), "rotary_dim is 2; must not be 2 for NTK scaling, whose exponent d / (d - 2) is then infinite");
    EXPECT_EQ(refusal_of(rope_spec::ntk(7, 1e4, 2)), "rotary_dim is 7; must be even and 0 .. 2048");
    EXPECT_EQ(refusal_of(rope_spec::ntk_alpha(64, 1e4, 0.9)), "alpha is 0.9; must be finite and at least 1");
    EXPECT_EQ(refusal_of(rope_spec::ntk_mixed(64, 1e4, 2, -1)), "mixed_b is -1; must be finite and at least 0");
    EXPECT_EQ(refusal_of(rope_spec::ntk_mixed(64, 0, 2, 1)), "theta is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(rope_spec::dynamic_ntk(64, 1e4, 2, 0, 5)), "max_position is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(rope_spec::dynamic_ntk(64, 1e4, 2, 4096, -1)), "length is -1; must be at least 0");
    EXPECT_FALSE(rope_spec::dynamic_ntk(2, 1e4, 2, 4096, 5).ok());
    EXPECT_EQ(refusal_of(rope_spec::theta_scale(64, 1e4, 2, 6)), "original_max_position is 6; must be finite and greater than 2 pi");
    EXPECT_EQ(refusal_of(rope_spec::proportional(511, 1e4, 0.5)), "head_dim is 511; must be even and 0 .. 2048");
    EXPECT_EQ(refusal_of(rope_spec::proportional(512, 1e4, 1.5)), "partial_rotary_factor is 1.5; must be 0 .. 1");
    EXPECT_EQ(refusal_of(rope_spec::proportional(512, 1e4, 0.5, 0.5)), "factor is 0.5; must be finite and at least 1");
    EXPECT_EQ(refusal_of(rope_spec::standard(64, 1e39, phase_mode::hf_f32)), "theta is 1e+39; must be finite in fp32 for hf_f32");
    EXPECT_TRUE(rope_spec::standard(64, 1e39).ok());
    for (const double bad : {nan, infinity, -infinity}) {
        EXPECT_FALSE(rope_spec::ntk(64, bad, 2).ok()) << bad;
        EXPECT_FALSE(rope_spec::ntk(64, 1e4, bad).ok()) << bad;
        EXPECT_FALSE(rope_spec::ntk_mixed(64, 1e4, bad, 1).ok()) << bad;
        EXPECT_FALSE(rope_spec::ntk_mixed(64, 1e4, 2, bad).ok()) << bad;
        EXPECT_FALSE(rope_spec::ntk_alpha(64, 1e4, bad).ok()) << bad;
        EXPECT_FALSE(rope_spec::dynamic_ntk(64, 1e4, bad, 4096, 5).ok()) << bad;
        EXPECT_FALSE(rope_spec::dynamic_ntk(64, 1e4, 2, bad, 5).ok()) << bad;
        EXPECT_FALSE(rope_spec::theta_scale(64, bad, 2, 4096).ok()) << bad;
        EXPECT_FALSE(rope_spec::theta_scale(64, 1e4, bad, 4096).ok()) << bad;
        EXPECT_FALSE(rope_spec::theta_scale(64, 1e4, 2, bad).ok()) << bad;
        EXPECT_FALSE(rope_spec::proportional(64, 1e4, bad).ok()) << bad;
        EXPECT_FALSE(rope_spec::proportional(64, 1e4, 0.5, bad).ok()) << bad;
    }
}

TEST_F(rope_families, refused_yarn) {
    EXPECT_EQ(refusal_of(rope_spec::yarn({.factor = 0.5})), "factor is 0.5; must be finite and at least 1");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.original_max_position = 0})), "original_max_position is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.attention_factor = 0})), "attention_factor is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.beta_slow = 0})), "beta_slow is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.beta_fast = 1, .beta_slow = 32})), "beta_fast is 1; must be finite and at least beta_slow (32)");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.theta = 1})), "theta is 1; must be greater than 1 for YaRN");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.original_max_position = 5})),
              "original_max_position is 5; the ramp then runs backwards, from pair 0 to -1 of 64");
    EXPECT_EQ(refusal_of(rope_spec::yarn({.rotary_dim = 63})), "rotary_dim is 63; must be even and 0 .. 2048");
    EXPECT_EQ(made(rope_spec::yarn({.rotary_dim = 0})).rotary_dim(), 0);
    for (const double bad : {nan, infinity, -infinity}) {
        for (double rope_spec::yarn_parameters::*member :
             {&rope_spec::yarn_parameters::theta, &rope_spec::yarn_parameters::factor, &rope_spec::yarn_parameters::original_max_position,
              &rope_spec::yarn_parameters::attention_factor, &rope_spec::yarn_parameters::beta_fast, &rope_spec::yarn_parameters::beta_slow}) {
            rope_spec::yarn_parameters parameters;
            parameters.*member = bad;
            EXPECT_FALSE(rope_spec::yarn(parameters).ok()) << bad;
            EXPECT_FALSE(rope_spec::yarn_log(parameters, phase_mode::hf_f32).ok()) << bad;
        }
    }
}

TEST_F(rope_families, refused_longrope) {
    std::vector<double> right(64, 2.0), wrong(63, 2.0);
    EXPECT_EQ(refusal_of(rope_spec::longrope({.short_factor = wrong, .long_factor = right}, 1)),
              "short_factor has 63 entries; must be 64, one per pair");
    EXPECT_EQ(refusal_of(rope_spec::longrope({.short_factor = right, .long_factor = wrong}, 1)),
              "long_factor has 63 entries; must be 64, one per pair");
    EXPECT_EQ(refusal_of(rope_spec::longrope({.short_factor = right, .long_factor = right}, -1)), "length is -1; must be at least 0");
    rope_spec::longrope_parameters parameters{.short_factor = right, .long_factor = right, .factor = 0.5};
    EXPECT_EQ(refusal_of(rope_spec::longrope(parameters, 1)), "factor is 0.5; must be finite and at least 1");
    parameters.factor = 4;
    parameters.original_max_position = 1;
    EXPECT_EQ(refusal_of(rope_spec::longrope(parameters, 1)), "original_max_position is 1; must be greater than 1, or attention_factor be given");
    parameters.attention_factor = 1.2;
    EXPECT_TRUE(rope_spec::longrope(parameters, 1).ok());
    parameters.original_max_position = 0;
    EXPECT_EQ(refusal_of(rope_spec::longrope(parameters, 1)), "original_max_position is 0; must be finite and positive");
    for (const double bad : {0.0, -1.0, nan, infinity}) {
        right[3] = bad;
        EXPECT_FALSE(rope_spec::longrope({.short_factor = right, .long_factor = std::vector<double>(64, 1.0)}, 1).ok()) << bad;
    }
}

TEST_F(rope_families, refused_modes_and_axes) {
    rope_spec spec = made(rope_spec::standard(8, 1e4));
    EXPECT_EQ(spec.axes(), 1);
    spec.axis_of_pair = {0, 1, 2, 3};
    EXPECT_TRUE(spec.validate().ok());
    EXPECT_EQ(spec.axes(), 4);
    spec.axis_of_pair[2] = 4;
    EXPECT_STREQ(spec.validate().text(), "axis_of_pair[2] is 4; must be 0 .. 3");
    spec.axis_of_pair.resize(2);
    EXPECT_STREQ(spec.validate().text(), "axis_of_pair has 2 entries; must be 0 or 4, one per pair");
    spec.axis_of_pair.clear();
    spec.phases = static_cast<phase_mode>(2);
    EXPECT_STREQ(spec.validate().text(), "phases is 2; must be 0 (exact) or 1 (hf_f32)");
    EXPECT_EQ(refusal_of(rope_spec::standard(8, 1e4, static_cast<phase_mode>(7))), "phases is 7; must be 0 (exact) or 1 (hf_f32)");
}

TEST_F(rope_families, memory_that_is_out_is_a_status) {
    const std::vector<double> factors(32, 2.0);
    const rope_spec plain = made(rope_spec::standard(64, 1e4));
    const rope_schedule schedule(plain);
    const allocation_limit none(0);
    EXPECT_EQ(rope_spec::yarn({.rotary_dim = 64}).state().code(), status_code::out_of_memory);
    EXPECT_EQ(rope_spec::longrope({64, 1e4, factors, factors}, 1).state().code(), status_code::out_of_memory);
    EXPECT_EQ(plain.divided(factors).state().code(), status_code::out_of_memory);
    EXPECT_EQ(schedule.spec_at(5).state().code(), status_code::out_of_memory);
}

}  // namespace
}  // namespace ropewalk::test
