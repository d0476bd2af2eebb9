// ropewalk-bench: the microbenchmarks. See bench.hpp for names and counters.
#include "bench/bench.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace ropewalk::bench {

void require(const status& s) {
    if (!s.ok()) {
        std::fprintf(stderr, "ropewalk-bench: %s\n", s.text());
        std::exit(2);
    }
}

void for_targets(const std::string& operation, const std::string& rest, const std::function<void(benchmark::State&, const simd::kernel_table&)>& body,
                 int64_t iterations) {
    for (const target t : {target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16}) {
        const simd::kernel_table* kernels = simd::kernels_of(t);
        if (kernels == nullptr) continue;
        const std::string full = operation + "/" + std::string(name(t)) + "/" + rest;
        benchmark::internal::Benchmark* registered = benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& state) {
            require(limit_target(t));
            body(state, *kernels);
        });
        registered->UseManualTime()->MeasureProcessCPUTime();
        if (iterations != 0) registered->Iterations(iterations);
    }
}

void samples::report(benchmark::State& state, const std::string& main) const {
    for (const auto& [counter, values] : values_) state.counters[counter] = toolkit::median(values);
    if (const auto found = values_.find(main); found != values_.end()) {
        const toolkit::spread s = toolkit::spread_of(found->second);
        state.counters["low"] = s.lowest;
        state.counters["high"] = s.highest;
    }
}

void run_iterations(benchmark::State& state, const std::string& main, const work_function& work, const after_function& after) {
    samples counters;
    int64_t iteration = 0;
    for (auto unused : state) {
        (void)unused;
        const double seconds = work(iteration);
        state.SetIterationTime(seconds);
        after(iteration, seconds, counters);
        ++iteration;
    }
    counters.report(state, main);
}

void add_rate(samples& counters, const std::string& unit, double rate, double roof) {
    counters.add(unit, rate);
    counters.add("roof_" + unit, roof);
    counters.add("roof_share", roof > 0.0 ? rate / roof : 0.0);
}

void run_paired(benchmark::State& state, const char* unit, double amount, const work_function& work, const std::function<double(int64_t)>& roof) {
    run_iterations(state, "roof_share", work,
                   [&](int64_t i, double seconds, samples& counters) { add_rate(counters, unit, amount / seconds, roof(i)); });
}

runtime::mapped_memory random_memory(int64_t bytes, dtype type) {
    runtime::mapped_memory memory = require(runtime::mapped_memory::create(bytes));
    // One block of random values, repeated: what is read costs the same as if all were different. Quantised pages get bf16 values too: any bits are
    // codes, and as scales of either width they are ordinary numbers.
    constexpr std::size_t block = std::size_t{1} << 20;
    std::vector<std::byte> pattern(block);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    const std::size_t width = type == dtype::fp32 ? 4 : 2;
    for (std::size_t i = 0; i < block; i += width) {
        const float x = normal(generator);
        const uint16_t bits = float_to_bf16(x);
        if (width == 4) {
            std::memcpy(pattern.data() + i, &x, 4);
        } else {
            std::memcpy(pattern.data() + i, &bits, 2);
        }
    }
    const auto blocks = static_cast<int32_t>((bytes + static_cast<int64_t>(block) - 1) / static_cast<int64_t>(block));
    toolkit::parallel(default_executor(), blocks, [&](int32_t b) {
        const std::size_t first = static_cast<std::size_t>(b) * block;
        std::memcpy(memory.data() + first, pattern.data(), std::min(block, static_cast<std::size_t>(bytes) - first));
    });
    return memory;
}

}  // namespace ropewalk::bench

int main(int argc, char** argv) {
    ropewalk::bench::register_decode();
    ropewalk::bench::register_prefill();
    ropewalk::bench::register_options();
    ropewalk::bench::register_relative();
    ropewalk::bench::register_resident();
    ropewalk::bench::register_scheduling();
    ropewalk::bench::register_rope();
    ropewalk::bench::register_append();
    ropewalk::bench::register_c_api();
    ropewalk::bench::register_math();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
