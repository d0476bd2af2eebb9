// Rotation in place: share of an in-place scale of as much memory. Building a table: processor seconds.
#include <ctime>
#include <numeric>

#include "bench/bench.hpp"

namespace ropewalk::bench {
namespace {

std::string shape_text(int32_t heads, int32_t dim, int64_t tokens) {
    return "h" + std::to_string(heads) + "x" + std::to_string(dim) + "/n" + std::to_string(tokens);
}

void rope_inplace(benchmark::State& state, const simd::kernel_table& kernels, dtype type, rope_pairing pairing, int32_t heads, int32_t dim,
                  int64_t tokens) {
    executor& on = default_executor();
    const rope_table table = require(rope_table::growing(require(rope_spec::standard(dim, 10000.0)), tokens));
    std::vector<int64_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t bytes = tokens * heads * dim * element_bytes(type);
    const runtime::mapped_memory memory = random_memory(bytes, type), other = random_memory(bytes, dtype::fp32);
    const head_view q = dense_view(static_cast<void*>(memory.data()), type, tokens, heads, dim);
    rope_options options;
    options.pairing = pairing;
    run_paired(
        state, "GB/s", 2.0 * static_cast<double>(bytes) * 1e-9,
        [&](int64_t) { return timed([&] { return rope_apply(table, positions, q, {}, options, on); }); },
        [&](int64_t) {
            return toolkit::scale_roof(kernels.roof, {reinterpret_cast<float*>(other.data()), static_cast<std::size_t>(bytes) / 4}, on);
        });
}

void table_build(benchmark::State& state, int32_t pairs, int64_t positions) {
    const rope_spec spec = require(rope_spec::standard(2 * pairs, 5e5));
    // Processor time: the calling thread does it alone, and others may want its core.
    const auto build = [&](int64_t) {
        const std::clock_t begun = std::clock();
        require(rope_table::growing(spec, positions).state());
        return static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    };
    run_iterations(state, "seconds", build, [](int64_t, double seconds, samples& counters) { counters.add("seconds", seconds); });
}

}  // namespace

void register_rope() {
    benchmark::RegisterBenchmark("rope_table/baseline/fp32/p64/n131072", [](benchmark::State& state) { table_build(state, 64, 131072); })
        ->UseManualTime()
        ->MeasureProcessCPUTime();
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
            const std::string operation = pairing == rope_pairing::half ? "rope_inplace" : "rope_inplace_interleaved";
            for_targets(operation, std::string(name(type)) + "/" + shape_text(40, 128, 4096),
                        [=](benchmark::State& state, const simd::kernel_table& k) { rope_inplace(state, k, type, pairing, 40, 128, 4096); });
        }
    }
}

}  // namespace ropewalk::bench
