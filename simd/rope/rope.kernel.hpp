// Rotation in place: x0' = x0 cos - x1 sin, x1' = x1 cos + x0 sin, for every pair of every head of one token.
//
// The product with cos is rounded, the one with sin is fused: the same on every target, so that fp32 results have the same bits everywhere. An
// in-place scale of the same bytes costs a load, a multiplication and a store a vector; this adds an operation and, for 16-bit types, the
// conversions, which hide behind memory only if the memory is asked for in time: hence `ahead`. Measured on 192 MiB, 32 heads of 128, AVX2 on a busy
// Zen 3, as a share of the speed of the scale, medians: 0.61 to 0.94 without prefetch, 0.91 to 1.06 with it; fp32 interleaved is the lowest
// in both (0.82 in other runs), all others with prefetch are at 0.95 or more. Lines are asked for twice, since a core drops prefetches that come too
// fast (prefetch_run in kernels.hpp): on two Zen 4 cores 1.02 to 1.08 of the rate, 0.95 of the scale in fp32 (8 pairs, avx2 and avx512_bf16). From L2
// conversions show: 0.73 fp32, 0.3 to 0.5 the 16-bit types.
//
// Two heads go together: cos and sin are loaded and brought into the order of the pairs once for both. Four are faster from L1 but slower from DRAM
// (0.7 to 0.8 in fp32): too many streams for the hardware prefetcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/core/kernels.hpp"
#include "simd/core/row.hpp"
#include "simd/core/shuffle.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

struct vector_pair {
    vf first, second;
};
struct word_row {
    vf c_even, c_odd, s_even, s_odd;
};

ROPEWALK_INLINE vector_pair turn(vf x0, vf x1, vf c, vf s) { return {fnmadd(x1, s, x0 * c), fmadd(x0, s, x1 * c)}; }

// Turns word-wise pairs of bf16. What is rounded comes from products of bf16 numbers, so a NaN has an empty lower half: rounding cannot carry it
// away.
struct word_pair {
    vi first, second;
};
ROPEWALK_INLINE word_pair turn_words(vi x0, vi x1, vf c_even, vf c_odd, vf s_even, vf s_odd) {
    const vector_pair even = turn(even_bf16(x0), even_bf16(x1), c_even, s_even), odd = turn(odd_bf16(x0), odd_bf16(x1), c_odd, s_odd);
    return {join_rounded(round_bf16_number(even.first), round_bf16_number(odd.first)),
            join_rounded(round_bf16_number(even.second), round_bf16_number(odd.second))};
}

// A layout says how a step of `width` pairs, from pair i on, lies in memory: `row` is cos and sin in that order, `turned` the new elements, `put`
// stores them.

// Pairs (i, i + distance).
template <int type>
struct half_layout {
    static constexpr int type_id = type;
    static constexpr int32_t width = lanes;
    static constexpr bool halves = true;
    using row_type = vector_pair;
    using step_type = vector_pair;

    static ROPEWALK_INLINE row_type row(const float* cos, const float* sin, int32_t i) { return {load(cos + i), load(sin + i)}; }
    static ROPEWALK_INLINE step_type turned(const storage<type>* x, int32_t distance, int32_t i, const row_type& row) {
        return turn(load_as<type>(x + i), load_as<type>(x + distance + i), row.first, row.second);
    }
    static ROPEWALK_INLINE void put(storage<type>* x, int32_t distance, int32_t i, const step_type& step) {
        store_as<type>(x + i, step.first);
        store_as<type>(x + distance + i, step.second);
    }
};

// The same for bf16, two neighbouring pairs a word: no lane moves but those of cos and sin.
struct half_words_layout {
    static constexpr int type_id = bf16;
    static constexpr int32_t width = 2 * lanes;
    static constexpr bool halves = true;
    using row_type = word_row;
    using step_type = word_pair;

    static ROPEWALK_INLINE row_type row(const float* cos, const float* sin, int32_t i) {
        return {load_even(cos + i), load_odd(cos + i), load_even(sin + i), load_odd(sin + i)};
    }
    static ROPEWALK_INLINE step_type turned(const uint16_t* x, int32_t distance, int32_t i, const row_type& row) {
        return turn_words(load_words(x + i), load_words(x + distance + i), row.c_even, row.c_odd, row.s_even, row.s_odd);
    }
    static ROPEWALK_INLINE void put(uint16_t* x, int32_t distance, int32_t i, const step_type& step) {
        store_words(x + i, step.first);
        store_words(x + distance + i, step.second);
    }
};

// Pairs (2i, 2i + 1): the partner comes by swapping neighbours, cos and sin are doubled, and the sign of sin alternates. Two vectors of each a step.
template <int type>
struct interleaved_layout {
    static constexpr int type_id = type;
    static constexpr int32_t width = lanes;
    static constexpr bool halves = false;
    struct row_type {
        vector_pair cos, sin;
    };
    using step_type = vector_pair;

    static ROPEWALK_INLINE row_type row(const float* cos, const float* sin, int32_t i) {
        constexpr int32_t next = lanes / 2;
        return {{load_doubled(cos + i), load_doubled(cos + i + next)}, {alternating(sin + i), alternating(sin + i + next)}};
    }
    static ROPEWALK_INLINE step_type turned(const storage<type>* x, int32_t, int32_t i, const row_type& row) {
        const vf first = load_as<type>(x + 2 * i), second = load_as<type>(x + 2 * i + lanes);
        return {fmadd(swap_neighbours(first), row.sin.first, first * row.cos.first),
                fmadd(swap_neighbours(second), row.sin.second, second * row.cos.second)};
    }
    static ROPEWALK_INLINE void put(storage<type>* x, int32_t, int32_t i, const step_type& step) {
        store_as<type>(x + 2 * i, step.first);
        store_as<type>(x + 2 * i + lanes, step.second);
    }

private:
    static ROPEWALK_INLINE vf alternating(const float* sin) {
        alignas(64) static constexpr uint32_t even_sign[16] = {0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0,
                                                               0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0, 0x80000000u, 0};
        return as_float(as_int(load_doubled(sin)) ^ load_words(even_sign));
    }
};

// A pair of bf16 is a 32-bit word: no lane moves.
template <>
struct interleaved_layout<bf16> {
    static constexpr int type_id = bf16;
    static constexpr int32_t width = lanes;
    static constexpr bool halves = false;
    using row_type = vector_pair;
    using step_type = vi;

    static ROPEWALK_INLINE row_type row(const float* cos, const float* sin, int32_t i) { return {load(cos + i), load(sin + i)}; }
    static ROPEWALK_INLINE step_type turned(const uint16_t* x, int32_t, int32_t i, const row_type& row) {
        const vi words = load_words(x + 2 * i);
        const vector_pair value = turn(even_bf16(words), odd_bf16(words), row.first, row.second);
        return join_rounded(round_bf16_number(value.first), round_bf16_number(value.second));
    }
    static ROPEWALK_INLINE void put(uint16_t* x, int32_t, int32_t i, step_type words) { store_words(x + 2 * i, words); }
};

// Addresses only: never an access, so they may lie anywhere.
template <class Layout>
ROPEWALK_INLINE void prefetch_step(const storage<Layout::type_id>* x, int32_t distance, int32_t i) {
    if (Layout::halves) {
        prefetch_l2(reinterpret_cast<const std::byte*>(x + i));
        prefetch_l2(reinterpret_cast<const std::byte*>(x + distance + i));
    } else {
        prefetch_l2(reinterpret_cast<const std::byte*>(x + 2 * i));
    }
}

// `count` heads of at least `width` pairs. The last step overlaps the one before it: it is formed from untouched elements first and stored last, so a
// tail gets the arithmetic of full vectors and nothing outside the slice is read.
template <class Layout, int count>
ROPEWALK_INLINE void rotate_heads(storage<Layout::type_id>* x, const rotate_args& args) {
    const int64_t stride = args.head_stride, ahead = args.ahead;
    const int32_t pairs = args.pairs, distance = args.distance;
    const float *cos = args.cos, *sin = args.sin;
    using step_type = typename Layout::step_type;
    const int32_t whole = pairs / Layout::width * Layout::width, last = pairs - Layout::width;
    step_type tail[count];
    if (whole != pairs) {
        const auto row = Layout::row(cos, sin, last);
        for (int h = 0; h < count; ++h) tail[h] = Layout::turned(x + h * stride, distance, last, row);
    }
    for (int32_t i = 0; i < whole; i += Layout::width) {
        const auto row = Layout::row(cos, sin, i);
        for (int h = 0; h < count; ++h) {
            auto* head = x + h * stride;
            prefetch_step<Layout>(head + ahead, distance, i);
            prefetch_step<Layout>(head + ahead / 2, distance, i);
            Layout::put(head, distance, i, Layout::turned(head, distance, i, row));
        }
    }
    if (whole != pairs) {
        for (int h = 0; h < count; ++h) Layout::put(x + h * stride, distance, last, tail[h]);
    }
}

// Fewer pairs than a step: through a padded copy, in which the second half of a half layout starts at `width`; an interleaved head stays in one
// piece.
template <class Layout>
void rotate_narrow(const rotate_args& args) {
    constexpr int32_t width = Layout::width;
    const auto n = static_cast<std::size_t>(args.pairs);
    float cos[width] = {}, sin[width] = {};
    std::memcpy(cos, args.cos, n * sizeof(float));
    std::memcpy(sin, args.sin, n * sizeof(float));
    auto* x = static_cast<storage<Layout::type_id>*>(args.x);
    const std::size_t piece = (Layout::halves ? n : 2 * n) * sizeof(*x);
    for (int32_t h = 0; h < args.heads; ++h, x += args.head_stride) {
        storage<Layout::type_id> copy[2 * width] = {};
        std::memcpy(copy, x, piece);
        if (Layout::halves) std::memcpy(copy + width, x + args.distance, piece);
        rotate_heads<Layout, 1>(copy, {copy, 0, 1, width, cos, sin, 0, width});
        std::memcpy(x, copy, piece);
        if (Layout::halves) std::memcpy(x + args.distance, copy + width, piece);
    }
}

template <class Layout>
void rotate(const rotate_args& given) {
    rotate_args args = given;
    if (args.distance == 0) args.distance = args.pairs;
    if (args.pairs < Layout::width) return rotate_narrow<Layout>(args);
    auto* x = static_cast<storage<Layout::type_id>*>(args.x);
    constexpr int32_t together = 2;
    int32_t heads = args.heads;
    for (; heads >= together; heads -= together, x += together * args.head_stride) rotate_heads<Layout, together>(x, args);
    for (; heads > 0; --heads, x += args.head_stride) rotate_heads<Layout, 1>(x, args);
}

void rotate_half_bf16(const rotate_args& args) {
    if (args.pairs < half_words_layout::width) return rotate<half_layout<bf16>>(args);
    rotate<half_words_layout>(args);
}

// From neighbours to halves or back, head by head through copies in fp32: what is written lies where something else has still to be read.
template <int type, bool to_half>
void rotate_moved(const rotate_args& args) {
    alignas(64) float from[2 * max_rope_pairs], to[2 * max_rope_pairs];
    const int32_t pairs = args.pairs;
    auto* x = static_cast<storage<type>*>(args.x);
    for (int32_t h = 0; h < args.heads; ++h, x += args.head_stride) {
        load_row<type>(x, from, 2 * pairs);
        int32_t i = 0;
        for (; to_half && i + lanes <= pairs; i += lanes) {
            const vector_pair y = turn(load_even(from + 2 * i), load_odd(from + 2 * i), load(args.cos + i), load(args.sin + i));
            store(to + i, y.first);
            store(to + pairs + i, y.second);
        }
        for (; i < pairs; ++i) {
            const float x0 = from[to_half ? 2 * i : i], x1 = from[to_half ? 2 * i + 1 : pairs + i], c = args.cos[i], s = args.sin[i];
            to[to_half ? i : 2 * i] = __builtin_fmaf(-x1, s, x0 * c);
            to[to_half ? pairs + i : 2 * i + 1] = __builtin_fmaf(x0, s, x1 * c);
        }
        store_row<type>(to, x, 2 * pairs);
    }
}

// Blended: as cheap for interleaved axes as for sections.
void compose(const compose_args& args) {
    const int32_t pairs = args.pairs;
    const uint8_t* axis_of_pair = args.axis_of_pair;
    const float* from = args.from;
    float* row = args.row;
    const vf axis(static_cast<float>(args.axis));
    int32_t i = 0;
    for (; i + lanes <= pairs; i += lanes) {
        const vmask here = to_float(load_u8(axis_of_pair + i)) == axis;
        store(row + i, select(here, load(from + i), load(row + i)));
        store(row + pairs + i, select(here, load(from + pairs + i), load(row + pairs + i)));
    }
    for (; i < pairs; ++i) {
        if (axis_of_pair[i] != args.axis) continue;
        row[i] = from[i];
        row[pairs + i] = from[pairs + i];
    }
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
