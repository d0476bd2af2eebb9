// The roofs of this machine, measured: what decode (read bandwidth), rope (in-place scale) and prefill (multiply-add peak) cannot exceed. All of
// them run the loops of simd's roof kernels on every worker of an executor.
#pragma once

#include <cstddef>
#include <span>

#include <ropewalk/executor.hpp>
#include "simd/core/kernels.hpp"

namespace ropewalk::toolkit {

// GB/s (10^9 bytes) of reading the buffer once. Workers take blocks of 2 MiB from a shared cursor, as a plan's workers take chunks: a worker that
// comes late costs its own time only. The buffer should be the one that was measured: 4 KiB pages halve the roof, and banks differ. Bytes
// beyond a multiple of 4096 are left out.
double read_roof(const simd::roof_kernels& kernels, std::span<const std::byte> buffer, executor& on);

// GB/s, read plus written, of multiplying the buffer in place by 1.
double scale_roof(const simd::roof_kernels& kernels, std::span<float> buffer, executor& on);

// GFLOP/s of independent fp32 multiply-adds in registers on all workers, over about `seconds`.
double fma_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);
// The same for the bf16 pair dot; 0 where the target has none.
double bf16_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds = 0.05);

}  // namespace ropewalk::toolkit
