// What the benchmarks of ropewalk share. Names are operation/target/type/shape/size, e.g. decode/avx2/bf16/h32x8x128/n16384, so that
// --benchmark_filter picks one; n4096b8 are 8 sequences of 4096 keys, n8192q4 is a step of 4 query tokens. README.md says which name shows what.
//
// Every iteration is paired with what it is measured against (a roof on the same memory and threads, or the same work done the other way), taken
// right after it; a counter is the median of the pairwise quotients. Shared machines drift by a factor of two within minutes: absolute figures of
// different runs cannot be compared, quotients can.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
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

// Registers `body` as operation/<target>/rest for every vector target of this host. The body runs with the target in force. `iterations` other than 0
// fixes their number: for a work that is short beside what it is paired with, which --benchmark_min_time does not count.
void for_targets(const std::string& operation, const std::string& rest, const std::function<void(benchmark::State&, const simd::kernel_table&)>& body,
                 int64_t iterations = 0);

// Values that counters took, one an iteration.
class samples {
public:
    void add(const std::string& counter, double value) { values_[counter].push_back(value); }
    // The medians become counters; `low` and `high` are the extremes of counter `main`.
    void report(benchmark::State& state, const std::string& main) const;

private:
    std::map<std::string, std::vector<double>> values_;
};

// Runs the benchmark loop: `work` returns the seconds it took (see timed), `after` comes right after it, is not timed and adds to the samples what
// comes out of them. Reported as above.
using work_function = std::function<double(int64_t iteration)>;
using after_function = std::function<void(int64_t iteration, double seconds, samples& counters)>;
void run_iterations(benchmark::State& state, const std::string& main, const work_function& work, const after_function& after);

// The loop with a roof: it gives the ceiling in the unit of work's rate. `amount` of work per iteration, in 10^9 of `unit` ("GB/s" or "GFLOP/s").
// Counters: unit, roof_<unit>, roof_share.
void run_paired(benchmark::State& state, const char* unit, double amount, const work_function& work,
                const std::function<double(int64_t iteration)>& roof);
void add_rate(samples& counters, const std::string& unit, double rate, double roof);

// Memory in 2 MiB pages where the system has them (4 KiB pages halve the read roof), filled with finite values of N(0, 1) of the type.
runtime::mapped_memory random_memory(int64_t bytes, dtype type);

// The value, or the end of the program with the status: for what must not fail.
template <class T>
T require(result<T> r) {
    if (!r.ok()) {
        std::fprintf(stderr, "ropewalk-bench: %s\n", r.state().text());
        std::exit(2);
    }
    return std::move(r).value();
}
void require(const status& s);

// Seconds that a body takes which returns a status.
template <class Body>
double timed(Body&& body) {
    const toolkit::stopwatch watch;
    const status done = body();
    const double seconds = watch.seconds();
    require(done);
    return seconds;
}

void register_append();
void register_c_api();
void register_decode();
void register_math();
void register_options();
void register_prefill();
void register_relative();
void register_resident();
void register_rope();
void register_scheduling();

}  // namespace ropewalk::bench
