// What attention refuses, and that a refused call touches nothing; what is empty but legal; what run() allocates.
#include "tests/allocations.hpp"
#include "tests/attention_fixture.hpp"
#include "tests/results.hpp"

namespace ropewalk::test {
namespace {

// A valid call, piece by piece, so that each test can spoil one.
struct call {
    attention_problem problem;
    std::vector<int64_t> q_indptr{0, 2, 3}, kv_lens{40, 17}, q_starts, page_indptr{0, 3, 5}, kv_indptr;
    std::vector<int32_t> page_ids{4, 0, 2, 1, 3};
    std::vector<uint64_t> tree_masks;
    std::vector<int64_t> tree_indptr;
    std::vector<int64_t> key_first, key_last, key_mask_indptr;
    std::vector<uint64_t> key_masks;
    kv_layout layout;
    int32_t page_count = 5, concurrency = 2;
    std::vector<float> q = std::vector<float>(3 * 4 * 16, 1.0f), out = std::vector<float>(3 * 4 * 16, 7.0f), lse = std::vector<float>(12, 7.0f);
    runtime::mapped_memory memory, workspace;
    attention_plan plan;
    const_head_view q_view;
    head_view out_view;
    kv_pages pages;

    call() {
        problem.heads = 4;
        problem.kv_heads = 2;
        problem.k_dim = problem.v_dim = 16;
        layout = layout_of(problem, dtype::fp32, dtype::fp32, 16);
        memory = std::move(runtime::mapped_memory::create(5 * layout.page_stride_bytes())).value();
        pages = {memory.data(), layout, page_count};
        q_view = dense_view(static_cast<const void*>(q.data()), dtype::fp32, 3, 4, 16);
        out_view = dense_view(static_cast<void*>(out.data()), dtype::fp32, 3, 4, 16);
    }
    attention_batch batch() const {
        return {q_indptr,   kv_lens,     q_starts,  page_indptr, page_ids,  kv_indptr,
                tree_masks, tree_indptr, key_first, key_last,    key_masks, key_mask_indptr};
    }
    status build() { return plan.build(problem, batch(), layout, page_count, concurrency); }
    void expect_built() {
        const status s = build();
        ASSERT_TRUE(s.ok()) << s.text();
        workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    }
    status run_it() { return run(plan, q_view, pages, out_view, lse, workspace.bytes()); }
};

// Spoils the call, expects build() to refuse it and to leave the plan that was there.
template <class Spoil>
void build_refuses(const char* argument, Spoil spoil, status_code code = status_code::invalid_argument) {
    SCOPED_TRACE(argument);
    call c;
    c.expect_built();
    const std::size_t bytes = c.plan.workspace_bytes();
    spoil(c);
    expect_refused(c.build(), code, argument);
    EXPECT_EQ(c.plan.workspace_bytes(), bytes);
}

TEST(attention_errors, problem) {
    build_refuses("problem.heads", [](call& c) { c.problem.heads = 0; });
    build_refuses("problem.heads", [](call& c) { c.problem.heads = 5; });
    build_refuses("problem.kv_heads", [](call& c) { c.problem.kv_heads = -1; });
    build_refuses("problem.k_dim", [](call& c) { c.problem.k_dim = 0; });
    build_refuses("problem.v_dim", [](call& c) { c.problem.v_dim = 1025; });
    build_refuses("problem.q_type", [](call& c) { c.problem.q_type = static_cast<dtype>(9); });
    build_refuses("problem.out_type", [](call& c) { c.problem.out_type = static_cast<dtype>(-1); });
    build_refuses("problem.scale", [](call& c) { c.problem.scale = -1.0f; });
    build_refuses("problem.scale", [](call& c) { c.problem.scale = std::numeric_limits<float>::quiet_NaN(); });
    build_refuses("problem.softcap", [](call& c) { c.problem.softcap = std::numeric_limits<float>::infinity(); });
    build_refuses("problem.span", [](call& c) { c.problem.span.left = -1; });
    build_refuses("problem.span.chunk is -1", [](call& c) { c.problem.span = attention_span::chunked(0); });
    const float bad[4] = {0.5f, 0.5f, std::numeric_limits<float>::infinity(), 0.5f};
    build_refuses("problem.alibi_slopes[2]", [&](call& c) { c.problem.alibi_slopes = bad; });
    build_refuses("problem.sinks[2]", [&](call& c) { c.problem.sinks = bad; });
    build_refuses("concurrency", [](call& c) { c.concurrency = 0; });
}

TEST(attention_errors, batch) {
    build_refuses("q_indptr", [](call& c) { c.q_indptr = {0, 2}; });
    build_refuses("q_indptr", [](call& c) { c.q_indptr.clear(); });
    build_refuses("q_indptr[0]", [](call& c) { c.q_indptr[0] = 1; });
    build_refuses("q_indptr[2]", [](call& c) { c.q_indptr[2] = 1; });
    build_refuses("kv_lens[1]", [](call& c) { c.kv_lens[1] = -1; });
    build_refuses("kv_lens[0]", [](call& c) { c.kv_lens[0] = int64_t{1} << 31; });
    build_refuses("q_starts", [](call& c) { c.q_starts = {1}; });
    build_refuses("q_starts[0]", [](call& c) { c.q_starts = {int64_t{1} << 40, 0}; });
    build_refuses("page_indptr", [](call& c) { c.page_indptr.clear(); });
    build_refuses("kv_indptr", [](call& c) { c.kv_indptr = {0, 40, 57}; });
    build_refuses("page_indptr[2]", [](call& c) { c.page_indptr[2] = 6; });
    build_refuses("pages", [](call& c) { c.page_indptr = {0, 2, 5}; });
    for (const int32_t id : {-1, 5})
        build_refuses(
            "page_ids[3]", [id](call& c) { c.page_ids[3] = id; }, status_code::out_of_range);
    build_refuses("page_count", [](call& c) { c.page_count = -1; });
    build_refuses("layout", [](call& c) { c.layout.k_dim = 32; });
    build_refuses("page_tokens", [](call& c) { c.layout.page_tokens = 24; });
}

TEST(attention_errors, ranges_and_masks) {
    const auto out_of_range = status_code::out_of_range;
    build_refuses("key_first has 2 entries", [](call& c) { c.key_first = {0, 0}; });
    build_refuses("key_last has 4 entries", [](call& c) { c.key_last = {1, 2, 3, 4}; });
    build_refuses(
        "key_first[1] is -1",
        [](call& c) {
            c.key_first = {0, -1, 0};
        },
        out_of_range);
    build_refuses(
        "key_last[2] is 18; must be 0 to kv_len = 17 of sequence 1",
        [](call& c) {
            c.key_last = {40, 40, 18};
        },
        out_of_range);
    build_refuses("key_mask_indptr has 0", [](call& c) { c.key_masks = {1, 1}; });
    build_refuses("key_mask_indptr[1]", [](call& c) { c.key_mask_indptr = {0, 1, 1}; });
    build_refuses("key_mask_indptr gives sequence 0 1 words; must be q_len * ceil(kv_len / 64) = 2", [](call& c) {
        c.key_masks = {1};
        c.key_mask_indptr = {0, 1, 1};
    });
    build_refuses("key_mask_indptr gives sequence 1 a mask", [](call& c) {
        c.key_masks = {1};
        c.key_mask_indptr = {0, 0, 1};
        c.tree_masks = {1};
        c.tree_indptr = {0, 0, 1};
    });
    call c;
    c.key_first = {40, 0, 17};
    c.key_last = {0, 40, 17};
    c.key_masks = {1, 1, ~uint64_t{0}};
    c.key_mask_indptr = {0, 2, 3};
    c.expect_built();
    EXPECT_TRUE(c.run_it().ok());
}

// Two drafts of the first sequence, none of the second.
TEST(attention_errors, trees) {
    const auto refuses = [](const char* argument, auto spoil) {
        build_refuses(argument, [&](call& c) {
            c.tree_masks = {0b01, 0b10};
            c.tree_indptr = {0, 2, 2};
            c.expect_built();
            spoil(c);
        });
    };
    refuses("tree_indptr has 0", [](call& c) { c.tree_indptr.clear(); });
    refuses("tree_indptr has 2", [](call& c) { c.tree_indptr = {0, 2}; });
    refuses("tree_indptr[0]", [](call& c) { c.tree_indptr[0] = 1; });
    refuses("tree_indptr[1]", [](call& c) { c.tree_indptr[1] = 3; });
    refuses("tree_indptr[2]", [](call& c) { c.tree_indptr[2] = 1; });
    refuses("tree_indptr gives sequence 0 1 words", [](call& c) { c.tree_indptr = {0, 1, 1}; });
    refuses("tree_indptr gives sequence 1 2 words", [](call& c) { c.tree_indptr = {0, 0, 2}; });
    refuses("kv_lens[0]", [](call& c) { c.kv_lens[0] = 1; });
    refuses("q_starts[0]", [](call& c) { c.q_starts = {37, 16}; });
    refuses("tree_masks[0] hides", [](call& c) { c.tree_masks[0] = 0b00; });
    refuses("tree_masks[1] hides", [](call& c) { c.tree_masks[1] = 0b01; });
    refuses("tree_masks[0] shows token 0 of sequence 0 drafted key 1", [](call& c) { c.tree_masks[0] = 0b11; });
    refuses("tree_masks[1] shows token 1 of sequence 0 drafted key 63", [](call& c) { c.tree_masks[1] |= uint64_t{1} << 63; });
    call c;
    c.tree_masks = {0b01, 0b10, 0b1};
    c.tree_indptr = {0, 2, 3};
    c.q_starts = {38, 16};
    c.expect_built();
    c.tree_masks.clear();
    c.tree_indptr = {0, 0, 0};
    c.q_starts = {7, 16};  // free again
    c.expect_built();
}

// Rows of 65 tokens have two words: what is above a row's own bit may lie in either.
TEST(attention_errors, trees_of_two_words) {
    for (const auto& [word, argument] : {std::pair{1, "tree_masks[1] shows token 0 of sequence 0 drafted key 127"},
                                         {127, "tree_masks[127] shows token 63 of sequence 0 drafted key 127"},
                                         {129, "tree_masks[129] shows token 64 of sequence 0 drafted key 127"}}) {
        call c;
        c.q_indptr = {0, 65, 66};
        c.kv_lens = {65, 17};
        c.page_indptr = {0, 5, 7};
        c.page_ids = {4, 0, 2, 1, 3, 4, 0};
        c.tree_indptr = {0, 130, 130};
        c.tree_masks.assign(130, 0);
        for (std::size_t i = 0; i < 65; ++i) c.tree_masks[i * 2 + i / 64] = uint64_t{1} << (i % 64);
        c.expect_built();
        c.tree_masks[static_cast<std::size_t>(word)] |= uint64_t{1} << 63;
        expect_refused(c.build(), status_code::invalid_argument, argument);
    }
}

template <class Spoil>
void run_refuses(const char* argument, Spoil spoil, status_code code = status_code::invalid_argument) {
    SCOPED_TRACE(argument);
    call c;
    c.expect_built();
    spoil(c);
    expect_refused(c.run_it(), code, argument);
    for (const float x : c.out) ASSERT_EQ(x, 7.0f);
    for (const float x : c.lse) ASSERT_EQ(x, 7.0f);
}

TEST(attention_errors, run) {
    run_refuses("plan", [](call& c) { c.plan = attention_plan(); });
    run_refuses("q", [](call& c) { c.q_view.data = nullptr; });
    run_refuses("q", [](call& c) { c.q_view.data = reinterpret_cast<const std::byte*>(c.q.data()) + 1; });
    run_refuses("q", [](call& c) { c.q_view.dim_stride = 2; });
    run_refuses("q", [](call& c) { c.q_view.heads = 2; });
    run_refuses("q", [](call& c) { c.q_view.tokens = 2; });
    run_refuses("q", [](call& c) { c.q_view.dim = 8; });
    run_refuses("q.type", [](call& c) { c.q_view.type = dtype::bf16; });
    run_refuses("out", [](call& c) { c.out_view.data = nullptr; });
    run_refuses("out.type", [](call& c) { c.out_view.type = dtype::fp16; });
    run_refuses("out", [](call& c) { c.out_view.token_stride = 0; });
    run_refuses("lse", [](call& c) { c.lse.pop_back(); });
    run_refuses(
        "workspace",
        [](call& c) { c.workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(c.plan.workspace_bytes()) - 1)).value(); },
        status_code::workspace_too_small);
    run_refuses("pages", [](call& c) { c.pages.base = nullptr; });
    run_refuses("pages", [](call& c) { c.pages.base += 4; });
    run_refuses("pages.layout", [](call& c) { c.pages.layout.k_type = dtype::bf16; });
    run_refuses(
        "pages.count", [](call& c) { c.pages.count = 4; }, status_code::out_of_range);
}

TEST(attention_errors, misaligned_workspace) {
    call c;
    c.expect_built();
    const auto larger = std::move(runtime::mapped_memory::create(static_cast<int64_t>(c.plan.workspace_bytes()) + 64)).value();
    expect_refused(run(c.plan, c.q_view, c.pages, c.out_view, c.lse, larger.bytes().subspan(4)), status_code::invalid_argument, "workspace");
}

TEST(attention_errors, pages_for_a_plan_of_plain_keys) {
    call c;
    c.page_indptr.clear();
    c.page_ids.clear();
    c.kv_indptr = {0, 40, 57};
    ASSERT_TRUE(c.plan.build(c.problem, c.batch(), dtype::fp32, dtype::fp32).ok());
    expect_refused(c.run_it(), status_code::invalid_argument, "plan");
}

TEST(attention_errors, plain_keys) {
    call c;
    c.page_indptr.clear();
    c.page_ids.clear();
    c.kv_indptr = {0, 40, 57};
    ASSERT_TRUE(c.plan.build(c.problem, c.batch(), dtype::fp32, dtype::fp32).ok());
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(c.plan.workspace_bytes()))).value();
    std::vector<float> kv(57 * 2 * 16, 0.5f);
    const const_head_view good = dense_view(static_cast<const void*>(kv.data()), dtype::fp32, 57, 2, 16);
    const auto run_with = [&](const const_head_view& k, const const_head_view& v) {
        return run(c.plan, c.q_view, k, v, c.out_view, c.lse, workspace.bytes());
    };
    EXPECT_TRUE(run_with(good, good).ok());
    for (const bool spoil_k : {true, false}) {
        const auto refuse = [&](const char* argument, auto spoil, status_code code = status_code::invalid_argument) {
            const_head_view bad = good;
            spoil(bad);
            expect_refused(spoil_k ? run_with(bad, good) : run_with(good, bad), code, argument);
        };
        const char* argument = spoil_k ? "k" : "v";
        refuse(argument, [](const_head_view& x) { x.data = nullptr; });
        refuse(argument, [](const_head_view& x) { x.dim_stride = 57; });  // d-major (D02)
        refuse(argument, [](const_head_view& x) { x.heads = 1; });
        refuse(argument, [](const_head_view& x) { x.type = dtype::fp16; });
        refuse(
            argument, [](const_head_view& x) { x.tokens = 56; }, status_code::out_of_range);
    }
    c.kv_indptr = {0, 40, 50};
    expect_refused(c.plan.build(c.problem, c.batch(), dtype::fp32, dtype::fp32), status_code::invalid_argument, "kv_indptr");
}

TEST(attention_errors, merge) {
    std::vector<float> a(2 * 3 * 8), lse(6);
    const const_head_view view = dense_view(static_cast<const void*>(a.data()), dtype::fp32, 2, 3, 8);
    const head_view out = dense_view(static_cast<void*>(a.data()), dtype::fp32, 2, 3, 8);
    const const_head_view shorter = dense_view(static_cast<const void*>(a.data()), dtype::fp32, 1, 3, 8);
    expect_refused(merge(view, lse, shorter, lse, out, lse), status_code::invalid_argument, "b");
    expect_refused(merge(view, std::span(lse).first(5), view, lse, out, lse), status_code::invalid_argument, "lse");
    expect_refused(merge({}, {}, view, lse, out, lse), status_code::invalid_argument, "b");
}

// Every extent zero in turn: no signal, nothing written, kv_len 0 gives zeros.
TEST(attention_empty, zero_sizes_D01) {
    call none;
    none.q_indptr = {0};
    none.kv_lens = {};
    none.page_indptr = {0};
    none.page_ids = {};
    none.expect_built();
    none.q_view.tokens = none.out_view.tokens = 0;
    EXPECT_TRUE(run(none.plan, none.q_view, none.pages, none.out_view, {}, none.workspace.bytes()).ok());
    EXPECT_EQ(none.plan.workspace_bytes(), 0u);
    for (const float x : none.out) EXPECT_EQ(x, 7.0f);

    call no_queries;
    no_queries.q_indptr = {0, 0, 0};
    no_queries.expect_built();
    no_queries.q_view.tokens = no_queries.out_view.tokens = 0;
    EXPECT_TRUE(run(no_queries.plan, no_queries.q_view, no_queries.pages, no_queries.out_view, {}, no_queries.workspace.bytes()).ok());

    call no_keys;
    no_keys.kv_lens = {0, 0};
    no_keys.page_indptr = {0, 0, 0};
    no_keys.page_ids = {};
    no_keys.page_count = 0;
    no_keys.expect_built();
    EXPECT_TRUE(no_keys.run_it().ok());
    for (const float x : no_keys.out) EXPECT_EQ(x, 0.0f);
    for (const float x : no_keys.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());
}

TEST(attention_memory, run_allocates_nothing) {
    std::mt19937 generator(1);
    call c;
    c.concurrency = 1;
    c.expect_built();
    serial_executor serial;
    const int64_t before = allocation_count();
    const status s = run(c.plan, c.q_view, c.pages, c.out_view, c.lse, c.workspace.bytes(), serial);
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(s.ok()) << s.text();
}

TEST(attention_memory, a_kept_plan_stops_allocating) {
    call c;
    c.expect_built();
    (void)c.build();
    const int64_t before = allocation_count();
    ASSERT_TRUE(c.build().ok());
    EXPECT_EQ(allocation_count(), before);
}

TEST(attention_memory, a_kept_plan_with_trees_stops_allocating) {
    call c;
    c.tree_masks = {0b01, 0b10, 0b1};
    c.tree_indptr = {0, 2, 3};
    c.expect_built();
    (void)c.build();
    const int64_t before = allocation_count();
    ASSERT_TRUE(c.build().ok());
    EXPECT_EQ(allocation_count(), before);
}

TEST(attention_memory, running_out_is_a_status) {
    for (int64_t granted = 0; granted < 8; ++granted) {
        call c;
        attention_plan plan;
        status s;
        {
            const allocation_limit limit(granted);
            s = plan.build(c.problem, c.batch(), c.layout, c.page_count, 1);
        }
        if (s.ok()) continue;
        EXPECT_EQ(s.code(), status_code::out_of_memory) << s.text();
    }
}

}  // namespace
}  // namespace ropewalk::test
