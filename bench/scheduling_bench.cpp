// What surrounds the kernels: planning, waking threads, more threads against one.
#include <numeric>

#include "bench/attention_step.hpp"
#include "tools/lib/workers.hpp"

namespace ropewalk::bench {
namespace {

constexpr head_shape smollm2{9, 3, 64};
constexpr head_shape llama{32, 8, 128};

// The calling thread keeps busy, as a server does; the other workers have nothing to do and go to sleep.
void gap() {
    constexpr double gap_seconds = 1e-3;
    const toolkit::stopwatch watch;
    while (watch.seconds() < gap_seconds) {
    }
}

// A call 1 ms after the last one. over_back_to_back: its seconds / those of a call right after it; to_one_thread: / those of a call on one thread
// after the same gap.
void decode_gap(benchmark::State& state, const pages_shape& shape) {
    const paged_layers& kv = layers_of(shape);
    serial_executor serial;
    step all(make_problem(shape), kv, 1, shape.tokens, default_executor()), one(make_problem(shape), kv, 1, shape.tokens, serial);
    run_iterations(
        state, "to_one_thread",
        [&](int64_t i) {
            gap();
            return all.seconds(kv.pages(3 * i));
        },
        [&](int64_t i, double seconds, samples& counters) {
            counters.add("over_back_to_back", seconds / all.seconds(kv.pages(3 * i + 1)));
            gap();
            counters.add("to_one_thread", seconds / one.seconds(kv.pages(3 * i + 2)));
        });
}

// speedup: seconds on one thread / seconds on `threads`; roof_speedup: the same of reading, or of multiply-adds in registers.
void scaling(benchmark::State& state, const simd::kernel_table& kernels, const pages_shape& shape, int64_t q_len, int32_t threads) {
    const paged_layers& kv = layers_of(shape);
    const toolkit::workers team = require(toolkit::workers::create(threads));
    serial_executor serial;
    step many(make_problem(shape), kv, q_len, shape.tokens, team.on()), one(make_problem(shape), kv, q_len, shape.tokens, serial);
    const auto roof = [&](int64_t i, executor& on) {
        return q_len == 1 ? toolkit::read_roof(kernels.roof, kv.unit_bytes(i), on) : toolkit::fma_roof(kernels.roof, on, 0.02);
    };
    run_iterations(
        state, "speedup", [&](int64_t i) { return many.seconds(kv.unit_pages(4 * i)); },
        [&](int64_t i, double seconds, samples& counters) {
            const double roof_many = roof(4 * i + 1, team.on());
            counters.add("speedup", one.seconds(kv.unit_pages(4 * i + 2)) / seconds);
            counters.add("roof_speedup", roof_many / roof(4 * i + 3, serial));
        });
}

// build() of a plan that is kept, as a server keeps it.
void plan_build(benchmark::State& state, int64_t sequences, int64_t tokens, int64_t q_len) {
    const pages_shape shape{llama, *find_kv_preset("bf16"), tokens, sequences};
    std::vector<int64_t> q_indptr, page_indptr, kv_lens(static_cast<std::size_t>(sequences), tokens);
    for (int64_t i = 0; i <= sequences; ++i) {
        q_indptr.push_back(i * q_len);
        page_indptr.push_back(i * shape.sequence_pages());
    }
    std::vector<int32_t> page_ids(static_cast<std::size_t>(page_indptr.back()));
    std::iota(page_ids.begin(), page_ids.end(), 0);
    attention_plan plan;
    run_iterations(
        state, "",
        [&](int64_t) {
            return timed([&] {
                return plan.build(make_problem(shape), {q_indptr, kv_lens, {}, page_indptr, page_ids, {}}, shape.layout(),
                                  static_cast<int32_t>(page_ids.size()));
            });
        },
        [](int64_t, double, samples&) {});
}

void register_scaling() {
    std::vector<int32_t> counts;
    for (int32_t threads = 1; threads < toolkit::workers::available(); threads *= 2) counts.push_back(threads);
    counts.push_back(toolkit::workers::available());
    for (const int32_t threads : counts) {
        const std::string suffix = "t" + std::to_string(threads);
        for (const char* preset : {"bf16", "k8v8"}) {
            const pages_shape shape{llama, *find_kv_preset(preset), 16384, 1, decode_bytes};
            for_targets("decode_threads", std::string(preset) + "/" + shape.text() + suffix,
                        [=](benchmark::State& state, const simd::kernel_table& k) { scaling(state, k, shape, 1, threads); });
        }
        const pages_shape shape{llama, *find_kv_preset("fp32"), 2048};
        for_targets("prefill_threads", "fp32/" + shape.text() + suffix,
                    [=](benchmark::State& state, const simd::kernel_table& k) { scaling(state, k, shape, shape.tokens, threads); });
    }
}

}  // namespace

void register_scheduling() {
    constexpr int64_t gap_iterations = 200;
    for (const char* name : {"bf16", "fp32"}) {
        const kv_preset& preset = *find_kv_preset(name);
        for (const int64_t tokens : {256, 512, 1024, 2048}) {
            const pages_shape resident{smollm2, preset, tokens}, cold{llama, preset, tokens, 1, decode_bytes};
            for (const pages_shape& shape : {resident, cold}) {
                for_targets(
                    "decode_gap", std::string(name) + "/" + shape.text(),
                    [=](benchmark::State& state, const simd::kernel_table&) { decode_gap(state, shape); }, gap_iterations);
            }
        }
    }
    register_scaling();
    for (const int64_t sequences : {1, 32, 256}) {
        for_targets("plan_build", "bf16/h32x8x128/n4096b" + std::to_string(sequences),
                    [=](benchmark::State& state, const simd::kernel_table&) { plan_build(state, sequences, 4096, 1); });
    }
    for_targets("plan_build", "bf16/h32x8x128/n8192q8192",
                [](benchmark::State& state, const simd::kernel_table&) { plan_build(state, 1, 8192, 8192); });
}

}  // namespace ropewalk::bench
