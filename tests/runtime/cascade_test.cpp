// Sequences that share pages: the same bits as each sequence alone, and shared pages are read once.
#include <array>
#include <map>

#include "runtime/attention_plan.hpp"
#include "tests/allocations.hpp"
#include "tests/attention_fixture.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr uint32_t seed = 17;

struct member {
    int64_t q_len = 1, kv_len = 0;
    std::vector<int32_t> pages;  // numbers of contents; where they lie is the pool's affair
    std::optional<int64_t> q_start{};
    std::vector<uint64_t> tree{};  // attention_batch::tree_masks
    int64_t key_first = 0;         // of all its query tokens
    std::vector<uint64_t> mask{};  // attention_batch::key_masks
};

// Pages of random keys and values, in an order of its own, and queries for any batch.
struct pool {
    attention_problem p;
    kv_layout layout;
    int32_t count;
    std::vector<int32_t> place;  // of contents
    runtime::mapped_memory memory;
    tensor q;

    pool(const attention_problem& problem, dtype type, int32_t pages, uint32_t order = 1, int32_t page_tokens = 64)
        : p(problem), layout(layout_of(problem, type, type, page_tokens)), count(pages), place(static_cast<std::size_t>(pages)) {
        std::iota(place.begin(), place.end(), 0);
        std::mt19937 shuffle(order), generator(seed);
        std::shuffle(place.begin(), place.end(), shuffle);
        memory = std::move(runtime::mapped_memory::create(int64_t{count} * layout.page_stride_bytes())).value();
        q = tensor::random(p.q_type, int64_t{512} * p.heads * p.k_dim, generator);
        const int64_t tokens = int64_t{count} * page_tokens;
        const tensor k = tensor::random(dtype::fp32, tokens * p.kv_heads * p.k_dim, generator);
        const tensor v = tensor::random(dtype::fp32, tokens * p.kv_heads * p.v_dim, generator);
        write(0, tokens, k, v);
    }
    // Tokens first .. of the contents, counted through all of them.
    void write(int64_t first, int64_t tokens, const tensor& k, const tensor& v) const {
        std::vector<int64_t> slots;
        for (int64_t i = first; i < first + tokens; ++i) {
            slots.push_back(int64_t{place[static_cast<std::size_t>(i / layout.page_tokens)]} * layout.page_tokens + i % layout.page_tokens);
        }
        serial_executor serial;
        const status appended =
            kv_append(pages(), slots, dense_view(static_cast<const void*>(k.bytes.data()), dtype::fp32, tokens, p.kv_heads, p.k_dim),
                      dense_view(static_cast<const void*>(v.bytes.data()), dtype::fp32, tokens, p.kv_heads, p.v_dim), {}, serial);
        EXPECT_TRUE(appended.ok()) << appended.text();
    }
    [[nodiscard]] kv_pages pages() const { return {const_cast<std::byte*>(memory.data()), layout, count}; }

    [[nodiscard]] attention_plan plan(std::span<const member> batch, int32_t concurrency) const {
        batch_tables t;
        for (const member& m : batch) {
            t.q_indptr.push_back(t.q_indptr.back() + m.q_len);
            t.kv_lens.push_back(m.kv_len);
            t.q_starts.push_back(m.q_start.value_or(m.kv_len - m.q_len));
            for (const int32_t page : m.pages) t.page_ids.push_back(place[static_cast<std::size_t>(page)]);
            t.page_indptr.push_back(static_cast<int64_t>(t.page_ids.size()));
            t.tree_masks.insert(t.tree_masks.end(), m.tree.begin(), m.tree.end());
            t.tree_indptr.push_back(static_cast<int64_t>(t.tree_masks.size()));
            t.key_first.insert(t.key_first.end(), static_cast<std::size_t>(m.q_len), m.key_first);
            t.key_masks.insert(t.key_masks.end(), m.mask.begin(), m.mask.end());
            t.key_mask_indptr.push_back(static_cast<int64_t>(t.key_masks.size()));
        }
        attention_plan built;
        const attention_batch tables{t.q_indptr,    t.kv_lens,   t.q_starts, t.page_indptr, t.page_ids,       {}, t.tree_masks,
                                     t.tree_indptr, t.key_first, {},         t.key_masks,   t.key_mask_indptr};
        const status s = built.build(p, tables, layout, count, concurrency);
        EXPECT_TRUE(s.ok()) << s.text();
        return built;
    }
    // Query tokens of the batch are those from `first` on.
    [[nodiscard]] output run(const attention_plan& plan, int64_t first, executor& on) const {
        const int64_t tokens = plan.q_tokens(), row = int64_t{p.heads} * p.k_dim * element_bytes(p.q_type);
        std::vector<std::byte> out(static_cast<std::size_t>(tokens * p.heads * p.v_dim * element_bytes(p.out_type)));
        output result{{}, std::vector<float>(static_cast<std::size_t>(tokens * p.heads), 12345.0f)};
        auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
        std::ranges::fill(workspace.bytes(), std::byte{0xff});
        const status ran =
            ropewalk::run(plan, dense_view(static_cast<const void*>(q.bytes.data() + first * row), p.q_type, tokens, p.heads, p.k_dim), pages(),
                          dense_view(static_cast<void*>(out.data()), p.out_type, tokens, p.heads, p.v_dim), result.lse, workspace.bytes(), on);
        EXPECT_TRUE(ran.ok()) << ran.text();
        result.out = to_floats(p.out_type, out);
        return result;
    }
    [[nodiscard]] output alone(std::span<const member> batch) const {
        output all;
        int64_t first = 0;
        serial_executor serial;
        for (const member& m : batch) {
            const output one = run(plan({&m, 1}, 1), first, serial);
            all.out.insert(all.out.end(), one.out.begin(), one.out.end());
            all.lse.insert(all.lse.end(), one.lse.begin(), one.lse.end());
            first += m.q_len;
        }
        return all;
    }
};

attention_problem problem(int32_t group, int32_t dim = 16) {
    attention_problem p;
    p.kv_heads = 2;
    p.heads = 2 * group;
    p.k_dim = p.v_dim = dim;
    return p;
}

// Pages [first, first + count).
std::vector<int32_t> pages_from(int32_t first, int64_t count) {
    std::vector<int32_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    return ids;
}

// Sequences whose page tables begin with contents 0, 1, ... of `prefix_pages` pages and go on with pages of their own.
std::vector<member> forks(int32_t sequences, int32_t prefix_pages, int64_t own_tokens, int32_t page_tokens = 64) {
    std::vector<member> batch;
    int32_t next = prefix_pages;
    for (int32_t s = 0; s < sequences; ++s) {
        member m{1, int64_t{prefix_pages} * page_tokens + own_tokens, pages_from(0, prefix_pages)};
        for (int64_t i = 0; i < own_tokens; i += page_tokens) m.pages.push_back(next++);
        batch.push_back(std::move(m));
    }
    return batch;
}

int32_t most_blocks(const attention_plan& plan) {
    int32_t most = 0;
    for (const auto& item : plan.internals()->items) most = std::max(most, item.count);
    return most;
}

// How often the items of a plan read each (page, KV head).
std::map<std::pair<int32_t, int32_t>, int> reads_of(const attention_plan& plan) {
    std::map<std::pair<int32_t, int32_t>, int> reads;
    const attention_plan::state& state = *plan.internals();
    const int64_t page_tokens = state.shape.page_tokens;
    for (const auto& item : state.items) {
        const auto& block = state.blocks[static_cast<std::size_t>(item.block)];
        const int64_t end = std::min<int64_t>(item.chunk_last * simd::chunk_tokens, block.rows.kv_len);
        for (int64_t token = item.chunk_first * simd::chunk_tokens; token < end; token += page_tokens) {
            ++reads[{state.page_ids[static_cast<std::size_t>(block.page_first + token / page_tokens)], block.rows.kv_head}];
        }
    }
    return reads;
}

// Same bits as alone, with 1 and 5 threads, and in the reverse order of sequences.
void expect_same_bits(const pool& kv, const std::vector<member>& batch) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const output alone = kv.alone(batch);
    for (const int32_t threads : {1, 5}) {
        SCOPED_TRACE(testing::Message() << threads << " threads");
        thread_executor on(threads);
        const attention_plan plan = kv.plan(batch, threads);
        EXPECT_GT(most_blocks(plan), 1) << "nothing is shared: the test proves nothing";
        EXPECT_TRUE(kv.run(plan, 0, on) == alone);
    }
}

class cascade_types : public testing::TestWithParam<std::tuple<dtype, int32_t>> {};

// 1100 shared tokens: two chunks and a piece, which is read by each for itself.
TEST_P(cascade_types, shared_prefix_has_the_bits_of_each_sequence_alone) {
    const auto& [type, group] = GetParam();
    for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
        const attention_problem base = problem(group, 32);
        attention_problem p = base;
        p.q_type = q_type;
        p.precision = q_type == dtype::bf16 ? attention_precision::fast : attention_precision::standard;
        const pool kv(p, type, 200);
        for (const int32_t sequences : q_type == dtype::bf16 ? std::vector{7} : group == 4 ? std::vector{2, 40} : std::vector{2, 13}) {
            SCOPED_TRACE(testing::Message() << name(q_type) << ", " << sequences << " sequences");
            std::vector<member> batch = forks(sequences, 17, 12);
            for (std::size_t s = 0; s < batch.size(); ++s) {
                batch[s].q_len = group == 1 ? 1 + static_cast<int64_t>(s % 5) : 1 + static_cast<int64_t>(s % 2);
                batch[s].kv_len += static_cast<int64_t>(s % 50);
            }
            batch.insert(batch.begin() + 1, member{120, 700, pages_from(100, 11)});  // a prefill that shares nothing
            batch.push_back(member{1, 30, pages_from(150, 1)});
            batch.push_back(member{0, 900, pages_from(0, 15)});
            expect_same_bits(kv, batch);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(all, cascade_types,
                         testing::Combine(testing::Values(dtype::fp32, dtype::bf16, dtype::fp16, dtype::int8, dtype::int4, dtype::fp8),
                                          testing::Values(1, 4, 7, 8)));

// A, B share three chunks, A, B, C, D one, D and E the second page only, C and F nothing; pages of 256, 64 and 16 tokens.
TEST(cascade, branches_have_the_bits_of_each_sequence_alone) {
    for (const int32_t page_tokens : {16, 64, 256}) {
        SCOPED_TRACE(page_tokens);
        const int32_t chunk = 512 / page_tokens;
        const auto table = [&](std::initializer_list<int32_t> chunks) {
            std::vector<int32_t> ids;
            for (const int32_t c : chunks) {
                for (const int32_t id : pages_from(c * chunk, chunk)) ids.push_back(id);
            }
            return ids;
        };
        std::vector<member> batch{{2, 2040, table({0, 1, 2, 3})},  {1, 2001, table({4, 5, 6, 7})},  {1, 1900, table({0, 1, 2, 8})},
                                  {3, 1030, table({0, 9, 10})},    {1, 1536, table({0, 9, 2})},     {1, 1536, table({0, 1, 2})},
                                  {1, 1700, table({4, 5, 6, 11})}, {1, 1700, table({12, 1, 2, 11})}};
        batch.back().pages[0] = 0;  // the first page, not the first chunk
        const pool kv(problem(4), dtype::bf16, 13 * chunk, 3, page_tokens);
        expect_same_bits(kv, batch);
        for (const auto& [page, count] : reads_of(kv.plan(batch, 1))) {
            const auto content = std::ranges::find(kv.place, page.first) - kv.place.begin();
            const auto c = static_cast<int32_t>(content / chunk);
            // Chunk 2 follows 0 1, 0 9 and 12 1; chunk 1 follows 0 and 12; chunk 11 follows two; the first page is that of one more.
            const int expected = (c == 2 ? 3 : c == 1 || c == 11 ? 2 : 1) + (content == 0 && chunk > 1 ? 1 : 0);
            EXPECT_EQ(count, expected) << "content " << content;
        }
    }
}

TEST(cascade, masks_and_biases_have_the_bits_of_each_sequence_alone) {
    std::vector<float> slopes, sinks;
    for (int h = 0; h < 8; ++h) {
        slopes.push_back(0.01f * static_cast<float>(h + 1));
        sinks.push_back(static_cast<float>(h) - 3.0f);
    }
    std::vector<member> batch = forks(9, 32, 70);
    for (std::size_t s = 0; s < batch.size(); ++s) {
        batch[s].q_len = 1 + static_cast<int64_t>(s % 3);
        batch[s].kv_len -= static_cast<int64_t>(s % 4);
    }
    batch[3].q_start = 600;  // sees half of what it shares, some rows less than others
    batch[4].q_start = 510;
    batch[4].q_len = 4;
    batch[5].q_start = -5;  // sees nothing
    for (const attention_span span : {attention_span::causal(), attention_span::full(), attention_span::sliding_window(1000),
                                      attention_span::sliding_window(1537), attention_span::symmetric(700)}) {
        for (const int feature : {0, 1, 2, 3}) {
            SCOPED_TRACE(testing::Message() << "left " << span.left << " right " << span.right << " feature " << feature);
            attention_problem p = problem(4);
            p.span = span;
            if (feature == 1) p.alibi_slopes = slopes.data();
            if (feature == 2) p.sinks = sinks.data();
            if (feature == 3) p.softcap = 20.0f;
            expect_same_bits(pool(p, dtype::fp32, 60), batch);
        }
    }
}

// One row of the pass sees an infinite value, its neighbour does not: the neighbour's result stays finite and the same.
// Trees beside plain decode; then drafts that end where a shared chunk ends, whose pages are the same for all: that chunk is nobody's but theirs.
TEST(cascade, trees_have_the_bits_of_each_sequence_alone) {
    attention_problem p = problem(2);
    const std::vector<float> slopes{0.5f, 0.25f, 0.125f, 0.0625f};
    p.alibi_slopes = slopes.data();
    for (const attention_span span : {attention_span::causal(), attention_span::sliding_window(700)}) {
        p.span = span;
        const pool kv(p, dtype::bf16, 40);
        std::vector<member> batch = forks(4, 16, 100);
        for (const std::size_t s : {1, 2}) {
            batch[s].q_len = 5;
            batch[s].tree = {0b00001, 0b00011, 0b00101, 0b01000 + s, 0b10011};
        }
        EXPECT_GT(most_blocks(kv.plan(batch, 1)), 1);
        expect_same_bits(kv, batch);
        for (member& m : batch) {
            m.kv_len = 1024;
            m.pages.resize(16);
        }
        const attention_plan same = kv.plan(batch, 1);
        EXPECT_EQ(most_blocks(same), 4);
        for (const auto& item : same.internals()->items) EXPECT_TRUE(item.count < 3 || item.chunk_last == 1);
        expect_same_bits(kv, batch);
    }
}

// Ranges end inside of what is shared; a sequence with a mask reads for itself.
TEST(cascade, ranges_masks_and_tables_have_the_bits_of_each_sequence_alone) {
    std::vector<float> table;
    for (int i = 0; i < 8 * 300; ++i) table.push_back(static_cast<float>(i * 37 % 101) / 50.0f - 1.0f);
    const auto bias = attention_bias::over_distance(table, 8, -290);
    ASSERT_TRUE(bias.ok()) << bias.state().text();
    std::vector<member> batch = forks(7, 32, 70);
    for (std::size_t s = 0; s < batch.size(); ++s) batch[s].q_len = 1 + static_cast<int64_t>(s % 3);
    batch[1].key_first = 300;
    batch[2].key_first = 511;
    batch[3].key_first = 1200;
    batch[4].key_first = 2118;
    for (std::size_t w = 0; w < static_cast<std::size_t>(batch[5].q_len) * 34; ++w) batch[5].mask.push_back(0x123456789abcdefULL * (w + 1));
    for (const attention_span span : {attention_span::causal(), attention_span::chunked(1500), attention_span::chunked(5000)}) {
        attention_problem p = problem(4);
        p.span = span;
        p.bias = &*bias;
        const pool kv(p, dtype::fp32, 60);
        const attention_plan plan = kv.plan(batch, 1);
        for (const auto& item : plan.internals()->items) {
            for (int32_t b = item.block; item.count > 1 && b < item.block + item.count; ++b) {
                EXPECT_EQ(plan.internals()->blocks[static_cast<std::size_t>(b)].rows.drafted, 0);
            }
        }
        expect_same_bits(kv, batch);
    }
}

TEST(cascade, infinite_value_masked_for_one_sequence_only) {
    for (const dtype type : {dtype::fp32, dtype::bf16}) {
        const attention_problem p = problem(4);
        const pool kv(p, type, 24);
        const int64_t dims = int64_t{p.kv_heads} * p.k_dim;
        kv.write(400, 1, tensor::filled(dtype::fp32, dims, 0.5f), tensor::filled(dtype::fp32, dims, std::numeric_limits<float>::infinity()));
        std::vector<member> batch = forks(3, 8, 60);
        batch[1].q_start = 399;
        expect_same_bits(kv, batch);
        const output all = kv.alone(batch);
        const auto row = static_cast<std::size_t>(p.heads * p.v_dim);
        EXPECT_TRUE(std::isinf(all.out[0]));
        EXPECT_TRUE(std::ranges::all_of(std::span(all.out).subspan(row, row), [](float x) { return std::isfinite(x); }));
    }
}

TEST(cascade, bits_do_not_depend_on_where_pages_lie) {
    const std::vector<member> batch = forks(12, 16, 100);
    thread_executor on(2);
    std::optional<output> first;
    for (const uint32_t order : {1, 2, 3}) {
        const pool kv(problem(4), dtype::bf16, 40, order);
        const output got = kv.run(kv.plan(batch, 2), 0, on);
        if (!first) first = got;
        EXPECT_TRUE(got == *first) << "order " << order << ", seed " << seed;
    }
}

TEST(cascade, shared_pages_are_read_and_counted_once) {
    const pool kv(problem(4), dtype::bf16, 160);
    const std::vector<member> batch = forks(20, 64, 64);
    const attention_plan plan = kv.plan(batch, 2), one = kv.plan({batch.data(), 1}, 2);
    for (const auto& [page, count] : reads_of(plan)) EXPECT_EQ(count, 1) << "page " << page.first << " head " << page.second;
    const int64_t token = one.kv_bytes() / batch[0].kv_len;
    EXPECT_EQ(plan.kv_bytes(), (4096 + 20 * 64) * token);
    EXPECT_EQ(plan.flops(), 20 * one.flops());
}

// 32 sequences of 4 rows are two passes of 64 rows, not one of 96 and one of 32.
TEST(cascade, many_rows_are_cut_evenly) {
    const pool kv(problem(4), dtype::bf16, 64);
    const attention_plan plan = kv.plan(forks(32, 8, 64), 1);
    for (const auto& item : plan.internals()->items) EXPECT_TRUE(item.count == 1 || item.count == 16) << item.count;
    for (const auto& [page, count] : reads_of(plan)) EXPECT_LE(count, 2);
}

// Long prefills have rows enough of their own; what is not shared is planned as if alone.
TEST(cascade, prefills_and_strangers_are_not_shared) {
    const pool kv(problem(4), dtype::bf16, 64);
    std::vector<member> batch = forks(2, 16, 64);
    batch[0].q_len = 100;
    EXPECT_EQ(most_blocks(kv.plan(batch, 2)), 1);
    batch = forks(2, 7, 64);  // one token short of a chunk
    batch[0].kv_len = 511;
    EXPECT_EQ(most_blocks(kv.plan(batch, 2)), 1);
    batch = {{1, 600, pages_from(0, 10)}, {1, 600, pages_from(10, 10)}};
    EXPECT_EQ(most_blocks(kv.plan(batch, 2)), 1);
}

// As an engine does it: fork, append a few tokens to each, attend over batch().
TEST(cascade, forks_of_a_cache_read_their_prefix_once) {
    const attention_problem p = problem(4);
    kv_cache cache = std::move(*kv_cache::create({layout_of(p, dtype::bf16, dtype::bf16, 64), 1, 64, {}}));
    std::mt19937 generator(seed);
    serial_executor serial;
    const auto append = [&](sequence_id id, int64_t tokens) {
        std::vector<int64_t> slots(static_cast<std::size_t>(tokens));
        const kv_cache::append_request request{id, tokens};
        ASSERT_TRUE(cache.append({&request, 1}, slots, {}).ok());
        const tensor k = tensor::random(dtype::fp32, tokens * p.kv_heads * p.k_dim, generator), v = k;
        ASSERT_TRUE(kv_append(cache.pages(0), slots, dense_view(static_cast<const void*>(k.bytes.data()), dtype::fp32, tokens, p.kv_heads, p.k_dim),
                              dense_view(static_cast<const void*>(v.bytes.data()), dtype::fp32, tokens, p.kv_heads, p.v_dim), {}, serial)
                        .ok());
    };
    std::vector<sequence_id> ids{*cache.create_sequence()};
    append(ids[0], 1050);
    for (int i = 0; i < 5; ++i) ids.push_back(*cache.fork(ids[0]));
    for (std::size_t i = 0; i < ids.size(); ++i) append(ids[i], 1 + static_cast<int64_t>(i));
    const std::vector<int64_t> q_lens(ids.size(), 1);
    const tensor q = tensor::random(dtype::fp32, static_cast<int64_t>(ids.size()) * p.heads * p.k_dim, generator);

    const auto attend = [&](std::size_t first, std::size_t count, output& result) {
        kv_cache::batch_storage storage;
        const auto batch = cache.batch(std::span(ids).subspan(first, count), std::span(q_lens).subspan(first, count), storage);
        ASSERT_TRUE(batch.ok());
        attention_plan plan;
        ASSERT_TRUE(plan.build(p, *batch, cache.layout(), 64, 2).ok());
        EXPECT_EQ(most_blocks(plan), static_cast<int32_t>(count));
        auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
        const auto tokens = static_cast<int64_t>(count);
        const auto row = static_cast<std::size_t>(p.heads * p.k_dim);
        result.out.resize(count * row);
        result.lse.resize(count * static_cast<std::size_t>(p.heads));
        const const_head_view q_view = dense_view(static_cast<const void*>(q.bytes.data() + first * row * 4), dtype::fp32, tokens, p.heads, p.k_dim);
        const head_view out = dense_view(static_cast<void*>(result.out.data()), dtype::fp32, tokens, p.heads, p.v_dim);
        ASSERT_TRUE(run(plan, q_view, cache.pages(0), out, result.lse, workspace.bytes(), serial).ok());
    };
    output together, alone, one;
    attend(0, ids.size(), together);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        attend(i, 1, one);
        alone.out.insert(alone.out.end(), one.out.begin(), one.out.end());
        alone.lse.insert(alone.lse.end(), one.lse.begin(), one.lse.end());
    }
    EXPECT_TRUE(together == alone) << "seed " << seed;
}

TEST(cascade, run_allocates_nothing) {
    const pool kv(problem(4), dtype::bf16, 64);
    const attention_plan plan = kv.plan(forks(9, 16, 64), 1);
    const auto tokens = static_cast<std::size_t>(plan.q_tokens());
    std::vector<float> out(tokens * static_cast<std::size_t>(kv.p.heads * kv.p.v_dim));
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    serial_executor serial;
    const int64_t before = allocation_count();
    const status ran =
        run(plan, dense_view(static_cast<const void*>(kv.q.bytes.data()), dtype::fp32, plan.q_tokens(), kv.p.heads, kv.p.k_dim), kv.pages(),
            dense_view(static_cast<void*>(out.data()), dtype::fp32, plan.q_tokens(), kv.p.heads, kv.p.v_dim), {}, workspace.bytes(), serial);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(ran.ok()) << ran.text();
}

// Neither does a plan that is built again for the same batch.
TEST(cascade, rebuilding_allocates_nothing) {
    const std::vector<member> batch = forks(9, 16, 64);
    const attention_problem p = problem(4);
    batch_tables t;
    for (const member& m : batch) {
        t.q_indptr.push_back(t.q_indptr.back() + 1);
        t.kv_lens.push_back(m.kv_len);
        t.page_ids.insert(t.page_ids.end(), m.pages.begin(), m.pages.end());
        t.page_indptr.push_back(static_cast<int64_t>(t.page_ids.size()));
    }
    const attention_batch tables{t.q_indptr, t.kv_lens, {}, t.page_indptr, t.page_ids, {}};
    const kv_layout layout = layout_of(p, dtype::bf16, dtype::bf16, 64);
    attention_plan plan;
    ASSERT_TRUE(plan.build(p, tables, layout, 64, 2).ok());
    const int64_t before = allocation_count();
    const status again = plan.build(p, tables, layout, 64, 2);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(again.ok()) << again.text();
}

}  // namespace
}  // namespace ropewalk::test
