// Attention kernels of every target of the host against the scalar reference: shapes, tails, misalignment, guard words.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include <ropewalk/types.hpp>
#include "simd/core/dispatch.hpp"
#include "simd/core/element.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"

namespace ropewalk::simd {
namespace {

constexpr float canary = 12345.0f;
constexpr double eps = 1.1920929e-7;

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

// A score is a chain of k_dim FMAs of N(0, 1) data: k_dim roundings, each half an eps of a partial sum of at most 4.5 sqrt(k_dim), that add up like a
// random walk: 4.5 * eps / 2 * k_dim.
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
                    if (token_scaled(type)) {
                        reference.attention.scale_weights(reinterpret_cast<float*>(p.data), 128, rows, tokens, reinterpret_cast<const float*>(scales),
                                                          code_unit(type));
                    }
                    // In two runs, the first of one word.
                    const int32_t word = word_elements(type);
                    const v_run runs[] = {{from, scales, word, {}},
                                          {from + v_bytes(type, v_dim, word), scales + word * v_scale_step(type), tokens - word, {}}};
                    const auto run = [&](const kernel_table& table, std::vector<float>& o) {
                        table.attention.pv[type][fma_fp32]({p.data, 128, rows, runs, tokens > word ? 2 : 1, page_tokens, v_dim, o.data(), stride,
                                                            reinterpret_cast<const float*>(alpha.data)});
                    };
                    run(kernels, got);
                    run(reference, expected);
                    for (std::size_t i = 0; i < got.size(); ++i) {
                        ASSERT_NEAR(got[i], expected[i], 1e-6 * (tokens + 4))
                            << "type " << type << " v_dim " << v_dim << " rows " << rows << " tokens " << tokens << " at " << i;
                    }
                }
            }
        }
    }
}

TEST_P(attention_kernels_test, weights_of_zero_stay_zero_whatever_the_scale) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int32_t tokens = 1; tokens <= 40; ++tokens) {
        std::vector<float> p(3 * 48, 0.5f), scale(static_cast<std::size_t>(tokens), 0.25f);
        for (int32_t t = 0; t < tokens; t += 3) {
            scale[static_cast<std::size_t>(t)] = nan;
            p[static_cast<std::size_t>(t)] = p[static_cast<std::size_t>(48 + t)] = 0.0f;  // rows 0 and 1 do not see it
        }
        kernels.attention.scale_weights(p.data(), 48, 3, tokens, scale.data(), 1.0f);
        for (int32_t r = 0; r < 3; ++r) {
            for (int32_t t = 0; t < 48; ++t) {
                const float x = p[static_cast<std::size_t>(r * 48 + t)];
                if (t >= tokens) {
                    ASSERT_EQ(x, 0.5f);
                } else if (t % 3 != 0) {
                    ASSERT_EQ(x, 0.125f);
                } else if (r < 2) {
                    ASSERT_EQ(x, 0.0f);
                } else {
                    ASSERT_TRUE(std::isnan(x));
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
                                                           alibi ? slope.data() : nullptr, distance.data(), state.m.data(), state.alpha.data(),
                                                           state.l.data(), state.p.data()});
                    };
                    run(kernels, got);
                    run(reference, expected);
                    for (std::size_t i = 0; i < got.p.size(); ++i)
                        ASSERT_NEAR(got.p[i], expected.p[i], i % 128 < static_cast<std::size_t>(tokens) ? 4e-6 : 0.0) << i;
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

// What the pair dots read: weights rounded once to bf16, whose sum is that of the rounded ones.
TEST_P(attention_kernels_test, bf16_weights_are_rounded_once_and_summed_as_rounded) {
    const softmax_function softmax = kernels.attention.softmax[dot_bf16];
    if (softmax == nullptr) GTEST_SKIP() << "no bf16 dot on this target";
    constexpr int32_t rows = 1100, tokens = 128;
    // Scores 0 (the maximum) down to -137.5 in steps of 2^-10, all fractions at every scale; the last token of each row is masked.
    std::vector<float> s(rows * tokens), m(rows, -std::numeric_limits<float>::infinity()), alpha(rows), l(rows * sum_lanes);
    for (int32_t i = 0; i < rows * tokens; ++i) s[static_cast<std::size_t>(i)] = i % tokens == 0 ? 0.0f : static_cast<float>(i) * -0x1p-10f;
    std::vector<uint16_t> p(rows * tokens);
    const std::vector<int32_t> first(rows, 0), last(rows, tokens - 1);
    int32_t other = 0;  // than the nearest bf16
    softmax({s.data(), tokens, rows, tokens, first.data(), last.data(), 1.0f, 0.0f, nullptr, nullptr, m.data(), alpha.data(), l.data(), p.data()});
    for (int32_t r = 0; r < rows; ++r) {
        double sum = 0.0, summed = 0.0;
        for (int32_t t = 0; t < tokens; ++t) {
            const auto i = static_cast<std::size_t>(r * tokens + t);
            const double weight = double{bf16_to_float(p[i])}, exact = t == tokens - 1 ? 0.0 : std::exp2(double{s[i]});
            ASSERT_NEAR(weight, exact, exact * (0x1p-8 + 0x1p-17) + 0x1p-126) << s[i];
            if (weight >= 0x1p-126 && p[i] != float_to_bf16(static_cast<float>(exact))) ++other;
            sum += weight;
        }
        for (int32_t i = 0; i < sum_lanes; ++i) summed += double{l[static_cast<std::size_t>(r * sum_lanes + i)]};
        ASSERT_NEAR(summed, sum, sum * 1e-6) << "row " << r;
    }
    EXPECT_LT(other, rows * tokens / 200);  // an error of 2^-18 moves one of some 500 across a tie
}

// Bits in place of ranges, and with them the positions of the tokens; what a cleared bit hides is NaN.
TEST_P(attention_kernels_test, softmax_of_bits_equals_reference) {
    const uint32_t seed = 9;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    constexpr int32_t rows = 6, stride = 132;
    struct run_state {
        std::vector<float> s, m = std::vector<float>(rows, -1.0f), alpha = std::vector<float>(rows), l = std::vector<float>(rows * sum_lanes, 0.125f),
                              p = std::vector<float>(rows * stride, canary);
    };
    for (const int32_t tokens : {16, 48, 128}) {
        for (const int mode : {0, 1, 2, 3}) {  // softcap, ALiBi, both
            const elements raw(fp32, rows * stride, generator);
            const auto* values = reinterpret_cast<const float*>(raw.data);
            std::vector<float> slope(rows, 0.25f), distance(rows, static_cast<float>(tokens / 2)), position(static_cast<std::size_t>(tokens));
            for (float& x : position) x = static_cast<float>(static_cast<int32_t>(generator() % 50) - 10);
            std::vector<uint32_t> bits(rows * tile_words);
            for (uint32_t& word : bits) word = static_cast<uint32_t>(generator());
            std::fill_n(bits.begin(), tile_words, 0u);  // row 0 sees nothing
            std::fill_n(bits.begin() + tile_words, tile_words, ~0u);
            const auto seen = [&](int32_t r, int32_t t) { return (bits[static_cast<std::size_t>(r * tile_words + t / 32)] >> (t % 32) & 1u) != 0; };
            const auto run = [&](const kernel_table& table, run_state& state, float hidden) {
                state.s.assign(values, values + rows * stride);
                for (int32_t r = 0; r < rows; ++r) {
                    for (int32_t t = 0; t < tokens; ++t) {
                        if (!seen(r, t)) state.s[static_cast<std::size_t>(r * stride + t)] = hidden;
                    }
                }
                table.attention.softmax[fma_fp32]({state.s.data(), stride, rows, tokens, nullptr, nullptr, 2.5f, mode % 2 != 0 ? 3.0f : 0.0f,
                                                   mode / 2 != 0 ? slope.data() : nullptr, distance.data(), state.m.data(), state.alpha.data(),
                                                   state.l.data(), state.p.data(), bits.data(), position.data()});
            };
            run_state got, poisoned, expected;
            run(kernels, got, 0.0f);
            run(kernels, poisoned, std::numeric_limits<float>::quiet_NaN());
            run(reference, expected, std::numeric_limits<float>::quiet_NaN());
            ASSERT_EQ(got.p, poisoned.p);
            ASSERT_EQ(got.l, poisoned.l);
            for (int32_t r = 0; r < rows; ++r) {
                for (int32_t t = 0; t < stride; ++t) {
                    const auto i = static_cast<std::size_t>(r * stride + t);
                    if (t < tokens && !seen(r, t)) {
                        ASSERT_EQ(got.p[i], 0.0f);
                    }
                    ASSERT_NEAR(got.p[i], expected.p[i], t < tokens ? 4e-6 : 0.0) << r << " " << t;
                }
            }
            for (std::size_t i = 0; i < got.l.size(); ++i) ASSERT_NEAR(got.l[i], expected.l[i], 4e-5) << i;
            for (std::size_t i = 0; i < rows; ++i) {
                ASSERT_NEAR(got.m[i], expected.m[i], 4e-6);
                ASSERT_NEAR(got.alpha[i], expected.alpha[i], 4e-6);
            }
        }
    }
}

// Biases of rows, the first of which ends at a page without access, or slopes, on both sides of softcap; ranges and bits.
TEST_P(attention_kernels_test, softmax_with_bias_equals_reference) {
    const uint32_t seed = 11;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    constexpr int32_t rows = 5, stride = 128;
    struct run_state {
        std::vector<float> s = std::vector<float>(rows * stride), m = std::vector<float>(rows, -1.0f), alpha = std::vector<float>(rows),
                           l = std::vector<float>(rows * sum_lanes, 0.125f), p = std::vector<float>(rows * stride, canary);
    };
    for (const int32_t tokens : {16, 48, 128}) {
        for (int mode = 0; mode < 16; ++mode) {
            const bool before = (mode & 1) != 0, by_rows = (mode & 2) != 0, words = (mode & 4) != 0;
            const float softcap = (mode & 8) != 0 ? 3.0f : 0.0f;
            SCOPED_TRACE(testing::Message() << "tokens " << tokens << " mode " << mode);
            const elements raw(fp32, rows * stride, generator);
            std::deque<elements> values;
            std::vector<const float*> bias;
            for (int32_t r = 0; r < rows; ++r) {
                values.emplace_back(fp32, tokens + r, generator);
                bias.push_back(reinterpret_cast<const float*>(values.back().data));  // at every alignment
            }
            std::vector<float> slope{0.25f, 0.5f, 0.0f, 0.125f, 1.0f}, distance(rows, 20.0f), position(static_cast<std::size_t>(tokens));
            for (float& x : position) x = static_cast<float>(generator() % 50);
            const std::vector<int32_t> first{0, 3, 15, 0, 2}, last{tokens, tokens - 1, tokens, 9, 2};  // the last row sees nothing
            std::vector<uint32_t> bits(rows * tile_words);
            for (uint32_t& word : bits) word = static_cast<uint32_t>(generator());
            const auto run = [&](const kernel_table& table, run_state& state) {
                std::memcpy(state.s.data(), raw.data, rows * stride * 4);
                table.attention.softmax[fma_fp32]({state.s.data(), stride, rows, tokens, first.data(), last.data(), 0.5f, softcap,
                                                   by_rows ? nullptr : slope.data(), distance.data(), state.m.data(), state.alpha.data(),
                                                   state.l.data(), state.p.data(), words ? bits.data() : nullptr, position.data(),
                                                   by_rows ? bias.data() : nullptr, 1.25f, before});
            };
            run_state got, expected;
            run(kernels, got);
            run(reference, expected);
            // Scores of a few units with a rounding or two each: 2^-22 of them, which weights of at most 1 inherit.
            for (std::size_t i = 0; i < got.p.size(); ++i) {
                ASSERT_NEAR(got.p[i], expected.p[i], i % stride < static_cast<std::size_t>(tokens) ? 8e-6 : 0.0) << i;
            }
            for (std::size_t i = 0; i < got.l.size(); ++i) ASSERT_NEAR(got.l[i], expected.l[i], 8e-5) << i;
            for (std::size_t i = 0; i < rows; ++i) {
                ASSERT_NEAR(got.m[i], expected.m[i], 8e-6);
                ASSERT_NEAR(got.alpha[i], expected.alpha[i], 8e-6);
            }
        }
    }
}

// The two ways to say the same mask give the same bits, on every arithmetic of P.V.
TEST_P(attention_kernels_test, softmax_of_bits_equals_ranges) {
    std::mt19937 generator(10);
    constexpr int32_t rows = 5, tokens = tile_tokens;
    const elements raw(fp32, rows * tokens, generator);
    const auto* values = reinterpret_cast<const float*>(raw.data);
    const std::vector<int32_t> first{0, 3, 32, 127, 40}, last{128, 97, 64, 128, 40};
    std::vector<float> slope(rows, 0.25f), distance(rows, 100.0f), position(tokens);
    std::vector<uint32_t> bits(rows * tile_words, 0);
    for (int32_t t = 0; t < tokens; ++t) {
        position[static_cast<std::size_t>(t)] = static_cast<float>(t);
        for (int32_t r = 0; r < rows; ++r) {
            const auto row = static_cast<std::size_t>(r);
            if (t >= first[row] && t < last[row]) bits[static_cast<std::size_t>(r * tile_words + t / 32)] |= 1u << (t % 32);
        }
    }
    for (int arithmetic = 0; arithmetic < arithmetic_count; ++arithmetic) {
        if (kernels.attention.softmax[arithmetic] == nullptr) continue;
        const auto run = [&](const uint32_t* words) {
            std::vector<float> s(values, values + rows * tokens), m(rows, -1.0f), alpha(rows), l(rows * sum_lanes, 0.125f), p(s.size());
            kernels.attention.softmax[arithmetic]({s.data(), tokens, rows, tokens, first.data(), last.data(), 2.5f, 3.0f, slope.data(),
                                                   distance.data(), m.data(), alpha.data(), l.data(), p.data(), words, position.data()});
            p.insert(p.end(), l.begin(), l.end());
            p.insert(p.end(), m.begin(), m.end());
            p.insert(p.end(), alpha.begin(), alpha.end());
            return p;
        };
        const std::vector<float> of_bits = run(bits.data()), of_ranges = run(nullptr);
        EXPECT_EQ(std::memcmp(of_bits.data(), of_ranges.data(), of_bits.size() * 4), 0) << "arithmetic " << arithmetic;
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
            const v_run run{part, nullptr, panels * panel, {}};
            const std::vector<float> alpha(static_cast<std::size_t>(rows), 1.0f);
            kernels.attention.pv[bf16][dot_bf16]({q16.data(), 128, rows, &run, 1, 64, dim, got.data(), 128, alpha.data()});
            reference.attention.pv[bf16][fma_fp32]({q32.data(), 128, rows, &run, 1, 64, dim, expected.data(), 128, alpha.data()});
            ASSERT_EQ(got, expected);
        }
    }
}

// ---- integer dots -------------------------------------------------------------------------------------------------------------------------------

// Whole numbers whose scales are 1: every sum is exact, so the integer dots must give the reference's numbers.
struct whole_rows {
    std::vector<float> values;
    int32_t dim;

    // Each row (int4: each group of 32) holds lowest and highest.
    whole_rows(int32_t rows, int32_t dim_, int32_t group, int lowest, int highest, std::mt19937& generator)
        : values(static_cast<std::size_t>(rows * dim_)), dim(dim_) {
        std::uniform_int_distribution<int> digit(lowest, highest);
        for (std::size_t i = 0; i < values.size(); ++i) {
            const int at = static_cast<int>(i) % dim % group;
            values[i] = static_cast<float>(at == 0 ? highest : at == 1 ? lowest : digit(generator));
        }
    }
};

struct integer_case {
    int type, lowest, highest;  // of keys and values
    int q_most, p_most;
};
#if defined(__x86_64__)
constexpr int p8_most = 255;  // unsigned there
#else
constexpr int p8_most = 127;
#endif
constexpr integer_case integer_cases[] = {{int8, -127, 127, 32512, 32512}, {int4, -8, 7, 127, p8_most}};

TEST_P(attention_kernels_test, integer_qk_is_exact_on_integers) {
    std::mt19937 generator(6);
    for (const integer_case& c : integer_cases) {
        if (kernels.attention.qk[c.type][dot_integer] == nullptr) GTEST_SKIP() << "no integer dots on this target";
        for (const int32_t k_dim : {32, 64, 128, 512}) {
            for (const int32_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 30}) {
                constexpr int32_t panels = 3;
                const whole_rows k(panels * panel, k_dim, c.type == int4 ? scale_group : k_dim, c.lowest, c.highest, generator),
                    q(rows, k_dim, k_dim, -c.q_most, c.q_most, generator);
                const random_part part(reference, c.type, true, k_dim, panels * panel, generator);
                kernels.kv.pack_k[c.type](k.values.data(), k_dim, k_dim, {part.elements.data(), part.scales.data(), panels * panel}, 0,
                                          panels * panel);
                const test::guarded_buffer codes(static_cast<std::size_t>(rows * k_dim * 4));
                for (int32_t r = 0; r < rows; ++r)
                    kernels.attention.quantise_q[c.type](q.values.data() + r * k_dim, k_dim, codes.data() + r * k_dim * 4);
                std::vector<float> got(static_cast<std::size_t>(rows * panels * panel)), expected = got;
                const auto* scales = part.scales.as<float>();
                kernels.attention.qk[c.type][dot_integer](
                    {codes.data(), k_dim * 4, rows, k_dim, part.elements.data(), scales, panels, got.data(), panels * panel, {}});
                reference.attention.qk[c.type][fma_fp32](
                    {q.values.data(), k_dim, rows, k_dim, part.elements.data(), scales, panels, expected.data(), panels * panel, {}});
                ASSERT_EQ(got, expected) << "type " << c.type << " k_dim " << k_dim << " rows " << rows;
            }
        }
    }
}

TEST_P(attention_kernels_test, integer_pv_is_exact_on_integers) {
    std::mt19937 generator(7);
    constexpr int32_t page_tokens = 128;
    for (const integer_case& c : integer_cases) {
        if (kernels.attention.pv[c.type][dot_integer] == nullptr) GTEST_SKIP() << "no integer dots on this target";
        for (const int32_t v_dim : {32, 64, 128, 512}) {
            for (const int32_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 30}) {
                const whole_rows v(page_tokens, v_dim, c.type == int4 ? scale_group : v_dim, c.lowest, c.highest, generator),
                    p(rows, page_tokens, page_tokens, 0, c.p_most, generator);
                const random_part part(reference, c.type, false, v_dim, page_tokens, generator);
                kernels.kv.pack_v[c.type](v.values.data(), v_dim, v_dim, {part.elements.data(), part.scales.data(), page_tokens}, 0, page_tokens);
                const std::vector<float> alpha(static_cast<std::size_t>(rows), 0.5f);
                const int64_t stride = v_dim + 3;
                std::vector<float> got(static_cast<std::size_t>(rows * stride), 2.0f);
                // The last 112 tokens in two runs.
                const auto run = [&](int32_t first, int32_t tokens) {
                    return v_run{part.elements.data() + v_bytes(c.type, v_dim, first), part.scales.data() + first * v_scale_step(c.type), tokens, {}};
                };
                const v_run runs[] = {run(16, 48), run(64, 64)};
                kernels.attention.pv[c.type][dot_integer](
                    {p.values.data(), page_tokens, rows, runs, 2, page_tokens, v_dim, got.data(), stride, alpha.data()});
                for (int32_t r = 0; r < rows; ++r) {
                    for (int32_t d = 0; d < v_dim; ++d) {
                        int64_t sum = 0;
                        for (int32_t t = 0; t < 112; ++t) {
                            sum += static_cast<int64_t>(p.values[static_cast<std::size_t>(r * page_tokens + t)]) *
                                   static_cast<int64_t>(v.values[static_cast<std::size_t>((16 + t) * v_dim + d)]);
                        }
                        ASSERT_EQ(got[static_cast<std::size_t>(r * stride + d)], static_cast<float>(sum) + 1.0f)
                            << "type " << c.type << " v_dim " << v_dim << " rows " << rows << " row " << r << " dim " << d;
                    }
                }
            }
        }
    }
}

// On any data the integers move q and p by up to half a step each: six standard deviations of the sum of so many.
TEST_P(attention_kernels_test, integer_dots_are_near_fp32) {
    std::mt19937 generator(8);
    constexpr int32_t dim = 128, rows = 6, tokens = 128;
    for (const integer_case& c : integer_cases) {
        if (kernels.attention.pv[c.type][dot_integer] == nullptr) GTEST_SKIP() << "no integer dots on this target";
        const random_part k(reference, c.type, true, dim, tokens, generator), v(reference, c.type, false, dim, tokens, generator);
        const elements q(fp32, rows * dim, generator), raw(fp32, rows * tokens, generator);
        std::vector<float> p(static_cast<std::size_t>(rows * tokens)), got(static_cast<std::size_t>(rows * tokens), 0.0f), expected = got;
        for (std::size_t i = 0; i < p.size(); ++i) p[i] = std::exp(-std::fabs(reinterpret_cast<const float*>(raw.data)[i]));
        std::vector<std::byte> codes(rows * dim * 4);
        const auto* queries = reinterpret_cast<const float*>(q.data);
        for (int32_t r = 0; r < rows; ++r) kernels.attention.quantise_q[c.type](queries + r * dim, dim, codes.data() + r * dim * 4);
        const auto* scales = k.scales.as<float>();
        kernels.attention.qk[c.type][dot_integer](
            {codes.data(), dim * 4, rows, dim, k.elements.data(), scales, tokens / panel, got.data(), tokens, {}});
        reference.attention.qk[c.type][fma_fp32]({q.data, dim, rows, dim, k.elements.data(), scales, tokens / panel, expected.data(), tokens, {}});
        // Keys of N(0, 1), quantised: their codes' part has a standard deviation of at most 1.1; the largest of 128 values is under 4.5.
        const double q_error = 6.0 * 4.5 / c.q_most / std::sqrt(12.0) * std::sqrt(dim) * 1.1;
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], q_error + 1e-5) << "type " << c.type << " score " << i;

        const std::vector<float> alpha(rows, 1.0f);
        std::vector<float> o(static_cast<std::size_t>(rows * dim), 0.0f), o_expected = o;
        const v_run run{v.elements.data(), v.scales.data(), tokens, {}};
        kernels.attention.pv[c.type][dot_integer]({p.data(), tokens, rows, &run, 1, tokens, dim, o.data(), dim, alpha.data()});
        if (token_scaled(c.type)) reference.attention.scale_weights(p.data(), tokens, rows, tokens, v.scales.as<float>(), 1.0f);
        reference.attention.pv[c.type][fma_fp32]({p.data(), tokens, rows, &run, 1, tokens, dim, o_expected.data(), dim, alpha.data()});
        // A weight is p times the token's scale, at most the largest scale of about 4.5 / 127 (int4: 6 / 15), and meets codes of up to 127 (8).
        const double scale = c.type == int8 ? 4.5 / 127 : 6.0 / 15, code = c.type == int8 ? 127.0 / 3 : 4.0;
        const double p_error = 6.0 * scale / c.p_most / std::sqrt(12.0) * std::sqrt(tokens) * code;
        for (std::size_t i = 0; i < o.size(); ++i) ASSERT_NEAR(o[i], o_expected[i], p_error + 1e-5) << "type " << c.type << " value " << i;
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
    std::vector<float> x{0.0f,   -0.0f,   -infinity, infinity, std::numeric_limits<float>::quiet_NaN(), -126.0f, -127.0f, -150.0f,
                         -1e30f, 127.99f, 128.0f,    1e30f};
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

INSTANTIATE_TEST_SUITE_P(targets, attention_kernels_test, testing::ValuesIn(test::vector_targets()),
                         [](const auto& info) { return std::string(name(info.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(attention_kernels_test);

}  // namespace
}  // namespace ropewalk::simd
