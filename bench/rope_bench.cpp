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

// Q of 32 heads and K of 8, rotated together: by a spec, with so many dims of each head.
struct rotated_heads {
    rope_table table;
    std::vector<int64_t> positions;
    rope_options options;
    runtime::mapped_memory memory;
    head_view q, k;

    rotated_heads(const rope_spec& spec, const rope_options& options_, dtype type, int32_t dim, int64_t tokens)
        : table(require(rope_table::growing(spec, tokens))),
          options(options_),
          memory(random_memory(tokens * 40 * dim * element_bytes(type), type)),
          q(dense_view(static_cast<void*>(memory.data()), type, tokens, 32, dim)),
          k(dense_view(static_cast<void*>(memory.data() + tokens * 32 * dim * element_bytes(type)), type, tokens, 8, dim)) {
        // Patches of an image of 64 columns: all axes differ.
        for (int32_t axis = 0; axis < spec.axes(); ++axis) {
            for (int64_t t = 0; t < tokens; ++t) positions.push_back(spec.axes() == 1 ? t : axis == 0 ? 100 : axis == 1 ? t / 64 : t % 64);
        }
    }
    double seconds(int64_t repeats) {
        return timed([&] {
            status s;
            for (int64_t i = 0; i < repeats && s.ok(); ++i) s = rope_apply(table, positions, q, k, options);
            return s;
        });
    }
};

// to_half: seconds of the variant over seconds of plain half-split rotation of as many bytes, in turn. `tokens` of 16-bit or 32-bit elements are
// either far more than the caches hold or 256 KiB, which are rotated 64 times a turn.
void rope_ratio(benchmark::State& state, const rope_spec& spec, const rope_options& options, dtype type, int32_t dim, bool cached) {
    const int64_t bytes = cached ? 256 * 1024 : 96 * 1024 * 1024, tokens = bytes / (40 * dim * element_bytes(type));
    const int64_t repeats = cached ? 64 : 1;
    const int32_t rotary = spec.rotary_dim();
    rotated_heads variant(spec, options, type, dim, tokens), half(require(rope_spec::standard(rotary, 10000.0)), {}, type, rotary, tokens);
    run_iterations(
        state, "to_half", [&](int64_t) { return variant.seconds(repeats); },
        [&](int64_t, double seconds, samples& counters) { counters.add("to_half", seconds / half.seconds(repeats)); });
}

void register_ratios() {
    const rope_spec plain = require(rope_spec::standard(128, 10000.0));
    const int32_t blocked[] = {16, 24, 24}, interleaved[] = {24, 20, 20};
    const struct {
        const char* name;
        rope_spec spec;
        rope_options options;
    } variants[] = {
        {"half", plain, {}},  // the noise of the others
        {"mrope", require(with_axes(plain, axis_order::contiguous, blocked)), {}},
        {"mrope_interleaved", require(with_axes(plain, axis_order::interleaved, interleaved)), {}},
        {"interleaved", plain, {.pairing = rope_pairing::interleaved}},
        {"interleaved_in_half_out", plain, {.pairing = rope_pairing::interleaved_in_half_out}},
        {"partial", require(rope_spec::standard(64, 10000.0)), {}},
    };
    for (const dtype type : {dtype::fp32, dtype::bf16}) {
        for (const bool cached : {false, true}) {
            for (const auto& v : variants) {
                for_targets(std::string("rope_ratio_") + v.name, std::string(name(type)) + "/h32x8x128/" + (cached ? "l2" : "dram"),
                            [=](benchmark::State& state, const simd::kernel_table&) { rope_ratio(state, v.spec, v.options, type, 128, cached); });
            }
        }
    }
}

}  // namespace

void register_rope() {
    benchmark::RegisterBenchmark("rope_table/baseline/fp32/p64/n131072", [](benchmark::State& state) { table_build(state, 64, 131072); })
        ->UseManualTime()
        ->MeasureProcessCPUTime();
    register_ratios();
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
            const std::string operation = pairing == rope_pairing::half ? "rope_inplace" : "rope_inplace_interleaved";
            for_targets(operation, std::string(name(type)) + "/" + shape_text(40, 128, 4096),
                        [=](benchmark::State& state, const simd::kernel_table& k) { rope_inplace(state, k, type, pairing, 40, 128, 4096); });
        }
    }
}

}  // namespace ropewalk::bench
