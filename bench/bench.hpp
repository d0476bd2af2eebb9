// What the benchmarks of ropewalk share. Names are operation/target/type/shape/size, e.g. decode/avx2/bf16/h32x8x128/n16384, so that
// --benchmark_filter picks one.
//
// Every iteration is paired with the roof it is measured against, taken right after it on the same memory and the same threads; the counter
// roof_share (0 to 1) is the median of the pairwise quotients. Shared machines drift by a factor of two within minutes: absolute figures of
// different runs cannot be compared, shares can.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <ropewalk/ropewalk.hpp>
#include "runtime/pages_memory.hpp"
#include "simd/core/dispatch.hpp"
#include "tools/lib/parallel.hpp"
#include "tools/lib/roof.hpp"
#include "tools/lib/statistics.hpp"

namespace ropewalk::bench {

// Heads, KV heads and head dim.
struct head_shape {
    int32_t heads = 32, kv_heads = 8, dim = 128;
    [[nodiscard]] std::string text() const { return "h" + std::to_string(heads) + "x" + std::to_string(kv_heads) + "x" + std::to_string(dim); }
};

// Registers `body` as operation/<target>/rest for every vector target of this host. The body runs with the target in force.
void for_targets(const std::string& operation, const std::string& rest,
                 const std::function<void(benchmark::State&, const simd::kernel_table&)>& body);

// Runs the benchmark loop: `work` is timed, `roof` gives the ceiling in the unit of work's rate, both per iteration. `amount` of work per iteration,
// in 10^9 of `unit` ("GB/s" or "GFLOP/s").
void run_paired(benchmark::State& state, const char* unit, double amount, const std::function<status(int64_t iteration)>& work,
                const std::function<double(int64_t iteration)>& roof);

// Memory in 2 MiB pages where the system has them (4 KiB pages halve the read roof), filled with finite values of N(0, 1) of the type.
runtime::mapped_memory random_memory(int64_t bytes, dtype type);

// The value, or the end of the program with the status: for set-up that must not fail.
template <class T>
T require(result<T> r) {
    if (!r.ok()) {
        std::fprintf(stderr, "ropewalk-bench: %s\n", r.state().text());
        std::exit(2);
    }
    return std::move(r).value();
}
void require(const status& s);

void register_attention();
void register_rope();
void register_math();

}  // namespace ropewalk::bench
