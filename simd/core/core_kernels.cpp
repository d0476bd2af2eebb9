// Math and roof kernels of a target.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/core/kernels.hpp"
#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

// Applies f to n values; the tail goes through a padded copy so that it gets the arithmetic of full vectors.
template <class F>
void map(const float* x, float* y, int64_t n, F f) {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(y + i, f(load(x + i)));
    if (i < n) {
        float padded[lanes] = {};
        std::memcpy(padded, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
        store(padded, f(load(padded)));
        std::memcpy(y + i, padded, static_cast<std::size_t>(n - i) * sizeof(float));
    }
}

void exp2_all(const float* x, float* y, int64_t n) {
    map(x, y, n, [](vf t) { return select(t >= vf(128.0f), vf(__builtin_inff()), exp2_core(t)); });
}

void tanh_all(const float* x, float* y, int64_t n) {
    map(x, y, n, [](vf t) { return tanh_core(t); });
}

// One prefetch per line, 16 KiB ahead into L2: without it a core that loads faster than the prefetcher follows stays below the bus.
float read_all(const std::byte* data, int64_t bytes) {
    vi sum[4] = {vi(0), vi(0), vi(0), vi(0)};
    for (int64_t i = 0; i < bytes; i += 256) {
        ROPEWALK_UNROLL for (int line = 0; line < 4; ++line) {
            prefetch_l2(data + i + line * 64 + 16384);
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) sum[line] = sum[line] ^ load_words(data + i + line * 64 + v * lanes * 4);
        }
    }
    const vf folded = as_float((sum[0] ^ sum[1] ^ sum[2] ^ sum[3]) & vi(0x007fffff));
    return reduce_maximum(folded);
}

void scale_all(float* x, int64_t n, float factor) {
    const vf f(factor);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(x + i, load(x + i) * f);
    for (; i < n; ++i) x[i] *= factor;
}

// 12 chains cover the latency (4 or 5 cycles) of two units on every target.
inline constexpr int chains = 12;

template <class Step>
float run_chains(int64_t rounds, Step step) {
    vf acc[chains];
    ROPEWALK_UNROLL for (int c = 0; c < chains; ++c) acc[c] = vf(static_cast<float>(c) * 0.01f);
    for (int64_t i = 0; i < rounds; ++i) {
        ROPEWALK_UNROLL for (int c = 0; c < chains; ++c) {
            acc[c] = step(acc[c]);
            keep(acc[c]);
        }
    }
    vf total = acc[0];
    ROPEWALK_UNROLL for (int c = 1; c < chains; ++c) total = total + acc[c];
    return reduce_maximum(total);
}

float fma_peak(int64_t rounds, double* flops) {
    *flops = static_cast<double>(rounds) * chains * lanes * 2;
    const vf a(0.999f), b(0.001f);
    return run_chains(rounds, [=](vf x) { return fmadd(x, a, b); });
}

#if ROPEWALK_HAS_BF16_DOT
float bf16_dot_peak(int64_t rounds, double* flops) {
    *flops = static_cast<double>(rounds) * chains * lanes * 4;
    const vi a(0x3c003c00), b(0x3c003c00);
    return run_chains(rounds, [=](vf x) { return dot_bf16_pairs(x, a, b); });
}
#endif

}  // namespace

void fill_math(math_kernels& table) {
    table.exp2 = exp2_all;
    table.tanh = tanh_all;
}

void fill_roof(roof_kernels& table) {
    table.read = read_all;
    table.scale = scale_all;
    table.fma = fma_peak;
#if ROPEWALK_HAS_BF16_DOT
    table.bf16_dot = bf16_dot_peak;
#else
    table.bf16_dot = nullptr;
#endif
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
