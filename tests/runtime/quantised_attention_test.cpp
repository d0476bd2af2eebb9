// Attention over int8, int4 and fp8 pages: against the definition over the values that the pages hold, and bit for bit against itself.
#include "tests/attention_fixture.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

struct page_types {
    dtype k, v;
};
constexpr page_types type_sets[] = {{dtype::int8, dtype::int8}, {dtype::int4, dtype::int4}, {dtype::fp8, dtype::fp8},
                                    {dtype::int8, dtype::int4}, {dtype::bf16, dtype::int8}, {dtype::int4, dtype::fp32}};
constexpr dtype quantised_types[] = {dtype::int8, dtype::int4, dtype::fp8};

// Between them these choose every arithmetic.
struct query {
    dtype type = dtype::fp32;
    attention_precision precision = attention_precision::standard;
};
constexpr query queries[] = {
    {dtype::fp32, attention_precision::standard}, {dtype::bf16, attention_precision::standard}, {dtype::fp32, attention_precision::fast}};

attention_problem problem(int32_t heads, int32_t kv_heads, int32_t k_dim, int32_t v_dim, query q = {}) {
    attention_problem p;
    p.heads = heads;
    p.kv_heads = kv_heads;
    p.k_dim = k_dim;
    p.v_dim = v_dim;
    p.q_type = q.type;
    p.precision = q.precision;
    return p;
}

using shapes = std::vector<std::pair<int64_t, int64_t>>;  // q_len, kv_len

std::vector<sequence_input> random_batch(const attention_problem& p, const shapes& lengths, std::mt19937& generator) {
    std::vector<sequence_input> batch;
    for (const auto& [q_len, kv_len] : lengths) batch.push_back(sequence_input::random(p, dtype::fp32, dtype::fp32, q_len, kv_len, generator));
    return batch;
}

run_options options_of(const page_types& t, int32_t page_tokens = 64) {
    run_options options;
    options.page_tokens = page_tokens;
    options.k_pages = t.k;
    options.v_pages = t.v;
    return options;
}

void expect_matches(const attention_problem& p, const std::vector<sequence_input>& batch, run_options options) {
    std::vector<sequence_input> stored;
    options.stored = &stored;
    const output got = run_attention(p, batch, options);
    const error e = compare(p, stored, got);
    const double most = tolerance(p, *options.k_pages, *options.v_pages);
    EXPECT_LE(e.out, most) << "out, worst element " << e.out_at;
    // What q at integers does to a score reaches lse in full, where out has the spread of the weights between.
    const bool rounded = p.q_type != dtype::fp32 || p.precision == attention_precision::fast;
    EXPECT_LE(e.lse, rounded ? 4.0 * most : most) << "lse, worst element " << e.lse_at;
}

class quantised_attention : public testing::TestWithParam<page_types> {
protected:
    std::mt19937 generator{31};
};

TEST_P(quantised_attention, matches_definition) {
    const struct {
        int32_t heads, kv_heads, k_dim, v_dim;
    } cases[] = {{8, 2, 128, 128}, {9, 3, 64, 64},   {7, 1, 96, 96},  {5, 1, 40, 40},
                 {3, 1, 33, 17},   {2, 1, 576, 512}, {71, 1, 64, 64}, {2, 2, 256, 256}};
    for (const auto& c : cases) {
        for (const int32_t page_tokens : {16, 64, 256}) {
            for (const query& q : queries) {
                SCOPED_TRACE(testing::Message() << c.heads << "x" << c.kv_heads << "x" << c.k_dim << "x" << c.v_dim << " pages of " << page_tokens
                                                << " q " << name(q.type) << (q.precision == attention_precision::fast ? " fast" : ""));
                const attention_problem p = problem(c.heads, c.kv_heads, c.k_dim, c.v_dim, q);
                expect_matches(p, random_batch(p, {{1, 1}, {1, 150}, {2, 131}, {21, 67}}, generator), options_of(GetParam(), page_tokens));
            }
        }
    }
}

TEST_P(quantised_attention, masks_and_biases) {
    attention_problem p = problem(4, 2, 64, 64, {dtype::bf16});
    std::vector<float> slopes{0.5f, 0.25f, 0.125f, 0.0625f}, sinks{0.0f, 1.0f, -1.0f, 2.0f};
    p.alibi_slopes = slopes.data();
    p.sinks = sinks.data();
    p.softcap = 20.0f;
    for (const attention_span span : {attention_span::causal(), attention_span::sliding_window(37), attention_span::full()}) {
        p.span = span;
        expect_matches(p, random_batch(p, {{1, 600}, {30, 190}}, generator), options_of(GetParam()));
    }
}

// The pages hold turned rows; what they are worth, and what attention makes of them, is what comes back from them.
TEST_P(quantised_attention, hadamard) {
    for (const auto& [k_dim, v_dim] : {std::pair{128, 128}, {64, 96}, {80, 48}, {576, 512}}) {
        for (const query& q : queries) {
            const attention_problem p = problem(4, 1, k_dim, v_dim, q);
            run_options options = options_of(GetParam());
            options.hadamard = true;
            expect_matches(p, random_batch(p, {{1, 300}, {20, 45}}, generator), options);
        }
    }
}

// Large scores: one key takes everything.
TEST_P(quantised_attention, peaked_scores) {
    const attention_problem p = problem(4, 1, 128, 128);
    auto batch = random_batch(p, {{2, 300}}, generator);
    for (float& x : batch[0].q.value) x *= 8.0f;
    batch[0].q = tensor::of(dtype::fp32, batch[0].q.value);
    std::vector<sequence_input> stored;
    run_options options = options_of(GetParam());
    options.stored = &stored;
    const output got = run_attention(p, batch, options);
    const error e = compare(got, {reference_of(p, stored[0])}, 4.0);
    EXPECT_LE(e.out, 8 * tolerance(p, GetParam().k, GetParam().v));  // scores are 8 times as large, and so is their error
}

TEST_P(quantised_attention, same_bits_whatever_threads_pages_and_batch) {
    for (const query& q : queries) {
        const attention_problem p = problem(8, 2, 64, 48, q);
        const auto batch = random_batch(p, {{1, 1500}, {33, 700}, {1, 1}, {90, 90}, {0, 50}}, generator);
        const output once = run_attention(p, batch, options_of(GetParam()));
        for (const int32_t page_tokens : {16, 32, 64, 128, 256}) {
            run_options options = options_of(GetParam(), page_tokens);
            options.page_shuffle = static_cast<uint32_t>(page_tokens);
            thread_executor threads(3);
            options.on = &threads;
            options.concurrency = 3;
            EXPECT_TRUE(once == run_attention(p, batch, options)) << "pages of " << page_tokens;
        }
        std::size_t row = 0;
        for (const sequence_input& s : batch) {
            const output alone = run_attention(p, {s}, options_of(GetParam()));
            EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), once.out.begin() + static_cast<std::ptrdiff_t>(row * 8 * 48)));
            row += static_cast<std::size_t>(s.q_len);
        }
    }
}

TEST_P(quantised_attention, chunked_prefill_gives_the_same_bits_C20) {
    constexpr int64_t length = 700;
    for (const query& q : queries) {
        const attention_problem p = problem(4, 1, 64, 64, q);
        const sequence_input all = random_batch(p, {{length, length}}, generator)[0];
        const output expected = run_attention(p, {all}, options_of(GetParam()));
        for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{129}}) {
            for (int64_t done = 0; done < length; done += chunk) {
                if (chunk < 129 && done % 91 > chunk && length - done > 2 * chunk) continue;  // some of the many
                const int64_t count = std::min(chunk, length - done);
                const auto cut = [](const tensor& x, int64_t first, int64_t tokens, int64_t width) {
                    return tensor::of(x.type, {x.value.begin() + first * width, x.value.begin() + (first + tokens) * width});
                };
                const sequence_input part{
                    count, done + count, {}, cut(all.q, done, count, 256), cut(all.k, 0, done + count, 64), cut(all.v, 0, done + count, 64)};
                const output got = run_attention(p, {part}, options_of(GetParam()));
                ASSERT_EQ(std::memcmp(got.out.data(), expected.out.data() + done * 256, got.out.size() * 4), 0)
                    << "chunk " << chunk << " token " << done;
            }
        }
    }
}

// A row that is NaN or beyond the type's range is met by nobody who does not see it.
TEST_P(quantised_attention, masked_slots_are_never_multiplied_C05) {
    for (const int64_t kv_len : {2, 3, 40, 150}) {
        for (const query& q : queries) {
            const attention_problem p = problem(4, 2, 32, 32, q);
            const sequence_input s = random_batch(p, {{kv_len, kv_len}}, generator)[0];
            const int64_t hidden = kv_len / 2;
            std::vector<output> seen;
            for (const float poison : {0.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
                std::vector<float> k = s.k.value, v = s.v.value;
                std::fill(k.begin() + hidden * 64, k.begin() + (hidden + 1) * 64, poison);
                std::fill(v.begin() + hidden * 64, v.begin() + (hidden + 1) * 64, poison);
                sequence_input t = s;
                t.k = tensor::of(dtype::fp32, k);
                t.v = tensor::of(dtype::fp32, v);
                output o = run_attention(p, {t}, options_of(GetParam(), 16));
                if (std::isnan(poison)) {
                    EXPECT_TRUE(std::isnan(o.out.back()));
                }
                o.out.resize(static_cast<std::size_t>(hidden * 4 * 32));
                o.lse.resize(static_cast<std::size_t>(hidden * 4));
                seen.push_back(o);
                EXPECT_TRUE(o == seen[0]) << "poison " << poison << " kv_len " << kv_len;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(types, quantised_attention, testing::ValuesIn(type_sets),
                         [](const auto& info) { return std::string(name(info.param.k)) + "_" + std::string(name(info.param.v)); });

// ---- instruction sets -----------------------------------------------------------------------------------------------------------------------

// Puts the target back that the run is for.
class target_guard {
public:
    ~target_guard() { EXPECT_TRUE(limit_target(before_).ok()); }

private:
    target before_ = active_target().value();
};

// What the target in force computes is what the scalar target computes from the same pages' values.
TEST(quantised_targets, int8_agrees_with_scalar_F05) {
    std::mt19937 generator(10);
    const target_guard guard;
    const target used = active_target().value();
    double worst = 0.0;
    for (const int32_t dim : {64, 72, 80, 128}) {
        for (const int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 300}) {
            const attention_problem p = problem(4, 2, dim, dim);
            const auto batch = random_batch(p, {{1, n}}, generator);
            ASSERT_TRUE(limit_target(target::scalar).ok());
            const output scalar = run_attention(p, batch, options_of({dtype::int8, dtype::int8}));
            ASSERT_TRUE(limit_target(used).ok());
            const output got = run_attention(p, batch, options_of({dtype::int8, dtype::int8}));
            for (std::size_t i = 0; i < got.out.size(); ++i) {
                worst = std::max(worst, std::fabs(double{got.out[i]} - scalar.out[i]));
                ASSERT_NEAR(got.out[i], scalar.out[i], 1e-5) << "dim " << dim << " n " << n << " at " << i;
            }
        }
    }
    RecordProperty("largest_difference", std::to_string(worst));
}

TEST(quantised_targets, int4_keys_of_576_dims_D08) {
    std::mt19937 generator(11);
    for (const query& q : queries) {
        const attention_problem p = problem(4, 1, 576, 512, q);
        for (const page_types& t : {page_types{dtype::int4, dtype::int4}, page_types{dtype::int4, dtype::bf16}}) {
            const auto batch = random_batch(p, {{3, 200}}, generator);
            for (const float x : run_attention(p, batch, options_of(t)).out) ASSERT_TRUE(std::isfinite(x));
            if (q.precision == attention_precision::standard) expect_matches(p, batch, options_of(t));  // within 1e-4 of the values
        }
    }
}

// ---- the cache ------------------------------------------------------------------------------------------------------------------------------

// K and V [tokens][64] of layer 0 as the pages hold them.
std::vector<float> read_back(const kv_cache& cache, sequence_id id, int64_t tokens) {
    std::vector<float> k(static_cast<std::size_t>(tokens * 64)), v = k;
    std::vector<int64_t> slots(static_cast<std::size_t>(tokens));
    EXPECT_TRUE(cache.slots(id, 0, slots).ok());
    const auto view = [&](std::vector<float>& x) { return dense_view(static_cast<void*>(x.data()), dtype::fp32, tokens, 1, 64); };
    EXPECT_TRUE(kv_gather(cache.pages(0), slots, view(k), view(v)).ok());
    k.insert(k.end(), v.begin(), v.end());
    return k;
}

void append_rows(kv_cache& cache, sequence_id id, const std::vector<float>& rows, int64_t first, int64_t tokens) {
    std::vector<int64_t> slots(static_cast<std::size_t>(tokens));
    const kv_cache::append_request request{id, tokens};
    ASSERT_TRUE(cache.append({&request, 1}, slots, {}).ok());
    const const_head_view view = dense_view(static_cast<const void*>(rows.data() + first * 64), dtype::fp32, tokens, 1, 64);
    for (int32_t layer = 0; layer < cache.layers(); ++layer) ASSERT_TRUE(kv_append(cache.pages(layer), slots, view, view).ok());
}

// Every length at which a fork can happen inside a page: the copy holds codes and scales, and what one of the two appends is not seen by the other.
TEST(quantised_cache, fork_and_truncate_keep_codes_and_scales) {
    std::mt19937 generator(8);
    const tensor rows = tensor::random(dtype::fp32, 96 * 64, generator);
    for (const dtype type : quantised_types) {
        for (int64_t length = 1; length < 33; ++length) {
            SCOPED_TRACE(testing::Message() << name(type) << " length " << length);
            attention_problem p;
            p.kv_heads = 1;
            p.k_dim = p.v_dim = 64;
            kv_cache_config config;
            config.layout = layout_of(p, type, type, 32);
            config.layers = 2;
            config.page_count = 8;
            kv_cache cache = std::move(kv_cache::create(config)).value();
            const sequence_id a = *cache.create_sequence(), alone = *cache.create_sequence();
            append_rows(cache, a, rows.value, 0, length);
            append_rows(cache, alone, rows.value, 0, length);
            const std::vector<float> before = read_back(cache, a, length);
            const sequence_id b = *cache.fork(a);
            append_rows(cache, b, rows.value, 40, 5);
            append_rows(cache, a, rows.value, 60, 3);
            append_rows(cache, alone, rows.value, 40, 5);
            EXPECT_EQ(read_back(cache, b, length + 5), read_back(cache, alone, length + 5));
            ASSERT_TRUE(cache.truncate(a, length).ok());
            EXPECT_EQ(read_back(cache, a, length), before);
        }
    }
}

// One dim of every key is 30 times as large as the others: turned, 4 bits keep the others.
TEST(quantised_cache, hadamard_spreads_outliers) {
    std::mt19937 generator(9);
    tensor rows = tensor::random(dtype::fp32, 64 * 64, generator);
    for (std::size_t i = 5; i < rows.value.size(); i += 64) rows.value[i] *= 30.0f;
    double errors[2] = {0.0, 0.0};
    for (const bool hadamard : {false, true}) {
        attention_problem p;
        p.kv_heads = 1;
        p.k_dim = p.v_dim = 64;
        kv_cache_config config;
        config.layout = layout_of(p, dtype::int4, dtype::int4, 64);
        config.layout.hadamard = hadamard;
        config.layers = config.page_count = 1;
        kv_cache cache = std::move(kv_cache::create(config)).value();
        const sequence_id id = *cache.create_sequence();
        append_rows(cache, id, rows.value, 0, 64);
        const std::vector<float> back = read_back(cache, id, 64);
        for (std::size_t i = 0; i < rows.value.size(); ++i) errors[hadamard] += std::pow(double{back[i]} - rows.value[i], 2);
    }
    EXPECT_LT(errors[1], 0.5 * errors[0]);
}

TEST(quantised_plan, plain_keys_cannot_be_quantised) {
    const attention_problem p = problem(2, 1, 64, 64);
    const std::vector<int64_t> indptr{0, 1}, lens{1};
    attention_batch batch;
    batch.q_indptr = batch.kv_indptr = indptr;
    batch.kv_lens = lens;
    for (const dtype type : quantised_types) {
        attention_plan plan;
        EXPECT_EQ(plan.build(p, batch, type, dtype::fp32).code(), status_code::invalid_argument);
        EXPECT_EQ(plan.build(p, batch, dtype::fp32, type).code(), status_code::invalid_argument);
    }
}

}  // namespace
}  // namespace ropewalk::test
