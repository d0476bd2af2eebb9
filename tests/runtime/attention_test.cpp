// Attention through the public API: against the definition, and against itself (thread, batch, chunking and page invariance, bit for bit).
#include "tests/attention_fixture.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

attention_problem problem(int32_t heads, int32_t kv_heads, int32_t k_dim, int32_t v_dim, dtype q_type = dtype::fp32) {
    attention_problem p;
    p.heads = heads;
    p.kv_heads = kv_heads;
    p.k_dim = k_dim;
    p.v_dim = v_dim;
    p.q_type = q_type;
    return p;
}

void expect_matches(const attention_problem& p, const std::vector<sequence_input>& sequences, const run_options& options = {}) {
    const error e = compare(p, sequences, run_attention(p, sequences, options));
    const double most = tolerance(p, sequences[0].k.type, sequences[0].v.type);
    EXPECT_LE(e.out, most) << "out, worst element " << e.out_at;
    EXPECT_LE(e.lse, most) << "lse, worst element " << e.lse_at;
}

// ---- shapes ---------------------------------------------------------------------------------------------------------------------------------

struct shape_case {
    int32_t heads, kv_heads, k_dim, v_dim;
};

class attention_shapes : public testing::TestWithParam<std::tuple<shape_case, dtype, int>> {};

TEST_P(attention_shapes, matches_definition) {
    const auto& [shape, type, page_tokens] = GetParam();
    const uint32_t seed = 7;
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 generator(seed);
    for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
        attention_problem p = problem(shape.heads, shape.kv_heads, shape.k_dim, shape.v_dim, q_type);
        p.out_type = q_type;
        std::vector<sequence_input> batch;
        for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {1, 150}, {3, 3}, {2, 131}, {21, 67}}) {
            batch.push_back(sequence_input::random(p, type, type, q_len, kv_len, generator));
        }
        expect_matches(p, batch, {.page_tokens = page_tokens});
    }
}

INSTANTIATE_TEST_SUITE_P(all, attention_shapes,
                         testing::Combine(testing::Values(shape_case{1, 1, 8, 8}, shape_case{2, 2, 64, 64}, shape_case{8, 2, 128, 128},
                                                          shape_case{9, 3, 64, 64}, shape_case{7, 1, 96, 96}, shape_case{6, 2, 80, 80},
                                                          shape_case{5, 1, 40, 40}, shape_case{6, 1, 72, 72}, shape_case{8, 1, 112, 112},
                                                          shape_case{4, 4, 256, 256}, shape_case{2, 1, 192, 128}, shape_case{3, 1, 33, 17},
                                                          shape_case{2, 1, 576, 512}, shape_case{71, 1, 64, 64}),
                                          testing::Values(dtype::fp32, dtype::bf16, dtype::fp16), testing::Values(0, 16, 64)));

TEST(attention, every_group_size_equals_repeated_keys_D09) {
    std::mt19937 generator(9);
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const int32_t group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 71}) {
            for (const int64_t q_len : {1, 33}) {
                SCOPED_TRACE(testing::Message() << name(type) << " group " << group << " q_len " << q_len);
                const attention_problem p = problem(group * 2, 2, 16, 16);
                sequence_input s = sequence_input::random(p, type, type, q_len, 70, generator);
                const output grouped = run_attention(p, {s});
                attention_problem repeated = problem(group * 2, group * 2, 16, 16);
                sequence_input r = s;
                std::vector<float> k, v;
                for (int64_t j = 0; j < 70; ++j) {
                    for (int32_t h = 0; h < group * 2; ++h) {
                        const auto at = (j * 2 + h / group) * 16;
                        k.insert(k.end(), s.k.value.begin() + at, s.k.value.begin() + at + 16);
                        v.insert(v.end(), s.v.value.begin() + at, s.v.value.begin() + at + 16);
                    }
                }
                r.k = tensor::of(type, k);
                r.v = tensor::of(type, v);
                EXPECT_TRUE(grouped == run_attention(repeated, {r}));
            }
        }
    }
}

TEST(attention, head_maps_to_group_D10) {
    const attention_problem p = problem(6, 2, 8, 8);
    sequence_input s{1, 1, {}, tensor::filled(dtype::fp32, 48, 0.0f), tensor::filled(dtype::fp32, 16, 0.0f), {}};
    std::vector<float> v(16, 0.0f);
    std::fill(v.begin() + 8, v.end(), 1.0f);
    s.v = tensor::of(dtype::fp32, v);
    const output o = run_attention(p, {s});
    for (int h = 0; h < 6; ++h) EXPECT_EQ(o.out[static_cast<std::size_t>(h * 8)], h < 3 ? 0.0f : 1.0f);
}

TEST(attention, many_head_dims_D11) {
    std::mt19937 generator(11);
    for (const int32_t dim : {8, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512, 576}) {
        SCOPED_TRACE(dim);
        const attention_problem p = problem(2, 1, dim, dim);
        for (const dtype type : {dtype::fp32, dtype::bf16}) {
            expect_matches(p, {sequence_input::random(p, type, type, 5, 41, generator)});
        }
    }
}

TEST(attention, mixed_key_and_value_types) {
    std::mt19937 generator(29);
    for (const dtype k : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const dtype v : {dtype::fp32, dtype::bf16, dtype::fp16}) {
            SCOPED_TRACE(testing::Message() << name(k) << " " << name(v));
            const attention_problem p = problem(4, 2, 64, 32);
            expect_matches(p, {sequence_input::random(p, k, v, 19, 200, generator), sequence_input::random(p, k, v, 1, 77, generator)});
        }
    }
}

// ---- masks ----------------------------------------------------------------------------------------------------------------------------------

// q = 0 and v[j] = one-hot(j): row i of the result is 1/m on the m keys that query i sees.
std::vector<std::vector<int64_t>> probe(attention_span span, int64_t q_len, int64_t kv_len, int32_t page_tokens = 16) {
    attention_problem p = problem(1, 1, 8, static_cast<int32_t>(kv_len));
    p.span = span;
    sequence_input s{q_len, kv_len, {}, tensor::filled(dtype::fp32, q_len * 8, 0.0f), tensor::filled(dtype::fp32, kv_len * 8, 1.0f), {}};
    std::vector<float> v(static_cast<std::size_t>(kv_len * kv_len), 0.0f);
    for (int64_t j = 0; j < kv_len; ++j) v[static_cast<std::size_t>(j * kv_len + j)] = 1.0f;
    s.v = tensor::of(dtype::fp32, v);
    const output o = run_attention(p, {s}, {.page_tokens = page_tokens});
    std::vector<std::vector<int64_t>> seen(static_cast<std::size_t>(q_len));
    for (int64_t i = 0; i < q_len; ++i) {
        for (int64_t j = 0; j < kv_len; ++j) {
            if (o.out[static_cast<std::size_t>(i * kv_len + j)] != 0.0f) seen[static_cast<std::size_t>(i)].push_back(j);
        }
        for (const int64_t j : seen[static_cast<std::size_t>(i)]) {
            EXPECT_NEAR(o.out[static_cast<std::size_t>(i * kv_len + j)], 1.0 / double(seen[static_cast<std::size_t>(i)].size()), 1e-6);
        }
    }
    return seen;
}

std::vector<int64_t> range(int64_t first, int64_t last) {
    std::vector<int64_t> r;
    for (int64_t j = std::max<int64_t>(0, first); j < last; ++j) r.push_back(j);
    return r;
}

TEST(attention, causal_is_end_aligned_C12) {
    const auto seen = probe(attention_span::causal(), 2, 6);
    EXPECT_EQ(seen[0], range(0, 5));
    EXPECT_EQ(seen[1], range(0, 6));
}

TEST(attention, more_queries_than_keys_C11) {
    attention_problem p = problem(1, 1, 8, 8);
    sequence_input s{5, 3, {}, tensor::filled(dtype::fp32, 40, 0.0f), tensor::filled(dtype::fp32, 24, 1.0f), tensor::filled(dtype::fp32, 24, 2.0f)};
    const output o = run_attention(p, {s});
    for (const int row : {0, 1}) {
        EXPECT_EQ(o.lse[static_cast<std::size_t>(row)], -infinity);
        for (int d = 0; d < 8; ++d) EXPECT_EQ(o.out[static_cast<std::size_t>(row * 8 + d)], 0.0f);
    }
    EXPECT_NEAR(o.lse[4], std::log(3.0), 1e-6);
    EXPECT_EQ(probe(attention_span::causal(), 5, 3)[4], range(0, 3));
}

TEST(attention, window_counts_itself_C22) {
    const auto prefill = probe(attention_span::sliding_window(4), 10, 10);
    for (int64_t i = 0; i < 10; ++i) {
        EXPECT_EQ(prefill[static_cast<std::size_t>(i)], range(i - 3, i + 1));
        EXPECT_EQ(probe(attention_span::sliding_window(4), 1, i + 1)[0], range(i - 3, i + 1));  // decode
    }
    EXPECT_EQ(probe(attention_span::sliding_window(1), 1, 9)[0], range(8, 9));
}

TEST(attention, window_of_zero_is_refused_C22) {
    attention_problem p = problem(1, 1, 8, 8);
    p.span = attention_span::sliding_window(0);
    attention_plan plan;
    const std::vector<int64_t> q_indptr{0, 1}, kv_lens{1}, kv_indptr{0, 1};
    attention_batch batch{q_indptr, kv_lens, {}, {}, {}, kv_indptr};
    const status s = plan.build(p, batch, dtype::fp32, dtype::fp32);
    EXPECT_EQ(s.code(), status_code::invalid_argument);
    EXPECT_NE(std::string(s.text()).find("span"), std::string::npos) << s.text();
}

TEST(attention, encoder_window_C24) {
    for (const auto& [left, right] : {std::pair<int64_t, int64_t>{8, 8}, {3, 5}}) {
        const auto seen = probe({left, right}, 64, 64);
        for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], range(i - left, std::min<int64_t>(64, i + right + 1)));
    }
}

TEST(attention, band_over_blocks_C01) {
    for (const int32_t page_tokens : {0, 16, 64, 256}) {
        attention_problem p = problem(1, 1, 64, 64);
        p.span = attention_span::sliding_window(10);
        const sequence_input s{640,
                               640,
                               {},
                               tensor::filled(dtype::fp32, 640 * 64, 1.0f),
                               tensor::filled(dtype::fp32, 640 * 64, 1.0f),
                               tensor::filled(dtype::fp32, 640 * 64, 1.0f)};
        for (const float x : run_attention(p, {s}, {.page_tokens = page_tokens}).out) ASSERT_NEAR(x, 1.0f, 1e-6);
    }
}

TEST(attention, rows_without_keys_leave_others_alone_C03) {
    std::mt19937 generator(3);
    attention_problem p = problem(2, 1, 16, 16);
    p.span = {0, 0};  // only the own position
    sequence_input s = sequence_input::random(p, dtype::fp32, dtype::fp32, 8, 4, generator);
    s.q_start = 0;  // rows 4 .. 7 stand past the last key
    const output o = run_attention(p, {s});
    for (std::size_t row = 8; row < 16; ++row) {
        EXPECT_EQ(o.lse[row], -infinity);
        for (std::size_t d = 0; d < 16; ++d) EXPECT_EQ(o.out[row * 16 + d], 0.0f);
    }
    for (std::size_t row = 0; row < 8; ++row) {
        for (std::size_t d = 0; d < 16; ++d) EXPECT_NEAR(o.out[row * 16 + d], s.v.value[row / 2 * 16 + d], 1e-6);
    }
}

// ---- poison ---------------------------------------------------------------------------------------------------------------------------------

TEST(attention, masked_slots_are_never_multiplied_C05) {
    std::mt19937 generator(5);
    for (const dtype type : {dtype::fp32, dtype::bf16}) {
        for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
            for (const int64_t kv_len : {2, 3, 40, 150}) {
                const attention_problem p = problem(4, 2, 32, 32, q_type);
                sequence_input s = sequence_input::random(p, type, type, kv_len, kv_len, generator);
                const int64_t hidden = kv_len / 2;  // key `hidden` is seen by the later rows only
                output clean;
                for (const float poison : {0.0f, nan, infinity, 1e30f}) {
                    std::vector<float> k = s.k.value, v = s.v.value;
                    std::fill(k.begin() + hidden * 64, k.begin() + (hidden + 1) * 64, poison);
                    std::fill(v.begin() + hidden * 64, v.begin() + (hidden + 1) * 64, poison);
                    sequence_input t = s;
                    t.k = tensor::of(type, k);
                    t.v = tensor::of(type, v);
                    for (const int32_t page_tokens : {0, 16, 64}) {
                        output o = run_attention(p, {t}, {.page_tokens = page_tokens});
                        o.out.resize(static_cast<std::size_t>(hidden * 4 * 32));
                        o.lse.resize(static_cast<std::size_t>(hidden * 4));
                        if (poison == 0.0f && page_tokens == 0) clean = o;
                        EXPECT_TRUE(o == clean) << "poison " << poison << " kv_len " << kv_len << " pages " << page_tokens;
                    }
                }
            }
        }
    }
}

TEST(attention, nan_query_stays_in_its_row_C07) {
    std::mt19937 generator(7);
    for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
        const attention_problem p = problem(2, 1, 16, 16, q_type);
        sequence_input s = sequence_input::random(p, dtype::bf16, dtype::bf16, 8, 40, generator);
        const output clean = run_attention(p, {s});
        std::vector<float> q = s.q.value;
        std::fill(q.begin() + 3 * 32, q.begin() + 4 * 32, nan);
        s.q = tensor::of(q_type, q);
        const output o = run_attention(p, {s});
        for (std::size_t row = 0; row < 16; ++row) {
            for (std::size_t d = 0; d < 16; ++d) {
                if (row / 2 == 3) {
                    EXPECT_TRUE(std::isnan(o.out[row * 16 + d]));
                } else {
                    EXPECT_EQ(o.out[row * 16 + d], clean.out[row * 16 + d]);
                }
            }
        }
    }
}

TEST(attention, rows_outside_the_batch_are_not_touched_D23) {
    std::mt19937 generator(23);
    const attention_problem p = problem(2, 1, 16, 16);
    sequence_input s = sequence_input::random(p, dtype::fp32, dtype::fp32, 21, 21, generator);
    const output expected = run_attention(p, {s}, {.page_tokens = 0});
    std::vector<float> q(24 * 32, nan), k(24 * 16, nan), v(24 * 16, nan), out(24 * 32, 5.0f);
    std::copy(s.q.value.begin(), s.q.value.end(), q.begin());
    std::copy(s.k.value.begin(), s.k.value.end(), k.begin());
    std::copy(s.v.value.begin(), s.v.value.end(), v.begin());
    const std::vector<int64_t> q_indptr{0, 21}, kv_lens{21}, kv_indptr{0, 24};
    attention_plan plan;
    ASSERT_TRUE(plan.build(p, {q_indptr, kv_lens, {}, {}, {}, kv_indptr}, dtype::fp32, dtype::fp32).ok());
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    const status ran = run(plan, dense_view(static_cast<const void*>(q.data()), dtype::fp32, 21, 2, 16),
                           dense_view(static_cast<const void*>(k.data()), dtype::fp32, 24, 1, 16),
                           dense_view(static_cast<const void*>(v.data()), dtype::fp32, 24, 1, 16),
                           dense_view(static_cast<void*>(out.data()), dtype::fp32, 21, 2, 16), {}, workspace.bytes());
    ASSERT_TRUE(ran.ok()) << ran.text();
    EXPECT_EQ(std::memcmp(out.data(), expected.out.data(), 21 * 32 * 4), 0);
    for (std::size_t i = 21 * 32; i < out.size(); ++i) EXPECT_EQ(out[i], 5.0f);
}

// ---- numbers --------------------------------------------------------------------------------------------------------------------------------

TEST(attention, softcap_at_every_tail_C08) {
    for (const float cap : {1.0f, 50.0f}) {
        for (const int64_t kv_len : {1, 63, 64, 65, 127, 129}) {
            attention_problem p = problem(1, 1, 16, 16);
            p.softcap = cap;
            const sequence_input s{1,
                                   kv_len,
                                   {},
                                   tensor::filled(dtype::fp32, 16, 0.0f),
                                   tensor::filled(dtype::fp32, kv_len * 16, 1.0f),
                                   tensor::filled(dtype::fp32, kv_len * 16, 1.0f)};
            for (const float x : run_attention(p, {s}).out) EXPECT_NEAR(x, 1.0f, 1e-6);
        }
    }
}

TEST(attention, softcap_matches_definition) {
    std::mt19937 generator(8);
    for (const float cap : {1.0f, 20.0f, 50.0f}) {
        attention_problem p = problem(4, 2, 64, 64);
        p.softcap = cap;
        expect_matches(p, {sequence_input::random(p, dtype::fp32, dtype::fp32, 30, 300, generator)});
    }
}

TEST(attention, sinks_C09) {
    const float none = 0.0f;
    for (const float sink : {0.0f, 100.0f, -100.0f}) {
        attention_problem p = problem(1, 1, 8, 8);
        p.sinks = &sink;
        const sequence_input s{
            1, 3, {}, tensor::filled(dtype::fp32, 8, 0.0f), tensor::filled(dtype::fp32, 24, 1.0f), tensor::filled(dtype::fp32, 24, 2.0f)};
        const output o = run_attention(p, {s});
        EXPECT_NEAR(o.out[0], sink == 0.0f ? 1.5 : sink > 0.0f ? 0.0 : 2.0, 1e-6);
        EXPECT_NEAR(o.lse[0], sink == 0.0f ? std::log(4.0) : sink > 0.0f ? 100.0 : std::log(3.0), 1e-5);
    }
    attention_problem p = problem(1, 1, 8, 8);
    const float half = 0.5f;
    p.sinks = &half;
    const sequence_input empty{
        1, 0, {}, tensor::filled(dtype::fp32, 8, 1.0f), tensor::filled(dtype::fp32, 0, 0.0f), tensor::filled(dtype::fp32, 0, 0.0f)};
    const output o = run_attention(p, {empty});
    EXPECT_EQ(o.out[0], none);
    EXPECT_NEAR(o.lse[0], 0.5, 1e-6);
}

TEST(attention, scores_far_beyond_16_bits_C16) {
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
            for (const int64_t kv_len : {1, 65, 5000}) {
                attention_problem p = problem(1, 1, 128, 16, q_type);
                std::vector<float> k(static_cast<std::size_t>(kv_len * 128), -300.0f), v(static_cast<std::size_t>(kv_len * 16), -7.0f);
                std::fill(k.begin(), k.begin() + 128, 300.0f);
                std::fill(v.begin(), v.begin() + 16, 3.0f);
                const sequence_input s{1, kv_len, {}, tensor::filled(q_type, 128, 300.0f), tensor::of(type, k), tensor::of(type, v)};
                const output o = run_attention(p, {s});
                for (const float x : o.out) EXPECT_EQ(x, 3.0f);
                const double expected = double{s.q.value[0]} * double{s.k.value[0]} * 128.0 / std::sqrt(128.0);
                EXPECT_NEAR(o.lse[0] / expected, 1.0, 1e-6);
            }
        }
    }
}

TEST(attention, half_precision_cache_loses_storage_rounding_only_C17) {
    std::mt19937 generator(17);
    for (const int32_t dim : {64, 80, 128, 256}) {
        for (const int64_t kv_len : {1, 100, 1025}) {
            for (const dtype type : {dtype::fp16, dtype::bf16}) {
                const attention_problem p = problem(2, 1, dim, dim);
                expect_matches(p, {sequence_input::random(p, type, type, 1, kv_len, generator)});
            }
        }
    }
}

TEST(attention, more_than_65536_keys_D20) {
    std::mt19937 generator(20);
    for (const int64_t kv_len : {65535, 65536, 65537, 131073}) {
        const attention_problem p = problem(1, 1, 16, 16);
        expect_matches(p, {sequence_input::random(p, dtype::fp32, dtype::fp32, 4, kv_len, generator)}, {.concurrency = 4});
    }
}

// ---- ALiBi ----------------------------------------------------------------------------------------------------------------------------------

TEST(attention, alibi_matches_definition) {
    std::mt19937 generator(1);
    for (const attention_span span : {attention_span::causal(), attention_span::full(), attention_span::sliding_window(50)}) {
        std::vector<float> slopes(12);
        ASSERT_TRUE(alibi_slopes(slopes).ok());
        attention_problem p = problem(12, 4, 32, 32);
        p.alibi_slopes = slopes.data();
        p.span = span;
        expect_matches(p, {sequence_input::random(p, dtype::fp32, dtype::fp32, 40, 200, generator)});
    }
}

TEST(attention, alibi_decode_equals_prefill_B04) {
    std::mt19937 generator(4);
    const float slope = 0.5f;
    attention_problem p = problem(1, 1, 64, 64);
    p.alibi_slopes = &slope;
    const sequence_input all = sequence_input::random(p, dtype::fp32, dtype::fp32, 17, 17, generator);
    const output prefill = run_attention(p, {all});
    for (int64_t length = 1; length <= 17; ++length) {
        const auto cut = [&](const tensor& t, int64_t first, int64_t count) {
            return tensor::of(dtype::fp32, {t.value.begin() + first * 64, t.value.begin() + (first + count) * 64});
        };
        const output step = run_attention(p, {{1, length, {}, cut(all.q, length - 1, 1), cut(all.k, 0, length), cut(all.v, 0, length)}});
        EXPECT_EQ(std::memcmp(step.out.data(), prefill.out.data() + (length - 1) * 64, 64 * 4), 0) << length;
    }
}

TEST(attention, alibi_at_a_million_keys_B06) {
    constexpr int64_t kv_len = 1000000;
    for (const dtype type : {dtype::fp32, dtype::bf16}) {
        const float slope = 0.5f;
        attention_problem p = problem(1, 1, 8, 8);
        p.alibi_slopes = &slope;
        std::vector<float> v(kv_len * 8, 0.0f);
        std::fill(v.end() - 80, v.end(), 1.0f);
        const sequence_input s{1, kv_len, {}, tensor::filled(dtype::fp32, 8, 0.0f), tensor::filled(type, kv_len * 8, 1.0f), tensor::of(type, v)};
        EXPECT_NEAR(run_attention(p, {s}).out[0], 1.0 - std::exp(-5.0), 1e-5);
    }
}

TEST(attention, alibi_slope_belongs_to_the_query_head_B07) {
    std::mt19937 generator(70);
    for (const auto& [heads, kv_heads] : {std::pair{16, 1}, {12, 4}}) {
        std::vector<float> slopes(static_cast<std::size_t>(heads));
        ASSERT_TRUE(alibi_slopes(slopes).ok());
        attention_problem p = problem(heads, kv_heads, 16, 16);
        p.alibi_slopes = slopes.data();
        expect_matches(p, {sequence_input::random(p, dtype::fp32, dtype::fp32, 3, 40, generator)});
    }
}

TEST(attention, symmetric_alibi_B09) {
    const float slope = 0.25f;
    attention_problem p = problem(1, 1, 8, 5);
    p.alibi_slopes = &slope;
    p.span = attention_span::full();
    sequence_input s{5, 5, {}, tensor::filled(dtype::fp32, 40, 0.0f), tensor::filled(dtype::fp32, 40, 1.0f), {}};
    std::vector<float> v(25, 0.0f);
    for (std::size_t j = 0; j < 5; ++j) v[j * 6] = 1.0f;
    s.v = tensor::of(dtype::fp32, v);
    const output o = run_attention(p, {s});
    for (std::size_t i = 0; i < 5; ++i) {
        for (std::size_t j = 0; j < 5; ++j) EXPECT_NEAR(o.out[i * 5 + j], o.out[(4 - i) * 5 + 4 - j], 1e-6);
    }
    EXPECT_NEAR(o.out[1] / o.out[0], std::exp(-0.25), 1e-6);
    const float flat = 0.0f;
    p.alibi_slopes = &flat;
    p.span = attention_span::causal();
    const output masked = run_attention(p, {s});
    for (std::size_t i = 0; i < 5; ++i) {
        for (std::size_t j = i + 1; j < 5; ++j) EXPECT_EQ(masked.out[i * 5 + j], 0.0f);
    }
}

// ---- invariance, bit for bit ------------------------------------------------------------------------------------------------------------------

struct types {
    dtype q, k, v;
};
const std::vector<types> type_sets{{dtype::fp32, dtype::fp32, dtype::fp32},
                                   {dtype::fp32, dtype::bf16, dtype::bf16},
                                   {dtype::bf16, dtype::bf16, dtype::bf16},
                                   {dtype::bf16, dtype::bf16, dtype::fp32},
                                   {dtype::bf16, dtype::fp32, dtype::bf16}};

TEST(attention_invariance, threads_F06) {
    std::mt19937 generator(6);
    for (const types& t : type_sets) {
        attention_problem p = problem(8, 2, 64, 64, t.q);
        const std::vector<sequence_input> batch{sequence_input::random(p, t.k, t.v, 1, 4096, generator),
                                                sequence_input::random(p, t.k, t.v, 5, 1500, generator),
                                                sequence_input::random(p, t.k, t.v, 40, 1100, generator)};
        const output expected = run_attention(p, batch);
        for (const int32_t threads : {1, 2, 3, 7, 16}) {
            thread_executor on(threads);
            for (int repeat = 0; repeat < 2; ++repeat) {
                EXPECT_TRUE(expected == run_attention(p, batch, {.concurrency = threads, .on = &on})) << threads;
            }
        }
    }
}

TEST(attention_invariance, batch_and_pages) {
    std::mt19937 generator(12);
    for (const types& t : type_sets) {
        attention_problem p = problem(6, 2, 32, 48, t.q);
        std::vector<sequence_input> batch;
        for (const auto& [q_len, kv_len] : {std::pair{1, 700}, {33, 700}, {1, 1}, {90, 90}, {3, 1030}, {0, 50}, {2, 0}}) {
            batch.push_back(sequence_input::random(p, t.k, t.v, q_len, kv_len, generator));
        }
        const output together = run_attention(p, batch, {.page_tokens = 0});
        for (const int32_t page_tokens : {16, 32, 64, 128, 256}) {
            for (const uint32_t shuffle : {1u, 2u}) {
                EXPECT_TRUE(together == run_attention(p, batch, {.page_tokens = page_tokens, .page_shuffle = shuffle, .concurrency = 3}));
            }
        }
        std::size_t row = 0;
        for (const sequence_input& s : batch) {
            const output alone = run_attention(p, {s});
            EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + static_cast<std::ptrdiff_t>(row * 6 * 48)));
            EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), together.lse.begin() + static_cast<std::ptrdiff_t>(row * 6)));
            row += static_cast<std::size_t>(s.q_len);
        }
    }
}

TEST(attention_invariance, chunked_prefill_C20) {
    constexpr int64_t length = 1300;
    std::mt19937 generator(21);
    for (const types& t : type_sets) {
        attention_problem p = problem(3, 1, 64, 64, t.q);
        p.span = t.v == dtype::fp32 ? attention_span::sliding_window(300) : attention_span::causal();
        const sequence_input all = sequence_input::random(p, t.k, t.v, length, length, generator);
        const output expected = run_attention(p, {all});
        for (const std::vector<int64_t>& chunks :
             {std::vector<int64_t>{512, 512, 276}, std::vector<int64_t>(186, 7), std::vector<int64_t>(1300, 1)}) {
            int64_t done = 0;
            for (std::size_t c = 0; c < chunks.size() && done < length; ++c) {
                const int64_t count = std::min(chunks[c], length - done);
                // One by one takes long: every 97th token and the ones around chunk borders.
                if (chunks[c] == 1 && done % 97 != 0 && done % 512 > 1 && done % 512 < 511) {
                    done += count;
                    continue;
                }
                const auto cut = [](const tensor& x, int64_t first, int64_t values, int64_t width) {
                    return tensor::of(x.type, {x.value.begin() + first * width, x.value.begin() + (first + values) * width});
                };
                const output part = run_attention(
                    p, {{count, done + count, {}, cut(all.q, done, count, 192), cut(all.k, 0, done + count, 64), cut(all.v, 0, done + count, 64)}});
                ASSERT_EQ(std::memcmp(part.out.data(), expected.out.data() + done * 192, part.out.size() * 4), 0) << "token " << done;
                ASSERT_EQ(std::memcmp(part.lse.data(), expected.lse.data() + done * 3, part.lse.size() * 4), 0);
                done += count;
            }
        }
    }
}

TEST(attention_invariance, identical_short_sequences_D21) {
    attention_problem p = problem(1, 1, 16, 16);
    std::mt19937 generator(2);
    const sequence_input s = sequence_input::random(p, dtype::fp32, dtype::fp32, 1, 1, generator);
    const output o = run_attention(p, {s, s}, {.page_tokens = 16});
    EXPECT_EQ(std::memcmp(o.out.data(), o.out.data() + 16, 64), 0);
    EXPECT_NE(o.out[0], 0.0f);
}

TEST(attention_invariance, shared_heads_repeat_F08) {
    std::mt19937 generator(80);
    attention_problem p = problem(8, 2, 64, 64);
    std::vector<sequence_input> batch;
    for (int i = 0; i < 4; ++i) batch.push_back(sequence_input::random(p, dtype::bf16, dtype::bf16, 1, 200 + 300 * i, generator));
    const output expected = run_attention(p, batch);
    for (int repeat = 0; repeat < 10; ++repeat) EXPECT_TRUE(expected == run_attention(p, batch, {.concurrency = 4, .on = &default_executor()}));
}

// Eight threads, each with its own cache, plan and workspace, all on the shared executor.
TEST(attention_invariance, contexts_in_one_process_F09) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (std::size_t t = 0; t < wrong.size(); ++t) {
        threads.emplace_back([t, &wrong] {
            std::mt19937 generator(static_cast<uint32_t>(90 + t));
            const attention_problem p = problem(4, t % 2 == 0 ? 2 : 1, 16 + 16 * static_cast<int32_t>(t % 3), 32);
            const std::vector<sequence_input> batch{sequence_input::random(p, dtype::bf16, dtype::fp32, 1, 300, generator),
                                                    sequence_input::random(p, dtype::bf16, dtype::fp32, 20, 90, generator)};
            const output expected = run_attention(p, batch);
            for (int repeat = 0; repeat < 20; ++repeat) {
                if (!(expected == run_attention(p, batch, {.concurrency = 2, .on = &default_executor()}))) ++wrong[t];
            }
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

// ---- views ----------------------------------------------------------------------------------------------------------------------------------

TEST(attention, strided_views_equal_dense_D03) {
    std::mt19937 generator(30);
    constexpr int64_t tokens = 37;
    const attention_problem p = problem(4, 4, 16, 16);
    const sequence_input s = sequence_input::random(p, dtype::fp32, dtype::fp32, tokens, tokens, generator);
    const output expected = run_attention(p, {s}, {.page_tokens = 0});
    // packed [tokens][3][heads][dim], one element off, and head-major [heads][tokens][dim]
    std::vector<float> packed(static_cast<std::size_t>(tokens * 3 * 64 + 1)), out(static_cast<std::size_t>(tokens * 64));
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < 64; ++i) {
            packed[static_cast<std::size_t>(1 + t * 192 + i)] = s.q.value[static_cast<std::size_t>(t * 64 + i)];
            packed[static_cast<std::size_t>(1 + t * 192 + 64 + i)] = s.k.value[static_cast<std::size_t>(t * 64 + i)];
            packed[static_cast<std::size_t>(1 + t * 192 + 128 + i)] = s.v.value[static_cast<std::size_t>(t * 64 + i)];
        }
    }
    const auto view = [&](int64_t offset) { return const_head_view(packed.data() + 1 + offset, dtype::fp32, tokens, 4, 16, 192, 16); };
    const std::vector<int64_t> q_indptr{0, tokens}, kv_lens{tokens}, kv_indptr{0, tokens};
    attention_plan plan;
    ASSERT_TRUE(plan.build(p, {q_indptr, kv_lens, {}, {}, {}, kv_indptr}, dtype::fp32, dtype::fp32).ok());
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    const head_view head_major(out.data(), dtype::fp32, tokens, 4, 16, 16, tokens * 16);
    const status ran = run(plan, view(0), view(64), view(128), head_major, {}, workspace.bytes());
    ASSERT_TRUE(ran.ok()) << ran.text();
    for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t h = 0; h < 4; ++h) {
            EXPECT_EQ(std::memcmp(out.data() + (h * tokens + t) * 16, expected.out.data() + (t * 4 + h) * 16, 64), 0);
        }
    }
}

TEST(attention, value_may_be_a_view_of_key_D13) {
    std::mt19937 generator(13);
    constexpr int64_t tokens = 70;
    const attention_problem p = problem(4, 1, 576, 512);
    sequence_input s = sequence_input::random(p, dtype::fp32, dtype::fp32, 2, tokens, generator);
    std::vector<float> v;
    for (int64_t t = 0; t < tokens; ++t) v.insert(v.end(), s.k.value.begin() + t * 576, s.k.value.begin() + t * 576 + 512);
    s.v = tensor::of(dtype::fp32, v);
    const output expected = run_attention(p, {s}, {.page_tokens = 0});
    const std::vector<int64_t> q_indptr{0, 2}, kv_lens{tokens}, kv_indptr{0, tokens};
    attention_plan plan;
    ASSERT_TRUE(plan.build(p, {q_indptr, kv_lens, {}, {}, {}, kv_indptr}, dtype::fp32, dtype::fp32).ok());
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    std::vector<float> out(2 * 4 * 512);
    const status ran = run(plan, dense_view(static_cast<const void*>(s.q.bytes.data()), dtype::fp32, 2, 4, 576),
                           const_head_view(s.k.bytes.data(), dtype::fp32, tokens, 1, 576, 576, 576),
                           const_head_view(s.k.bytes.data(), dtype::fp32, tokens, 1, 512, 576, 576),
                           dense_view(static_cast<void*>(out.data()), dtype::fp32, 2, 4, 512), {}, workspace.bytes());
    ASSERT_TRUE(ran.ok()) << ran.text();
    EXPECT_EQ(std::memcmp(out.data(), expected.out.data(), out.size() * 4), 0);
}

// ---- merge ----------------------------------------------------------------------------------------------------------------------------------

status merge_vectors(const output& a, const output& b, output& out, int32_t heads, int32_t dim) {
    const auto tokens = static_cast<int64_t>(a.lse.size()) / heads;
    out = a;
    const auto view = [&](const output& o) { return dense_view(static_cast<const void*>(o.out.data()), dtype::fp32, tokens, heads, dim); };
    return merge(view(a), a.lse, view(b), b.lse, dense_view(static_cast<void*>(out.out.data()), dtype::fp32, tokens, heads, dim), out.lse);
}

TEST(attention_merge, equals_one_pass_C15) {
    std::mt19937 generator(15);
    for (const auto& [first, second] : {std::pair<int64_t, int64_t>{7, 1}, {4096, 3}, {100, 1000}}) {
        attention_problem p = problem(4, 2, 32, 32);
        p.span = attention_span::full();
        const sequence_input all = sequence_input::random(p, dtype::fp32, dtype::fp32, 3, first + second, generator);
        const auto part = [&](int64_t from, int64_t count) {
            const auto cut = [&](const tensor& t) {
                return tensor::of(dtype::fp32, {t.value.begin() + from * 64, t.value.begin() + (from + count) * 64});
            };
            return run_attention(p, {{3, count, {}, all.q, cut(all.k), cut(all.v)}});
        };
        output merged;
        ASSERT_TRUE(merge_vectors(part(0, first), part(first, second), merged, 4, 32).ok());
        const error e = compare(p, {all}, merged);
        EXPECT_LE(e.out, 1e-6);
        EXPECT_LE(e.lse, 1e-6);
    }
    attention_problem p = problem(1, 1, 8, 8);
    const sequence_input flat{
        1, 8, {}, tensor::filled(dtype::fp32, 8, 0.0f), tensor::filled(dtype::fp32, 64, 1.0f), tensor::filled(dtype::fp32, 64, 1.0f)};
    EXPECT_NEAR(run_attention(p, {flat}).lse[0], std::log(8.0), 1e-6);
}

TEST(attention_merge, empty_parts_C13) {
    const output empty{std::vector<float>(8, 0.0f), {-infinity}}, full{{1, 2, 3, 4, 5, 6, 7, 0.1f}, {1.5f}};
    output out;
    ASSERT_TRUE(merge_vectors(empty, empty, out, 1, 8).ok());
    EXPECT_TRUE(out == empty);
    ASSERT_TRUE(merge_vectors(full, empty, out, 1, 8).ok());
    EXPECT_TRUE(out == full);
    output sixteen = empty;
    for (int i = 0; i < 16; ++i) {
        output next;
        ASSERT_TRUE(merge_vectors(sixteen, i == 9 ? full : empty, next, 1, 8).ok());
        sixteen = next;
    }
    EXPECT_TRUE(sixteen == full);
}

}  // namespace
}  // namespace ropewalk::test
