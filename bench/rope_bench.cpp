// Rotation in place (share of an in-place scale of the same buffer), rotation fused into append, append alone.
#include <memory>
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
        state, "GB/s", 2.0 * static_cast<double>(bytes) * 1e-9, [&](int64_t) { return rope_apply(table, positions, q, {}, options, on); },
        [&](int64_t) {
            return toolkit::scale_roof(kernels.roof, {reinterpret_cast<float*>(other.data()), static_cast<std::size_t>(bytes) / 4}, on);
        });
}

// `tokens` new tokens of each of `layers` layers, written to fresh slots every iteration, as decoding does. Bytes: K and V read once in fp32 and
// written once.
void append(benchmark::State& state, const simd::kernel_table& kernels, dtype type, bool rotate, int64_t tokens) {
    executor& on = default_executor();
    constexpr int64_t layers = 32;
    constexpr int32_t kv_heads = 8, dim = 128;
    kv_layout layout;
    layout.k_type = layout.v_type = type;
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    constexpr int64_t pool_tokens = 8192;
    const auto page_count = static_cast<int32_t>(pool_tokens / layout.page_tokens);
    const int64_t layer_bytes = page_count * layout.page_stride_bytes();
    const runtime::mapped_memory memory = random_memory(layers * layer_bytes, type);
    const runtime::mapped_memory kv = random_memory(tokens * kv_heads * dim * 8, dtype::fp32);
    const auto view = [&](int64_t which) {
        return dense_view(static_cast<const void*>(kv.data() + which * tokens * kv_heads * dim * 4), dtype::fp32, tokens, kv_heads, dim);
    };
    const rope_table table = require(rope_table::growing(require(rope_spec::standard(dim, 10000.0)), pool_tokens));
    std::vector<int64_t> slots(static_cast<std::size_t>(tokens));
    const double bytes = static_cast<double>(layers * tokens * kv_heads) * (2 * dim * 4 + 2 * dim * element_bytes(type));
    const runtime::mapped_memory other = random_memory(static_cast<int64_t>(bytes), dtype::fp32);
    run_paired(
        state, "GB/s", bytes * 1e-9,
        [&](int64_t i) {
            std::iota(slots.begin(), slots.end(), i * tokens % (pool_tokens - tokens + 1));
            const kv_append_rope rope = rotate ? kv_append_rope{&table, slots, {}} : kv_append_rope{};
            for (int64_t layer = 0; layer < layers; ++layer) {
                if (auto s = kv_append({memory.data() + layer * layer_bytes, layout, page_count}, slots, view(0), view(1), rope, on); !s) return s;
            }
            return status();
        },
        [&](int64_t) {
            return toolkit::scale_roof(kernels.roof, {reinterpret_cast<float*>(other.data()), static_cast<std::size_t>(bytes) / 8}, on);
        });
}

}  // namespace

void register_rope() {
    for (const dtype type : {dtype::fp32, dtype::bf16, dtype::fp16}) {
        for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
            const std::string operation = pairing == rope_pairing::half ? "rope_inplace" : "rope_inplace_interleaved";
            for_targets(operation, std::string(name(type)) + "/" + shape_text(40, 128, 4096),
                        [=](benchmark::State& state, const simd::kernel_table& k) { rope_inplace(state, k, type, pairing, 40, 128, 4096); });
        }
    }
    for (const dtype type : {dtype::bf16, dtype::fp32}) {
        for (const int64_t tokens : {1, 16, 2048}) {
            for (const bool rotate : {true, false}) {
                for_targets(rotate ? "rope_append" : "append", std::string(name(type)) + "/l32h8x128/n" + std::to_string(tokens),
                            [=](benchmark::State& state, const simd::kernel_table& k) { append(state, k, type, rotate, tokens); });
            }
        }
    }
}

}  // namespace ropewalk::bench
