// What vector relative terms add to plain attention of the same shape: a bidirectional encoder over fp32 pages, 12 heads of 64.
#include <sys/resource.h>

#include <ropewalk/relative_attention.hpp>
#include "bench/attention_step.hpp"

namespace ropewalk::bench {
namespace {

struct relative_layer {
    relative_terms terms;
    relative_tensors tensors;
    std::vector<runtime::mapped_memory> memory;

    const_head_view add(int64_t rows, const head_shape& heads) {
        memory.push_back(random_memory(rows * heads.heads * heads.dim * 4, dtype::fp32));
        return dense_view(static_cast<const void*>(memory.back().data()), dtype::fp32, rows, heads.heads, heads.dim);
    }
};

relative_layer deberta(const head_shape& heads, int64_t) {
    relative_layer layer;
    layer.terms = {true, true, false, require(relative_index::deberta_buckets(256, 512))};
    layer.tensors.rows = layer.add(512, heads);
    layer.tensors.columns = layer.add(512, heads);
    return layer;
}

relative_layer xlnet(const head_shape& heads, int64_t tokens) {
    relative_layer layer;
    layer.terms = {true, false, false, require(relative_index::xlnet(tokens, tokens, true))};
    layer.tensors.rows = layer.add(2 * tokens, heads);
    layer.tensors.content_bias = layer.add(1, heads);
    layer.tensors.position_bias = layer.add(1, heads);
    return layer;
}

double peak_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

// Counters: ratio = seconds / plain; the workspace of both, and by how much the process's peak grew over all iterations, tensors excluded.
void compare_relative(benchmark::State& state, const pages_shape& shape, relative_layer (*make)(const head_shape&, int64_t)) {
    const paged_layers& kv = layers_of(shape);
    const relative_layer layer = make(shape.heads, shape.tokens);
    attention_problem problem = make_problem(shape);
    problem.span = attention_span::full();
    step plain(problem, kv, shape.tokens, shape.tokens, default_executor());
    problem.relative = &layer.terms;
    step relative(problem, kv, shape.tokens, shape.tokens, default_executor());
    plain.seconds(kv.pages(0));
    const double before = peak_mib();
    run_iterations(
        state, "ratio",
        [&](int64_t) {
            return timed([&] {
                return run(relative.plan(), relative.q(), kv.pages(0), relative.out(), {}, relative.workspace(), {nullptr, &layer.tensors});
            });
        },
        [&](int64_t, double seconds, samples& counters) {
            counters.add("ratio", seconds / plain.seconds(kv.pages(0)));
            counters.add("workspace_MiB", static_cast<double>(relative.plan().workspace_bytes()) / (1 << 20));
            counters.add("plain_workspace_MiB", static_cast<double>(plain.plan().workspace_bytes()) / (1 << 20));
            counters.add("peak_growth_MiB", peak_mib() - before);
        });
}

}  // namespace

void register_relative() {
    for (const int64_t tokens : {512, 4096, 16384}) {
        const pages_shape shape{{12, 12, 64}, *find_kv_preset("fp32"), tokens};
        const auto add = [&](const char* name, relative_layer (*make)(const head_shape&, int64_t)) {
            for_targets(name, "fp32/" + shape.text(),
                        [=](benchmark::State& state, const simd::kernel_table&) { compare_relative(state, shape, make); });
        };
        add("encoder_deberta", deberta);
        add("encoder_xlnet", xlnet);
    }
}

}  // namespace ropewalk::bench
