// What all attention kernels are built from: strips of rows, prefetching beside reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/core/kernels.hpp"
#include "simd/core/vec.hpp"

// A register tile is a function of its own: a call per tile costs nothing, and inlined into every caller they take minutes to compile.
#define ROPEWALK_TILE __attribute__((noinline))

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_integer_attention(attention_kernels& table);
void fill_relative_attention(relative_kernels& table);

namespace {

template <int N>
using constant = std::integral_constant<int, N>;

// Calls f(constant<R>) for the strip of `rows` rows, 1 <= rows <= Max.
template <int Max, class F>
ROPEWALK_INLINE void with_rows(int rows, F f) {
    if constexpr (Max > 1) {
        if (rows < Max) return with_rows<Max - 1>(rows, f);
    }
    f(constant<Max>{});
}

// Cuts `rows` into strips of nearly equal height and calls f(constant<R>, first row).
template <int Most, class F>
ROPEWALK_INLINE void for_strips(int rows, F f) {
    const int strips = (rows + Most - 1) / Most;
    for (int s = 0, first = 0; s < strips; ++s) {
        const int height = (rows - first + strips - s - 1) / (strips - s);
        with_rows<Most>(height, [&](auto r) { f(r, first); });
        first += height;
    }
}

// Issues prefetches beside the reads of a kernel: `per_read` lines at each, until the run is used up.
struct prefetcher {
    const std::byte* next;
    const std::byte* end;
    int64_t step;  // bytes per read
    int64_t again;

    prefetcher() = default;
    prefetcher(const prefetch_run& run, int64_t reads)
        : next(run.next), end(run.next + int64_t{run.lines} * 64), step(reads > 0 ? (run.lines + reads - 1) / reads * 64 : 0), again(run.again) {}
    ROPEWALK_INLINE void read() {
        if (next < end) {
            for (const std::byte* stop = next + step; next < stop; next += 64) {
                prefetch_l2(next);
                prefetch_l2(next + again);
            }
        }
    }
};

// Lines that a kernel reads of K or V.
constexpr int64_t k_lines(int type, int32_t k_dim, int32_t panels) { return panels * panel_bytes(type, k_dim) / 64; }
constexpr int64_t v_lines(int type, int32_t v_dim, int32_t tokens) { return v_bytes(type, v_dim, tokens) / 64; }

// The prefetchers of the runs of a P.V, beside one pass over V of that type.
struct run_prefetchers {
    prefetcher of[tile_tokens / panel];
    int32_t tokens = 0;  // of all runs
    run_prefetchers(const pv_args& args, int type) {
        for (int32_t i = 0; i < args.pieces; ++i) {
            of[i] = prefetcher(args.runs[i].prefetch, v_lines(type, args.v_dim, args.runs[i].tokens));
            tokens += args.runs[i].tokens;
        }
    }
};

// 8 fp16 become fp32; nothing beyond them is read.
ROPEWALK_INLINE void load_halves(const std::byte* from, float* to) {
    std::byte halves[32] = {};
    std::memcpy(halves, from, 16);
    for (int i = 0; i < 8; i += lanes) store(to + i, load_fp16(halves + i * 2));
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
