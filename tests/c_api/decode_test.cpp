// Steps of a server through the C ABI and through the C++ API: same pages, same bits.
#include "tests/c_api/handles.hpp"

#include <cstring>
#include <numeric>

#include <ropewalk/ropewalk.hpp>
#include "tests/allocations.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

constexpr int32_t heads = 6, kv_heads = 2, dim = 64, page_count = 16, layers = 2;

using floats = std::vector<float>;
ropewalk_tensor c_view(floats& data, int64_t tokens, int32_t h) { return ropewalk_tensor_dense(data.data(), ROPEWALK_FP32, tokens, h, dim); }
head_view cpp_view(floats& data, int64_t tokens, int32_t h) { return dense_view(static_cast<void*>(data.data()), dtype::fp32, tokens, h, dim); }

// q, k, v of a layer.
struct step_input {
    floats q, k, v;
};

// A server's loop around the C ABI.
class c_server {
public:
    explicit c_server(const ropewalk_kv_layout& layout) : table_(standard_table(dim)), plan_(empty_plan()) {
        ropewalk_kv_cache_config config = ropewalk_kv_cache_config_init();
        config.layers = layers;
        config.page_count = page_count;
        config.layout = &layout;
        cache_ = make<c_cache>([&](auto** out) { return ropewalk_kv_cache_create(&config, out); });
        workspace_ = make<c_workspace>([](auto** out) { return ropewalk_workspace_create(nullptr, out); });
    }

    ropewalk_sequence start() {
        ropewalk_sequence sequence = 0;
        expect_ok(ropewalk_kv_cache_create_sequence(cache_.get(), 0, &sequence));
        return sequence;
    }
    [[nodiscard]] ropewalk_kv_cache* cache() const { return cache_.get(); }

    // out of layer 0, then of layer 1.
    floats step(const std::vector<ropewalk_sequence>& sequences, const std::vector<int64_t>& lengths, std::vector<step_input> inputs) {
        const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
        const auto count = static_cast<std::size_t>(tokens);
        std::vector<int64_t> slots(count), positions(count);
        expect_ok(
            ropewalk_kv_cache_append(cache(), sequences.data(), lengths.data(), sequences.size(), slots.data(), count, positions.data(), count));
        ropewalk_attention_problem problem = ropewalk_attention_problem_init();
        problem.heads = heads;
        problem.kv_heads = kv_heads;
        problem.k_dim = problem.v_dim = dim;
        expect_ok(
            ropewalk_attention_plan_build_sequences(plan_.get(), &problem, cache(), sequences.data(), lengths.data(), sequences.size(), nullptr, 0));
        ropewalk_attention_plan_info info = ropewalk_attention_plan_info_init();
        expect_ok(ropewalk_attention_plan_get_info(plan_.get(), &info));
        EXPECT_EQ(info.q_tokens, tokens);
        void* workspace = nullptr;
        expect_ok(ropewalk_workspace_reserve(workspace_.get(), info.workspace_bytes, &workspace));

        floats all;
        for (int32_t layer = 0; layer < layers; ++layer) {
            step_input& in = inputs[static_cast<std::size_t>(layer)];
            floats out(in.q.size());
            const ropewalk_tensor q = c_view(in.q, tokens, heads), k = c_view(in.k, tokens, kv_heads), v = c_view(in.v, tokens, kv_heads),
                                  o = c_view(out, tokens, heads);
            ropewalk_kv_pages pages = ropewalk_kv_pages_init();
            expect_ok(ropewalk_kv_cache_pages(cache(), layer, &pages));
            expect_ok(ropewalk_rope_apply(table_.get(), positions.data(), count, &q, nullptr, nullptr, nullptr));
            ropewalk_kv_append_rope rope = ropewalk_kv_append_rope_init();
            rope.table = table_.get();
            rope.positions = positions.data();
            rope.positions_count = count;
            expect_ok(ropewalk_kv_append(&pages, slots.data(), count, &k, &v, &rope, nullptr));
            expect_ok(ropewalk_run_paged(plan_.get(), &q, &pages, &o, nullptr, 0, workspace, info.workspace_bytes, nullptr, nullptr));
            all.insert(all.end(), out.begin(), out.end());
        }
        return all;
    }

private:
    c_table table_;
    c_plan plan_;
    c_cache cache_;
    c_workspace workspace_;
};

// The same in C++.
class cpp_server {
public:
    explicit cpp_server(const kv_layout& layout)
        : table_(rope_table::growing(*rope_spec::standard(dim, 10000.0)).value()),
          cache_(kv_cache::create({.layout = layout, .layers = layers, .page_count = page_count, .memory = {}}).value()) {}

    sequence_id start() { return cache_.create_sequence().value(); }
    kv_cache& cache() { return cache_; }

    floats step(const std::vector<sequence_id>& sequences, const std::vector<int64_t>& lengths, std::vector<step_input> inputs) {
        const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
        std::vector<int64_t> slots(static_cast<std::size_t>(tokens)), positions(slots.size());
        std::vector<kv_cache::append_request> requests;
        for (std::size_t i = 0; i < sequences.size(); ++i) requests.push_back({sequences[i], lengths[i]});
        EXPECT_TRUE(cache_.append(requests, slots, positions).ok());
        attention_problem problem;
        problem.heads = heads;
        problem.kv_heads = kv_heads;
        problem.k_dim = problem.v_dim = dim;
        const auto batch = cache_.batch(sequences, lengths, storage_);
        EXPECT_TRUE(plan_.build(problem, *batch, cache_.layout(), page_count).ok());
        const std::size_t bytes = plan_.workspace_bytes();
        std::byte* const workspace = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64}));
        floats all;
        for (int32_t layer = 0; layer < layers; ++layer) {
            step_input& in = inputs[static_cast<std::size_t>(layer)];
            floats out(in.q.size());
            const head_view q = cpp_view(in.q, tokens, heads), k = cpp_view(in.k, tokens, kv_heads), v = cpp_view(in.v, tokens, kv_heads);
            EXPECT_TRUE(rope_apply(table_, positions, q, {}).ok());
            EXPECT_TRUE(kv_append(cache_.pages(layer), slots, k, v, {&table_, positions, {}}).ok());
            EXPECT_TRUE(run(plan_, q, cache_.pages(layer), cpp_view(out, tokens, heads), {}, {workspace, bytes}).ok());
            all.insert(all.end(), out.begin(), out.end());
        }
        ::operator delete (workspace, std::align_val_t{64});
        return all;
    }

private:
    rope_table table_;
    kv_cache cache_;
    attention_plan plan_;
    kv_cache::batch_storage storage_;
};

bool same_bits(const floats& a, const floats& b) {
    return a.size() == b.size() && !a.empty() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class c_decode : public seeded, public ::testing::WithParamInterface<const char*> {
protected:
    floats random_floats(int64_t count) {
        floats values(static_cast<std::size_t>(count));
        for (float& x : values) x = normal();
        return values;
    }
    std::vector<step_input> inputs(int64_t tokens) {
        std::vector<step_input> made;
        for (int32_t layer = 0; layer < layers; ++layer) {
            made.push_back({random_floats(tokens * heads * dim), random_floats(tokens * kv_heads * dim), random_floats(tokens * kv_heads * dim)});
        }
        return made;
    }
};

TEST_P(c_decode, same_bits_as_cpp) {
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    expect_ok(ropewalk_kv_layout_set_preset(&layout, GetParam()));
    const kv_preset& preset = *find_kv_preset(GetParam());
    kv_layout cpp_layout;
    cpp_layout.k_type = preset.k_type;
    cpp_layout.v_type = preset.v_type;
    cpp_layout.hadamard = preset.hadamard;
    cpp_layout.kv_heads = kv_heads;
    cpp_layout.k_dim = cpp_layout.v_dim = dim;

    c_server c(layout);
    cpp_server cpp(cpp_layout);
    std::vector<ropewalk_sequence> c_sequences{c.start(), c.start()};
    std::vector<sequence_id> cpp_sequences{cpp.start(), cpp.start()};
    const auto both = [&](const std::vector<int64_t>& lengths) {
        const auto in = inputs(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
        EXPECT_TRUE(same_bits(c.step(c_sequences, lengths, in), cpp.step(cpp_sequences, lengths, in)));
    };
    both({150, 37});                           // prefill
    for (int i = 0; i < 3; ++i) both({1, 1});  // decode
    both({4, 70});                             // chunks
    ropewalk_sequence child = 0;               // a fork, whose last page is copied when it grows
    expect_ok(ropewalk_kv_cache_fork(c.cache(), c_sequences[0], &child));
    c_sequences.push_back(child);
    cpp_sequences.push_back(cpp.cache().fork(cpp_sequences[0]).value());
    both({1, 1, 2});
    expect_ok(ropewalk_kv_cache_truncate(c.cache(), c_sequences[1], 100));  // rollback
    EXPECT_TRUE(cpp.cache().truncate(cpp_sequences[1], 100).ok());
    both({1, 1, 1});
    int64_t gone = -1;
    expect_ok(ropewalk_kv_cache_trim_front(c.cache(), c_sequences[0], 130, &gone));
    EXPECT_EQ(gone, *cpp.cache().trim_front(cpp_sequences[0], 130));
    EXPECT_EQ(gone, 128);  // two pages
    both({1, 1, 1});
}

INSTANTIATE_TEST_SUITE_P(types, c_decode, ::testing::Values("fp32", "bf16", "k8v8", "k4v4h"),
                         [](const auto& info) { return std::string(info.param); });

// Once a server has seen its largest step, the calls of a step allocate nothing that those of C++ do not: appends, rotation, writing, attention none.
TEST(c_cache, steps_allocate_nothing) {
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    c_server c(layout);
    const ropewalk_sequence sequence = c.start();
    const int64_t tokens = 1;
    const ropewalk_tensor absent = ropewalk_tensor_init();
    expect_ok(ropewalk_kv_cache_reserve(c.cache(), sequence, 100));
    int64_t slot = 0, position = 0;
    expect_ok(ropewalk_kv_cache_append(c.cache(), &sequence, &tokens, 1, &slot, 1, &position, 1));
    ropewalk_kv_pages pages = ropewalk_kv_pages_init();
    floats k(kv_heads * dim), q(heads * dim), out(heads * dim);
    const ropewalk_tensor k_view = c_view(k, 1, kv_heads), q_view = c_view(q, 1, heads), out_view = c_view(out, 1, heads);
    ropewalk_attention_problem problem = ropewalk_attention_problem_init();
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.k_dim = problem.v_dim = dim;
    const c_plan plan = empty_plan();
    expect_ok(ropewalk_attention_plan_build_sequences(plan.get(), &problem, c.cache(), &sequence, &tokens, 1, nullptr, 1));
    alignas(64) static std::byte workspace[1 << 20];
    const c_table table = standard_table(dim);
    expect_ok(ropewalk_rope_apply(table.get(), &position, 1, &q_view, &absent, nullptr, ropewalk_executor_serial()));

    const int64_t before = allocation_count();
    expect_ok(ropewalk_kv_cache_append(c.cache(), &sequence, &tokens, 1, &slot, 1, &position, 1));
    expect_ok(ropewalk_kv_cache_pages(c.cache(), 0, &pages));
    expect_ok(ropewalk_rope_apply(table.get(), &position, 1, &q_view, nullptr, nullptr, ropewalk_executor_serial()));
    expect_ok(ropewalk_kv_append(&pages, &slot, 1, &k_view, &k_view, nullptr, ropewalk_executor_serial()));
    expect_ok(ropewalk_attention_plan_build_sequences(plan.get(), &problem, c.cache(), &sequence, &tokens, 1, nullptr, 1));
    expect_ok(
        ropewalk_run_paged(plan.get(), &q_view, &pages, &out_view, nullptr, 0, workspace, sizeof workspace, nullptr, ropewalk_executor_serial()));
    EXPECT_EQ(allocation_count(), before);
}

TEST(c_cache, tells_what_the_cpp_cache_tells) {
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    ropewalk_kv_sizes sizes = ropewalk_kv_sizes_init();
    expect_ok(ropewalk_kv_layout_sizes(&layout, &sizes));
    EXPECT_EQ(sizes.record_bytes, 64 * (dim + dim) * 2);  // 64 tokens of bf16
    EXPECT_EQ(sizes.page_stride_bytes, kv_heads * sizes.record_bytes);
    EXPECT_EQ(sizes.token_bytes, kv_heads * (dim + dim) * 2);

    c_server c(layout);
    const ropewalk_sequence sequence = c.start();
    const int64_t tokens = 100;
    std::vector<int64_t> slots(100);
    expect_ok(ropewalk_kv_cache_reserve(c.cache(), sequence, 200));
    expect_ok(ropewalk_kv_cache_append(c.cache(), &sequence, &tokens, 1, slots.data(), slots.size(), nullptr, 0));
    ropewalk_sequence_info info = ropewalk_sequence_info_init();
    expect_ok(ropewalk_kv_cache_sequence_info(c.cache(), sequence, &info));
    EXPECT_EQ(info.length, 100);
    EXPECT_EQ(info.next_position, 100);
    ASSERT_EQ(info.page_count, 2u);
    EXPECT_EQ(slots[99], info.page_table[1] * 64 + 35);
    std::vector<int64_t> again(30);
    expect_ok(ropewalk_kv_cache_slots(c.cache(), sequence, 70, again.data(), again.size()));
    EXPECT_TRUE(std::equal(again.begin(), again.end(), slots.begin() + 70));

    ropewalk_kv_cache_stats stats = ropewalk_kv_cache_stats_init();
    expect_ok(ropewalk_kv_cache_get_stats(c.cache(), &stats));
    EXPECT_EQ(stats.layers, layers);
    EXPECT_EQ(stats.total_pages, page_count);
    EXPECT_EQ(stats.free_pages, page_count - 4);  // 200 tokens are set aside
    EXPECT_EQ(stats.sequences, 1);
    EXPECT_EQ(stats.tokens, 100);
    EXPECT_EQ(stats.used_bytes, 4 * layers * sizes.page_stride_bytes);
    EXPECT_EQ(stats.total_bytes, page_count * layers * sizes.page_stride_bytes);
    expect_ok(ropewalk_kv_cache_free(c.cache(), sequence));
    expect_refused(ropewalk_kv_cache_sequence_info(c.cache(), sequence, &info), ROPEWALK_NOT_FOUND, "sequence is");
    ropewalk_kv_pages pages = ropewalk_kv_pages_init();
    expect_refused(ropewalk_kv_cache_pages(c.cache(), layers, &pages), ROPEWALK_INVALID_ARGUMENT, "layer is 2");
}

}  // namespace
}  // namespace ropewalk::test
