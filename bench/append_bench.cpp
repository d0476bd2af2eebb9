// Writing new keys and values into pages, rotated or not, and its share of a decode step.
#include <algorithm>
#include <numeric>

#include "bench/attention_step.hpp"

namespace ropewalk::bench {
namespace {

// `tokens` new tokens of each of `layers` layers, written to fresh slots every iteration, as decoding does. Bytes: K and V read once in fp32 and
// written once.
void append(benchmark::State& state, const simd::kernel_table& kernels, const kv_preset& preset, bool rotate, int64_t tokens) {
    executor& on = default_executor();
    constexpr int64_t layers = 32, pool_tokens = 8192;
    constexpr head_shape heads{8, 8, 128};
    pages_shape shape{heads, preset, pool_tokens};
    shape.total_bytes = layers * shape.layer_bytes();
    const paged_layers& pool = layers_of(shape);
    const runtime::mapped_memory kv = random_memory(tokens * heads.kv_heads * heads.dim * 4, dtype::fp32);
    const const_head_view rows = dense_view(static_cast<const void*>(kv.data()), dtype::fp32, tokens, heads.kv_heads, heads.dim);
    const rope_table table = require(rope_table::growing(require(rope_spec::standard(heads.dim, 10000.0)), pool_tokens));
    std::vector<int64_t> slots(static_cast<std::size_t>(tokens));
    const auto bytes = static_cast<double>(layers * tokens * (heads.kv_heads * int64_t{2} * heads.dim * 4 + pool.layout.token_bytes()));
    const runtime::mapped_memory other = random_memory(static_cast<int64_t>(bytes), dtype::fp32);
    run_paired(
        state, "GB/s", bytes * 1e-9,
        [&](int64_t i) {
            std::iota(slots.begin(), slots.end(), i * tokens % (pool_tokens - tokens + 1));
            const kv_append_rope rope = rotate ? kv_append_rope{&table, slots, {}} : kv_append_rope{};
            return timed([&] {
                for (int64_t layer = 0; layer < layers; ++layer) {
                    if (auto s = kv_append(pool.pages(layer), slots, rows, rows, rope, on); !s) return s;
                }
                return status();
            });
        },
        [&](int64_t) {
            return toolkit::scale_roof(kernels.roof, {reinterpret_cast<float*>(other.data()), static_cast<std::size_t>(bytes) / 8}, on);
        });
}

// A decode step as a server makes it: in every layer the newest token of each sequence is rotated, quantised and appended, then attended to.
// share_of_step: seconds of the appends / seconds of appends and attention. The layers are 32, or as many as 2 GiB hold: more than the caches do, so
// that pages are cold for append, and the share is that of any number of layers.
void append_share(benchmark::State& state, const pages_shape& shape) {
    executor& on = default_executor();
    const paged_layers& kv = layers_of(shape);
    step s(make_problem(shape), kv, 1, shape.tokens, on);
    const head_shape& heads = shape.heads;
    const runtime::mapped_memory memory = random_memory(shape.sequences * heads.kv_heads * heads.dim * 4, dtype::fp32);
    const const_head_view rows = dense_view(static_cast<const void*>(memory.data()), dtype::fp32, shape.sequences, heads.kv_heads, heads.dim);
    const rope_table table = require(rope_table::growing(require(rope_spec::standard(heads.dim, 10000.0)), shape.tokens));
    const int64_t newest = shape.tokens - 1;
    const std::vector<int64_t> positions(static_cast<std::size_t>(shape.sequences), newest);
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < shape.sequences; ++i) {
        const int32_t page_tokens = kv.layout.page_tokens, page = kv.page_ids[static_cast<std::size_t>(kv.page_indptr[i] + newest / page_tokens)];
        slots.push_back(int64_t{page} * page_tokens + newest % page_tokens);
    }
    double appending = 0.0;
    run_iterations(
        state, "share_of_step",
        [&](int64_t) {
            double attending = 0.0;
            appending = 0.0;
            for (int64_t layer = 0; layer < shape.layers(); ++layer) {
                appending += timed([&] { return kv_append(kv.pages(layer), slots, rows, rows, {&table, positions, {}}, on); });
                attending += s.seconds(kv.pages(layer));
            }
            return appending + attending;
        },
        [&](int64_t, double seconds, samples& counters) {
            counters.add("share_of_step", appending / seconds);
            counters.add("append_us_per_layer", appending / static_cast<double>(shape.layers()) * 1e6);
        });
}

void register_share(const kv_preset& preset) {
    for (const int64_t tokens : {1024, 4096}) {
        for (const int64_t sequences : {1, 16}) {
            pages_shape shape{{32, 8, 128}, preset, tokens, sequences};
            shape.total_bytes = std::min(32 * shape.layer_bytes(), int64_t{2} << 30);
            if (!shape.fits()) continue;
            for_targets("append_share", std::string(preset.name) + "/" + shape.text(),
                        [=](benchmark::State& state, const simd::kernel_table&) { append_share(state, shape); });
        }
    }
}

}  // namespace

void register_append() {
    for (const char* name : {"bf16", "fp32", "k8v8", "k4v4"}) {
        const kv_preset& preset = *find_kv_preset(name);
        for (const int64_t tokens : {1, 16, 2048}) {
            for (const bool rotate : {true, false}) {
                for_targets(rotate ? "rope_append" : "append", std::string(name) + "/l32h8x128/n" + std::to_string(tokens),
                            [=](benchmark::State& state, const simd::kernel_table& k) { append(state, k, preset, rotate, tokens); });
            }
        }
        register_share(preset);
    }
}

}  // namespace ropewalk::bench
