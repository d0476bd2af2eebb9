// Causal prefill: share of the peak of the arithmetic; a chunk of a prompt over its history against the whole prompt.
#include "bench/attention_step.hpp"

namespace ropewalk::bench {
namespace {

void prefill(benchmark::State& state, const simd::kernel_table& kernels, const pages_shape& shape) {
    executor& on = default_executor();
    const paged_layers& kv = layers_of(shape);
    step s(make_problem(shape), kv, shape.tokens, shape.tokens, on);
    const peak_function peak = peak_of(s.plan());
    run_iterations(
        state, "roof_share", [&](int64_t) { return s.seconds(kv.pages(0)); },
        [&](int64_t, double seconds, samples& counters) {
            const double rate = s.plan().flops() * 1e-9 / seconds;
            if (peak == nullptr) return counters.add("GFLOP/s", rate);
            add_rate(counters, "GFLOP/s", rate, peak(kernels.roof, on, 0.02));
        });
}

// 512 tokens behind `history` keys, and then a whole prompt of `history` tokens, over the same pages.
void prefill_chunk(benchmark::State& state, const head_shape& heads, const kv_preset& preset, int64_t history) {
    constexpr int64_t chunk_tokens = 512;
    const pages_shape shape{heads, preset, history + chunk_tokens};
    const paged_layers& kv = layers_of(shape);
    step chunk(make_problem(shape), kv, chunk_tokens, history + chunk_tokens, default_executor());
    step whole(make_problem(shape), kv, history, history, default_executor());
    run_iterations(
        state, "rate_share", [&](int64_t) { return chunk.seconds(kv.pages(0)); },
        [&](int64_t, double seconds, samples& counters) {
            counters.add("rate_share", chunk.plan().flops() / seconds / (whole.plan().flops() / whole.seconds(kv.pages(0))));
        });
}

}  // namespace

void register_prefill() {
    for (const head_shape& heads : {head_shape{32, 8, 128}, head_shape{32, 8, 64}, head_shape{32, 8, 96}, head_shape{16, 8, 256}}) {
        for (const char* preset : {"fp32", "bf16", "k8v8"}) {
            for (const int64_t tokens : {512, 2048, 4096, 8192}) {
                const pages_shape shape{heads, *find_kv_preset(preset), tokens};
                for_targets("prefill", std::string(preset) + "/" + shape.text(),
                            [=](benchmark::State& state, const simd::kernel_table& k) { prefill(state, k, shape); });
            }
        }
    }
    for (const head_shape& heads : {head_shape{32, 8, 128}, head_shape{8, 2, 128}}) {
        for (const char* preset : {"bf16", "k8v8"}) {
            for_targets("prefill_chunk", std::string(preset) + "/" + heads.text() + "/n8192q512",
                        [=](benchmark::State& state, const simd::kernel_table&) { prefill_chunk(state, heads, *find_kv_preset(preset), 8192); });
        }
    }
}

}  // namespace ropewalk::bench
