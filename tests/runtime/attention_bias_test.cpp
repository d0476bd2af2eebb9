// Biases in the tile: against the definition, against ALiBi, and bit for bit against themselves. B.. are rows of the field reports.
#include "tests/attention_fixture.hpp"
#include "tests/results.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr float slopes[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.75f, 0.375f, 0.2f};

attention_problem problem(int32_t heads, int32_t kv_heads, int32_t dim = 32) {
    attention_problem p;
    p.heads = heads;
    p.kv_heads = kv_heads;
    p.k_dim = p.v_dim = dim;
    return p;
}

attention_bias made(const result<attention_bias>& bias) {
    EXPECT_TRUE(bias.ok()) << bias.state().text();
    return bias.ok() ? *bias : attention_bias();
}

class attention_bias_test : public seeded {
protected:
    std::mt19937 generator{static_cast<uint32_t>(seed)};

    std::vector<float> numbers(int64_t count) {
        std::vector<float> x(static_cast<std::size_t>(count));
        for (float& value : x) value = normal();
        return x;
    }
    sequence_input sequence(const attention_problem& p, int64_t q_len, int64_t kv_len, bias_function bias = {}, dtype type = dtype::fp32) {
        sequence_input s = sequence_input::random(p, type, type, q_len, kv_len, generator);
        s.bias = std::move(bias);
        return s;
    }
    static void expect_matches(const attention_problem& p, const std::vector<sequence_input>& batch, const run_options& options = {}) {
        const error e = compare(p, batch, run_attention(p, batch, options));
        const double most = tolerance(p, batch[0].k.type, batch[0].v.type);
        EXPECT_LE(e.out, most) << "out, worst element " << e.out_at;
        EXPECT_LE(e.lse, most) << "lse, worst element " << e.lse_at;
    }
};

// Entries of N(0, 1) for distances first .. first + count - 1.
struct distance_table {
    int32_t heads;
    int64_t first, count;
    std::vector<float> values;

    attention_bias bias() const { return made(attention_bias::over_distance(values, heads, first)); }
    bias_function function() const {
        return [*this](int32_t head, int64_t query, int64_t key) {
            return double{values[static_cast<std::size_t>(head * count + std::clamp<int64_t>(key - query - first, 0, count - 1))]};
        };
    }
};

// Tables that end inside a tile, beyond a chunk, on one side of the query, and one of a single entry.
TEST_F(attention_bias_test, over_distance_matches_the_definition) {
    for (const auto& [first, count] : {std::pair{-40, 81}, {-700, 701}, {-3, 2}, {5, 300}, {0, 1}, {-1000, 10}}) {
        const distance_table table{4, first, count, numbers(4 * count)};
        const attention_bias bias = table.bias();
        for (const attention_span span : {attention_span::causal(), attention_span::full(), attention_span::symmetric(100)}) {
            SCOPED_TRACE(testing::Message() << "first " << first << " count " << count << " right " << span.right);
            attention_problem p = problem(4, 2, 16);
            p.span = span;
            p.bias = &bias;
            std::vector<sequence_input> batch;
            for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {1, 700}, {30, 140}, {5, 3}, {50, 540}}) {
                batch.push_back(sequence(p, q_len, kv_len, table.function()));
            }
            batch.push_back(sequence(p, 20, 300, table.function()));
            batch.back().q_start = 150;
            batch.push_back(sequence(p, 3, 50, table.function()));
            batch.back().q_start = 1000000;
            expect_matches(p, batch, {.page_tokens = span.right == 0 ? 64 : 0});
        }
    }
}

TEST_F(attention_bias_test, every_place_matches_the_definition) {
    const distance_table table{4, -50, 90, numbers(4 * 90)};
    const attention_bias bias = table.bias();
    for (const bias_place place : {bias_place::after_softcap, bias_place::before_softcap, bias_place::before_scale}) {
        for (const float softcap : {0.0f, 3.0f}) {
            for (const bool alibi : {false, true}) {
                SCOPED_TRACE(testing::Message() << "place " << static_cast<int>(place) << " softcap " << softcap << " alibi " << alibi);
                attention_problem p = problem(4, 2);
                p.place = place;
                p.softcap = softcap;
                if (alibi) {
                    p.alibi_slopes = slopes;
                } else {
                    p.bias = &bias;
                }
                const bias_function function = alibi ? bias_function() : table.function();
                expect_matches(p, {sequence(p, 1, 300, function), sequence(p, 40, 170, function)});
                sequence_input tree = sequence(p, 3, 90, function);
                tree.tree = {0b001, 0b011, 0b101};
                expect_matches(p, {tree});
            }
        }
    }
}

TEST_F(attention_bias_test, every_type_of_tensors_matches_the_definition) {
    const distance_table table{8, -50, 51, numbers(8 * 51)};
    const attention_bias bias = table.bias();
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
            attention_problem p = problem(8, 1, 64);
            p.bias = &bias;
            p.q_type = q_type;
            expect_matches(p, {sequence(p, 1, 200, table.function(), type), sequence(p, 33, 150, table.function(), type)});
        }
    }
}

// Two drafts after the same token stand at the same position.
TEST_F(attention_bias_test, trees_use_the_depth_of_drafts) {
    const distance_table table{4, -9, 10, numbers(4 * 10)};
    const attention_bias bias = table.bias();
    attention_problem p = problem(4, 2);
    p.bias = &bias;
    sequence_input deep = sequence(p, 6, 130, table.function()), whole = sequence(p, 4, 4, table.function());
    deep.tree = {0b000001, 0b000011, 0b000101, 0b001101, 0b010000, 0b110000};
    whole.tree = {0b0001, 0b0011, 0b0101, 0b1011};
    expect_matches(p, {deep, whole});
}

TEST_F(attention_bias_test, zeros_leave_the_bits_of_plain_attention) {
    const std::vector<float> zeros(8, 0.0f);
    const attention_bias bias = made(attention_bias::over_distance(zeros, 8, -3)), none;
    for (const float softcap : {0.0f, 20.0f}) {
        attention_problem p = problem(8, 2);
        p.softcap = softcap;
        const std::vector<sequence_input> batch{sequence(p, 1, 900), sequence(p, 50, 200)};
        const output plain = run_attention(p, batch);
        p.bias = &none;
        EXPECT_TRUE(plain == run_attention(p, batch));
        p.bias = &bias;
        EXPECT_TRUE(plain == run_attention(p, batch));
    }
}

// ---- grids ----------------------------------------------------------------------------------------------------------------------------------

// As Swin and BEiT index their tables: query minus key, heads innermost; BEiT's three entries for the class token last.
struct grid_table {
    int32_t heads, height, width;
    bool class_token;
    std::vector<float> values;

    static int64_t entries(int64_t height, int64_t width, bool with_class) { return (2 * height - 1) * (2 * width - 1) + (with_class ? 3 : 0); }
    int64_t tokens() const { return int64_t{height} * width + class_token; }
    attention_bias bias() const { return made(attention_bias::over_grid(values, heads, height, width, class_token)); }
    bias_function function() const {
        return [*this](int32_t head, int64_t query, int64_t key) {
            const int64_t q = query - class_token, k = key - class_token, last = entries(height, width, true) - 1;
            const int64_t dy = q / width - k / width, dx = q % width - k % width;
            int64_t entry = (dy + height - 1) * (2 * width - 1) + dx + width - 1;
            if (q < 0 || k < 0) entry = q < 0 && k < 0 ? last : q < 0 ? last - 2 : last - 1;
            return double{values[static_cast<std::size_t>(entry * heads + head)]};
        };
    }
};

TEST_F(attention_bias_test, over_a_grid_matches_the_definition) {
    for (const auto& [height, width] : {std::pair{1, 1}, {7, 7}, {3, 50}, {50, 3}, {1, 200}, {14, 14}, {27, 20}}) {
        for (const bool with_class : {false, true}) {
            SCOPED_TRACE(testing::Message() << height << " x " << width << ", class token " << with_class);
            const grid_table table{4, height, width, with_class, numbers(4 * grid_table::entries(height, width, with_class))};
            const attention_bias bias = table.bias();
            attention_problem p = problem(4, 2, 16);
            p.span = attention_span::full();
            p.bias = &bias;
            const int64_t tokens = table.tokens();
            std::vector<sequence_input> batch{sequence(p, tokens, tokens, table.function()), sequence(p, 1, tokens, table.function())};
            batch.push_back(sequence(p, (tokens + 1) / 2, (tokens + 1) / 2, table.function()));
            batch[1].q_start = tokens / 3;
            expect_matches(p, batch, {.page_tokens = with_class ? 16 : 0});
        }
    }
}

TEST_F(attention_bias_test, rows_of_the_caller_match_the_definition) {
    const int64_t q_len = 40, kv_len = 203;
    const std::vector<float> values = numbers(4 * q_len * kv_len);
    // As [heads, tokens, keys], and shared by all heads.
    for (const int64_t head_stride : {q_len * kv_len, int64_t{0}}) {
        const attention_bias bias = made(attention_bias::of_rows(values.data(), q_len, 4, kv_len, kv_len, head_stride));
        attention_problem p = problem(4, 2);
        p.span = attention_span::full();
        p.bias = &bias;
        sequence_input s = sequence(p, q_len, kv_len, [&](int32_t head, int64_t query, int64_t key) {
            return double{values[static_cast<std::size_t>(head * head_stride + query * kv_len + key)]};
        });
        s.q_start = 0;
        for (const int32_t page_tokens : {0, 32}) expect_matches(p, {s}, {.page_tokens = page_tokens});
    }
}

// ---- published biases -----------------------------------------------------------------------------------------------------------------------

// Distances where the logarithm is a whole number but for rounding belong to the upper bucket.
int64_t bucket_of(int64_t delta, const t5_bucket_rule& rule) {
    const int64_t n = rule.bidirectional ? rule.num_buckets / 2 : rule.num_buckets, exact = n / 2;
    const int64_t r = rule.bidirectional ? std::abs(delta) : std::max<int64_t>(-delta, 0), upper = rule.bidirectional && delta > 0 ? n : 0;
    if (r < exact) return upper + r;
    const double steps = std::log(double(r) / double(exact)) / std::log(double(rule.max_distance) / double(exact)) * double(n - exact);
    return upper + std::min(n - 1, exact + static_cast<int64_t>(steps + 1e-9));
}

bias_function t5_function(const std::vector<float>& weight, int32_t heads, const t5_bucket_rule& rule) {
    return [weight, heads, rule](int32_t head, int64_t query, int64_t key) {
        return double{weight[static_cast<std::size_t>(bucket_of(key - query, rule) * heads + head)]};
    };
}

TEST_F(attention_bias_test, t5_encoder_and_decoder_match_the_definition) {
    for (const t5_bucket_rule rule : {t5_bucket_rule{32, 128, true}, {32, 128, false}, {8, 20, true}, {320, 800, true}}) {
        const std::vector<float> weight = numbers(int64_t{4} * rule.num_buckets);
        const attention_bias bias = made(t5_bias(weight, 4, rule));
        attention_problem p = problem(4, 4);
        p.scale = 1.0f / 32.0f;  // T5's own 1 would give scores of several units more than the tolerance is derived for
        p.span = rule.bidirectional ? attention_span::full() : attention_span::causal();
        p.bias = &bias;
        const bias_function function = t5_function(weight, 4, rule);
        expect_matches(p, {sequence(p, 150, 300, function), sequence(p, 1, 1000, function)});
    }
}

TEST_F(attention_bias_test, t5_decoding_equals_prefill_B10) {
    const std::vector<float> weight = numbers(4 * 32);
    const attention_bias bias = made(t5_bias(weight, 4, {32, 128, false}));
    attention_problem p = problem(4, 4, 16);
    p.scale = 1.0f;
    p.bias = &bias;
    const sequence_input all = sequence(p, 41, 41);
    const output whole = run_attention(p, {all});
    const auto cut = [](const tensor& x, int64_t first, int64_t rows) {
        return tensor::of(x.type, {x.value.begin() + first * 64, x.value.begin() + (first + rows) * 64});
    };
    for (int64_t step = 0; step <= 40; ++step) {
        const output row = run_attention(p, {{1, step + 1, {}, cut(all.q, step, 1), cut(all.k, 0, step + 1), cut(all.v, 0, step + 1)}});
        EXPECT_EQ(std::memcmp(row.out.data(), whole.out.data() + step * 64, 64 * 4), 0) << "step " << step;
    }
}

TEST_F(attention_bias_test, a_table_for_each_layer_B12) {
    const std::vector<float> first = numbers(4 * 32), second = numbers(4 * 32);
    const attention_bias a = made(t5_bias(first, 4, {})), b = made(t5_bias(second, 4, {})), same = made(t5_bias(first, 4, {}));
    attention_problem p = problem(4, 2), q = p;
    p.bias = &a;
    q.bias = &b;
    const std::vector<sequence_input> batch{sequence(p, 1, 300), sequence(p, 50, 90)};
    for (const int32_t page_tokens : {0, 64}) {
        const output of_a = run_attention(p, batch, {.page_tokens = page_tokens}), of_b = run_attention(q, batch, {.page_tokens = page_tokens});
        EXPECT_TRUE(of_a == run_attention(p, batch, {.page_tokens = page_tokens, .layer = {&same}}));
        EXPECT_TRUE(of_b == run_attention(p, batch, {.page_tokens = page_tokens, .layer = {&b}}));
        EXPECT_FALSE(of_a == of_b);
    }
}

TEST_F(attention_bias_test, kerple_matches_its_formula) {
    const std::vector<float> r1{0.5f, 1.5f, 0.01f, 2.0f}, r2{0.1f, 1.0f, 3.0f, 0.5f};
    const attention_bias bias = made(kerple_bias(r1, r2, 500));
    attention_problem p = problem(4, 2);
    p.bias = &bias;
    for (const attention_span span : {attention_span::causal(), attention_span::full()}) {
        p.span = span;
        expect_matches(p, {sequence(p, 30, 500, [&](int32_t head, int64_t query, int64_t key) {
                           const auto h = static_cast<std::size_t>(head);
                           return -r1[h] * std::log(1.0 + r2[h] * std::fabs(double(key - query)));
                       })});
    }
}

TEST_F(attention_bias_test, a_table_of_lines_is_alibi) {
    std::vector<float> table;
    for (const float slope : slopes) {
        for (int64_t delta = -600; delta <= 600; ++delta) table.push_back(-slope * static_cast<float>(std::abs(delta)));
    }
    const attention_bias bias = made(attention_bias::over_distance(table, 8, -600));
    attention_problem p = problem(8, 2), q = p;
    p.alibi_slopes = slopes;
    q.bias = &bias;
    p.span = q.span = attention_span::full();
    const std::vector<sequence_input> batch{sequence(p, 1, 600), sequence(p, 100, 300)};
    const output by_slope = run_attention(p, batch), by_table = run_attention(q, batch);
    for (std::size_t i = 0; i < by_slope.out.size(); ++i)
        ASSERT_NEAR(by_slope.out[i], by_table.out[i], 5.0 * tolerance(p, dtype::fp32, dtype::fp32)) << i;
}

// Slopes rounded to bf16, and the bias scaled with the scores: in effect slope / sqrt(D).
TEST_F(attention_bias_test, falcon_scales_its_slopes) {
    std::vector<float> falcon(12), press(12), effective(12);
    ASSERT_TRUE(alibi_slopes(falcon, alibi_rule::falcon).ok());
    ASSERT_TRUE(alibi_slopes(press).ok());
    for (std::size_t h = 0; h < 12; ++h) {
        ASSERT_NEAR(falcon[h], press[h], press[h] / 256.0);
        ASSERT_EQ(falcon[h], bf16_to_float(float_to_bf16(falcon[h])));
        effective[h] = falcon[h] / 8.0f;
    }
    EXPECT_NE(falcon[8], press[8]);
    attention_problem p = problem(12, 3, 64), q = p;
    p.alibi_slopes = falcon.data();
    p.place = bias_place::before_scale;
    q.alibi_slopes = effective.data();
    const std::vector<sequence_input> batch{sequence(p, 1, 200), sequence(p, 30, 90)};
    expect_matches(p, batch);
    EXPECT_TRUE(run_attention(p, batch) == run_attention(q, batch));
}

// BLOOM counts real tokens only: what stands behind padding has the distances, and the result, of the sequence without it.
TEST_F(attention_bias_test, left_padding_changes_nothing) {
    const distance_table table{4, -60, 61, numbers(4 * 61)};
    const attention_bias bias = table.bias();
    for (const bool alibi : {false, true}) {
        attention_problem p = problem(4, 2);
        if (alibi) {
            p.alibi_slopes = slopes;
        } else {
            p.bias = &bias;
        }
        const sequence_input s = sequence(p, 90, 90);
        sequence_input padded = s;
        const int64_t padding = 37;
        const auto pad = [&](tensor& x, float with) {
            std::vector<float> values(static_cast<std::size_t>(padding) * (x.value.size() / 90), with);
            values.insert(values.end(), x.value.begin(), x.value.end());
            x = tensor::of(x.type, values);
        };
        pad(padded.q, 1.0f);
        pad(padded.k, std::numeric_limits<float>::quiet_NaN());
        pad(padded.v, std::numeric_limits<float>::infinity());
        padded.q_len = padded.kv_len = 90 + padding;
        padded.key_first.assign(static_cast<std::size_t>(90 + padding), padding);
        const output bare = run_attention(p, {s}), got = run_attention(p, {padded});
        const auto skipped = static_cast<std::size_t>(padding) * 4 * 32;
        for (std::size_t i = 0; i < skipped; ++i) ASSERT_EQ(got.out[i], 0.0f);
        for (std::size_t i = 0; i < bare.out.size(); ++i) {
            ASSERT_NEAR(got.out[skipped + i], bare.out[i], 5.0 * tolerance(p, dtype::fp32, dtype::fp32)) << i;
        }
    }
}

// ---- invariance -----------------------------------------------------------------------------------------------------------------------------

TEST_F(attention_bias_test, same_bits_whatever_threads_pages_chunks_and_batch) {
    const distance_table table{4, -200, 260, numbers(4 * 260)};
    const grid_table grid{4, 30, 40, true, numbers(4 * grid_table::entries(30, 40, true))};
    const std::vector<float> values = numbers(4 * 2000);  // row by row the same numbers, one further each: no two rows alike
    const attention_bias biases[] = {table.bias(), grid.bias(), made(attention_bias::of_rows(values.data(), 500, 4, 1201, 1, 2000))};
    for (const attention_bias& bias : biases) {
        for (const attention_span span : {attention_span::causal(), attention_span::full()}) {
            attention_problem p = problem(4, 2, 16);
            p.bias = &bias;
            p.span = span;
            const sequence_input all = sequence(p, 500, 1201);
            const output expected = run_attention(p, {all});
            for (const int32_t threads : {1, 2, 5}) {
                for (const int32_t page_tokens : {0, 16, 256}) {
                    thread_executor on(threads);
                    EXPECT_TRUE(expected == run_attention(p, {all}, {.page_tokens = page_tokens, .concurrency = threads, .on = &on}));
                }
            }
            if (&bias == &biases[2]) continue;  // its rows are those of q: they move with the batch
            const output beside = run_attention(p, {sequence(p, 3, 40), all, sequence(p, 1, 600)});
            EXPECT_TRUE(std::equal(expected.out.begin(), expected.out.end(), beside.out.begin() + 3 * 64));
            for (const int64_t chunk : {1, 7, 190}) {
                for (int64_t first = 0; first < 500; first += chunk == 1 ? 83 : chunk) {
                    const int64_t rows = std::min<int64_t>(chunk, 500 - first);
                    sequence_input part = all;
                    part.q_len = rows;
                    part.q_start = 701 + first;
                    part.q = tensor::of(dtype::fp32, {all.q.value.begin() + first * 64, all.q.value.begin() + (first + rows) * 64});
                    const output got = run_attention(p, {part});
                    ASSERT_TRUE(std::equal(got.out.begin(), got.out.end(), expected.out.begin() + first * 64)) << "row " << first;
                    ASSERT_TRUE(std::equal(got.lse.begin(), got.lse.end(), expected.lse.begin() + first * 4));
                }
            }
        }
    }
}

// ---- what is refused ------------------------------------------------------------------------------------------------------------------------

TEST(attention_bias_errors, tables) {
    constexpr auto invalid = status_code::invalid_argument;
    std::vector<float> table(24, 1.0f);
    expect_refused(attention_bias::over_distance(table, 0, 0).state(), invalid, "heads is 0");
    expect_refused(attention_bias::over_distance(table, 5, 0).state(), invalid, "table has 24 entries");
    expect_refused(attention_bias::over_distance({}, 4, 0).state(), invalid, "table has 0 entries");
    expect_refused(attention_bias::over_distance(table, 4, int64_t{1} << 40).state(), status_code::out_of_range, "first_delta is 1099511627776");
    expect_refused(attention_bias::over_grid(table, 2, 0, 3).state(), invalid, "height is 0");
    expect_refused(attention_bias::over_grid(table, 2, 3, 4097).state(), invalid, "width is 4097");
    expect_refused(attention_bias::over_grid(table, 2, 2, 2).state(), invalid, "table has 24 entries; a grid of 2 x 2 has 9 for each of 2 heads");
    EXPECT_TRUE(attention_bias::over_grid(table, 2, 2, 2, true).ok());
    expect_refused(attention_bias::of_rows(nullptr, 1, 1, 1, 1, 1).state(), invalid, "values is null");
    expect_refused(attention_bias::of_rows(table.data(), 1, 1, -1, 1, 1).state(), invalid, "keys is -1");
    expect_refused(attention_bias::of_rows(table.data(), 1, 1, 1, -4, 1).state(), invalid, "token_stride is -4");
    table[7] = std::numeric_limits<float>::infinity();
    expect_refused(attention_bias::over_distance(table, 4, 0).state(), invalid, "table[7] is inf");
    expect_refused(attention_bias::over_grid(table, 2, 2, 2, true).state(), invalid, "table[7] is inf");
    table[7] = 1.0f;
    expect_refused(t5_bias(table, 2, {32, 128, true}).state(), invalid, "weight has 24 entries");
    expect_refused(t5_bias(table, 24, {1, 128, false}).state(), invalid, "rule.num_buckets is 1");
    expect_refused(t5_bias(table, 2, {12, 3, true}).state(), invalid, "rule.max_distance is 3");
    expect_refused(t5_bias(table, 2, {12, 1 << 30, true}).state(), invalid, "rule.max_distance is 1073741824");
    expect_refused(t5_bias(table, 2, {0, 128, true}).state(), invalid, "num_buckets * heads = 0 * 2");
    expect_refused(kerple_bias({table.data(), 2}, {table.data(), 3}, 9).state(), invalid, "r2 3");
    expect_refused(kerple_bias({table.data(), 2}, {table.data(), 2}, 0).state(), invalid, "max_distance is 0");
    table[1] = 0.0f;
    expect_refused(kerple_bias({table.data(), 2}, {table.data(), 2}, 9).state(), invalid, "r1[1] is 0");
    EXPECT_TRUE(attention_bias().empty());
    EXPECT_EQ(attention_bias().heads(), 0);
}

TEST(attention_bias_errors, plans_and_runs) {
    constexpr auto invalid = status_code::invalid_argument;
    const std::vector<float> table(64, 1.0f), q(3 * 4 * 16, 1.0f), k(6 * 4 * 16, 1.0f);
    std::vector<float> out(q.size(), 7.0f);
    const auto bias = [&](int32_t heads) { return made(attention_bias::over_distance({table.data(), 12}, heads, 0)); };
    const attention_bias four = bias(4), three = bias(3), empty, grid = made(attention_bias::over_grid({table.data(), 36}, 4, 2, 2));
    const attention_bias rows = made(attention_bias::of_rows(table.data(), 3, 4, 6, 0, 0)),
                         few = made(attention_bias::of_rows(table.data(), 3, 4, 5, 0, 0));
    const std::vector<int64_t> q_indptr{0, 3}, kv_lens{6}, kv_indptr{0, 6}, tree_indptr{0, 3};
    const std::vector<uint64_t> tree{1, 3, 7};
    attention_batch batch{q_indptr, kv_lens, {}, {}, {}, kv_indptr};
    attention_plan plan;
    const auto build = [&](const attention_bias& b, bias_place place = bias_place::after_softcap, const float* alibi = nullptr) {
        attention_problem p = problem(4, 4, 16);
        p.bias = &b;
        p.place = place;
        p.alibi_slopes = alibi;
        return plan.build(p, batch, dtype::fp32, dtype::fp32);
    };
    const auto run_layer = [&](const attention_bias* b) {
        auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
        const auto view = [](const std::vector<float>& x, int64_t tokens) {
            return dense_view(static_cast<const void*>(x.data()), dtype::fp32, tokens, 4, 16);
        };
        const head_view to = dense_view(static_cast<void*>(out.data()), dtype::fp32, 3, 4, 16);
        return run(plan, view(q, 3), view(k, 6), view(k, 6), to, {}, workspace.bytes(), attention_layer{b});
    };
    expect_refused(build(three), invalid, "problem.bias has 3 heads");
    expect_refused(build(four, static_cast<bias_place>(3)), invalid, "problem.place is 3");
    expect_refused(build(four, bias_place::after_softcap, slopes), invalid, "problem.bias is given beside alibi_slopes");
    expect_refused(build(grid), status_code::out_of_range, "problem.bias is over 4 positions; sequence 0 has 6 keys and queries at 3 to 5");
    expect_refused(build(few), status_code::out_of_range, "problem.bias has rows of 5 keys");
    expect_refused(build(made(attention_bias::of_rows(table.data(), 2, 4, 6, 0, 0))), status_code::out_of_range, "rows of 2 tokens");

    ASSERT_TRUE(build(empty, bias_place::before_scale, slopes).ok());
    expect_refused(run_layer(&four), invalid, "the plan was built without one");
    ASSERT_TRUE(build(four).ok());
    expect_refused(run_layer(&empty), invalid, "layer.bias is empty");
    expect_refused(run_layer(&three), invalid, "layer.bias differs");
    expect_refused(run_layer(&rows), invalid, "layer.bias differs");
    ASSERT_TRUE(build(rows).ok());
    expect_refused(run_layer(&few), status_code::out_of_range, "layer.bias has rows of 3 tokens and 5 keys");
    for (const float x : out) ASSERT_EQ(x, 7.0f);
    EXPECT_TRUE(run_layer(&rows).ok());

    batch.tree_masks = tree;
    batch.tree_indptr = tree_indptr;
    const std::vector<float> wide(5 * 5 * 4, 1.0f);
    expect_refused(build(made(attention_bias::over_grid(wide, 4, 3, 3))), status_code::unsupported, "sequence 0 must have no tree");
    ASSERT_TRUE(build(four).ok());
}

}  // namespace
}  // namespace ropewalk::test
