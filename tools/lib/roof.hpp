// The roofs of this machine, measured: what decode (read bandwidth), rope (in-place scale) and prefill (multiply-add peak) cannot exceed. All of
// them run the loops of simd's roof kernels on every worker of an executor, once: medians and spreads are the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ropewalk/executor.hpp>
#include "simd/core/kernels.hpp"
#include "tools/lib/machine.hpp"

namespace ropewalk::toolkit {

// GB/s (10^9 bytes) of reading the buffer once. Workers take blocks of 2 MiB from a shared cursor, as a plan's workers take chunks: a worker that
// comes late costs its own time only. The buffer should be the one that was measured: 4 KiB pages halve the roof, and banks differ. Bytes
// beyond a multiple of 4096 are left out.
double read_roof(const simd::roof_kernels& kernels, std::span<const std::byte> buffer, executor& on);

// GB/s, read plus written, of multiplying the buffer in place by 1.
double scale_roof(const simd::roof_kernels& kernels, std::span<float> buffer, executor& on);

// GB/s, read plus written, of copying the first half of the buffer to the second. Bytes beyond a multiple of 8192 are left out.
double copy_roof(const simd::roof_kernels& kernels, std::span<std::byte> buffer, executor& on);

// GB/s of all workers together, each going over `bytes_each` of the buffer that are its own, again and again for about `seconds`: the roof of the
// level of cache that holds so much. Copy and scale count bytes read plus written; copy reads one half and writes the other. 0 unless bytes_each is
// a multiple of 8192 and the buffer has so much for every worker.
enum class traffic { read, copy, scale };
double cached_roof(const simd::roof_kernels& kernels, traffic what, std::span<std::byte> buffer, int64_t bytes_each, executor& on,
                   double seconds = 0.02);

// What a worker goes over to measure the levels that `caches` has: half of its L1 and L2, its part of a quarter of the L3 (others may use it too),
// but twice what the L2 holds at least. At most `most` bytes.
struct cached_level {
    std::string name;  // "L1", "L2", "L3"
    int64_t bytes_each = 0;
};
std::vector<cached_level> cached_levels(const cache_sizes& caches, int32_t workers, int64_t most);

// GFLOP/s of independent fp32 multiply-adds in registers on all workers, over about `seconds`.
double fma_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);
// The same for the bf16 pair dot; 0 where the target has none.
double bf16_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);
// 10^9 products and sums a second of the int16 pair dot and the int8 dot, summed in 32 bits; 0 where the target has none.
double int16_madd_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);
double int8_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);
// 10^9 values a second of the library's exp2, from and to L1.
double exp2_roof(const simd::math_kernels& kernels, executor& on, double seconds = 0.05);

}  // namespace ropewalk::toolkit
