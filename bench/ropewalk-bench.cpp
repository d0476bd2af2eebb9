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

void for_targets(const std::string& operation, const std::string& rest,
                 const std::function<void(benchmark::State&, const simd::kernel_table&)>& body) {
    for (const target t : {target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16}) {
        const simd::kernel_table* kernels = simd::kernels_of(t);
        if (kernels == nullptr) continue;
        const std::string full = operation + "/" + std::string(name(t)) + "/" + rest;
        benchmark::RegisterBenchmark(full.c_str(),
                                     [=](benchmark::State& state) {
                                         require(limit_target(t));
                                         body(state, *kernels);
                                     })
            ->UseManualTime()
            ->MeasureProcessCPUTime();
    }
}

void run_paired(benchmark::State& state, const char* unit, double amount, const std::function<status(int64_t)>& work,
                const std::function<double(int64_t)>& roof) {
    toolkit::paired_rates pairs;
    int64_t iteration = 0;
    for (auto unused : state) {
        (void)unused;
        const toolkit::stopwatch watch;
        const status done = work(iteration);
        const double seconds = watch.seconds();
        if (!done.ok()) return state.SkipWithError(done.text());
        state.SetIterationTime(seconds);
        pairs.add(amount / seconds, roof(iteration));
        ++iteration;
    }
    if (pairs.empty()) return;
    state.counters[unit] = pairs.rate().median;
    state.counters[std::string("roof_") + unit] = pairs.roof().median;
    state.counters["roof_share"] = pairs.share().median;
    state.counters["share_low"] = pairs.share().lowest;
    state.counters["share_high"] = pairs.share().highest;
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
    ropewalk::bench::register_attention();
    ropewalk::bench::register_rope();
    ropewalk::bench::register_math();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}
