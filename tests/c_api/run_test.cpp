// Attention over memory of the caller through the C ABI: same bits as through the C++ API, whatever is added to scores or hides keys.
#include "tests/c_api/handles.hpp"

#include <array>
#include <cstring>
#include <new>

#include <ropewalk/ropewalk.hpp>
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

constexpr int32_t heads = 4, kv_heads = 2, dim = 32;
constexpr int64_t q_tokens = 7, keys = 70;

struct free_aligned {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{64}); }
};
using aligned_memory = std::unique_ptr<void, free_aligned>;
aligned_memory aligned(std::size_t bytes) { return aligned_memory(::operator new (bytes, std::align_val_t{64})); }

class c_attention : public seeded {
protected:
    std::vector<float> q = random_floats(q_tokens * heads * dim), k = random_floats(keys * kv_heads * dim), v = random_floats(keys * kv_heads * dim);
    const const_head_view q_view = view(q, q_tokens, heads), k_view = view(k, keys, kv_heads), v_view = view(v, keys, kv_heads);
    const ropewalk_tensor c_q = tensor_of(q_view), c_k = tensor_of(k_view), c_v = tensor_of(v_view);
    // One sequence: 7 queries at the end of 70 keys.
    const std::array<int64_t, 2> q_indptr{0, q_tokens}, kv_indptr{0, keys};
    const int64_t kv_len = keys;
    attention_problem problem;
    attention_batch batch;
    ropewalk_attention_problem c_problem = ropewalk_attention_problem_init();
    ropewalk_attention_batch c_batch = ropewalk_attention_batch_init();

    c_attention() {
        problem.heads = c_problem.heads = heads;
        problem.kv_heads = c_problem.kv_heads = kv_heads;
        problem.k_dim = c_problem.k_dim = problem.v_dim = c_problem.v_dim = dim;
        batch.q_indptr = q_indptr;
        batch.kv_lens = {&kv_len, 1};
        batch.kv_indptr = kv_indptr;
        c_batch.sequences = 1;
        c_batch.q_indptr = q_indptr.data();
        c_batch.kv_lens = &kv_len;
        c_batch.kv_indptr = kv_indptr.data();
    }

    std::vector<float> random_floats(int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& x : values) x = normal();
        return values;
    }
    static const_head_view view(const std::vector<float>& data, int64_t tokens, int32_t h) {
        return dense_view(static_cast<const void*>(data.data()), dtype::fp32, tokens, h, dim);
    }

    struct output {
        std::vector<float> out = std::vector<float>(q_tokens * heads * dim), lse = std::vector<float>(q_tokens * heads);
        bool operator==(const output&) const = default;
        head_view view() { return dense_view(static_cast<void*>(out.data()), dtype::fp32, q_tokens, heads, dim); }
    };

    output cpp_run(const attention_layer& layer = {}) {
        attention_plan plan;
        const status built = plan.build(problem, batch, dtype::fp32, dtype::fp32);
        EXPECT_TRUE(built.ok()) << built.text();
        const aligned_memory workspace = aligned(plan.workspace_bytes());
        output o;
        const status ran =
            run(plan, q_view, k_view, v_view, o.view(), o.lse, {static_cast<std::byte*>(workspace.get()), plan.workspace_bytes()}, layer);
        EXPECT_TRUE(ran.ok()) << ran.text();
        return o;
    }

    output c_run(const ropewalk_attention_layer* layer = nullptr) {
        const c_plan plan = empty_plan();
        expect_ok(ropewalk_attention_plan_build_plain(plan.get(), &c_problem, &c_batch, ROPEWALK_FP32, ROPEWALK_FP32, 0));
        ropewalk_attention_plan_info info = ropewalk_attention_plan_info_init();
        expect_ok(ropewalk_attention_plan_get_info(plan.get(), &info));
        const aligned_memory workspace = aligned(info.workspace_bytes);
        output o;
        const ropewalk_tensor out = tensor_of(o.view());
        expect_ok(ropewalk_run_plain(plan.get(), &c_q, &c_k, &c_v, &out, o.lse.data(), o.lse.size(), workspace.get(), info.workspace_bytes, layer,
                                     nullptr));
        return o;
    }

    // Same bits, and other bits than those of attention without what the test adds.
    void expect_same(const attention_layer& layer = {}, const ropewalk_attention_layer* c_layer = nullptr) {
        const output got = c_run(c_layer), expected = cpp_run(layer);
        EXPECT_TRUE(got == expected);
        attention_problem without = problem;
        without.alibi_slopes = without.sinks = nullptr;
        without.bias = nullptr;
        without.relative = nullptr;
        without.span = {};
        without.softcap = without.scale = 0.0f;
        std::swap(without, problem);
        attention_batch bare;
        bare.q_indptr = batch.q_indptr;
        bare.kv_lens = batch.kv_lens;
        bare.kv_indptr = batch.kv_indptr;
        std::swap(bare, batch);
        EXPECT_FALSE(cpp_run() == expected);
        std::swap(bare, batch);
        std::swap(without, problem);
    }
};

TEST_F(c_attention, numbers_of_the_problem) {
    problem.scale = c_problem.scale = 0.3f;
    problem.softcap = c_problem.softcap = 5.0f;
    problem.span = attention_span::sliding_window(20);
    c_problem.span_left = 19;
    const std::vector<float> sinks = random_floats(heads);
    problem.sinks = c_problem.sinks = sinks.data();
    expect_same();
}

TEST_F(c_attention, alibi_in_its_place) {
    std::vector<float> slopes(heads), cpp_slopes(heads);
    expect_ok(ropewalk_alibi_slopes(slopes.data(), slopes.size(), ROPEWALK_ALIBI_MPT, 6.0));
    ASSERT_TRUE(alibi_slopes(cpp_slopes, alibi_rule::mpt, 6.0).ok());
    EXPECT_EQ(slopes, cpp_slopes);
    problem.alibi_slopes = c_problem.alibi_slopes = slopes.data();
    problem.place = bias_place::before_scale;
    c_problem.place = ROPEWALK_BIAS_BEFORE_SCALE;
    expect_same();
}

TEST_F(c_attention, bias_and_its_replacement_in_a_layer) {
    const std::vector<float> table = random_floats(heads * 40), other = random_floats(heads * 40);
    const attention_bias bias = attention_bias::over_distance(table, heads, -30).value(),
                         layer = attention_bias::over_distance(other, heads, -30).value();
    const auto make_bias = [](const std::vector<float>& t) {
        return make<c_bias>([&](auto** out) { return ropewalk_attention_bias_over_distance(t.data(), t.size(), heads, -30, out); });
    };
    const c_bias first = make_bias(table), second = make_bias(other);
    int32_t count = 0;
    expect_ok(ropewalk_attention_bias_heads(first.get(), &count));
    EXPECT_EQ(count, heads);
    problem.bias = &bias;
    c_problem.bias = first.get();
    expect_same();
    ropewalk_attention_layer c_layer = ropewalk_attention_layer_init();
    c_layer.bias = second.get();
    expect_same({.bias = &layer, .relative = nullptr}, &c_layer);
}

TEST_F(c_attention, biases_of_every_form) {
    const auto expect_bias = [&](const c_bias& c, const attention_bias& cpp) {
        problem.bias = &cpp;
        c_problem.bias = c.get();
        expect_same();
    };
    const std::vector<float> rows = random_floats(q_tokens * heads * keys);
    expect_bias(
        make<c_bias>([&](auto** out) { return ropewalk_attention_bias_of_rows(rows.data(), q_tokens, heads, keys, heads * keys, keys, out); }),
        attention_bias::of_rows(rows.data(), q_tokens, heads, keys, heads * keys, keys).value());
    const std::vector<float> grid = random_floats((2 * 10 - 1) * (2 * 7 - 1) * heads + 3 * heads);
    expect_bias(make<c_bias>([&](auto** out) { return ropewalk_attention_bias_over_grid(grid.data(), grid.size(), heads, 10, 7, 1, out); }),
                attention_bias::over_grid(grid, heads, 10, 7, true).value());
    const std::vector<float> weight = random_floats(16 * heads);
    ropewalk_t5_bucket_rule rule = ropewalk_t5_bucket_rule_init();
    rule.num_buckets = 16;
    rule.bidirectional = 0;
    expect_bias(make<c_bias>([&](auto** out) { return ropewalk_attention_bias_t5(weight.data(), weight.size(), heads, &rule, out); }),
                t5_bias(weight, heads, {16, 128, false}).value());
    const std::vector<float> r1(heads, 0.5f), r2{0.1f, 0.2f, 0.3f, 0.4f};
    expect_bias(make<c_bias>([&](auto** out) { return ropewalk_attention_bias_kerple(r1.data(), r2.data(), heads, 100, out); }),
                kerple_bias(r1, r2, 100).value());
}

TEST_F(c_attention, tree_of_drafts) {
    const std::vector<uint64_t> tree{1, 3, 5, 11, 19, 37, 65};  // parents: -, 0, 0, 1, 1, 2, 0
    const std::array<int64_t, 2> tree_indptr{0, q_tokens};
    batch.tree_masks = tree;
    batch.tree_indptr = tree_indptr;
    c_batch.tree_masks = tree.data();
    c_batch.tree_masks_count = tree.size();
    c_batch.tree_indptr = tree_indptr.data();
    expect_same();
}

TEST_F(c_attention, key_masks_and_ranges) {
    std::vector<uint64_t> masks(q_tokens * 2);
    for (uint64_t& word : masks) word = random() | 1;
    const std::array<int64_t, 2> mask_indptr{0, q_tokens * 2};
    const std::vector<int64_t> first{0, 3, 0, 5, 0, 0, 60}, last{70, 70, 20, 70, 0, 70, 70};
    batch.key_masks = masks;
    batch.key_mask_indptr = mask_indptr;
    batch.key_first = first;
    batch.key_last = last;
    c_batch.key_masks = masks.data();
    c_batch.key_masks_count = masks.size();
    c_batch.key_mask_indptr = mask_indptr.data();
    c_batch.q_tokens = q_tokens;
    c_batch.key_first = first.data();
    c_batch.key_last = last.data();
    expect_same();
}

TEST_F(c_attention, relative_terms_of_a_layer) {
    const relative_terms terms{true, true, true, relative_index::shaw(8, 8).value()};
    const c_index index = make<c_index>([](auto** out) { return ropewalk_relative_index_shaw(8, 8, out); });
    const c_terms c_term = make<c_terms>([&](auto** out) { return ropewalk_relative_terms_create(1, 1, 1, index.get(), out); });
    problem.relative = &terms;
    c_problem.relative = c_term.get();
    std::vector<uint8_t> q_segments(q_tokens, 1), k_segments(keys, 0);
    k_segments.back() = 1;
    batch.q_segments = q_segments;
    batch.k_segments = k_segments;
    c_batch.q_tokens = q_tokens;
    c_batch.q_segments = q_segments.data();
    c_batch.k_segments = k_segments.data();
    c_batch.k_segments_count = k_segments.size();

    const std::vector<float> r = random_floats(17 * heads * dim), e = random_floats(2 * dim), u = random_floats(heads * dim);
    relative_tensors tensors;
    tensors.rows = tensors.columns = view(r, 17, heads);
    tensors.segments = view(e, 2, 1);
    tensors.content_bias = tensors.position_bias = tensors.segment_bias = view(u, 1, heads);
    const ropewalk_tensor c_r = tensor_of(tensors.rows), c_e = tensor_of(tensors.segments), c_u = tensor_of(tensors.content_bias);
    ropewalk_relative_tensors c_tensors = ropewalk_relative_tensors_init();
    c_tensors.rows = c_tensors.columns = &c_r;
    c_tensors.segments = &c_e;
    c_tensors.content_bias = c_tensors.position_bias = c_tensors.segment_bias = &c_u;
    ropewalk_attention_layer c_layer = ropewalk_attention_layer_init();
    c_layer.relative = &c_tensors;
    expect_same({.bias = nullptr, .relative = &tensors}, &c_layer);
}

// Keys [0, 40) and [40, 70) apart, merged; and what merge() makes of the same parts in C++.
TEST_F(c_attention, merge_of_two_parts) {
    const std::vector<int64_t> cut(q_tokens, 40);
    c_batch.q_tokens = q_tokens;
    c_batch.key_last = cut.data();
    output a = c_run();
    c_batch.key_last = nullptr;
    c_batch.key_first = cut.data();
    output b = c_run(), merged, expected;
    const ropewalk_tensor a_view = tensor_of(a.view()), b_view = tensor_of(b.view()), out = tensor_of(merged.view());
    expect_ok(ropewalk_merge(&a_view, a.lse.data(), &b_view, b.lse.data(), &out, merged.lse.data(), merged.lse.size()));
    ASSERT_TRUE(merge(a.view(), a.lse, b.view(), b.lse, expected.view(), expected.lse).ok());
    EXPECT_TRUE(merged == expected);
}

// An engine with block tables of its own: pages in its memory, written, read back, moved and read by attention.
TEST_F(c_attention, pages_of_the_caller) {
    kv_layout layout;
    layout.k_type = layout.v_type = dtype::fp32;
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    layout.page_tokens = 32;
    ropewalk_kv_layout c_layout = ropewalk_kv_layout_init();
    c_layout.k_type = c_layout.v_type = ROPEWALK_FP32;
    c_layout.kv_heads = kv_heads;
    c_layout.k_dim = c_layout.v_dim = dim;
    c_layout.page_tokens = 32;
    ropewalk_kv_sizes sizes = ropewalk_kv_sizes_init();
    expect_ok(ropewalk_kv_layout_sizes(&c_layout, &sizes));
    ASSERT_EQ(sizes.page_stride_bytes, layout.page_stride_bytes());

    const std::vector<int32_t> ids{2, 0, 3};
    const std::array<int64_t, 2> page_indptr{0, 3};
    std::vector<int64_t> slots, positions, deltas(keys, 5);
    for (int64_t i = 0; i < keys; ++i) {
        slots.push_back(ids[static_cast<std::size_t>(i / 32)] * 32 + i % 32);
        positions.push_back(i);
    }
    const auto bytes = static_cast<std::size_t>(4 * layout.page_stride_bytes());
    const aligned_memory c_memory = aligned(bytes), memory = aligned(bytes);
    std::memset(c_memory.get(), 0, bytes);
    std::memset(memory.get(), 0, bytes);
    const kv_pages pages{static_cast<std::byte*>(memory.get()), layout, 4};
    ropewalk_kv_pages c_pages = ropewalk_kv_pages_init();
    c_pages.base = c_memory.get();
    c_pages.count = 4;
    c_pages.layout = &c_layout;

    const c_table from = standard_table(dim);
    const c_spec slower = make<c_spec>([](auto** out) { return ropewalk_rope_spec_linear(dim, 10000.0, 2.0, ROPEWALK_PHASES_EXACT, out); });
    const c_table to = make<c_table>([&](auto** out) { return ropewalk_rope_table_fixed(slower.get(), 1000, out); });
    const rope_table table = rope_table::growing(*rope_spec::standard(dim, 10000.0)).value();
    const rope_table slower_table = rope_table::fixed(*rope_spec::linear(dim, 10000.0, 2.0), 1000).value();
    ropewalk_kv_append_rope rope = ropewalk_kv_append_rope_init();
    rope.table = from.get();
    rope.positions = positions.data();
    rope.positions_count = positions.size();
    expect_ok(ropewalk_kv_append(&c_pages, slots.data(), slots.size(), &c_k, &c_v, &rope, nullptr));
    ASSERT_TRUE(kv_append(pages, slots, k_view, v_view, {&table, positions, {}}).ok());
    EXPECT_EQ(std::memcmp(c_memory.get(), memory.get(), bytes), 0);
    expect_ok(ropewalk_kv_shift(&c_pages, slots.data(), slots.size(), deltas.data(), deltas.size(), from.get(), nullptr, nullptr));
    ASSERT_TRUE(kv_shift(pages, slots, deltas, table).ok());
    EXPECT_EQ(std::memcmp(c_memory.get(), memory.get(), bytes), 0);
    expect_ok(ropewalk_kv_rerotate(&c_pages, slots.data(), slots.size(), positions.data(), positions.size(), from.get(), to.get(), nullptr, nullptr));
    ASSERT_TRUE(kv_rerotate(pages, slots, positions, table, slower_table).ok());
    EXPECT_EQ(std::memcmp(c_memory.get(), memory.get(), bytes), 0);

    std::vector<float> read(k.size()), expected(k.size());
    const ropewalk_tensor c_read = ropewalk_tensor_dense(read.data(), ROPEWALK_FP32, keys, kv_heads, dim);
    expect_ok(ropewalk_kv_gather(&c_pages, slots.data(), slots.size(), &c_read, nullptr, nullptr));
    ASSERT_TRUE(kv_gather(pages, slots, dense_view(static_cast<void*>(expected.data()), dtype::fp32, keys, kv_heads, dim), {}).ok());
    EXPECT_EQ(read, expected);

    c_batch.kv_indptr = nullptr;
    c_batch.page_indptr = page_indptr.data();
    c_batch.page_ids = ids.data();
    c_batch.page_ids_count = ids.size();
    const c_plan plan = empty_plan();
    expect_ok(ropewalk_attention_plan_build_paged(plan.get(), &c_problem, &c_batch, &c_layout, 4, 1));
    ropewalk_attention_plan_info info = ropewalk_attention_plan_info_init();
    expect_ok(ropewalk_attention_plan_get_info(plan.get(), &info));
    const aligned_memory workspace = aligned(info.workspace_bytes);
    output got;
    const ropewalk_tensor out = tensor_of(got.view());
    expect_ok(ropewalk_run_paged(plan.get(), &c_q, &c_pages, &out, got.lse.data(), got.lse.size(), workspace.get(), info.workspace_bytes, nullptr,
                                 ropewalk_executor_serial()));
    k = expected;
    EXPECT_TRUE(got == cpp_run());
}

}  // namespace
}  // namespace ropewalk::test
