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

// One bit of everything that was read, as a number.
float folded(vi a, vi b, vi c, vi d) { return reduce_maximum(as_float((a ^ b ^ c ^ d) & vi(0x007fffff))); }

// One prefetch per line, 16 KiB ahead into L2: without it a core that loads faster than the prefetcher follows stays below the bus.
float read_all(const std::byte* data, int64_t bytes) {
    vi sum[4] = {vi(0), vi(0), vi(0), vi(0)};
    for (int64_t i = 0; i < bytes; i += 256) {
        ROPEWALK_UNROLL for (int line = 0; line < 4; ++line) {
            prefetch_l2(data + i + line * 64 + 16384);
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) sum[line] = sum[line] ^ load_words(data + i + line * 64 + v * lanes * 4);
        }
    }
    return folded(sum[0], sum[1], sum[2], sum[3]);
}

// Nothing but loads: with a prefetch a line one Zen 3 core read 158 GB/s instead of 184 from L1, 79 instead of 92 from L2, the same from L3.
float read_cached_all(const std::byte* data, int64_t bytes, int64_t passes) {
    vi sum[4] = {vi(0), vi(0), vi(0), vi(0)};
    for (int64_t pass = 0; pass < passes; ++pass) {
        for (int64_t i = 0; i < bytes; i += 512) {
            ROPEWALK_UNROLL for (int line = 0; line < 8; ++line) {
                ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
                    sum[line % 4] = sum[line % 4] ^ load_words(data + i + line * 64 + v * lanes * 4);
                }
            }
        }
        keep(sum[0]);  // or the second pass would undo the first
    }
    return folded(sum[0], sum[1], sum[2], sum[3]);
}

void copy_all(std::byte* target, const std::byte* source, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) store_words(target + i + v * lanes * 4, load_words(source + i + v * lanes * 4));
    }
}

void scale_all(float* x, int64_t n, float factor) {
    const vf f(factor);
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(x + i, load(x + i) * f);
    for (; i < n; ++i) x[i] *= factor;
}

// 12 chains cover the latency (4 or 5 cycles) of two units on every target.
inline constexpr int chains = 12;

template <class Vector, class Step>
Vector run_chains(int64_t rounds, Step step) {
    Vector acc[chains];
    ROPEWALK_UNROLL for (int c = 0; c < chains; ++c) acc[c] = Vector(static_cast<typename Vector::value_type>(c));
    for (int64_t i = 0; i < rounds; ++i) {
        ROPEWALK_UNROLL for (int c = 0; c < chains; ++c) {
            acc[c] = step(acc[c]);
            keep(acc[c]);
        }
    }
    Vector total = acc[0];
    ROPEWALK_UNROLL for (int c = 1; c < chains; ++c) total = total + acc[c];
    return total;
}

// How many operations `rounds` rounds are, with that many of them a lane.
double operations(int64_t rounds, int each) { return static_cast<double>(rounds) * chains * lanes * each; }

float fma_peak(int64_t rounds, double* flops) {
    *flops = operations(rounds, 2);
    const vf a(0.999f), b(0.001f);
    return reduce_maximum(run_chains<vf>(rounds, [=](vf x) { return fmadd(x, a, b); }));
}

#if ROPEWALK_HAS_BF16_DOT
float bf16_dot_peak(int64_t rounds, double* flops) {
    *flops = operations(rounds, 4);
    const vi a(0x3c003c00), b(0x3c003c00);
    return reduce_maximum(run_chains<vf>(rounds, [=](vf x) { return dot_bf16_pairs(x, a, b); }));
}
#endif

#if defined(__x86_64__)
// The product depends on the chain: a constant one would be computed once, before the loop.
float int16_madd_peak(int64_t rounds, double* count) {
    *count = operations(rounds, 4);
    const vi b(0x00030005);
    const vi sum = run_chains<vi>(rounds, [=](vi x) { return dot_pairs(x, x, b); });
    return folded(sum, sum, sum, vi(0));
}
#endif

#if ROPEWALK_HAS_BYTE_DOT
float int8_dot_peak(int64_t rounds, double* count) {
    *count = operations(rounds, 8);
    const vi a(0x01020304), b(0x05060708);  // the same numbers signed and unsigned
    const vi sum = run_chains<vi>(rounds, [=](vi x) { return dot_bytes(x, a, b); });
    return folded(sum, sum, sum, vi(0));
}
#endif

}  // namespace

void fill_math(math_kernels& table) {
    table.exp2 = exp2_all;
    table.tanh = tanh_all;
}

void fill_roof(roof_kernels& table) {
    table = {};
    table.read = read_all;
    table.read_cached = read_cached_all;
    table.copy = copy_all;
    table.scale = scale_all;
    table.fma = fma_peak;
#if ROPEWALK_HAS_BF16_DOT
    table.bf16_dot = bf16_dot_peak;
#endif
#if defined(__x86_64__)
    table.int16_madd = int16_madd_peak;
#endif
#if ROPEWALK_HAS_BYTE_DOT
    table.int8_dot = int8_dot_peak;
#endif
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
