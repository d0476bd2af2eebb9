// The library's exp2 on one core, in L1: six FMAs and about as many other operations a value; the roof is the FMA peak.
#include "bench/bench.hpp"

namespace ropewalk::bench {
namespace {

void exp2(benchmark::State& state, const simd::kernel_table& kernels, int64_t count) {
    constexpr int64_t repeats = 1000;  // a call alone is too short for the clock
    constexpr double flops = 12.0;
    std::vector<float> x(static_cast<std::size_t>(count)), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = -0.01f * static_cast<float>(i);
    serial_executor serial;
    run_paired(
        state, "GFLOP/s", static_cast<double>(count * repeats) * flops * 1e-9,
        [&](int64_t) {
            const toolkit::stopwatch watch;
            for (int64_t r = 0; r < repeats; ++r) {
                kernels.math.exp2(x.data(), y.data(), count);
                benchmark::ClobberMemory();
            }
            return watch.seconds();
        },
        [&](int64_t) { return toolkit::fma_roof(kernels.roof, serial, 0.002); });
}

}  // namespace

void register_math() {
    for_targets("exp2", "fp32/n2048", [](benchmark::State& state, const simd::kernel_table& k) { exp2(state, k, 2048); });
}

}  // namespace ropewalk::bench
