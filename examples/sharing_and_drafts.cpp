// Three texts that share a prompt, and drafted tokens of which some are taken back: what docs/engine.md shows of kv_cache. One layer.
#include <cstdio>
#include <random>
#include <vector>

#include <ropewalk/ropewalk.hpp>

using namespace ropewalk;

namespace {

constexpr int32_t heads = 8, kv_heads = 2, dim = 64, pages = 16;

struct alignas(64) cache_line {
    std::byte bytes[64];
};

// What a server keeps from step to step.
struct engine {
    kv_cache cache;
    rope_table rope;
    attention_plan plan;
    kv_cache::batch_storage storage;
    std::vector<cache_line> workspace;
    std::mt19937 generator{1};
};

// What the projections would have produced.
std::vector<float> random_rows(engine& e, std::size_t rows, int32_t width) {
    std::normal_distribution<float> normal;
    std::vector<float> values(rows * static_cast<std::size_t>(width));
    for (float& x : values) x = normal(e.generator);
    return values;
}

// Computes `tokens` more tokens of each sequence in one batch.
status step(engine& e, std::span<const sequence_id> sequences, int64_t tokens) {
    const std::vector<int64_t> q_lens(sequences.size(), tokens);
    std::vector<kv_cache::append_request> requests;
    for (const sequence_id sequence : sequences) requests.push_back({sequence, tokens});
    const std::size_t rows = sequences.size() * static_cast<std::size_t>(tokens);
    std::vector<int64_t> slots(rows), positions(rows);
    if (auto s = e.cache.append(requests, slots, positions); !s) return s;
    auto batch = e.cache.batch(sequences, q_lens, e.storage);
    if (!batch) return batch.state();
    attention_problem problem;
    problem.heads = heads;
    problem.kv_heads = kv_heads;
    problem.k_dim = problem.v_dim = dim;
    if (auto s = e.plan.build(problem, *batch, e.cache.layout(), pages); !s) return s;
    e.workspace.resize(e.plan.workspace_bytes() / sizeof(cache_line) + 1);

    std::vector<float> q = random_rows(e, rows, heads * dim), k = random_rows(e, rows, kv_heads * dim), v = random_rows(e, rows, kv_heads * dim);
    const auto view = [rows](std::vector<float>& x, int32_t count) {
        return dense_view(static_cast<void*>(x.data()), dtype::fp32, static_cast<int64_t>(rows), count, dim);
    };
    std::vector<float> out(q.size());
    if (auto s = rope_apply(e.rope, positions, view(q, heads), {}); !s) return s;
    if (auto s = kv_append(e.cache.pages(0), slots, view(k, kv_heads), view(v, kv_heads), {&e.rope, positions, {}}); !s) return s;
    return run(e.plan, view(q, heads), e.cache.pages(0), view(out, heads), {}, std::as_writable_bytes(std::span(e.workspace)));
}

// Computes the prompt once and writes three texts on from it.
result<std::vector<sequence_id>> share_prompt(engine& e, int64_t prompt_tokens) {
    const auto prompt = e.cache.create_sequence();
    if (!prompt) return prompt.state();
    if (auto s = step(e, {{*prompt}}, prompt_tokens); !s) return s;

    std::vector<sequence_id> texts;
    for (int i = 0; i < 3; ++i) {
        auto text = e.cache.fork(*prompt);  // shares all pages; the last one is copied when somebody writes into it
        if (!text) return text.state();
        texts.push_back(*text);
    }
    if (auto s = step(e, texts, 1); !s) return s;  // reads the chunks of 512 tokens that the texts have in common once
    return texts;
}

// Computes drafted tokens in one step and keeps those that the model agrees with.
status verify_drafts(engine& e, sequence_id text, int64_t drafted, int64_t accepted) {
    const auto before = e.cache.length(text);
    if (!before) return before.state();
    if (auto s = step(e, {{text}}, drafted); !s) return s;
    return e.cache.truncate(text, *before + accepted);
}

int fail(const status& s) {
    std::fprintf(stderr, "sharing_and_drafts: %s\n", s.text());
    return 1;
}

}  // namespace

int main() {
    const kv_layout layout{.k_type = dtype::bf16, .v_type = dtype::bf16, .kv_heads = kv_heads, .k_dim = dim, .v_dim = dim};
    auto cache = kv_cache::create({.layout = layout, .layers = 1, .page_count = pages, .memory = {}});
    if (!cache) return fail(cache.state());
    auto spec = rope_spec::standard(dim, 10000.0);
    if (!spec) return fail(spec.state());
    auto rope = rope_table::growing(*spec);
    if (!rope) return fail(rope.state());
    engine e{std::move(*cache), std::move(*rope), {}, {}, {}};

    const auto texts = share_prompt(e, 600);  // 9 full pages and a part of the tenth
    if (!texts) return fail(texts.state());
    if (auto s = verify_drafts(e, texts->front(), 5, 2); !s) return fail(s);

    // The nine full pages are shared; each text has a tenth of its own, the prompt keeps its.
    const kv_cache_stats stats = e.cache.stats();
    std::printf("%d pages shared, %d free, %lld tokens\n", stats.shared_pages, stats.free_pages, static_cast<long long>(stats.tokens));
    return stats.shared_pages == 9 && stats.free_pages == pages - 13 && stats.tokens == 4 * 600 + 3 + 2 ? 0 : 1;
}
