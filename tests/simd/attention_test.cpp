// Attention kernels of every target of the host against the scalar reference: shapes, tails, misalignment, guard words.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <ropewalk/types.hpp>
#include "simd/core/dispatch.hpp"
#include "simd/core/element.hpp"
#include "tests/guarded.hpp"

namespace ropewalk::simd {
namespace {

constexpr float canary = 12345.0f;
constexpr double eps = 1.1920929e-7;

std::vector<target> vector_targets() {
    std::vector<target> found;
    for (const target t : {target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16}) {
        if (kernels_of(t) != nullptr) found.push_back(t);
    }
    return found;
}

// `count` elements of N(0, 1) of the type that end at a page without access: a read beyond them faults. What the count leaves misaligns the start.
struct elements {
    test::guarded_buffer buffer;
    std::byte* data;

    elements(int type, int64_t count, std::mt19937& generator) : buffer(static_cast<std::size_t>(count * type_bytes(type))), data(buffer.data()) {
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < count; ++i) {
            const float x = normal(generator);
            const uint16_t bits = type == bf16 ? float_to_bf16(x) : scalar::float_to_fp16(x);
            if (type == fp32) {
                std::memcpy(data + i * 4, &x, 4);
            } else {
                std::memcpy(data + i * 2, &bits, 2);
            }
        }
    }
};

class attention_kernels_test : public testing::TestWithParam<target> {
protected:
    const kernel_table& kernels = *kernels_of(GetParam());
    const kernel_table& reference = *kernels_of(target::scalar);
};

// A K part or V part of N(0, 1) data whose elements and scales end at pages without access.
struct random_part {
    test::guarded_buffer elements, scales;
    int32_t page_tokens;

    random_part(const kernel_table& reference, int type, bool keys, int32_t stored, int32_t tokens, std::mt19937& generator)
        : elements(static_cast<std::size_t>(keys ? tokens / panel * panel_bytes(type, stored) : v_bytes(type, stored, tokens))),
          scales(static_cast<std::size_t>(keys ? k_scale_bytes(type, tokens) : v_scale_bytes(type, stored, tokens))),
          page_tokens(tokens) {
        std::normal_distribution<float> normal;
        std::vector<float> rows(static_cast<std::size_t>(tokens * stored));
        for (float& x : rows) x = normal(generator);
        (keys ? reference.kv.pack_k : reference.kv.pack_v)[type](rows.data(), stored, stored, {elements.data(), scales.data(), tokens}, 0, tokens);
    }
};

// A score is a chain of k_dim FMAs of N(0, 1) data: k_dim roundings, each half an eps of a partial sum of at most 4.5 sqrt(k_dim), that add up like a random
// walk: 4.5 * eps / 2 * k_dim.
TEST_P(attention_kernels_test, qk_equals_reference) {
    const uint32_t seed = 1;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    for (int type = 0; type < kv_type_count; ++type) {
        for (const int32_t dim : {2, 40, 64, 128, 576}) {
            const int32_t k_dim = stored_k_dim(type, dim);
            for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 17, 40}) {
                for (const int32_t panels : {1, 3, 4}) {
                    if (k_dim > 128 && rows > 17) continue;
                    const elements q(fp32, rows * int64_t{k_dim}, generator);
                    const random_part k(reference, type, true, k_dim, panels * panel, generator);
                    const int64_t stride = panels * panel + 3;
                    std::vector<float> got(static_cast<std::size_t>(rows * stride), canary), expected = got;
                    const std::vector<std::byte> next(64 * 100);
                    const auto* scales = k.scales.as<float>();
                    kernels.attention.qk[type][fma_fp32](
                        {q.data, k_dim, rows, k_dim, k.elements.data(), scales, panels, got.data(), stride, {next.data(), 100}});
                    reference.attention.qk[type][fma_fp32](
                        {q.data, k_dim, rows, k_dim, k.elements.data(), scales, panels, expected.data(), stride, {}});
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        ASSERT_NEAR(got[i], expected[i], 2.25 * eps * (k_dim + 2))
                            << "type " << type << " k_dim " << k_dim << " rows " << rows << " panels " << panels << " at " << i;
                    }
                }
            }
        }
    }
}

TEST_P(attention_kernels_test, pv_equals_reference) {
    const uint32_t seed = 2;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    constexpr int32_t page_tokens = 128;
    for (int type = 0; type < kv_type_count; ++type) {
        for (const int32_t dim : {16, 48, 128, 512}) {
            const int32_t v_dim = stored_v_dim(type, dim);
            for (const int32_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 12, 17, 24}) {
                const random_part v(reference, type, false, v_dim, page_tokens, generator);
                for (const int32_t wanted : {2, 30, 128}) {
                    const int32_t tokens = (wanted + word_elements(type) - 1) / word_elements(type) * word_elements(type);
                    const int32_t skipped = page_tokens - tokens;  // the last tokens of the page: a read beyond them faults
                    const elements p(fp32, int64_t{rows} * 128, generator), alpha(fp32, rows, generator);
                    const int64_t stride = v_dim + 5;
                    std::vector<float> got(static_cast<std::size_t>(rows * stride), 0.5f), expected = got;
                    const std::byte* from = v.elements.data() + v_bytes(type, v_dim, skipped);
                    const std::byte* scales = v.scales.data() + skipped * v_scale_step(type);
                    for (const bool scaled : {true, false}) {
                        const auto* factor = scaled ? reinterpret_cast<const float*>(alpha.data) : nullptr;
                        kernels.attention.pv[type][fma_fp32](
                            {p.data, 128, rows, tokens, from, scales, page_tokens, v_dim, got.data(), stride, factor, {}});
                        reference.attention.pv[type][fma_fp32](
                            {p.data, 128, rows, tokens, from, scales, page_tokens, v_dim, expected.data(), stride, factor, {}});
                    }
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        ASSERT_NEAR(got[i], expected[i], 1e-6 * (tokens + 4))
                            << "type " << type << " v_dim " << v_dim << " rows " << rows << " tokens " << tokens << " at " << i;
                    }
                }
            }
        }
    }
}

TEST_P(attention_kernels_test, softmax_equals_reference) {
    const uint32_t seed = 3;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    constexpr int32_t rows = 5;
    for (const int32_t tokens : {16, 48, 128}) {
        for (const float softcap : {0.0f, 3.0f}) {
            for (const bool alibi : {false, true}) {
                for (const bool masked : {false, true}) {
                    const elements raw(fp32, rows * 128, generator);
                    std::vector<float> slope(rows, 0.25f), distance(rows);
                    std::vector<int32_t> first(rows, 0), last(rows, tokens);
                    for (int32_t r = 0; r < rows; ++r) {
                        distance[static_cast<std::size_t>(r)] = static_cast<float>(tokens / 2 + r);
                        if (masked) first[static_cast<std::size_t>(r)] = r;
                        if (masked) last[static_cast<std::size_t>(r)] = r == 4 ? 4 : tokens - 3 * r;  // row 4 sees nothing
                    }
                    struct run_state {
                        std::vector<float> s = std::vector<float>(rows * 128), m = std::vector<float>(rows, -1.0f), alpha = std::vector<float>(rows),
                                           l = std::vector<float>(rows * sum_lanes, 0.125f), p = std::vector<float>(rows * 128, canary);
                    } got, expected;
                    const auto run = [&](const kernel_table& table, run_state& state) {
                        std::memcpy(state.s.data(), raw.data, rows * 128 * 4);
                        table.attention.softmax[fma_fp32]({state.s.data(), 128, rows, tokens, first.data(), last.data(), 2.5f, softcap,
                                                           alibi ? slope.data() : nullptr, distance.data(), state.m.data(), state.alpha.data(), state.l.data(), state.p.data()});
                    };
                    run(kernels, got);
                    run(reference, expected);
                    for (std::size_t i = 0; i < got.p.size(); ++i) ASSERT_NEAR(got.p[i], expected.p[i], i % 128 < static_cast<std::size_t>(tokens) ? 4e-6 : 0.0) << i;
                    for (std::size_t i = 0; i < got.l.size(); ++i) ASSERT_NEAR(got.l[i], expected.l[i], 4e-5) << i;
                    for (std::size_t i = 0; i < rows; ++i) {
                        ASSERT_NEAR(got.m[i], expected.m[i], 4e-6);
                        ASSERT_NEAR(got.alpha[i], expected.alpha[i], 4e-6);
                    }
                }
            }
        }
    }
}

// q and p of the bf16 dot are exact here (small integers), so the dot must give what fp32 gives.
TEST_P(attention_kernels_test, bf16_dot_is_exact_on_integers) {
    if (kernels.attention.qk[bf16][dot_bf16] == nullptr) GTEST_SKIP() << "no bf16 dot on this target";
    std::mt19937 generator(4);
    std::uniform_int_distribution<int> digit(-7, 7);
    for (const int32_t dim : {16, 64, 128}) {
        for (const int32_t rows : {1, 2, 3, 4, 5, 8, 12, 13, 30, 96}) {
            const int32_t panels = 4;
            std::vector<uint16_t> q16(static_cast<std::size_t>(rows * 128)), kv(static_cast<std::size_t>(panels * panel * dim));
            std::vector<float> q32(q16.size());
            for (std::size_t i = 0; i < q16.size(); ++i) q16[i] = float_to_bf16(q32[i] = static_cast<float>(digit(generator)));
            for (auto& x : kv) x = float_to_bf16(static_cast<float>(digit(generator)));
            std::vector<float> got(static_cast<std::size_t>(rows * 128)), expected = got;
            const auto* part = reinterpret_cast<const std::byte*>(kv.data());
            kernels.attention.qk[bf16][dot_bf16]({q16.data(), 128, rows, dim, part, nullptr, panels, got.data(), 128, {}});
            reference.attention.qk[bf16][fma_fp32]({q32.data(), 128, rows, dim, part, nullptr, panels, expected.data(), 128, {}});
            ASSERT_EQ(got, expected);
            kernels.attention.pv[bf16][dot_bf16]({q16.data(), 128, rows, panels * panel, part, nullptr, 64, dim, got.data(), 128, nullptr, {}});
            reference.attention.pv[bf16][fma_fp32]({q32.data(), 128, rows, panels * panel, part, nullptr, 64, dim, expected.data(), 128, nullptr, {}});
            ASSERT_EQ(got, expected);
        }
    }
}

TEST_P(attention_kernels_test, non_finite_is_found_anywhere) {
    for (int type = 0; type < dtype_count; ++type) {
        for (const int64_t count : {1, 2, 15, 16, 17, 64, 100}) {
            std::vector<std::byte> zero(static_cast<std::size_t>(count * type_bytes(type)));
            EXPECT_FALSE(kernels.attention.non_finite[type](zero.data(), count));
            for (int64_t i = 0; i < count; ++i) {
                for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
                    std::vector<std::byte> values = zero;
                    kernels.kv.store_row[type](&bad, values.data() + i * type_bytes(type), 1);
                    EXPECT_TRUE(kernels.attention.non_finite[type](values.data(), count)) << type << " " << count << " " << i;
                }
            }
        }
    }
}

TEST_P(attention_kernels_test, fold_and_finish_at_every_length) {
    std::mt19937 generator(5);
    for (int64_t n = 1; n <= 40; ++n) {
        const elements total(fp32, n, generator), part(fp32, n, generator);
        std::vector<float> got(static_cast<std::size_t>(n) + 1, canary);
        std::memcpy(got.data(), total.data, static_cast<std::size_t>(n) * 4);
        std::vector<float> expected = got;
        const auto* other = reinterpret_cast<const float*>(part.data);
        kernels.attention.fold(got.data(), other, 0.75f, 0.3f, n);
        reference.attention.fold(expected.data(), other, 0.75f, 0.3f, n);
        for (std::size_t i = 0; i <= static_cast<std::size_t>(n); ++i) ASSERT_NEAR(got[i], expected[i], 5e-7);
        for (int type = 0; type < dtype_count; ++type) {
            std::vector<uint16_t> a(static_cast<std::size_t>(2 * n + 2), 0x1234), b = a;
            kernels.attention.finish[type](got.data(), 0.37f, a.data(), n);
            reference.attention.finish[type](got.data(), 0.37f, b.data(), n);
            ASSERT_EQ(a, b) << "type " << type << " n " << n;
        }
    }
}

// ---- exp2, tanh ---------------------------------------------------------------------------------------------------------------------------------

double ulps(float got, double expected) {
    const auto nearest = static_cast<float>(expected);
    return std::fabs(got - expected) / (std::nextafter(std::fabs(nearest), std::numeric_limits<float>::infinity()) - std::fabs(nearest));
}

// What reaches the polynomial is in [-0.5, 0.5]: one in 211 of its patterns from 2^-25 on (below, the result is 1), and the whole range coarsely.
TEST_P(attention_kernels_test, exp2_is_within_one_ulp) {
    double worst = 0.0;
    float worst_at = 0.0f;
    std::vector<float> x, y;
    const auto check = [&] {
        y.resize(x.size());
        kernels.math.exp2(x.data(), y.data(), static_cast<int64_t>(x.size()));
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double error = ulps(y[i], std::exp2(double{x[i]}));
            if (error <= worst) continue;
            worst = error;
            worst_at = x[i];
        }
        x.clear();
    };
    constexpr uint32_t step = 211;  // odd, so that all low bits occur
    for (uint32_t bits = 0x33000000u; bits <= 0x3f000000u; bits += step) {
        for (const uint32_t sign : {0u, 0x80000000u}) x.push_back(scalar::bits_to_float(bits | sign));
        if (x.size() >= 4096) check();
    }
    for (int i = 0; i <= 200000; ++i) {
        x.push_back(-126.0f * static_cast<float>(i) / 200000.0f);
        x.push_back(127.99f * static_cast<float>(i) / 200000.0f);
    }
    check();
    EXPECT_LE(worst, 0.82) << "at " << worst_at;
}

TEST_P(attention_kernels_test, exp2_at_the_ends_C18) {
    const float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> x{0.0f, -0.0f, -infinity, infinity, std::numeric_limits<float>::quiet_NaN(), -126.0f, -127.0f, -150.0f, -1e30f, 127.99f, 128.0f, 1e30f};
    std::vector<float> y(x.size());
    kernels.math.exp2(x.data(), y.data(), static_cast<int64_t>(x.size()));
    EXPECT_EQ(y[0], 1.0f);
    EXPECT_EQ(y[1], 1.0f);
    EXPECT_EQ(y[2], 0.0f);
    EXPECT_EQ(y[3], infinity);
    EXPECT_TRUE(std::isnan(y[4]));
    EXPECT_EQ(y[5], 0x1p-126f);
    for (const std::size_t i : {6, 7, 8}) EXPECT_EQ(y[i], 0.0f);
    EXPECT_TRUE(std::isfinite(y[9]));
    EXPECT_EQ(y[10], infinity);
    EXPECT_EQ(y[11], infinity);
    // e^v for the row's inputs, and monotone on the way down.
    float before = infinity;
    for (const float v : {89.0f, 88.7f, 0.0f, -87.0f, -88.0f, -90.0f, -95.0f, -100.0f, -104.0f}) {
        const double exact = double{v} * 1.4426950408889634;
        const auto t = static_cast<float>(exact);
        float e;
        kernels.math.exp2(&t, &e, 1);
        if (t > -126.0f && t < 128.0f) {
            EXPECT_LE(ulps(e, std::exp2(double{t})), 1.0) << v;
        }
        EXPECT_LE(e, before);
        before = e;
    }
}

TEST_P(attention_kernels_test, tanh_is_accurate_and_odd) {
    std::vector<float> x, y;
    for (int i = 0; i <= 100000; ++i) x.push_back(std::ldexp(1.0f + static_cast<float>(i % 1000) / 1000.0f, i / 1000 - 80));
    y.resize(x.size());
    kernels.math.tanh(x.data(), y.data(), static_cast<int64_t>(x.size()));
    std::vector<float> negative(x.size()), z(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) negative[i] = -x[i];
    kernels.math.tanh(negative.data(), z.data(), static_cast<int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_LE(ulps(y[i], std::tanh(double{x[i]})), 4.0) << x[i];
        ASSERT_EQ(z[i], -y[i]);
    }
}

INSTANTIATE_TEST_SUITE_P(targets, attention_kernels_test, testing::ValuesIn(vector_targets()),
                         [](const auto& info) { return std::string(name(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(attention_kernels_test);

}  // namespace
}  // namespace ropewalk::simd
