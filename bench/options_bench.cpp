// What ALiBi, tables of biases, softcap, sinks and masks add to plain attention, and how much of it a sliding window leaves.
#include "bench/attention_step.hpp"

namespace ropewalk::bench {
namespace {

using change_function = std::function<void(attention_problem&)>;

// Plain attention right after the one with the option, over another layer.
// Counters: overhead = seconds / plain - 1; for windows time_share = seconds / plain, and work_share, that of the pairs of query and key.
void compare(benchmark::State& state, const paged_layers& kv, step& s, step& plain, bool window) {
    run_iterations(
        state, window ? "time_share" : "overhead", [&](int64_t i) { return s.seconds(kv.pages(2 * i)); },
        [&](int64_t i, double seconds, samples& counters) {
            const double share = seconds / plain.seconds(kv.pages(2 * i + 1));
            if (!window) return counters.add("overhead", share - 1.0);
            counters.add("time_share", share);
            counters.add("work_share", s.plan().flops() / plain.plan().flops());
        });
}

void compare_with_plain(benchmark::State& state, const pages_shape& shape, int64_t q_len, const change_function& change, bool encoder) {
    const paged_layers& kv = layers_of(shape);
    attention_problem plain_problem = make_problem(shape);
    if (encoder) plain_problem.span = attention_span::full();
    attention_problem problem = plain_problem;
    change(problem);
    step s(problem, kv, q_len, shape.tokens, default_executor()), plain(plain_problem, kv, q_len, shape.tokens, default_executor());
    compare(state, kv, s, plain, problem.span.left != plain_problem.span.left);
}

// A binary tree of `drafted` <= 64 tokens beside the chain of as many.
void compare_tree(benchmark::State& state, const pages_shape& shape, int64_t drafted) {
    const paged_layers& kv = layers_of(shape);
    std::vector<uint64_t> masks;
    for (int64_t i = 0; i < drafted; ++i) {
        masks.push_back((uint64_t{1} << i) | (i > 0 ? masks[static_cast<std::size_t>((i - 1) / 2)] : 0));
    }
    const int64_t q_indptr[] = {0, drafted}, kv_lens[] = {shape.tokens};
    attention_batch batch{q_indptr, kv_lens, {}, kv.page_indptr, kv.page_ids, {}};
    step chain(make_problem(shape), kv, batch, default_executor());
    batch.tree_masks = masks;
    batch.tree_indptr = q_indptr;
    step tree(make_problem(shape), kv, batch, default_executor());
    compare(state, kv, tree, chain, false);
}

// Numbers for each head, alive as long as the program: a plan copies them.
const float* slopes_of(const attention_problem& problem) {
    static std::vector<float> slopes;
    slopes.resize(static_cast<std::size_t>(problem.heads));
    require(alibi_slopes(slopes));
    return slopes.data();
}
const float* sinks_of(const attention_problem& problem) {
    static std::vector<float> sinks;
    sinks.assign(static_cast<std::size_t>(problem.heads), 1.0f);
    return sinks.data();
}

// T5's 32 buckets, or a grid of 32 x 64; which numbers they hold does not matter for time.
const attention_bias* bias_of(const attention_problem& problem, bool grid) {
    static attention_bias biases[2];
    attention_bias& bias = biases[grid];
    if (!bias.empty()) return &bias;
    const int32_t height = 32, width = 64;
    std::vector<float> table(static_cast<std::size_t>(problem.heads) * (grid ? (2 * height - 1) * (2 * width - 1) : 32));
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 17) / 16.0f;
    bias = require(grid ? attention_bias::over_grid(table, problem.heads, height, width) : t5_bias(table, problem.heads, {32, 128, false}));
    return &bias;
}

struct option {
    const char* name;
    change_function change;
    bool encoder = false;  // it, and what it is compared with, see all keys
};

void register_operation(const std::string& operation, const pages_shape& shape, int64_t q_len, const option& o) {
    for_targets(operation + "_" + o.name, std::string(shape.preset.name) + "/" + shape.text(),
                [=](benchmark::State& state, const simd::kernel_table&) { compare_with_plain(state, shape, q_len, o.change, o.encoder); });
}

}  // namespace

void register_options() {
    constexpr head_shape heads{32, 8, 128};
    for (const option& o :
         {option{"alibi", [](attention_problem& p) { p.alibi_slopes = slopes_of(p); }},
          option{"t5", [](attention_problem& p) { p.bias = bias_of(p, false); }}, option{"softcap", [](attention_problem& p) { p.softcap = 50.0f; }},
          option{"sink", [](attention_problem& p) { p.sinks = sinks_of(p); }}}) {
        for (const char* preset : {"bf16", "fp32"}) {
            for (const int64_t tokens : {4096, 16384}) register_operation("decode", {heads, *find_kv_preset(preset), tokens, 1, decode_bytes}, 1, o);
            for (const int64_t tokens : {512, 2048}) register_operation("prefill", {heads, *find_kv_preset(preset), tokens}, tokens, o);
        }
    }
    for (const char* preset : {"bf16", "fp32"}) {
        register_operation("prefill", {heads, *find_kv_preset(preset), 2048}, 2048,
                           option{"grid", [](attention_problem& p) { p.bias = bias_of(p, true); }, true});
    }
    for (const int64_t drafted : {4, 16}) {
        const pages_shape shape{heads, *find_kv_preset("bf16"), 8192, 1, decode_bytes};
        for_targets("verify_tree", "bf16/" + shape.text() + "q" + std::to_string(drafted),
                    [=](benchmark::State& state, const simd::kernel_table&) { compare_tree(state, shape, drafted); });
    }
    for (const option& o : {option{"window1024", [](attention_problem& p) { p.span = attention_span::sliding_window(1024); }},
                            option{"window4096", [](attention_problem& p) { p.span = attention_span::sliding_window(4096); }}}) {
        register_operation("decode", {heads, *find_kv_preset("bf16"), 16384, 1, decode_bytes}, 1, o);
        register_operation("prefill", {heads, *find_kv_preset("bf16"), 8192}, 8192, o);
    }
}

}  // namespace ropewalk::bench
