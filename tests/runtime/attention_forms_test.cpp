// Who sees whom: chunks, ranges, masks over keys, cross attention. Against the definition and bit for bit against themselves.
#include "tests/attention_fixture.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float slopes[4] = {0.5f, 0.25f, 0.125f, 0.0625f};

attention_problem problem(attention_span span) {
    attention_problem p;
    p.heads = 4;
    p.kv_heads = 2;
    p.k_dim = 32;
    p.v_dim = 48;
    p.span = span;
    return p;
}

class attention_forms : public seeded {
protected:
    std::mt19937 generator{static_cast<uint32_t>(seed)};

    sequence_input sequence(const attention_problem& p, int64_t q_len, int64_t kv_len) {
        return sequence_input::random(p, dtype::fp32, dtype::fp32, q_len, kv_len, generator);
    }
    // Keys up to the query or the end of a prefix.
    sequence_input prefix_lm(const attention_problem& p, int64_t q_len, int64_t kv_len, int64_t prefix) {
        sequence_input s = sequence(p, q_len, kv_len);
        for (int64_t i = kv_len - q_len; i < kv_len; ++i) s.key_last.push_back(std::max(prefix, i + 1));
        return s;
    }
    // Documents of random lengths up to `most` in one sequence of queries and keys.
    sequence_input documents(const attention_problem& p, int64_t tokens, int64_t most) {
        sequence_input s = sequence(p, tokens, tokens);
        for (int64_t first = 0, length; first < tokens; first += length) {
            length = std::min(between(1, most), tokens - first);
            s.key_first.insert(s.key_first.end(), static_cast<std::size_t>(length), first);
            s.key_last.insert(s.key_last.end(), static_cast<std::size_t>(length), first + length);
        }
        return s;
    }
    // Each pair is seen with probability `share`; `dead` rows see nothing.
    sequence_input masked(const attention_problem& p, int64_t q_len, int64_t kv_len, double share, int64_t dead = 0) {
        sequence_input s = sequence(p, q_len, kv_len);
        std::bernoulli_distribution seen(share);
        s.mask.assign(static_cast<std::size_t>(q_len * words(kv_len)), 0);
        for (int64_t i = dead; i < q_len; ++i) {
            for (int64_t j = 0; j < kv_len; ++j) set(s, i, j, seen(generator));
        }
        return s;
    }
    static int64_t words(int64_t kv_len) { return (kv_len + 63) / 64; }
    static void set(sequence_input& s, int64_t i, int64_t j, bool seen) {
        s.mask[static_cast<std::size_t>(i * words(s.kv_len) + j / 64)] |= uint64_t{seen} << (j % 64);
    }
    // The first rows of a sequence's queries, or a piece of them; keys as they are.
    static sequence_input rows_of(const attention_problem& p, const sequence_input& s, int64_t first, int64_t rows) {
        const auto cut = [&](auto& values, int64_t width) {
            if (!values.empty()) values = {values.begin() + first * width, values.begin() + (first + rows) * width};
        };
        sequence_input part = s;
        part.q_start = s.q_start.value_or(s.kv_len - s.q_len) + first;
        part.q_len = rows;
        std::vector<float> q = s.q.value;
        cut(q, int64_t{p.heads} * p.k_dim);
        part.q = tensor::of(s.q.type, q);
        cut(part.key_first, 1);
        cut(part.key_last, 1);
        cut(part.mask, words(s.kv_len));
        return part;
    }
    static void expect_matches(const attention_problem& p, const std::vector<sequence_input>& batch, const run_options& options = {}) {
        const error e = compare(p, batch, run_attention(p, batch, options));
        EXPECT_LE(e.out, tolerance(p, dtype::fp32, dtype::fp32)) << "out, worst element " << e.out_at;
        EXPECT_LE(e.lse, tolerance(p, dtype::fp32, dtype::fp32)) << "lse, worst element " << e.lse_at;
    }
    // All sequences together, with threads and pages of every kind; alone; and each in pieces.
    static void expect_same_bits(const attention_problem& p, const std::vector<sequence_input>& batch) {
        const output together = run_attention(p, batch);
        for (const int32_t threads : {1, 2, 5}) {
            for (const int32_t page_tokens : {0, 16, 256}) {
                thread_executor on(threads);
                EXPECT_TRUE(together == run_attention(p, batch, {.page_tokens = page_tokens, .concurrency = threads, .on = &on}));
            }
        }
        int64_t row = 0;
        for (const sequence_input& s : batch) {
            for (const int64_t rows : {s.q_len, int64_t{1}, int64_t{37}}) {
                for (int64_t first = 0; first < s.q_len; first += rows == 1 ? 61 : rows) {
                    const output part = run_attention(p, {rows_of(p, s, first, std::min(rows, s.q_len - first))});
                    ASSERT_TRUE(std::equal(part.out.begin(), part.out.end(), together.out.begin() + (row + first) * p.heads * p.v_dim))
                        << "rows " << first << " of " << s.q_len;
                    ASSERT_TRUE(std::equal(part.lse.begin(), part.lse.end(), together.lse.begin() + (row + first) * p.heads));
                }
            }
            row += s.q_len;
        }
    }
    // q = 0: every visible key counts the same, and lse is the logarithm of their number.
    static std::vector<int64_t> counts(const attention_problem& problem, sequence_input s) {
        attention_problem p = problem;
        s.q = tensor::filled(dtype::fp32, s.q_len * p.heads * p.k_dim, 0.0f);
        const output o = run_attention(p, {s});
        std::vector<int64_t> seen;
        for (std::size_t i = 0; i < o.lse.size(); i += static_cast<std::size_t>(p.heads)) seen.push_back(std::llround(std::exp(double{o.lse[i]})));
        return seen;
    }
};

TEST_F(attention_forms, chunks_match_the_definition) {
    for (const int64_t chunk : {1, 16, 100, 512, 5000}) {
        SCOPED_TRACE(chunk);
        attention_problem p = problem(attention_span::chunked(chunk));
        std::vector<sequence_input> batch;
        for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {1, 700}, {40, 40}, {130, 600}, {5, 3}}) batch.push_back(sequence(p, q_len, kv_len));
        batch.push_back(sequence(p, 3, 50));
        batch.back().q_start = 95;  // beyond all keys: some chunks reach back to them
        expect_matches(p, batch);
        p.span = {7, 3, chunk};
        expect_matches(p, batch, {.page_tokens = 0});
    }
}

TEST_F(attention_forms, chunks_begin_anew_at_their_borders) {
    const attention_problem p = problem(attention_span::chunked(16));
    const std::vector<int64_t> seen = counts(p, sequence(p, 40, 40));
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i % 16 + 1);
    EXPECT_EQ(counts(p, sequence(p, 1, 33)), std::vector<int64_t>{1});
}

// A tree whose drafts cross a border: those behind it see nothing before it.
TEST_F(attention_forms, chunks_of_trees_follow_depths) {
    for (const int64_t kv_len : {36, 100, 515}) {
        const attention_problem p = problem(attention_span::chunked(16));
        sequence_input s = sequence(p, 6, kv_len);
        s.tree = {0b000001, 0b000011, 0b000101, 0b001101, 0b010000, 0b110000};
        s.tree[5] = 0b100011;
        for (int64_t shift = 0; shift < 16; shift += 3) {
            sequence_input moved = sequence(p, 6, kv_len + shift);
            moved.tree = s.tree;
            expect_matches(p, {moved});
        }
    }
}

TEST_F(attention_forms, prefixes_documents_and_padding_match_the_definition) {
    const attention_problem full = problem(attention_span::full()), causal = problem(attention_span::causal());
    expect_matches(full, {prefix_lm(full, 200, 200, 70), prefix_lm(full, 1, 90, 10), prefix_lm(full, 30, 600, 590), prefix_lm(full, 20, 20, 0)});
    for (attention_problem p : {full, causal, problem(attention_span::sliding_window(20))}) {
        p.alibi_slopes = slopes;
        expect_matches(p, {documents(p, 300, 40), documents(p, 700, 300), sequence(p, 1, 90)}, {.page_tokens = 0});
    }
    EXPECT_EQ(counts(full, prefix_lm(full, 5, 5, 3)), (std::vector<int64_t>{3, 3, 3, 4, 5}));
}

// In a packed sequence a document has the result that it has alone.
TEST_F(attention_forms, documents_do_not_see_each_other) {
    const attention_problem p = problem(attention_span::causal());
    sequence_input packed = documents(p, 400, 90);
    packed.key_last.clear();
    const output got = run_attention(p, {packed});
    for (int64_t first = 0, last; first < 400; first = last) {
        last = first + std::count(packed.key_first.begin(), packed.key_first.end(), first);
        const auto cut = [&](const tensor& x, int64_t width) {
            return tensor::of(x.type, {x.value.begin() + first * width, x.value.begin() + last * width});
        };
        const output alone = run_attention(p, {{last - first, last - first, {}, cut(packed.q, 128), cut(packed.k, 64), cut(packed.v, 96)}});
        for (std::size_t i = 0; i < alone.out.size(); ++i) {
            ASSERT_NEAR(alone.out[i], got.out[static_cast<std::size_t>(first * 192) + i], 5.0 * tolerance(p, dtype::fp32, dtype::fp32)) << first;
        }
    }
}

TEST_F(attention_forms, masks_match_the_definition) {
    for (const attention_span span :
         {attention_span::full(), attention_span::causal(), attention_span::symmetric(60), attention_span::chunked(100)}) {
        for (const bool biased : {false, true}) {
            attention_problem p = problem(span);
            if (biased) {
                p.alibi_slopes = slopes;
                p.softcap = 20.0f;
            }
            const std::vector<sequence_input> batch{masked(p, 1, 90, 0.5),        masked(p, 70, 70, 0.3), masked(p, 200, 650, 0.02, 50),
                                                    masked(p, 5, 1300, 0.001, 1), sequence(p, 30, 100),   masked(p, 3, 64, 1.0),
                                                    masked(p, 40, 129, 0.9),      documents(p, 100, 30),  masked(p, 2, 0, 0.5)};
            for (const int32_t page_tokens : {0, 32}) expect_matches(p, batch, {.page_tokens = page_tokens});
        }
    }
}

// XLNet's factorisation order: a token sees what comes before it there (and, in the content stream, itself).
TEST_F(attention_forms, permuted_order) {
    const attention_problem p = problem(attention_span::full());
    std::vector<int64_t> order(150);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), generator);
    sequence_input s = sequence(p, 150, 150);
    s.mask.assign(static_cast<std::size_t>(150 * words(150)), 0);
    for (int64_t i = 0; i < 150; ++i) {
        for (int64_t j = 0; j < 150; ++j) set(s, i, j, order[static_cast<std::size_t>(j)] <= order[static_cast<std::size_t>(i)]);
    }
    expect_matches(p, {s});
    const std::vector<int64_t> seen = counts(p, s);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], order[i] + 1);
}

TEST_F(attention_forms, one_mask_in_three_words) {
    attention_problem p = problem(attention_span::full());
    p.alibi_slopes = slopes;
    const int64_t tokens = 600;
    const sequence_input s = sequence(p, tokens, tokens);
    sequence_input ranges = s, bits = s;
    bits.mask.assign(static_cast<std::size_t>(tokens * words(tokens)), 0);
    for (int64_t i = 0; i < tokens; ++i) {
        ranges.key_first.push_back(std::max<int64_t>(0, i - 99));
        ranges.key_last.push_back(i + 1);
        for (int64_t j = std::max<int64_t>(0, i - 99); j <= i; ++j) set(bits, i, j, true);
    }
    const output by_ranges = run_attention(p, {ranges});
    EXPECT_TRUE(by_ranges == run_attention(p, {bits}));
    p.span = attention_span::sliding_window(100);
    EXPECT_TRUE(by_ranges == run_attention(p, {s}));
}

TEST_F(attention_forms, rows_that_see_nothing_give_nothing) {
    for (const attention_span span : {attention_span::full(), attention_span::causal()}) {
        attention_problem p = problem(span);
        sequence_input dead = masked(p, 30, 200, 0.1, 30), empty = sequence(p, 9, 700), beside = masked(p, 30, 200, 0.5, 3);
        empty.key_first.assign(9, 600);
        empty.key_last.assign(9, 500);
        const output o = run_attention(p, {dead, empty, beside});
        const auto rows = static_cast<std::size_t>(30 + 9 + 3);
        for (std::size_t i = 0; i < rows * 4; ++i) ASSERT_EQ(o.lse[i], -infinity);
        for (std::size_t i = 0; i < rows * 192; ++i) ASSERT_EQ(o.out[i], 0.0f);
        EXPECT_GT(o.lse[rows * 4], -infinity);
    }
}

// What no row sees may hold anything, and is not read if no row sees anything beyond.
TEST_F(attention_forms, hidden_keys_do_not_matter) {
    const attention_problem p = problem(attention_span::full());
    sequence_input ranged = sequence(p, 40, 700), bits = masked(p, 40, 300, 0.3);
    for (int64_t i = 0; i < 40; ++i) {
        ranged.key_first.push_back(130 + i);
        ranged.key_last.push_back(310 - i);
        for (int64_t j = 100; j < 120; ++j) bits.mask[static_cast<std::size_t>(i * words(300) + j / 64)] &= ~(uint64_t{1} << (j % 64));
    }
    const output clean = run_attention(p, {ranged, bits});
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), infinity, 1e30f}) {
        const auto spoil = [&](sequence_input s, auto hidden) {
            for (auto* x : {&s.k, &s.v}) {
                std::vector<float> values = x->value;
                const auto width = static_cast<int64_t>(values.size()) / s.kv_len;
                for (int64_t j = 0; j < s.kv_len; ++j) {
                    if (hidden(j)) std::fill_n(values.begin() + j * width, width, poison);
                }
                *x = tensor::of(x->type, values);
            }
            return s;
        };
        const sequence_input a = spoil(ranged, [](int64_t j) { return j < 130 || j >= 310; });
        const sequence_input b = spoil(bits, [](int64_t j) { return j >= 100 && j < 120; });
        for (const int32_t page_tokens : {0, 64}) EXPECT_TRUE(clean == run_attention(p, {a, b}, {.page_tokens = page_tokens})) << poison;
    }
}

TEST_F(attention_forms, plans_count_what_rows_see) {
    const auto plan_of = [](attention_span span, std::vector<int64_t> key_first, std::vector<int64_t> key_last, std::vector<uint64_t> mask) {
        attention_problem p = problem(span);
        const std::vector<int64_t> q_indptr{0, 2}, kv_lens{1000}, kv_indptr{0, 1000}, mask_indptr{0, static_cast<int64_t>(mask.size())};
        attention_batch batch{q_indptr, kv_lens, {}, {}, {}, kv_indptr};
        batch.key_first = key_first;
        batch.key_last = key_last;
        batch.key_masks = mask;
        if (!mask.empty()) batch.key_mask_indptr = mask_indptr;
        attention_plan plan;
        const status built = plan.build(p, batch, dtype::fp32, dtype::fp32, 1);
        EXPECT_TRUE(built.ok()) << built.text();
        return std::pair(plan.kv_bytes() / (2 * (32 + 48) * 4), plan.flops() / (2.0 * 4 * (32 + 48)));
    };
    using counted = std::pair<int64_t, double>;
    EXPECT_EQ(plan_of(attention_span::causal(), {600, 990}, {}, {}), (counted{400, 399 + 10}));
    EXPECT_EQ(plan_of(attention_span::full(), {100, 900}, {200, 900}, {}), (counted{100, 100}));
    EXPECT_EQ(plan_of(attention_span::chunked(100), {}, {}, {}), (counted{100, 99 + 100}));
    std::vector<uint64_t> mask(32, 0);
    mask[2] = 0b1010;            // of row 0: 129, 131
    mask[16 + 4] = uint64_t{1};  // of row 1: 256
    EXPECT_EQ(plan_of(attention_span::full(), {}, {}, mask), (counted{128, 3}));
    EXPECT_EQ(plan_of(attention_span::full(), {130, 0}, {}, mask), (counted{126, 2}));
}

TEST_F(attention_forms, same_bits_whatever_threads_pages_chunks_and_batch) {
    attention_problem p = problem(attention_span::full());
    p.alibi_slopes = slopes;
    expect_same_bits(p, {prefix_lm(p, 300, 800, 600), documents(p, 500, 200), masked(p, 150, 1100, 0.1, 3), sequence(p, 1, 900)});
    p.span = attention_span::chunked(300);
    expect_same_bits(p, {documents(p, 300, 200), masked(p, 100, 600, 0.3), sequence(p, 90, 1100)});
}

// Queries and keys of different sequences, an encoder's say: as many of each as there are.
TEST_F(attention_forms, cross_attention) {
    const attention_problem p = problem(attention_span::full());
    const std::vector<sequence_input> batch{sequence(p, 7, 300), sequence(p, 90, 5), sequence(p, 1, 1500), sequence(p, 60, 1)};
    for (const int32_t page_tokens : {0, 64}) expect_matches(p, batch, {.page_tokens = page_tokens});
    EXPECT_EQ(counts(p, batch[1]), std::vector<int64_t>(90, 5));
    expect_same_bits(p, batch);
}

}  // namespace
}  // namespace ropewalk::test
