// One sequence, one layer, a prompt of 100 tokens and 20 decoded ones: what a server does between its matrix products.
#include <cstdio>
#include <random>
#include <vector>

#include <ropewalk/ropewalk.hpp>

using namespace ropewalk;

namespace {

constexpr int32_t heads = 32, kv_heads = 8, dim = 128, pages = 64, layer = 0;

int fail(const status& s) {
    std::fprintf(stderr, "decode_step: %s\n", s.text());
    return 1;
}

}  // namespace

int main() {
    const kv_layout layout{.k_type = dtype::bf16, .v_type = dtype::bf16, .kv_heads = kv_heads, .k_dim = dim, .v_dim = dim};
    auto cache = kv_cache::create({.layout = layout, .layers = 1, .page_count = pages, .memory = {}});
    auto spec = rope_spec::llama3({});
    if (!cache) return fail(cache.state());
    if (!spec) return fail(spec.state());
    auto rope = rope_table::growing(*spec);
    if (!rope) return fail(rope.state());
    auto sequence = cache->create_sequence();
    if (!sequence) return fail(sequence.state());

    attention_problem problem;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.k_dim = problem.v_dim = dim;

    attention_plan plan;
    kv_cache::batch_storage storage;
    std::vector<std::byte> workspace;
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    for (int64_t tokens = 100, step = 0; step <= 20; tokens = 1, ++step) {
        // What the server's projections would have produced.
        std::vector<float> q(static_cast<std::size_t>(tokens * heads * dim)), k(static_cast<std::size_t>(tokens * kv_heads * dim)), v(k.size()),
            out(q.size());
        for (auto* tensor : {&q, &k, &v}) {
            for (float& x : *tensor) x = normal(generator);
        }
        const head_view q_view = dense_view(static_cast<void*>(q.data()), dtype::fp32, tokens, heads, dim);
        const const_head_view k_view = dense_view(static_cast<const void*>(k.data()), dtype::fp32, tokens, kv_heads, dim);
        const const_head_view v_view = dense_view(static_cast<const void*>(v.data()), dtype::fp32, tokens, kv_heads, dim);

        // Once a step: slots for the new tokens, and the plan.
        std::vector<int64_t> slots(static_cast<std::size_t>(tokens)), positions(slots.size());
        const kv_cache::append_request request{*sequence, tokens};
        if (auto s = cache->append({&request, 1}, slots, positions); !s) return fail(s);
        auto batch = cache->batch({&*sequence, 1}, {&tokens, 1}, storage);
        if (!batch) return fail(batch.state());
        if (auto s = plan.build(problem, *batch, layout, pages); !s) return fail(s);
        if (workspace.size() < plan.workspace_bytes() + 64) workspace.resize(plan.workspace_bytes() + 64);
        const auto misaligned = reinterpret_cast<std::uintptr_t>(workspace.data()) % 64;
        const std::span<std::byte> aligned = std::span(workspace).subspan(misaligned == 0 ? 0 : 64 - misaligned);

        // Once a layer: rotate q, write k and v (k rotated on the way), attend.
        if (auto s = rope_apply(*rope, positions, q_view, {}); !s) return fail(s);
        if (auto s = kv_append(cache->pages(layer), slots, k_view, v_view, {&*rope, positions, {}}); !s) return fail(s);
        const head_view out_view = dense_view(static_cast<void*>(out.data()), dtype::fp32, tokens, heads, dim);
        if (auto s = run(plan, q_view, cache->pages(layer), out_view, {}, aligned); !s) return fail(s);
    }
    const kv_cache_stats stats = cache->stats();
    std::printf("%lld tokens in %d of %d pages on target %s\n", static_cast<long long>(stats.tokens), stats.total_pages - stats.free_pages,
                stats.total_pages, name(active_target().value()).data());
    return 0;
}
