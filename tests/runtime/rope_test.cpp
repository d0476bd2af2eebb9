// RoPE: specification, table, rotation of strided tensors. Names that begin with a letter and a number are rows of the field reports: faults that
// people met elsewhere. Expected values come from the formulas in long double.
#include <ropewalk/rope.hpp>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/allocations.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/results.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using positions = std::vector<int64_t>;

rope_spec standard(int32_t rotary_dim, double theta) { return made(rope_spec::standard(rotary_dim, theta)); }

rope_table growing(const rope_spec& spec, int64_t initial = 0, int64_t cached = rope_table::default_cached_positions) {
    return made(rope_table::growing(spec, initial, cached));
}

// cos and sin of position * inv_freq. The product of an integer below 2^31 and a double needs 84 bits; long double has 64 or 113. Where it has 64,
// the error of the phase stays below 2^31 * 2^-64 * inv_freq = 1.2e-10 at most.
struct exact_turn {
    long double cos, sin;
    exact_turn(double inv_freq, int64_t position, double amplitude = 1.0) {
        const long double angle = static_cast<long double>(position) * static_cast<long double>(inv_freq);
        cos = std::cos(angle) * static_cast<long double>(amplitude);
        sin = std::sin(angle) * static_cast<long double>(amplitude);
    }
};

struct row_of {
    std::vector<float> cos, sin;
    row_of(const rope_table& table, int64_t position) : cos(static_cast<std::size_t>(table.pairs())), sin(static_cast<std::size_t>(table.pairs())) {
        const status s = table.row(position, cos, sin);
        EXPECT_TRUE(s.ok()) << s.text();
    }
};

// Worst |table - truth| of a row; prints where a limit is passed.
double worst_error(const rope_table& table, int64_t position, double limit) {
    const row_of row(table, position);
    double worst = 0.0;
    for (std::size_t i = 0; i < row.cos.size(); ++i) {
        const exact_turn truth(table.spec().inv_freq[i], position, table.spec().amplitude);
        const double error = std::max(std::abs(static_cast<double>(row.cos[i] - truth.cos)), std::abs(static_cast<double>(row.sin[i] - truth.sin)));
        EXPECT_LE(error, limit) << "position " << position << " pair " << i << ": " << row.cos[i] << ", " << row.sin[i] << " instead of "
                                << static_cast<double>(truth.cos) << ", " << static_cast<double>(truth.sin);
        worst = std::max(worst, error);
    }
    return worst;
}

class rope : public seeded {
protected:
    strided_tensor random_tensor(dtype type, int64_t tokens, int32_t heads, int32_t dim, int64_t head_gap = 0, int64_t token_gap = 0) {
        strided_tensor made(type, tokens, heads, dim, head_gap, token_gap);
        made.fill([this] { return normal(); });
        return made;
    }
    // after == rotation of before by angles (in long double), within roundings: cos and sin (u each), product, sum, and the type.
    void expect_rotated(strided_tensor& before, strided_tensor& after, const rope_spec& spec, const positions& at, const rope_options& options,
                        double amplitude, double sign = 1.0);
};

void rope::expect_rotated(strided_tensor& before, strided_tensor& after, const rope_spec& spec, const positions& at, const rope_options& options,
                          double amplitude, double sign) {
    const auto pairs = static_cast<int32_t>(spec.inv_freq.size());
    const double u = unit_roundoff(dtype::fp32);
    for (int64_t t = 0; t < before.tokens; ++t) {
        for (int32_t h = 0; h < before.heads; ++h) {
            for (int32_t i = 0; i < pairs; ++i) {
                const bool half = options.pairing == rope_pairing::half;
                const int32_t d[2] = {options.first_dim + (half ? i : 2 * i), options.first_dim + (half ? i + pairs : 2 * i + 1)};
                const exact_turn turn(spec.inv_freq[static_cast<std::size_t>(i)], at[static_cast<std::size_t>(t)], amplitude);
                const long double x[2] = {before.value(t, h, d[0]), before.value(t, h, d[1])}, s = turn.sin * static_cast<long double>(sign);
                const double exact[2] = {static_cast<double>(x[0] * turn.cos - x[1] * s), static_cast<double>(x[1] * turn.cos + x[0] * s)};
                for (int side = 0; side < 2; ++side) {
                    const double size = amplitude * static_cast<double>(std::abs(x[0]) + std::abs(x[1]));
                    const double tolerance = 3 * u * size + unit_roundoff(before.type) * std::abs(exact[side]) * 1.001 + subnormal_error(before.type);
                    ASSERT_NEAR(after.value(t, h, d[side]), exact[side], tolerance)
                        << name(before.type) << " token " << t << " head " << h << " dim " << d[side];
                }
            }
        }
    }
}

// ---- frequencies --------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope, standard_frequencies) {
    const rope_spec spec = standard(128, 1e4);
    ASSERT_EQ(spec.rotary_dim(), 128);
    for (int i = 0; i < 64; ++i) {
        const auto exact = static_cast<double>(std::pow(10000.0L, -2.0L * i / 128));
        EXPECT_NEAR(spec.inv_freq[static_cast<std::size_t>(i)], exact, 4e-16 * exact) << i;
    }
    EXPECT_EQ(standard(0, 1e4).rotary_dim(), 0);
    for (const double f : standard(8, 1.0).inv_freq) EXPECT_EQ(f, 1.0);
}

TEST_F(rope, A10_llama3_scaling) {
    const result<rope_spec> spec = rope_spec::llama3({.rotary_dim = 64, .theta = 5e5, .factor = 32, .low_freq_factor = 1, .high_freq_factor = 4});
    ASSERT_TRUE(spec.ok()) << spec.state().text();
    const rope_spec plain = standard(64, 5e5);
    for (std::size_t i = 0; i <= 14; ++i) EXPECT_EQ(spec->inv_freq[i], plain.inv_freq[i]) << i;
    EXPECT_NEAR(spec->inv_freq[15], 1.290547928e-3, 1.3e-9);
    EXPECT_NEAR(spec->inv_freq[16], 4.295567966e-4, 4.3e-10);
    EXPECT_NEAR(spec->inv_freq[17], 9.708287803e-5, 9.7e-11);
    for (std::size_t i = 18; i < 32; ++i) EXPECT_EQ(spec->inv_freq[i], plain.inv_freq[i] / 32) << i;
}

TEST_F(rope, llama3_with_an_empty_blend) {
    const result<rope_spec> spec = rope_spec::llama3({.rotary_dim = 128, .factor = 16, .low_freq_factor = 1, .high_freq_factor = 1});
    ASSERT_TRUE(spec.ok()) << spec.state().text();
    const rope_spec plain = standard(128, 5e5);
    for (std::size_t i = 0; i < 64; ++i) {
        const bool kept = 2 * std::numbers::pi / plain.inv_freq[i] < 8192;
        EXPECT_EQ(spec->inv_freq[i], kept ? plain.inv_freq[i] : plain.inv_freq[i] / 16) << i;
    }
}

TEST_F(rope, refused_specs) {
    const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    const auto text = [](const auto& made) { return made.ok() ? std::string("accepted") : std::string(made.state().text()); };
    EXPECT_EQ(text(rope_spec::standard(63, 1e4)), "rotary_dim is 63; must be even and 0 .. 2048");
    EXPECT_EQ(text(rope_spec::standard(-2, 1e4)), "rotary_dim is -2; must be even and 0 .. 2048");
    EXPECT_EQ(text(rope_spec::standard(2050, 1e4)), "rotary_dim is 2050; must be even and 0 .. 2048");
    EXPECT_EQ(text(rope_spec::standard(64, 0)), "theta is 0; must be finite and positive");
    for (const double theta : {-1.0, nan, infinity}) EXPECT_FALSE(rope_spec::standard(64, theta).ok()) << theta;
    EXPECT_EQ(text(rope_spec::linear(64, 1e4, 0.5)), "factor is 0.5; must be finite and at least 1");
    for (const double factor : {0.0, -4.0, nan, infinity}) EXPECT_FALSE(rope_spec::linear(64, 1e4, factor).ok()) << factor;
    EXPECT_FALSE(rope_spec::llama3({.factor = 0.99}).ok());
    EXPECT_FALSE(rope_spec::llama3({.low_freq_factor = 5, .high_freq_factor = 4}).ok());
    EXPECT_FALSE(rope_spec::llama3({.low_freq_factor = nan}).ok());
    EXPECT_FALSE(rope_spec::llama3({.original_max_position = 0}).ok());
    EXPECT_FALSE(rope_spec::llama3({.rotary_dim = 7}).ok());
    rope_spec spec = standard(4, 1e4);
    spec.inv_freq[1] = nan;
    EXPECT_STREQ(spec.validate().text(), "inv_freq[1] is nan; must be 0 .. 2^52");
    spec.inv_freq[1] = -1e-9;
    EXPECT_FALSE(rope_table::growing(spec).ok());
    spec.inv_freq[1] = 0.0;
    EXPECT_TRUE(spec.validate().ok());
    for (const double amplitude : {0.0, -1.0, nan, infinity}) {
        spec.amplitude = amplitude;
        EXPECT_FALSE(spec.validate().ok()) << amplitude;
        EXPECT_FALSE(rope_table::fixed(spec, 4).ok()) << amplitude;
    }
}

// ---- table ---------------------------------------------------------------------------------------------------------------------------------------

// fp32 rounds numbers up to 1 by at most 2^-25; the angle addition adds 2e-14 (see rope_table.cpp).
constexpr double table_error = 0x1p-25 + 1e-12;

TEST_F(rope, A01_the_table_is_exact_far_past_the_trained_length) {
    const rope_table table = growing(standard(128, 1e4), 4097);
    for (int64_t p = 0; p <= 4096; ++p) worst_error(table, p, table_error);
}

TEST_F(rope, A03_phases_are_formed_in_double) {
    worst_error(growing(standard(128, 1e6)), 1'000'000, table_error);
    worst_error(growing(standard(64, 5e5)), 131'071, table_error);
}

TEST_F(rope, the_last_positions_are_exact) {
    // 2^31 * 2^-64 of phase error in the truth where long double has 64 bits.
    const double limit = table_error + 1.2e-10;
    const rope_table table = growing(standard(128, 1e4));
    for (const int64_t p : {int64_t{1} << 20, (int64_t{1} << 24) + 1, (int64_t{1} << 30) - 1, (int64_t{1} << 31) - 17, (int64_t{1} << 31) - 1}) {
        worst_error(table, p, limit);
    }
    for (int i = 0; i < 200; ++i) worst_error(table, between(0, (int64_t{1} << 31) - 1), limit);
}

TEST_F(rope, A04_linear_scaling_divides_the_position_once) {
    const result<rope_spec> scaled = rope_spec::linear(64, 1e4, 4);
    ASSERT_TRUE(scaled.ok());
    const rope_table interpolated = growing(*scaled), plain = growing(standard(64, 1e4));
    EXPECT_EQ(row_of(interpolated, 100).cos, row_of(plain, 25).cos);
    EXPECT_EQ(row_of(interpolated, 100).sin, row_of(plain, 25).sin);
}

TEST_F(rope, a_row_has_the_same_bits_wherever_it_comes_from) {
    rope_spec spec = standard(96, 5e5);
    spec.amplitude = 1.190238;
    const result<rope_table> fixed = rope_table::fixed(spec, 1000);
    ASSERT_TRUE(fixed.ok());
    const rope_table prepared = growing(spec, 1000), lazy = growing(spec), never_kept = growing(spec, 0, 0);
    for (int i = 0; i < 300; ++i) {
        const int64_t p = between(0, 999);
        const row_of wanted(*fixed, p);
        for (const rope_table* table : {&prepared, &lazy, &never_kept}) {
            ASSERT_EQ(row_of(*table, p).cos, wanted.cos) << p;
            ASSERT_EQ(row_of(*table, p).sin, wanted.sin) << p;
        }
        worst_error(*fixed, p, 2 * table_error);  // numbers up to 1.19 round by up to 2^-24
    }
    EXPECT_EQ(never_kept.cached_bytes(), 0);
    EXPECT_EQ(fixed->cached_bytes(), 1000 * 96 * 4);
}

TEST_F(rope, growth_stays_within_its_bound) {
    const rope_table table = growing(standard(8, 1e4), 0, 300);
    EXPECT_EQ(table.cached_bytes(), 0);
    for (const int64_t p : {int64_t{0}, int64_t{299}, int64_t{300}, int64_t{100'000}, int64_t{2'000'000'000}})
        worst_error(table, p, table_error + 1.2e-10);
    EXPECT_LE(table.cached_bytes(), 512 * 8 * 4);
    EXPECT_EQ(table.max_position(), (int64_t{1} << 31) - 1);
}

TEST_F(rope, rows_are_formed_where_memory_is_out) {
    const rope_table table = growing(standard(64, 1e4)), other = growing(standard(64, 1e4));
    const row_of wanted(other, 777);
    std::vector<float> cos(32), sin(32);
    {
        const allocation_limit none(0);
        const status s = table.row(777, cos, sin);
        ASSERT_TRUE(s.ok());
    }
    EXPECT_EQ(cos, wanted.cos);
    EXPECT_EQ(sin, wanted.sin);
    EXPECT_EQ(table.cached_bytes(), 0);
}

TEST_F(rope, a_table_that_does_not_fit_is_refused) {
    const rope_spec spec = standard(64, 1e4);
    for (int64_t granted = 0; granted < 8; ++granted) {
        const allocation_limit limit(granted);
        const result<rope_table> table = rope_table::fixed(spec, 4096);
        if (!table.ok()) {
            EXPECT_EQ(table.state().code(), status_code::out_of_memory);
        }
    }
    EXPECT_EQ(rope_spec::standard(64, 1e4).ok(), true);
    const allocation_limit none(0);
    EXPECT_EQ(rope_spec::standard(64, 1e4).state().code(), status_code::out_of_memory);
}

TEST_F(rope, refused_tables) {
    const rope_spec spec = standard(64, 1e4);
    EXPECT_STREQ(rope_table::fixed(spec, 0).state().text(), "max_position is 0; must be 1 .. 2^31");
    EXPECT_FALSE(rope_table::fixed(spec, -1).ok());
    EXPECT_FALSE(rope_table::fixed(spec, (int64_t{1} << 31) + 1).ok());
    EXPECT_FALSE(rope_table::growing(spec, -1).ok());
    EXPECT_FALSE(rope_table::growing(spec, 0, -1).ok());
    EXPECT_STREQ(rope_table::growing(spec, 11, 10).state().text(), "initial_positions is 11; must be at most max_cached_positions (10)");
    const rope_table table = growing(spec);
    std::vector<float> right(32), wrong(31);
    EXPECT_STREQ(table.row(0, wrong, right).text(), "cos has 31 entries; must be pairs() = 32");
    EXPECT_STREQ(table.row(0, right, wrong).text(), "sin has 31 entries; must be pairs() = 32");
    EXPECT_EQ(table.row(-1, right, right).code(), status_code::out_of_range);
    EXPECT_EQ(table.row(int64_t{1} << 31, right, right).code(), status_code::out_of_range);
}

TEST_F(rope, a_moved_table_refuses_and_the_new_one_works) {
    rope_table first = growing(standard(8, 1e4), 16);
    rope_table second = std::move(first);
    EXPECT_EQ(row_of(second, 3).cos.size(), 4u);
    EXPECT_EQ(first.pairs(), 0);  // NOLINT(bugprone-use-after-move): that is the test
    strided_tensor x = random_tensor(dtype::fp32, 1, 1, 8);
    EXPECT_STREQ(rope_apply(first, positions{0}, x.view(), {}).text(), "table is empty; it must not have been moved from");
    first = std::move(second);
    EXPECT_TRUE(rope_apply(first, positions{0}, x.view(), {}).ok());
}

// Many threads read a table that grows under them, near each other and far apart. Clean under the thread sanitizer.
TEST_F(rope, a_growing_table_is_read_by_many_threads) {
    const rope_spec spec = standard(16, 1e4);
    const result<rope_table> wanted = rope_table::fixed(spec, 60'000);
    ASSERT_TRUE(wanted.ok());
    const rope_table table = growing(spec);
    std::atomic<int> wrong{0};
    std::vector<std::thread> readers;
    for (uint64_t id = 0; id < 8; ++id) {
        readers.emplace_back([&, id] {
            std::mt19937_64 mine(seed + id);
            float kept[16], scratch[16];
            for (int i = 0; i < 4000; ++i) {
                const auto p = static_cast<int64_t>(mine() % 60'000);
                const float* found = table.find_row(p, scratch);
                if (std::memcmp(found, wanted->find_row(p, kept), sizeof kept) != 0) ++wrong;
            }
        });
    }
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(table.cached_bytes(), (60'000 + 255) / 256 * 256 * 16 * 4);
}

// ---- rotation
// --------------------------------------------------------------------------------------------------------------------------------------

// D03, D14: strided views, any base; A01: 16-bit tensors are rotated in fp32 and rounded once.
TEST_F(rope, every_type_pairing_and_shape) {
    for (const dtype type : all_types) {
        for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
            for (const int32_t rotary : {2, 6, 16, 40, 62, 128}) {
                const rope_spec spec = standard(rotary, 1e4);
                const rope_table table = growing(spec);
                const rope_options options{.pairing = pairing, .first_dim = 3};
                strided_tensor q = random_tensor(type, 5, 6, rotary + 8, 1, 7), k = random_tensor(type, 5, 2, rotary + 5, 0, 3), q0 = q, k0 = k;
                const positions at = {7, 0, 4096, 7, 1'000'000};
                const status s = rope_apply(table, at, q.view(), k.view(), options);
                ASSERT_TRUE(s.ok()) << s.text();
                expect_rotated(q0, q, spec, at, options, 1.0);
                expect_rotated(k0, k, spec, at, options, 1.0);
                if (HasFatalFailure()) return;
                // Outside the slice nothing has changed: put it back and all is as before.
                for (strided_tensor* x : {&q, &k}) {
                    strided_tensor& old = x == &q ? q0 : k0;
                    for (int64_t t = 0; t < 5; ++t) {
                        for (int32_t h = 0; h < x->heads; ++h) {
                            std::memcpy(x->at(t, h, 3), old.at(t, h, 3), static_cast<std::size_t>(rotary * element_bytes(type)));
                        }
                    }
                    ASSERT_EQ(x->memory, old.memory);
                }
            }
        }
    }
}

TEST_F(rope, A01_a_bf16_tensor_is_rotated_in_fp32) {
    const rope_spec spec = standard(128, 1e4);
    const rope_table table = growing(spec);
    positions at(4097);
    std::iota(at.begin(), at.end(), 0);
    for (const dtype type : all_types) {
        strided_tensor x = random_tensor(type, 4097, 1, 128), before = x;
        ASSERT_TRUE(rope_apply(table, at, x.view(), {}).ok());
        expect_rotated(before, x, spec, at, {}, 1.0);
    }
}

TEST_F(rope, A18_the_two_pairings_differ_by_a_permutation) {
    const rope_table table = growing(standard(128, 1e4));
    strided_tensor inter = random_tensor(dtype::fp32, 3, 2, 128), half(dtype::fp32, 3, 2, 128);
    const auto permuted = [](int32_t d) { return d / 2 + d % 2 * 64; };  // (2i, 2i + 1) -> (i, i + 64)
    for (int64_t t = 0; t < 3; ++t) {
        for (int32_t h = 0; h < 2; ++h) {
            for (int32_t d = 0; d < 128; ++d) std::memcpy(half.at(t, h, permuted(d)), inter.at(t, h, d), 4);
        }
    }
    const positions at = {1, 77, 5000};
    ASSERT_TRUE(rope_apply(table, at, inter.view(), {}, {.pairing = rope_pairing::interleaved}).ok());
    ASSERT_TRUE(rope_apply(table, at, half.view(), {}).ok());
    for (int64_t t = 0; t < 3; ++t) {
        for (int32_t h = 0; h < 2; ++h) {
            for (int32_t d = 0; d < 128; ++d) ASSERT_EQ(half.value(t, h, permuted(d)), inter.value(t, h, d)) << t << " " << h << " " << d;
        }
    }
}

TEST_F(rope, A19_partial_rotary) {
    const rope_spec spec = standard(64, 1e4);
    for (std::size_t i = 0; i < 32; ++i) ASSERT_NEAR(spec.inv_freq[i], std::pow(1e4, -2.0 * static_cast<double>(i) / 64), 1e-15);
    const rope_table table = growing(spec), none = growing(standard(0, 1e4));
    strided_tensor x = random_tensor(dtype::fp32, 1, 2, 256), before = x;
    const positions at = {2355};
    ASSERT_TRUE(rope_apply(table, at, x.view(), {}).ok());
    expect_rotated(before, x, spec, at, {}, 1.0);
    for (int32_t h = 0; h < 2; ++h) EXPECT_EQ(std::memcmp(x.at(0, h, 64), before.at(0, h, 64), 192 * 4), 0);
    strided_tensor copy = before;
    ASSERT_TRUE(rope_apply(none, at, copy.view(), {}).ok());
    EXPECT_EQ(copy.memory, before.memory);
    EXPECT_FALSE(rope_spec::standard(65, 1e4).ok());
}

TEST_F(rope, A17_positions_outside_the_table_change_nothing) {
    const rope_spec spec = standard(64, 1e4);
    const result<rope_table> fixed = rope_table::fixed(spec, 4096);
    ASSERT_TRUE(fixed.ok());
    const rope_table unbounded = growing(spec);
    strided_tensor q = random_tensor(dtype::fp32, 3, 2, 64), k = random_tensor(dtype::bf16, 3, 1, 64), q0 = q, k0 = k;
    for (const int64_t bad :
         {int64_t{-1}, int64_t{4096}, int64_t{1} << 31, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
        const positions at = {0, 1, bad};
        const status s = rope_apply(*fixed, at, q.view(), k.view());
        EXPECT_EQ(s.code(), status_code::out_of_range);
        EXPECT_EQ(std::string(s.text()), "positions[2] is " + std::to_string(bad) + "; must be 0 .. 4095");
        if (bad != 4096) {
            EXPECT_EQ(rope_apply(unbounded, at, q.view(), k.view()).code(), status_code::out_of_range);
        }
        EXPECT_EQ(q.memory, q0.memory);
        EXPECT_EQ(k.memory, k0.memory);
    }
    EXPECT_TRUE(rope_apply(*fixed, positions{0, 1, 4095}, q.view(), k.view()).ok());
}

TEST_F(rope, D02_a_stride_between_dims_is_refused) {
    const rope_table table = growing(standard(8, 1e4));
    strided_tensor x = random_tensor(dtype::fp32, 4, 2, 8), before = x;
    head_view view = x.view();
    view.dim_stride = 4;
    EXPECT_STREQ(rope_apply(table, positions{0, 1, 2, 3}, view, {}).text(), "q.dim_stride is 4; must be 1");
    EXPECT_STREQ(rope_shift(table, positions{0, 1, 2, 3}, view).text(), "k.dim_stride is 4; must be 1");
    EXPECT_EQ(x.memory, before.memory);
}

// [S, H, D], [H, S, D] and packed [S, 3, H, D] give the bits of a dense copy; bases off by one element (D14).
TEST_F(rope, D03_every_order_of_strides_gives_the_same_bits) {
    constexpr int64_t tokens = 9;
    constexpr int32_t heads = 3, dim = 24;
    const rope_table table = growing(standard(dim, 1e4));
    const positions at = {5, 4, 3, 3, 100, 0, 1, 2, 99};
    for (const dtype type : all_types) {
        strided_tensor dense = random_tensor(type, tokens, heads, dim), source = dense;
        ASSERT_TRUE(rope_apply(table, at, dense.view(), {}).ok());
        const auto bytes = static_cast<std::size_t>(element_bytes(type));
        struct order {
            int64_t token_stride, head_stride, first;
        };
        for (const order& o : {order{heads * dim, dim, 1}, order{dim, tokens * dim, 1}, order{3 * heads * dim, dim, heads * dim},
                               order{-heads * dim, dim, (tokens - 1) * heads * dim}, order{heads * dim + 7, dim + 1, 0}}) {
            std::vector<std::byte> memory(static_cast<std::size_t>(4 * tokens * heads * dim) * bytes, std::byte{0xff});
            const head_view view(memory.data() + static_cast<std::size_t>(o.first) * bytes, type, tokens, heads, dim, o.token_stride, o.head_stride);
            const auto row = [&](int64_t t, int32_t h) {
                return static_cast<std::byte*>(view.data) + (t * o.token_stride + h * o.head_stride) * static_cast<int64_t>(bytes);
            };
            for (int64_t t = 0; t < tokens; ++t) {
                for (int32_t h = 0; h < heads; ++h) std::memcpy(row(t, h), source.at(t, h, 0), dim * bytes);
            }
            const status s = rope_apply(table, at, view, {});
            ASSERT_TRUE(s.ok()) << s.text();
            for (int64_t t = 0; t < tokens; ++t) {
                for (int32_t h = 0; h < heads; ++h) {
                    ASSERT_EQ(std::memcmp(row(t, h), dense.at(t, h, 0), dim * bytes), 0)
                        << name(type) << " strides " << o.token_stride << ", " << o.head_stride;
                }
            }
        }
    }
}

TEST_F(rope, any_number_of_threads_gives_the_same_bits) {
    const rope_table table = growing(standard(64, 1e4), 0, 1000);
    positions at(1500);
    for (int64_t& p : at) p = between(0, 2000);
    for (const dtype type : all_types) {
        strided_tensor q = random_tensor(type, 1500, 4, 80), k = random_tensor(type, 1500, 1, 80), q0 = q, k0 = k;
        serial_executor serial;
        ASSERT_TRUE(rope_apply(table, at, q.view(), k.view(), {}, serial).ok());
        for (const int32_t threads : {0, 1, 2, 3, 7, 16}) {
            strided_tensor q1 = q0, k1 = k0;
            thread_executor many(threads);
            ASSERT_TRUE(rope_apply(table, at, q1.view(), k1.view(), {}, many).ok());
            ASSERT_EQ(q1.memory, q.memory) << threads;
            ASSERT_EQ(k1.memory, k.memory) << threads;
        }
    }
}

TEST_F(rope, inverse_undoes_rotation_and_amplitude) {
    rope_spec spec = standard(32, 1e4);
    for (const double amplitude : {1.0, 1.13862944, 0.5}) {
        spec.amplitude = amplitude;
        const rope_table table = growing(spec, 0, 300);
        const positions at = {0, 1, 299, 300, 2'000'000'000};
        strided_tensor x = random_tensor(dtype::fp32, 5, 2, 40), before = x;
        const rope_options back{.inverse = true, .first_dim = 4};
        ASSERT_TRUE(rope_apply(table, at, x.view(), {}, back).ok());
        expect_rotated(before, x, spec, at, back, 1.0 / amplitude, -1.0);
        ASSERT_TRUE(rope_apply(table, at, x.view(), {}, {.first_dim = 4}).ok());
        for (int64_t t = 0; t < 5; ++t) {
            for (int32_t h = 0; h < 2; ++h) {
                for (int32_t d = 0; d < 40; ++d) ASSERT_NEAR(x.value(t, h, d), before.value(t, h, d), 12 * 0x1p-24 * 6) << t << " " << d;
            }
        }
    }
}

TEST_F(rope, shifts_add_up_and_never_apply_the_amplitude) {
    rope_spec spec = standard(64, 1e4);
    spec.amplitude = 1.0693147;
    const rope_table table = growing(spec);
    strided_tensor raw = random_tensor(dtype::fp32, 4, 2, 64), shifted = raw, fresh = raw;
    const positions at = {10, 1000, 70, 64};
    ASSERT_TRUE(rope_apply(table, at, shifted.view(), {}).ok());
    const positions zero(4, 0);
    strided_tensor same = shifted;
    ASSERT_TRUE(rope_shift(table, zero, same.view()).ok());
    EXPECT_EQ(same.memory, shifted.memory) << "a shift by 0 is a copy, bit for bit";
    ASSERT_TRUE(rope_shift(table, positions{3, -500, 1, 2}, shifted.view()).ok());
    ASSERT_TRUE(rope_shift(table, positions{-13, 7, -71, -66}, shifted.view()).ok());
    ASSERT_TRUE(rope_apply(table, positions{0, 507, 0, 0}, fresh.view(), {}).ok());
    for (int64_t t = 0; t < 4; ++t) {
        for (int32_t h = 0; h < 2; ++h) {
            // 3 rotations, each with 3 roundings of |x0| + |x1| <= 12
            for (int32_t d = 0; d < 64; ++d) ASSERT_NEAR(shifted.value(t, h, d), fresh.value(t, h, d), 9 * 0x1p-24 * 12) << t << " " << h << " " << d;
        }
    }
    // E03: 64 shifts of -1 keep the norm.
    strided_tensor k = raw;
    const positions far(4, 164), one_back(4, -1), target_position(4, 100);
    ASSERT_TRUE(rope_apply(table, far, k.view(), {}).ok());
    for (int i = 0; i < 64; ++i) ASSERT_TRUE(rope_shift(table, one_back, k.view()).ok());
    strided_tensor wanted = raw;
    ASSERT_TRUE(rope_apply(table, target_position, wanted.view(), {}).ok());
    for (int32_t d = 0; d < 64; ++d) ASSERT_NEAR(k.value(0, 0, d), wanted.value(0, 0, d), 65 * 3 * 0x1p-24 * 12) << d;
}

TEST_F(rope, rotation_is_relative) {
    const rope_table table = growing(standard(64, 1e4));
    strided_tensor q = random_tensor(dtype::fp32, 2, 1, 64), k = random_tensor(dtype::fp32, 2, 1, 64);
    std::memcpy(q.at(1, 0, 0), q.at(0, 0, 0), 256);
    std::memcpy(k.at(1, 0, 0), k.at(0, 0, 0), 256);
    ASSERT_TRUE(rope_apply(table, positions{5, 1'000'005}, q.view(), {}).ok());
    ASSERT_TRUE(rope_apply(table, positions{2, 1'000'002}, {}, k.view()).ok());
    double dot[2] = {}, size = 0;
    for (int64_t t = 0; t < 2; ++t) {
        for (int32_t d = 0; d < 64; ++d) {
            dot[t] += q.value(t, 0, d) * k.value(t, 0, d);
            size += std::abs(q.value(t, 0, d) * k.value(t, 0, d));
        }
    }
    EXPECT_NEAR(dot[0], dot[1], 12 * 0x1p-24 * size);
}

TEST_F(rope, empty_and_absent_tensors) {
    const rope_table table = growing(standard(8, 1e4));
    strided_tensor x = random_tensor(dtype::fp32, 2, 1, 8), before = x;
    EXPECT_TRUE(rope_apply(table, {}, {}, {}).ok());
    EXPECT_TRUE(rope_apply(table, positions{1, 2}, {}, {}).ok());
    EXPECT_TRUE(rope_apply(table, {}, dense_view(static_cast<void*>(nullptr), dtype::bf16, 0, 4, 8), {}).ok());
    EXPECT_TRUE(rope_shift(table, {}, {}).ok());
    head_view absent = x.view();
    absent.heads = 0;
    absent.type = static_cast<dtype>(77);
    absent.dim_stride = 9;
    EXPECT_TRUE(rope_apply(table, positions{1, 2}, absent, absent).ok());
    EXPECT_EQ(x.memory, before.memory);
    EXPECT_TRUE(rope_apply(table, positions{1, 2}, absent, x.view()).ok());
    EXPECT_NE(x.memory, before.memory);
}

// ---- refused arguments
// --------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope, refused_views_name_argument_value_and_rule) {
    const rope_table table = growing(standard(8, 1e4));
    strided_tensor x = random_tensor(dtype::fp32, 3, 2, 10), before = x;
    const positions at = {0, 1, 2};
    const auto text = [&](auto change, const rope_options& options = {}) {
        head_view view = x.view();
        change(view);
        const std::string as_q = rope_apply(table, at, view, {}, options).text();
        std::string as_k = rope_apply(table, at, {}, view, options).text();
        if (!as_k.empty() && as_k[0] == 'k') as_k[0] = 'q';
        EXPECT_EQ(as_q, as_k);
        EXPECT_FALSE(rope_shift(table, at, view, options).ok());
        EXPECT_EQ(x.memory, before.memory);
        return as_q;
    };
    EXPECT_EQ(text([](head_view& v) { v.data = nullptr; }), "q.data is null; must point to 3 tokens");
    EXPECT_NE(text([](head_view& v) { v.data = static_cast<std::byte*>(v.data) + 1; }).find("must be aligned to its 4-byte elements"),
              std::string::npos);
    EXPECT_NE(text([](head_view& v) { v.type = dtype::bf16, v.data = static_cast<std::byte*>(v.data) + 1; }).find("2-byte elements"),
              std::string::npos);
    EXPECT_EQ(text([](head_view& v) { v.dim_stride = 0; }), "q.dim_stride is 0; must be 1");
    EXPECT_EQ(text([](head_view& v) { v.type = static_cast<dtype>(3); }), "q.type is 3; must be a dtype (0 fp32, 1 bf16, 2 fp16)");
    EXPECT_EQ(text([](head_view& v) { v.type = static_cast<dtype>(-1); }), "q.type is -1; must be a dtype (0 fp32, 1 bf16, 2 fp16)");
    EXPECT_EQ(text([](head_view& v) { v.heads = -2; }), "q.heads is -2; must be at least 0");
    EXPECT_EQ(text([](head_view& v) { v.tokens = -1; }), "q.tokens is -1; must be at least 0");
    EXPECT_EQ(text([](head_view& v) { v.tokens = 2; }).substr(0, 46), "q has shape [2, 2, 10]; must be [3, *, *]: one");
    EXPECT_EQ(text([](head_view& v) { v.dim = 0; }), "q.dim is 0; must be at least 1");
    EXPECT_EQ(text([](head_view& v) { v.dim = -8; }), "q.dim is -8; must be at least 1");
    EXPECT_EQ(text([](head_view& v) { v.dim = 7; }), "q.dim is 7; must be at least first_dim + rotary_dim = 0 + 8");
    EXPECT_EQ(text([](head_view&) {}, {.first_dim = 3}), "q.dim is 10; must be at least first_dim + rotary_dim = 3 + 8");
    EXPECT_EQ(text([](head_view&) {}, {.first_dim = -1}), "options.first_dim is -1; must be at least 0");
    EXPECT_FALSE(text([](head_view&) {}, {.first_dim = std::numeric_limits<int32_t>::max()}).empty());
    EXPECT_EQ(text([](head_view&) {}, {.pairing = static_cast<rope_pairing>(3)}),
              "options.pairing is 3; must be 0 (half), 1 (interleaved) or 2 (interleaved in, half out)");
    EXPECT_NE(text([](head_view& v) { v.token_stride = std::numeric_limits<int64_t>::min(); }).find("must fit 64 bits"), std::string::npos);
    EXPECT_STREQ(rope_shift(table, at, x.view(), {.inverse = true}).text(), "options.inverse is true; must be false: negate the deltas instead");
    EXPECT_STREQ(rope_shift(table, positions{0, int64_t{1} << 31, 0}, x.view()).text(), "deltas[1] is 2147483648; must be within 2147483647 of 0");
    EXPECT_FALSE(rope_shift(table, positions{0, 0, std::numeric_limits<int64_t>::min()}, x.view()).ok());
    EXPECT_NE(std::string(rope_apply(table, at, x.view(), x.view()).text()).find("must be different tensors"), std::string::npos);
    EXPECT_EQ(x.memory, before.memory);
}

TEST_F(rope, rows_that_overlap_are_refused_exactly) {
    const rope_table table = growing(standard(4, 1e4));
    std::vector<float> memory(4000, 1.0f);
    for (int i = 0; i < 3000; ++i) {
        const int64_t tokens = between(1, 4), token_stride = between(-14, 30), head_stride = between(-14, 30);
        const auto heads = static_cast<int32_t>(between(1, 4)), dim = static_cast<int32_t>(between(4, 9));
        std::vector<int> owners(memory.size(), 0);
        bool overlap = false;
        for (int64_t t = 0; t < tokens; ++t) {
            for (int32_t h = 0; h < heads; ++h) {
                for (int32_t d = 0; d < dim; ++d) overlap |= owners[static_cast<std::size_t>(2000 + t * token_stride + h * head_stride + d)]++ != 0;
            }
        }
        const head_view view(memory.data() + 2000, dtype::fp32, tokens, heads, dim, token_stride, head_stride);
        const status s = rope_apply(table, positions(static_cast<std::size_t>(tokens), 0), view, {});
        ASSERT_EQ(s.ok(), !overlap) << tokens << " " << heads << " " << dim << " strides " << token_stride << ", " << head_stride << ": " << s.text();
    }
}

// ---- cost
// ----------------------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope, rotating_allocates_nothing) {
    rope_spec spec = standard(64, 1e4);
    spec.amplitude = 1.25;
    const rope_table table = growing(spec, 512, 512);
    positions at(600);
    std::iota(at.begin(), at.end(), 0);
    strided_tensor q = random_tensor(dtype::bf16, 600, 4, 64), k = random_tensor(dtype::fp32, 600, 2, 64);
    serial_executor serial;
    const int64_t before = allocation_count();
    bool ok = rope_apply(table, at, q.view(), k.view(), {}, serial).ok();
    ok = rope_apply(table, at, q.view(), k.view(), {.inverse = true}, serial).ok() && ok;
    ok = rope_shift(table, at, k.view(), {}, serial).ok() && ok;
    ok = !rope_apply(table, at, k.view(), k.view(), {}, serial).ok() && ok;  // refusing allocates nothing either
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(ok);
}

// Rows of a token end where the buffer ends: nothing beyond is read or written, whatever the executor cuts.
TEST_F(rope, D23_nothing_beyond_the_tensor_is_touched) {
    const rope_table table = growing(standard(40, 1e4));
    for (const dtype type : all_types) {
        const guarded_buffer memory(static_cast<std::size_t>(700 * 3 * 43 * element_bytes(type)));
        memory.fill(0);
        const positions at(700, 9);
        EXPECT_TRUE(rope_apply(table, at, dense_view(static_cast<void*>(memory.data()), type, 700, 3, 43), {}).ok());
    }
}

}  // namespace
}  // namespace ropewalk::test
