// Vector relative terms: against the definition, against themselves bit for bit, and which rows of the tables are touched.
#include <ropewalk/relative_attention.hpp>

#include "tests/attention_fixture.hpp"
#include "tests/guarded.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using lengths = std::vector<std::pair<int64_t, int64_t>>;  // q_len, kv_len

// A tensor [rows, heads, dim] of relative terms.
struct table {
    int64_t rows = 0;
    int32_t heads = 0, dim = 0;
    tensor values;

    [[nodiscard]] const_head_view view() const { return dense_view(static_cast<const void*>(values.bytes.data()), values.type, rows, heads, dim); }
    [[nodiscard]] double at(int64_t row, int32_t head, int32_t d) const {
        if (heads == 0) return 0.0;
        return values.value[static_cast<std::size_t>((row * heads + (heads == 1 ? 0 : head)) * dim + d)];
    }
};

// What a layer brings: u, v, s are absent (heads 0) where a model has none.
struct layer {
    relative_terms terms;
    table rows, columns, segments, u, v, s;

    [[nodiscard]] relative_tensors tensors() const {
        const auto view = [](const table& t) { return t.heads == 0 ? const_head_view() : t.view(); };
        return {view(rows), view(columns), view(segments), view(u), view(v), view(s)};
    }
    [[nodiscard]] int products() const { return 1 + terms.rows + terms.columns + terms.segments; }
};

class relative_attention : public seeded {
protected:
    std::mt19937 generator{static_cast<uint32_t>(seed)};

    table random_table(int64_t rows, int32_t heads, int32_t dim, dtype type = dtype::fp32) {
        return {rows, heads, dim, tensor::random(type, rows * heads * dim, generator)};
    }
    static int64_t rows_of(const relative_index& index) { return *std::ranges::max_element(index.rows) + 1; }

    // The score has unit variance, whatever its terms.
    static attention_problem problem(int32_t heads, int32_t kv_heads, int32_t dim, const layer& l, attention_span span = attention_span::full()) {
        attention_problem p;
        p.heads = heads;
        p.kv_heads = kv_heads;
        p.k_dim = dim;
        p.v_dim = dim + 8;
        p.scale = static_cast<float>(1.0 / std::sqrt(4.0 * dim));
        p.span = span;
        p.relative = &l.terms;
        return p;
    }

    layer xlnet(int32_t heads, int32_t dim, int64_t q_len, int64_t k_len, bool bidirectional = true, bool segments = true) {
        layer l;
        l.terms = {true, false, segments, relative_index::xlnet(q_len, k_len, bidirectional).value()};
        l.rows = random_table(rows_of(l.terms.index), heads, dim);
        l.u = random_table(1, heads, dim);
        l.v = random_table(1, heads, dim);
        if (segments) l.segments = random_table(2, heads, dim);
        if (segments) l.s = random_table(1, heads, dim);
        return l;
    }
    layer deberta(int32_t heads, int32_t dim, int32_t buckets, int32_t max_positions, dtype type = dtype::fp32) {
        layer l;
        l.terms = {true, true, false, relative_index::deberta_buckets(buckets, max_positions).value()};
        l.rows = random_table(2 * buckets, heads, dim, type);
        l.columns = random_table(2 * buckets, heads, dim, type);
        return l;
    }
    // One table for all heads.
    layer shaw(int32_t dim, int32_t left, int32_t right) {
        layer l;
        l.terms = {true, false, false, relative_index::shaw(left, right).value()};
        l.rows = random_table(left + right + 1, 1, dim);
        return l;
    }
    layer bert_query(int32_t dim, int32_t positions) {
        layer l;
        l.terms = {true, true, false, relative_index::bert(positions).value()};
        l.rows = l.columns = random_table(2 * positions - 1, 1, dim);
        return l;
    }

    sequence_input sequence(const attention_problem& p, int64_t q_len, int64_t kv_len, dtype type = dtype::fp32) {
        sequence_input s = sequence_input::random(p, type, type, q_len, kv_len, generator);
        if (!p.relative->segments) return s;
        for (int64_t i = 0; i < q_len; ++i) s.q_segments.push_back(static_cast<uint8_t>(between(0, 2)));
        for (int64_t j = 0; j < kv_len; ++j) s.k_segments.push_back(static_cast<uint8_t>(between(0, 2)));
        return s;
    }

    // The definition of a score beside q.k, in double.
    static double term(const attention_problem& p, const layer& l, const sequence_input& s, int64_t i, int32_t h, int64_t j) {
        const relative_index& index = l.terms.index;
        const int64_t delta = s.q_start.value_or(s.kv_len - s.q_len) + i - j;
        int32_t row = -1;
        if (!index.rows.empty()) {
            const int64_t last = static_cast<int64_t>(index.rows.size()) - 1;
            row = index.rows[static_cast<std::size_t>(std::clamp<int64_t>(delta - index.first_delta, 0, last))];
        }
        const bool other = l.terms.segments && s.q_segments[static_cast<std::size_t>(i)] != s.k_segments[static_cast<std::size_t>(j)];
        double sum = 0.0;
        for (int32_t d = 0; d < p.k_dim; ++d) {
            const double q = s.q.value[static_cast<std::size_t>((i * p.heads + h) * p.k_dim + d)];
            const double k = s.k.value[static_cast<std::size_t>((j * p.kv_heads + h / (p.heads / p.kv_heads)) * p.k_dim + d)];
            sum += l.u.at(0, h, d) * k;
            if (l.terms.rows && row >= 0) sum += (q + l.v.at(0, h, d)) * l.rows.at(row, h, d);
            if (l.terms.columns && row >= 0) sum += k * l.columns.at(row, h, d);
            if (l.terms.segments) sum += (q + l.s.at(0, h, d)) * l.segments.at(other ? 1 : 0, h, d);
        }
        return sum;
    }

    void expect_matches(const attention_problem& p, const layer& l, const std::vector<sequence_input>& batch, run_options o) {
        const relative_tensors tensors = l.tensors();
        o.layer.relative = &tensors;
        std::vector<sequence_input> stored = batch;
        if (o.page_tokens != 0) o.stored = &stored;
        const output got = run_attention(p, batch, o);
        std::vector<reference_result> expected;
        double max_v = 1.0;
        for (const sequence_input& s : stored) {
            expected.push_back(reference_of(p, s, [&](int64_t i, int32_t h, int64_t j) { return term(p, l, s, i, h, j); }));
            for (const float x : s.v.value) max_v = std::max(max_v, std::fabs(double{x}));
        }
        const error e = compare(got, expected, max_v);
        const dtype type = o.k_pages.value_or(batch[0].k.type);
        const double most = l.products() * tolerance(p, type, type);  // each product is a chain of k_dim multiply-adds
        EXPECT_LE(e.out, most) << "out, worst element " << e.out_at;
        EXPECT_LE(e.lse, most) << "lse, worst element " << e.lse_at;
    }

    output run_layer(const attention_problem& p, const layer& l, const std::vector<sequence_input>& batch, run_options o = {}) {
        const relative_tensors tensors = l.tensors();
        o.layer.relative = &tensors;
        return run_attention(p, batch, o);
    }
};

// Blocks of 96 rows, tiles of 128 keys and panels of 16, whole and in part.
const lengths some_lengths{{1, 1}, {1, 150}, {3, 3}, {17, 30}, {16, 128}, {100, 290}, {131, 131}};

TEST_F(relative_attention, matches_definition) {
    // In turn: every kind of layer meets every span, on some shape.
    const attention_span spans[] = {attention_span::full(), attention_span::causal(), attention_span::sliding_window(40)};
    std::size_t turn = 0;
    for (const auto& [heads, kv_heads, dim] : {std::tuple{1, 1, 8}, {3, 3, 64}, {4, 2, 40}, {6, 1, 33}, {14, 2, 16}}) {
        const std::pair<const char*, layer> layers[] = {{"xlnet", xlnet(heads, dim, 131, 290)},
                                                        {"xlnet uni", xlnet(heads, dim, 131, 290, false, false)},
                                                        {"deberta", deberta(heads, dim, 16, 64)},
                                                        {"shaw", shaw(dim, 7, 20)},
                                                        {"bert query", bert_query(dim, 300)}};
        for (const auto& [name, l] : layers) {
            const attention_span span = spans[turn++ % std::size(spans)];
            SCOPED_TRACE(testing::Message() << name << ", " << heads << "/" << kv_heads << " heads of " << dim << ", window " << span.left << ", "
                                            << span.right);
            const attention_problem p = problem(heads, kv_heads, dim, l, span);
            std::vector<sequence_input> batch;
            for (const auto& [q_len, kv_len] : some_lengths) batch.push_back(sequence(p, q_len, kv_len));
            expect_matches(p, l, batch, {.page_tokens = span.right == 0 ? 16 : 0});
        }
    }
}

TEST_F(relative_attention, single_terms_match_definition) {
    layer u, c, e;
    u.u = random_table(1, 4, 32, dtype::bf16);
    c.terms = {false, true, false, relative_index::shaw(9, 9).value()};
    c.columns = random_table(19, 4, 32);
    e.terms.segments = true;
    e.segments = random_table(2, 1, 32);
    for (const layer& l : {u, c, e}) {
        const attention_problem p = problem(4, 2, 32, l);
        expect_matches(p, l, {sequence(p, 40, 60), sequence(p, 1, 200)}, {.page_tokens = 64});
    }
}

TEST_F(relative_attention, other_types_match_definition) {
    const layer narrow = deberta(4, 40, 16, 64, dtype::bf16), halves = deberta(4, 40, 16, 64, dtype::fp16);
    for (const layer& l : {narrow, halves}) {
        attention_problem p = problem(4, 2, 40, l);
        for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
            p.q_type = q_type;
            expect_matches(p, l, {sequence(p, 40, 160, dtype::bf16)}, {.page_tokens = 0});
            for (const dtype pages : {dtype::bf16, dtype::fp16, dtype::int8, dtype::fp8, dtype::int4}) {
                SCOPED_TRACE(testing::Message() << "pages " << name(pages));
                expect_matches(p, l, {sequence(p, 40, 160), sequence(p, 2, 90)}, {.page_tokens = 64, .k_pages = pages, .v_pages = pages});
            }
        }
    }
    // Keys that are stored turned.
    const layer l = bert_query(64, 200);
    attention_problem p = problem(4, 2, 64, l);
    p.v_dim = 64;
    expect_matches(p, l, {sequence(p, 40, 160)}, {.page_tokens = 64, .k_pages = dtype::int4, .v_pages = dtype::int4, .hadamard = true});
}

TEST_F(relative_attention, softcap_slopes_and_sinks_apply_to_the_sum) {
    const layer l = xlnet(4, 32, 150, 150);
    attention_problem p = problem(4, 4, 32, l);
    const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f}, sinks[] = {0.0f, 1.0f, -1.0f, 2.0f};
    p.softcap = 3.0f;
    p.alibi_slopes = slopes;
    p.sinks = sinks;
    expect_matches(p, l, {sequence(p, 150, 150)}, {});
}

// Where q stands before the first key and behind the last one, and where it sees nothing.
TEST_F(relative_attention, any_position_of_the_queries) {
    const layer l = deberta(2, 16, 16, 40);
    const attention_problem p = problem(2, 2, 16, l, attention_span::symmetric(60));
    std::vector<sequence_input> batch;
    for (const int64_t start : {-90, -7, 0, 3, 200}) {
        batch.push_back(sequence(p, 120, 150));
        batch.back().q_start = start;
    }
    expect_matches(p, l, batch, {.page_tokens = 0});
    expect_matches(p, l, batch, {.page_tokens = 64});
}

// Permuted order, as XLNet is trained.
TEST_F(relative_attention, masks_over_keys) {
    const layer l = xlnet(2, 16, 140, 140);
    const attention_problem p = problem(2, 2, 16, l);
    sequence_input s = sequence(p, 140, 140);
    for (int64_t i = 0; i < 140 * 3; ++i) s.mask.push_back(random());
    expect_matches(p, l, {s}, {.page_tokens = 0});
    expect_matches(p, l, {s}, {.page_tokens = 16});
}

// ---- bit for bit -----------------------------------------------------------------------------------------------------------------------------

TEST_F(relative_attention, pages_threads_and_batches_do_not_show) {
    for (const layer& l : {xlnet(4, 24, 700, 700), deberta(4, 24, 32, 128)}) {
        const attention_problem p = problem(4, 2, 24, l);
        const std::vector<sequence_input> batch{sequence(p, 700, 700), sequence(p, 1, 600), sequence(p, 130, 300)};
        const output plain = run_layer(p, l, batch, {.page_tokens = 0});
        thread_executor four(4);
        for (const int32_t page_tokens : {0, 16, 128}) {
            EXPECT_TRUE(plain == run_layer(p, l, batch, {.page_tokens = page_tokens, .concurrency = 4, .on = &four})) << page_tokens;
        }
        const output alone = run_layer(p, l, {batch[2]});
        EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), plain.out.end() - static_cast<std::ptrdiff_t>(alone.out.size())));
    }
}

// A chunk of queries over all keys: XLNet's memory is the keys before it.
TEST_F(relative_attention, chunks_equal_one_pass_and_memory_a_longer_sequence) {
    constexpr int64_t tokens = 260;
    for (const auto& [name, l] : {std::pair{"xlnet", xlnet(3, 24, tokens, tokens)}, {"deberta", deberta(3, 24, 16, 64)}}) {
        const attention_problem p = problem(3, 3, 24, l);
        const sequence_input all = sequence(p, tokens, tokens);
        const output whole = run_layer(p, l, {all});
        for (const auto& [first, count] : lengths{{0, 1}, {0, 100}, {7, 97}, {100, 160}, {259, 1}}) {
            SCOPED_TRACE(testing::Message() << name << ", tokens " << first << " + " << count);
            sequence_input chunk = all;
            chunk.q_len = count;
            chunk.q_start = first;
            const auto row = int64_t{p.heads} * p.k_dim;
            chunk.q = tensor::of(dtype::fp32, {all.q.value.begin() + first * row, all.q.value.begin() + (first + count) * row});
            if (l.terms.segments) chunk.q_segments.assign(all.q_segments.begin() + first, all.q_segments.begin() + first + count);
            const output part = run_layer(p, l, {chunk});
            const auto out = whole.out.begin() + first * p.heads * p.v_dim;
            EXPECT_TRUE(std::equal(part.out.begin(), part.out.end(), out));
            EXPECT_TRUE(std::equal(part.lse.begin(), part.lse.end(), whole.lse.begin() + first * p.heads));
        }
    }
    // The table that XLNet makes for 60 queries behind 200 keys of memory has the same rows for the same distances.
    const layer longer = xlnet(3, 24, tokens, tokens);
    layer shorter = longer;
    shorter.terms.index = relative_index::xlnet(60, tokens, true).value();
    shorter.rows.rows = rows_of(shorter.terms.index);
    shorter.rows.values.bytes.resize(static_cast<std::size_t>(shorter.rows.rows * 3 * 24 * 4));
    const attention_problem p = problem(3, 3, 24, longer), with_memory = problem(3, 3, 24, shorter);
    const sequence_input last = sequence(p, 60, tokens);
    EXPECT_TRUE(run_layer(p, longer, {last}) == run_layer(with_memory, shorter, {last}));
}

TEST_F(relative_attention, only_differences_of_positions_matter) {
    layer l = deberta(2, 16, 32, 100);
    const attention_problem p = problem(2, 2, 16, l);
    sequence_input s = sequence(p, 150, 300);
    const output expected = run_layer(p, l, {s});
    *(s.q_start = 150) += 1000;
    l.terms.index.first_delta += 1000;
    EXPECT_TRUE(expected == run_layer(p, l, {s}));
}

TEST_F(relative_attention, a_group_equals_repeated_keys) {
    const layer l = deberta(6, 16, 16, 64);
    const attention_problem grouped = problem(6, 2, 16, l), repeated = problem(6, 6, 16, l);
    const sequence_input s = sequence(grouped, 70, 200);
    sequence_input r = s;
    const auto repeat = [](const tensor& t, int32_t dim) {
        std::vector<float> values;
        for (auto row = t.value.begin(); row != t.value.end(); row += dim) {
            for (int i = 0; i < 3; ++i) values.insert(values.end(), row, row + dim);
        }
        return tensor::of(dtype::fp32, values);
    };
    r.k = repeat(s.k, 16);
    r.v = repeat(s.v, 24);
    EXPECT_TRUE(run_layer(grouped, l, {s}) == run_layer(repeated, l, {r}));
}

// ---- what is read ----------------------------------------------------------------------------------------------------------------------------

// NaN in every row that idx does not name for a distance of the tiles (whole panels of 16 keys), and pages without access at both ends of the tables.
TEST_F(relative_attention, only_rows_of_the_distances_are_read) {
    layer l = bert_query(24, 200);
    const attention_problem p = problem(2, 2, 24, l);
    const sequence_input s = sequence(p, 30, 44);  // distances -33 .. 43, with the panel's end -47
    const output expected = run_layer(p, l, {s});
    for (const guard edge : {guard::front, guard::back}) {
        constexpr int64_t first = 199 - 33, last = 199 + 43;
        const int64_t from = edge == guard::front ? first - 4 : 0;  // -37 .. -33 and 4 rows of the padding
        const int64_t to = edge == guard::front ? l.rows.rows : last + 1;
        const guarded_buffer memory(static_cast<std::size_t>(to - from) * 24 * 4, edge);
        memory.fill(0xff);
        for (int64_t row = first - 4; row <= last; ++row) {
            std::copy_n(l.rows.values.value.begin() + row * 24, 24, memory.as<float>() + (row - from) * 24);
        }
        // Distances before -37 have the row of -37.
        relative_terms terms = l.terms;
        if (edge == guard::front) {
            terms.index.first_delta = -37;
            terms.index.rows.erase(terms.index.rows.begin(), terms.index.rows.begin() + from);
            for (int32_t& row : terms.index.rows) row -= static_cast<int32_t>(from);
        } else {
            terms.index.rows.resize(static_cast<std::size_t>(to));
        }
        attention_problem poisoned = p;
        poisoned.relative = &terms;
        relative_tensors tensors;
        tensors.rows = tensors.columns = dense_view(static_cast<const void*>(memory.data()), dtype::fp32, to - from, 1, 24);
        run_options o;
        o.layer.relative = &tensors;
        EXPECT_TRUE(expected == run_attention(poisoned, {s}, o));
    }
}

TEST_F(relative_attention, no_row_is_a_term_of_zero) {
    layer l = shaw(16, 40, 0);
    l.terms.index = {0, {-1, 3, -1}};
    const attention_problem p = problem(2, 1, 16, l);
    expect_matches(p, l, {sequence(p, 50, 200)}, {});
}

// What a step needs beside its tensors does not grow with the sequence.
TEST_F(relative_attention, workspace_is_of_a_tile) {
    const layer l = xlnet(12, 64, 16384, 16384, true, false);
    const attention_problem p = problem(12, 12, 64, l);
    const auto bytes = [&](int64_t tokens) {
        const std::vector<int64_t> indptr{0, tokens}, kv_lens{tokens};
        attention_plan plan;
        EXPECT_TRUE(plan.build(p, {indptr, kv_lens, {}, {}, {}, indptr}, dtype::fp32, dtype::fp32, 1).ok());
        return plan.workspace_bytes();
    };
    EXPECT_EQ(bytes(16384), bytes(1024));
    EXPECT_LT(bytes(16384), std::size_t{1} << 20);
}

// ---- indices ---------------------------------------------------------------------------------------------------------------------------------

TEST(relative_index, follows_the_formulas) {
    using rows = std::vector<int32_t>;
    const relative_index deberta = relative_index::deberta(2).value();
    EXPECT_EQ(deberta.first_delta, -2);
    EXPECT_EQ(deberta.rows, (rows{0, 1, 2, 3}));
    const relative_index shaw = relative_index::shaw(2, 1).value();  // j - i from -2 to 1
    EXPECT_EQ(shaw.first_delta, -1);
    EXPECT_EQ(shaw.rows, (rows{3, 2, 1, 0}));
    const relative_index bert = relative_index::bert(2).value();
    EXPECT_EQ(bert.first_delta, -1);
    EXPECT_EQ(bert.rows, (rows{0, 1, 2}));
    const relative_index both = relative_index::xlnet(2, 3, true).value();
    EXPECT_EQ(both.first_delta, -1);
    EXPECT_EQ(both.rows, (rows{4, 3, 2, 1, 0}));
    const relative_index before = relative_index::xlnet(2, 3, false).value();
    EXPECT_EQ(before.first_delta, -1);
    EXPECT_EQ(before.rows, (rows{-1, 3, 2, 1, 0}));
}

// idx = clamp(bucket + span, 0, 2 span - 1) with the formula's buckets in double; 511 = max - 1 is where a rounding shows, so it is given as known.
TEST(relative_index, deberta_buckets_reach_both_ends) {
    const relative_index index = relative_index::deberta_buckets(256, 512).value();
    const auto row = [&](int64_t delta) {
        const int64_t last = static_cast<int64_t>(index.rows.size()) - 1;
        return index.rows[static_cast<std::size_t>(std::clamp<int64_t>(delta - index.first_delta, 0, last))];
    };
    for (int64_t r = 0; r < 2000; ++r) {
        if (r == 511) continue;
        const double far = std::ceil(std::log(double(r) / 128.0) / std::log(511.0 / 128.0) * 127.0) + 128.0;
        const auto bucket = r <= 128 ? r : static_cast<int64_t>(far);
        EXPECT_EQ(row(r), std::min<int64_t>(bucket + 256, 511)) << r;
        EXPECT_EQ(row(-r), std::max<int64_t>(256 - bucket, 0)) << -r;
    }
    EXPECT_EQ(row(511), 511);
    EXPECT_EQ(row(-511), 1);
    EXPECT_EQ(row(-512), 0);
}

TEST(relative_index, refusals) {
    const auto text = [](const result<relative_index>& r) { return std::string(r.state().text()); };
    EXPECT_EQ(text(relative_index::deberta(0)), "span is 0; must be 1 to 16777216");
    EXPECT_EQ(text(relative_index::shaw(-1, 3)), "left is -1; must be 0 to 16777216");
    EXPECT_EQ(text(relative_index::bert(0)), "max_position_embeddings is 0; must be 1 to 16777216");
    EXPECT_EQ(text(relative_index::xlnet(0, 3, true)), "q_len is 0; must be 1 to 1073741824");
    EXPECT_EQ(text(relative_index::deberta_buckets(255, 512)), "position_buckets is 255; must be even");
    EXPECT_FALSE(relative_index::deberta_buckets(0, 512).ok());
    EXPECT_FALSE(relative_index::deberta_buckets(256, 100).ok());
}

// ---- refusals --------------------------------------------------------------------------------------------------------------------------------

class relative_refusals : public testing::Test {
protected:
    layer l;
    attention_problem p;
    std::vector<int64_t> q_indptr{0, 2}, kv_lens{3}, kv_indptr{0, 3};
    attention_batch batch{q_indptr, kv_lens, {}, {}, {}, kv_indptr};
    std::vector<float> q = std::vector<float>(16), k = std::vector<float>(24), r = std::vector<float>(24), out = std::vector<float>(16);
    relative_tensors tensors;

    void SetUp() override {
        p.heads = p.kv_heads = 2;
        p.k_dim = p.v_dim = 4;
        l.terms = {true, false, false, relative_index::shaw(1, 1).value()};
        p.relative = &l.terms;
        tensors.rows = dense_view(static_cast<const void*>(r.data()), dtype::fp32, 3, 2, 4);
    }
    std::string built() {
        attention_plan plan;
        return plan.build(p, batch, dtype::fp32, dtype::fp32).text();
    }
    std::string ran(bool with_tensors = true) {
        attention_plan plan;
        const status s = plan.build(p, batch, dtype::fp32, dtype::fp32);
        if (!s.ok()) return s.text();
        const auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
        const const_head_view q_view = dense_view(static_cast<const void*>(q.data()), dtype::fp32, 2, 2, 4);
        const const_head_view k_view = dense_view(static_cast<const void*>(k.data()), dtype::fp32, 3, 2, 4);
        const head_view out_view = dense_view(static_cast<void*>(out.data()), dtype::fp32, 2, 2, 4);
        return (with_tensors ? run(plan, q_view, k_view, k_view, out_view, {}, workspace.bytes(), {nullptr, &tensors})
                             : run(plan, q_view, k_view, k_view, out_view, {}, workspace.bytes()))
            .text();
    }
};

TEST_F(relative_refusals, plans) {
    EXPECT_EQ(ran(), "");
    l.terms.index.rows.clear();
    EXPECT_EQ(built(), "problem.relative.index.rows has 0 entries; must have at least 1");
    l.terms.index.rows = {0, -2};
    EXPECT_EQ(built(), "problem.relative.index.rows[1] is -2; must be a row, or -1");
    l.terms.index = relative_index::shaw(1, 1).value();
    l.terms.segments = true;
    EXPECT_EQ(built(), "batch.q_segments has 0 entries; must have 2");
    const std::vector<uint8_t> segments(3);
    batch.q_segments = std::span(segments).first(2);
    EXPECT_EQ(built(), "batch.k_segments has 0 entries; must have 3");
    batch.k_segments = segments;
    EXPECT_EQ(built(), "");
    l.terms.segments = false;
    EXPECT_EQ(built(), "batch.q_segments has 2 entries; must have 0, as the problem has no segment terms");
    batch.q_segments = batch.k_segments = {};
    const std::vector<uint64_t> masks{1, 3};
    batch.tree_masks = masks;
    batch.tree_indptr = q_indptr;
    EXPECT_EQ(built(), "batch.tree_masks has 2 words; must be empty where problem.relative is given");
}

TEST_F(relative_refusals, tensors) {
    EXPECT_EQ(ran(false), "plan has relative terms; run() must be given their tensors");
    const relative_tensors good = tensors;
    tensors.rows.tokens = 2;
    EXPECT_EQ(ran(), "relative.rows.tokens is 2; must be at least 3");
    tensors = good;
    tensors.rows.heads = 3;
    EXPECT_EQ(ran(), "relative.rows.heads is 3; must be 1 or the plan's heads, 2");
    tensors.rows = {};
    EXPECT_EQ(ran(), "relative.rows is absent; the plan has its term");
    tensors = good;
    tensors.columns = good.rows;
    EXPECT_EQ(ran(), "relative.columns is given; the plan has no such term");
    tensors = good;
    tensors.segment_bias = good.rows;
    EXPECT_EQ(ran(), "relative.segment_bias is given; the plan has no such term");
    tensors = good;
    p.relative = nullptr;
    EXPECT_EQ(ran(), "plan has no relative terms; run() was given relative tensors");
}

}  // namespace
}  // namespace ropewalk::test
