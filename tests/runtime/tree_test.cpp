// Tree masks: against the definition, against the paths that a tree consists of, and bit for bit against causal attention and themselves.
#include "tests/attention_fixture.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using lengths = std::vector<std::pair<int64_t, int64_t>>;  // q_len, kv_len

int64_t words_of(int64_t q_len) { return (q_len + 63) / 64; }
bool bit(const std::vector<uint64_t>& tree, int64_t q_len, int64_t i, int64_t j) {
    return (tree[static_cast<std::size_t>(i * words_of(q_len) + j / 64)] >> (j % 64) & 1) != 0;
}

// Row i is its parent's row and bit i; parent -1 is the last key before the drafts.
std::vector<uint64_t> tree_of(const std::vector<int64_t>& parents) {
    const auto words = static_cast<std::size_t>(words_of(static_cast<int64_t>(parents.size())));
    std::vector<uint64_t> tree(parents.size() * words);
    for (std::size_t i = 0; i < parents.size(); ++i) {
        for (std::size_t w = 0; parents[i] >= 0 && w < words; ++w) tree[i * words + w] = tree[static_cast<std::size_t>(parents[i]) * words + w];
        tree[i * words + i / 64] |= uint64_t{1} << (i % 64);
    }
    return tree;
}

std::vector<uint64_t> chain(int64_t tokens) {
    std::vector<int64_t> parents(static_cast<std::size_t>(tokens));
    std::iota(parents.begin(), parents.end(), -1);
    return tree_of(parents);
}

struct tree_types {
    const char* name;
    dtype q, tensors;            // types of q, and of K and V before they go into pages
    std::optional<dtype> pages;  // none: plain K and V
    attention_precision precision = attention_precision::standard;
};
constexpr tree_types all_types[] = {
    {"plain_fp32", dtype::fp32, dtype::fp32, {}},    {"plain_bf16", dtype::bf16, dtype::bf16, {}},
    {"fp32", dtype::fp32, dtype::fp32, dtype::fp32}, {"bf16", dtype::bf16, dtype::bf16, dtype::bf16},
    {"int8", dtype::bf16, dtype::fp32, dtype::int8}, {"int8_fp32_query", dtype::fp32, dtype::fp32, dtype::int8},
    {"int4", dtype::bf16, dtype::fp32, dtype::int4}, {"int4_fast", dtype::fp32, dtype::fp32, dtype::int4, attention_precision::fast},
    {"fp8", dtype::fp32, dtype::fp32, dtype::fp8}};

constexpr float slopes[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.75f, 0.375f, 0.2f};
constexpr float sinks[8] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -0.5f, 3.0f, 0.25f};

class tree_attention : public seeded, public testing::WithParamInterface<tree_types> {
protected:
    std::mt19937 generator{static_cast<uint32_t>(seed)};

    attention_problem problem(int32_t heads, int32_t kv_heads, int32_t dim = 32) const {
        attention_problem p;
        p.heads = heads;
        p.kv_heads = kv_heads;
        p.k_dim = dim;
        p.v_dim = dim + 16;
        p.q_type = GetParam().q;
        p.precision = GetParam().precision;
        return p;
    }
    attention_problem problem(int32_t heads, int32_t kv_heads, attention_span span, bool biased) const {
        attention_problem p = problem(heads, kv_heads);
        p.span = span;
        if (biased) {
            p.alibi_slopes = slopes;
            p.sinks = sinks;
            p.softcap = 20.0f;
        }
        return p;
    }
    run_options options(int32_t page_tokens = 64) const {
        run_options o;
        o.page_tokens = GetParam().pages ? page_tokens : 0;
        o.k_pages = o.v_pages = GetParam().pages;
        return o;
    }
    sequence_input sequence(const attention_problem& p, int64_t q_len, int64_t kv_len) {
        return sequence_input::random(p, GetParam().tensors, GetParam().tensors, q_len, kv_len, generator);
    }
    std::vector<uint64_t> random_tree(int64_t tokens) {
        std::vector<int64_t> parents;
        const int64_t reach = between(1, 12);  // short reaches make deep trees
        for (int64_t i = 0; i < tokens; ++i) parents.push_back(between(std::max<int64_t>(-1, i - reach), i - 1));
        return tree_of(parents);
    }
    sequence_input drafted(const attention_problem& p, int64_t q_len, int64_t kv_len) {
        sequence_input s = sequence(p, q_len, kv_len);
        s.tree = random_tree(q_len);
        return s;
    }
    double most(const attention_problem& p) const {
        return tolerance(p, GetParam().pages.value_or(GetParam().tensors), GetParam().pages.value_or(GetParam().tensors));
    }
    void expect_matches(const attention_problem& p, const std::vector<sequence_input>& batch, run_options o) {
        std::vector<sequence_input> stored = batch;
        if (o.page_tokens != 0) o.stored = &stored;
        const output got = run_attention(p, batch, o);
        const error e = compare(p, stored, got);
        EXPECT_LE(e.out, most(p)) << "out, worst element " << e.out_at;
        // What rounding q does to a score reaches lse in full, where out has the spread of the weights between (quantised_attention_test.cpp).
        const bool rounded = p.q_type != dtype::fp32 || p.precision == attention_precision::fast;
        EXPECT_LE(e.lse, rounded ? 4.0 * most(p) : most(p)) << "lse, worst element " << e.lse_at;
    }
};

// Drafts before any key, at the end of a tile (128), over its border, and over that of a chunk (512).
TEST_P(tree_attention, matches_definition) {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {8, 2}, {7, 1}}) {
        const attention_problem p = problem(heads, kv_heads);
        std::vector<sequence_input> batch;
        for (const auto& [q_len, kv_len] :
             lengths{{1, 1}, {1, 90}, {2, 2}, {2, 129}, {16, 128}, {16, 40}, {63, 150}, {64, 64}, {65, 550}, {200, 230}, {200, 600}}) {
            batch.push_back(drafted(p, q_len, kv_len));
        }
        SCOPED_TRACE(testing::Message() << heads << " heads");
        expect_matches(p, batch, options(heads == 8 ? 16 : 64));
    }
}

TEST_P(tree_attention, masks_and_biases) {
    for (const attention_span span : {attention_span::causal(), attention_span::sliding_window(1), attention_span::sliding_window(5),
                                      attention_span::sliding_window(40), attention_span::symmetric(9), attention_span::full()}) {
        SCOPED_TRACE(testing::Message() << "left " << span.left);
        const attention_problem p = problem(4, 2, span, span.left != 4);
        expect_matches(p, {drafted(p, 16, 140), drafted(p, 65, 65), drafted(p, 100, 560)}, options(16));
    }
}

// What verification is for: the row of a node is what decoding its path gives. The tokens of the path alone, causally.
TEST_P(tree_attention, a_row_equals_its_path) {
    attention_problem p = problem(4, 2);
    p.alibi_slopes = slopes;
    p.span = attention_span::sliding_window(30);
    const int64_t q_len = 40, kv_len = 150, past = kv_len - q_len;
    const sequence_input s = drafted(p, q_len, kv_len);
    const output got = run_attention(p, {s}, options());
    const auto rows_of = [](const tensor& x, int64_t width, const std::vector<int64_t>& rows) {
        std::vector<float> values;
        for (const int64_t row : rows) values.insert(values.end(), x.value.begin() + row * width, x.value.begin() + (row + 1) * width);
        return tensor::of(x.type, values);
    };
    for (int64_t i = 0; i < q_len; ++i) {
        std::vector<int64_t> keys(static_cast<std::size_t>(past));
        std::iota(keys.begin(), keys.end(), 0);
        for (int64_t j = 0; j <= i; ++j) {
            if (bit(s.tree, q_len, i, j)) keys.push_back(past + j);
        }
        const int64_t length = static_cast<int64_t>(keys.size());
        const sequence_input path{1,
                                  length,
                                  {},
                                  rows_of(s.q, int64_t{p.heads} * p.k_dim, {i}),
                                  rows_of(s.k, int64_t{p.kv_heads} * p.k_dim, keys),
                                  rows_of(s.v, int64_t{p.kv_heads} * p.v_dim, keys)};
        const output alone = run_attention(p, {path}, options());
        for (std::size_t n = 0; n < alone.out.size(); ++n) {
            ASSERT_NEAR(alone.out[n], got.out[static_cast<std::size_t>(i) * alone.out.size() + n], 2.0 * 5.0 * most(p)) << "node " << i;  // max |v| 5
        }
    }
}

TEST_P(tree_attention, a_chain_is_causal_bit_for_bit) {
    for (const attention_span span : {attention_span::causal(), attention_span::sliding_window(3), attention_span::sliding_window(50)}) {
        const attention_problem p = problem(4, 2, span, span.left != 2);
        for (const auto& [q_len, kv_len] : lengths{{1, 40}, {2, 2}, {16, 16}, {16, 135}, {64, 520}, {65, 130}, {200, 700}}) {
            sequence_input s = sequence(p, q_len, kv_len);
            const output causal = run_attention(p, {s}, options(16));
            s.tree = chain(q_len);
            EXPECT_TRUE(causal == run_attention(p, {s}, options(16))) << "q_len " << q_len << " kv_len " << kv_len << " left " << span.left;
        }
    }
}

TEST_P(tree_attention, same_bits_whatever_threads_pages_and_batch) {
    attention_problem p = problem(4, 2);
    p.alibi_slopes = slopes;
    p.span = attention_span::sliding_window(400);
    // Trees beside decode, prefill, and a sequence without queries.
    const std::vector<sequence_input> batch{drafted(p, 9, 1100), sequence(p, 1, 700), drafted(p, 130, 300), sequence(p, 40, 90),
                                            drafted(p, 1, 1),    sequence(p, 0, 50),  drafted(p, 70, 2000), sequence(p, 33, 33),
                                            drafted(p, 16, 520), sequence(p, 1, 1500)};
    const output together = run_attention(p, batch, options());
    for (const int32_t threads : {1, 2, 5}) {
        for (const int32_t page_tokens : {16, 128}) {
            thread_executor on(threads);
            run_options o = options(page_tokens);
            o.page_shuffle = static_cast<uint32_t>(threads + page_tokens);
            o.concurrency = threads;
            o.on = &on;
            EXPECT_TRUE(together == run_attention(p, batch, o)) << threads << " threads, pages of " << page_tokens;
        }
    }
    std::ptrdiff_t row = 0;
    for (const sequence_input& s : batch) {
        const output alone = run_attention(p, {s}, options());
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + row * p.heads * p.v_dim)) << "row " << row;
        EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), together.lse.begin() + row * p.heads));
        row += s.q_len;
    }
}

// A drafted key that is NaN or beyond the type's range is met by nobody who does not see it: holes inside a row's range.
TEST_P(tree_attention, masked_slots_are_never_multiplied) {
    for (const auto& [q_len, kv_len] : lengths{{2, 2}, {9, 40}, {40, 150}, {70, 140}}) {
        const attention_problem p = problem(4, 2);
        sequence_input s = drafted(p, q_len, kv_len);
        const int64_t hidden = between(0, q_len - 2);
        if (q_len == 2) s.tree = {0b01, 0b10};
        std::vector<output> runs;
        for (const float poison : {0.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e30f}) {
            sequence_input t = s;
            const auto spoil = [&](tensor& x, int64_t width) {
                std::vector<float> values = x.value;
                const auto row = values.begin() + (kv_len - q_len + hidden) * width;
                std::fill(row, row + width, poison);
                x = tensor::of(x.type, values);
            };
            spoil(t.k, int64_t{p.kv_heads} * p.k_dim);
            spoil(t.v, int64_t{p.kv_heads} * p.v_dim);
            runs.push_back(run_attention(p, {t}, options(16)));
            int64_t blind = 0;
            for (int64_t i = 0; i < q_len; ++i) {
                const auto width = static_cast<std::ptrdiff_t>(p.heads) * p.v_dim;
                if (bit(s.tree, q_len, i, hidden)) {
                    if (std::isnan(poison)) {
                        EXPECT_TRUE(std::isnan(runs.back().out[static_cast<std::size_t>(i * width)]));
                    }
                    continue;
                }
                ++blind;
                EXPECT_EQ(std::memcmp(&runs.back().out[static_cast<std::size_t>(i * width)], &runs[0].out[static_cast<std::size_t>(i * width)],
                                      static_cast<std::size_t>(width) * 4),
                          0)
                    << "poison " << poison << " of key " << hidden << " in row " << i << " of " << q_len;
            }
            EXPECT_GT(blind, 0);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(types, tree_attention, testing::ValuesIn(all_types), [](const auto& info) { return std::string(info.param.name); });

// ---- the plan's numbers -----------------------------------------------------------------------------------------------------------------------

struct step {
    int64_t kv_bytes;
    double flops;
};
step plan_of(const attention_span& span, int64_t kv_len, const std::vector<uint64_t>& tree, int64_t q_len) {
    attention_problem p;
    p.heads = 4;
    p.kv_heads = 2;
    p.k_dim = p.v_dim = 16;
    p.span = span;
    const std::vector<int64_t> q_indptr{0, q_len}, kv_lens{kv_len}, kv_indptr{0, kv_len}, tree_indptr{0, static_cast<int64_t>(tree.size())};
    attention_batch batch;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.kv_indptr = kv_indptr;
    batch.tree_masks = tree;
    if (!tree.empty()) batch.tree_indptr = tree_indptr;
    attention_plan plan;
    const status built = plan.build(p, batch, dtype::fp32, dtype::fp32, 1);
    EXPECT_TRUE(built.ok()) << built.text();
    return {plan.kv_bytes(), plan.flops()};
}

TEST(tree_plan, counts_what_rows_see) {
    constexpr double per_pair = 2.0 * 4 * (16 + 16);
    constexpr int64_t per_key = 2 * (16 + 16) * 4;
    const step causal = plan_of(attention_span::causal(), 300, {}, 70), same = plan_of(attention_span::causal(), 300, chain(70), 70);
    EXPECT_EQ(same.kv_bytes, causal.kv_bytes);
    EXPECT_EQ(same.flops, causal.flops);
    const step star = plan_of(attention_span::causal(), 300, tree_of(std::vector<int64_t>(70, -1)), 70);
    EXPECT_EQ(star.kv_bytes, 300 * per_key);
    EXPECT_EQ(star.flops, per_pair * 70 * (230 + 1));
    // A window of 2: a root and the key before it; a child and its root.
    const step window = plan_of(attention_span::sliding_window(2), 103, tree_of({-1, 0, 0}), 3);
    EXPECT_EQ(window.flops, per_pair * 3 * 2);
    EXPECT_EQ(window.kv_bytes, 4 * per_key);
}

}  // namespace
}  // namespace ropewalk::test
