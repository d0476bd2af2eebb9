// Pages in which V is the first dims of K (kv_layout::v_in_k): multi-head latent attention in absorbed form.
#include <string_view>

#include "tests/attention_fixture.hpp"
#include "tests/elements.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct latent_shape {
    int32_t heads, kv_heads, k_dim, v_dim;
};
constexpr latent_shape shapes[] = {{128, 1, 576, 512}, {16, 1, 576, 512}, {5, 1, 40, 40},   {6, 2, 72, 40},
                                   {9, 1, 72, 72},     {3, 1, 33, 17},    {20, 1, 320, 256}};

attention_problem problem(const latent_shape& shape, dtype q_type = dtype::fp32) {
    attention_problem p;
    p.heads = shape.heads;
    p.kv_heads = shape.kv_heads;
    p.k_dim = shape.k_dim;
    p.v_dim = shape.v_dim;
    p.q_type = q_type;
    return p;
}

// V becomes the first dims of K.
void view_values(const attention_problem& p, sequence_input& s) {
    std::vector<float> values;
    for (int64_t row = 0; row < s.kv_len * p.kv_heads; ++row) {
        const auto first = s.k.value.begin() + row * p.k_dim;
        values.insert(values.end(), first, first + p.v_dim);
    }
    s.v = tensor::of(s.k.type, std::move(values));
}

using lengths = std::vector<std::pair<int64_t, int64_t>>;  // q_len, kv_len
std::vector<sequence_input> latent_batch(const attention_problem& p, dtype type, const lengths& sizes, std::mt19937& generator) {
    std::vector<sequence_input> batch;
    for (const auto& [q_len, kv_len] : sizes) {
        batch.push_back(sequence_input::random(p, type, type, q_len, kv_len, generator));
        view_values(p, batch.back());
    }
    return batch;
}

class v_in_k : public testing::Test {
protected:
    static constexpr uint32_t seed = 17;
    std::mt19937 generator{seed};
    testing::ScopedTrace trace{__FILE__, __LINE__, "seed 17"};
};

kv_layout latent_layout(dtype type = dtype::bf16) {
    kv_layout layout{.k_type = type, .v_type = type, .kv_heads = 1, .k_dim = 576, .v_dim = 512};
    layout.v_in_k = true;
    return layout;
}

TEST_F(v_in_k, has_the_bits_of_pages_that_store_v_and_matches_the_definition) {
    for (const latent_shape& shape : shapes) {
        for (const dtype type : all_types) {
            for (const dtype q_type : {dtype::fp32, dtype::bf16}) {
                const attention_problem p = problem(shape, q_type);
                const lengths sizes = shape.heads > 64 ? lengths{{1, 150}} : lengths{{1, 1}, {1, 150}, {2, 131}, {7, 23}};
                const auto batch = latent_batch(p, type, sizes, generator);
                for (const int32_t page_tokens : {16, 64}) {
                    SCOPED_TRACE(testing::Message() << shape.heads << "x" << shape.kv_heads << "x" << shape.k_dim << "x" << shape.v_dim << " "
                                                    << name(type) << " q " << name(q_type) << " pages of " << page_tokens);
                    const output got = run_attention(p, batch, {.page_tokens = page_tokens, .v_in_k = true});
                    EXPECT_EQ(got, run_attention(p, batch, {.page_tokens = page_tokens}));
                    if (page_tokens != 64) continue;
                    const error e = compare(p, batch, got);
                    EXPECT_LE(e.out, tolerance(p, type, type)) << "out, worst element " << e.out_at;
                    EXPECT_LE(e.lse, tolerance(p, type, type)) << "lse, worst element " << e.lse_at;
                }
                EXPECT_EQ(run_attention(p, batch, {.v_in_k = true}), run_attention(p, batch, {.page_tokens = 0}));
            }
        }
    }
}

TEST_F(v_in_k, threads_and_splits_do_not_show) {
    const attention_problem p = problem(shapes[0]);
    const auto batch = latent_batch(p, dtype::bf16, {{1, 1300}, {2, 600}}, generator);
    const output alone = run_attention(p, batch, {.v_in_k = true});
    EXPECT_EQ(alone, run_attention(p, batch, {}));
    thread_executor threads(5);
    EXPECT_EQ(alone, run_attention(p, batch, {.concurrency = 5, .on = &threads, .v_in_k = true}));
}

TEST_F(v_in_k, nothing_changes_with_window_softcap_sinks_or_a_tree) {
    attention_problem p = problem({8, 1, 72, 40});
    p.span = attention_span::sliding_window(37);
    p.softcap = 20.0f;
    const std::vector<float> sinks{0.5f, 0.0f, -1.0f, 2.0f, 1.0f, 0.0f, 0.0f, 3.0f};
    p.sinks = sinks.data();
    auto batch = latent_batch(p, dtype::bf16, {{3, 301}, {1, 90}}, generator);
    batch[0].tree = {0b001, 0b011, 0b101};
    EXPECT_EQ(run_attention(p, batch, {.v_in_k = true}), run_attention(p, batch, {}));
}

TEST_F(v_in_k, masked_nan_does_not_leak) {
    attention_problem p = problem({20, 1, 72, 40});
    p.span = attention_span::sliding_window(30);
    auto batch = latent_batch(p, dtype::bf16, {{9, 100}}, generator);
    const output clean = run_attention(p, batch, {.v_in_k = true});
    std::fill_n(batch[0].k.value.begin(), 62 * 72, nan);  // the first row stands at 91 and sees 62 to 91
    batch[0].k = tensor::of(dtype::bf16, std::move(batch[0].k.value));
    EXPECT_EQ(clean, run_attention(p, batch, {.v_in_k = true}));
    // Seen by the first row only.
    batch[0].k.value[62 * 72] = nan;
    batch[0].k = tensor::of(dtype::bf16, std::move(batch[0].k.value));
    const output one = run_attention(p, batch, {.v_in_k = true});
    const std::size_t row = 20 * 40;
    EXPECT_TRUE(std::isnan(one.out[0]));
    EXPECT_TRUE(std::equal(one.out.begin() + row, one.out.end(), clean.out.begin() + row));
}

// Rows 0 .. 63 of a sequence of one shared head, written with the rotation of their last 64 dims.
TEST_F(v_in_k, append_rotates_the_trailing_slice_and_gather_reads_v_from_k) {
    const kv_layout layout = latent_layout(dtype::fp32);
    auto memory = std::move(runtime::mapped_memory::create(2 * layout.page_stride_bytes())).value();
    const kv_pages pages{memory.data(), layout, 2};
    const tensor k = tensor::random(dtype::fp32, 64 * 576, generator);
    const rope_table rope = rope_table::growing(rope_spec::standard(64, 10000.0).value()).value();
    std::vector<int64_t> slots(64), positions(64);
    std::iota(slots.begin(), slots.end(), 40);
    std::iota(positions.begin(), positions.end(), 100);
    const const_head_view k_view = dense_view(static_cast<const void*>(k.bytes.data()), dtype::fp32, 64, 1, 576);
    ASSERT_TRUE(kv_append(pages, slots, k_view, {}, {&rope, positions, {.first_dim = 512}}).ok());

    std::vector<float> expected = k.value, read_k(64 * 576), read_v(64 * 512);
    const head_view rotated = dense_view(static_cast<void*>(expected.data()), dtype::fp32, 64, 1, 576);
    ASSERT_TRUE(rope_apply(rope, positions, rotated, {}, {.first_dim = 512}).ok());
    ASSERT_TRUE(kv_gather(pages, slots, dense_view(static_cast<void*>(read_k.data()), dtype::fp32, 64, 1, 576),
                          dense_view(static_cast<void*>(read_v.data()), dtype::fp32, 64, 1, 512))
                    .ok());
    EXPECT_EQ(read_k, expected);
    EXPECT_NE(read_k, k.value);
    for (std::size_t t = 0; t < 64; ++t) {
        for (std::size_t d = 0; d < 512; ++d) ASSERT_EQ(read_v[t * 512 + d], k.value[t * 576 + d]) << t << " " << d;
    }
}

TEST_F(v_in_k, takes_no_bytes_for_v) {
    const kv_layout layout = latent_layout();
    ASSERT_TRUE(layout.validate().ok());
    EXPECT_EQ(layout.v_part_bytes(), 0);
    EXPECT_EQ(layout.record_bytes(), 64 * 576 * 2);
    EXPECT_EQ(layout.token_bytes(), 1152);
    EXPECT_EQ(kv_cache::required_bytes({.layout = layout, .layers = 3, .page_count = 5, .memory = {}}).value(), 3 * 5 * 64 * 1152);
}

TEST_F(v_in_k, plan_counts_the_bytes_of_k_alone) {
    const std::vector<int64_t> q_indptr{0, 1}, kv_lens{100}, page_indptr{0, 2};
    const std::vector<int32_t> page_ids{1, 0};
    attention_plan plan;
    ASSERT_TRUE(plan.build(problem(shapes[0]), {q_indptr, kv_lens, {}, page_indptr, page_ids, {}}, latent_layout(), 2, 1).ok());
    EXPECT_EQ(plan.kv_bytes(), 100 * 1152);
}

TEST_F(v_in_k, layout_refusals_name_the_rule) {
    const auto refused = [](auto change, const char* text) {
        kv_layout layout = latent_layout();
        change(layout);
        EXPECT_EQ(layout.validate().code(), status_code::invalid_argument);
        EXPECT_TRUE(std::string_view(layout.validate().text()).starts_with(text)) << layout.validate().text();
    };
    refused([](kv_layout& l) { l.v_type = dtype::fp32; }, "layout.v_type is fp32; with v_in_k it must be k_type, bf16");
    refused([](kv_layout& l) { l.k_type = l.v_type = dtype::int8; }, "layout.k_type is int8; with v_in_k it must be fp32, bf16 or fp16");
    refused([](kv_layout& l) { l.v_dim = 577; }, "layout.v_dim is 577; with v_in_k it must be at most k_dim, 576");
    refused([](kv_layout& l) { l.hadamard = true; }, "layout.hadamard is set; with v_in_k it must not be");
}

TEST_F(v_in_k, append_refuses_v_and_changes_nothing) {
    const kv_layout layout = latent_layout();
    auto memory = std::move(runtime::mapped_memory::create(layout.page_stride_bytes())).value();
    const kv_pages pages{memory.data(), layout, 1};
    const std::vector<std::byte> k(576 * 2, std::byte{0x3f});
    const std::vector<int64_t> slots{0};
    const status s = kv_append(pages, slots, dense_view(static_cast<const void*>(k.data()), dtype::bf16, 1, 1, 576),
                               dense_view(static_cast<const void*>(k.data()), dtype::bf16, 1, 1, 512));
    EXPECT_EQ(s.code(), status_code::invalid_argument);
    EXPECT_TRUE(std::string_view(s.text()).starts_with("v.heads is 1; must be 0")) << s.text();
    EXPECT_TRUE(std::ranges::all_of(memory.bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_F(v_in_k, run_refuses_pages_of_the_other_kind) {
    const std::vector<int64_t> q_indptr{0, 0}, kv_lens{0}, page_indptr{0, 0};
    kv_layout built = latent_layout();
    built.head_stride = 2 * built.record_bytes();  // room for V: nothing but v_in_k differs
    kv_layout stored = built;
    stored.v_in_k = false;
    attention_plan plan;
    ASSERT_TRUE(plan.build(problem(shapes[0]), {q_indptr, kv_lens, {}, page_indptr, {}, {}}, built, 1, 1).ok());
    auto memory = std::move(runtime::mapped_memory::create(stored.page_stride_bytes())).value();
    const const_head_view q = dense_view(static_cast<const void*>(memory.data()), dtype::fp32, 0, 128, 576);
    const head_view out = dense_view(static_cast<void*>(memory.data()), dtype::fp32, 0, 128, 512);
    const status s = run(plan, q, {memory.data(), stored, 1}, out, {}, {});
    EXPECT_TRUE(std::string_view(s.text()).starts_with("pages.layout differs")) << s.text();
}

// A fork writes behind a page that it shares, which is copied: K moves, no V follows.
TEST_F(v_in_k, cache_copies_a_shared_page_when_a_fork_writes) {
    kv_cache cache = std::move(kv_cache::create({.layout = latent_layout(dtype::fp32), .layers = 2, .page_count = 4, .memory = {}})).value();
    const sequence_id parent = cache.create_sequence().value();
    const tensor k = tensor::random(dtype::fp32, 20 * 576, generator);
    const auto rows = [&](int64_t first, int64_t count) {
        return dense_view(static_cast<const void*>(k.bytes.data() + first * 576 * 4), dtype::fp32, count, 1, 576);
    };
    std::vector<int64_t> slots(19), positions(19);
    ASSERT_TRUE(cache.append({{{parent, 19}}}, slots, positions).ok());
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(kv_append(cache.pages(layer), slots, rows(0, 19), {}).ok());
    const sequence_id child = cache.fork(parent).value();
    std::vector<int64_t> next(1), all(20);
    ASSERT_TRUE(cache.append({{{child, 1}}}, next, std::span(positions).first(1)).ok());
    for (int32_t layer = 0; layer < 2; ++layer) ASSERT_TRUE(kv_append(cache.pages(layer), next, rows(19, 1), {}).ok());
    ASSERT_TRUE(cache.slots(child, 0, all).ok());
    ASSERT_NE(all[0], slots[0]);
    for (int32_t layer = 0; layer < 2; ++layer) {
        std::vector<float> read(20 * 512);
        ASSERT_TRUE(kv_gather(cache.pages(layer), all, {}, dense_view(static_cast<void*>(read.data()), dtype::fp32, 20, 1, 512)).ok());
        for (std::size_t t = 0; t < 20; ++t) {
            for (std::size_t d = 0; d < 512; ++d) ASSERT_EQ(read[t * 512 + d], k.value[t * 576 + d]) << layer << " " << t << " " << d;
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
