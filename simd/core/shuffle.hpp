// Lane movements that xsimd names differently from version to version: duplication for interleaved pairs, and the transpose of a square of words.
#pragma once

#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

// x1 x0 x3 x2 ..
ROPEWALK_INLINE vf swap_neighbours(vf x) {
#if ROPEWALK_X86_512
    return vf(_mm512_permute_ps(x, 0xb1));
#elif defined(__x86_64__)
    return vf(_mm256_permute_ps(x, 0xb1));
#else
    return vf(vrev64q_f32(x));
#endif
}

// p0 p0 p1 p1 .. of the first lanes / 2 floats at p.
ROPEWALK_INLINE vf load_doubled(const float* p) {
#if ROPEWALK_X86_512
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return vf(_mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p))));
#elif defined(__x86_64__)
    const __m256i index = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);  // within each half, which a broadcast has filled alike
    return vf(_mm256_permutevar_ps(_mm256_castsi256_ps(_mm256_broadcastsi128_si256(_mm_castps_si128(_mm_loadu_ps(p)))), index));
#else
    const float32x2_t half = vld1_f32(p);
    return vf(vcombine_f32(vzip1_f32(half, half), vzip2_f32(half, half)));
#endif
}

// a0 a2 .. b0 b2 .. and a1 a3 .. b1 b3 ..
ROPEWALK_INLINE vf even_lanes(vf a, vf b) {
#if ROPEWALK_X86_512
    const __m512i index = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return vf(_mm512_permutex2var_ps(a, index, b));
#elif defined(__x86_64__)
    return vf(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8)));
#else
    return vf(vuzp1q_f32(a, b));
#endif
}
ROPEWALK_INLINE vf odd_lanes(vf a, vf b) {
#if ROPEWALK_X86_512
    const __m512i index = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return vf(_mm512_permutex2var_ps(a, index, b));
#elif defined(__x86_64__)
    return vf(_mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8)));
#else
    return vf(vuzp2q_f32(a, b));
#endif
}

// p0 p2 p4 .. and p1 p3 p5 .. of the 2 * lanes floats at p.
ROPEWALK_INLINE vf load_even(const float* p) { return even_lanes(load(p), load(p + lanes)); }
ROPEWALK_INLINE vf load_odd(const float* p) { return odd_lanes(load(p), load(p + lanes)); }

// rows[i] lane j <-> rows[j] lane i.
#if ROPEWALK_X86_512
ROPEWALK_INLINE void transpose(vi (&rows)[16]) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // b[4k + c]: column c of each 128-bit lane, rows 4k .. 4k + 3.
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        const __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        const __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88), odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        rows[c] = vi(_mm512_shuffle_i32x4(even_low, even_high, 0x88));
        rows[4 + c] = vi(_mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
        rows[8 + c] = vi(_mm512_shuffle_i32x4(even_low, even_high, 0xdd));
        rows[12 + c] = vi(_mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
}
#elif defined(__x86_64__)
ROPEWALK_INLINE void transpose(vi (&rows)[8]) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int c = 0; c < 4; ++c) {
        rows[c] = vi(_mm256_permute2x128_si256(b[c], b[4 + c], 0x20));
        rows[4 + c] = vi(_mm256_permute2x128_si256(b[c], b[4 + c], 0x31));
    }
}
#else
ROPEWALK_INLINE void transpose(vi (&rows)[4]) {
    const int32x4_t a0 = vtrn1q_s32(rows[0], rows[1]), a1 = vtrn2q_s32(rows[0], rows[1]);
    const int32x4_t a2 = vtrn1q_s32(rows[2], rows[3]), a3 = vtrn2q_s32(rows[2], rows[3]);
    const auto low = [](int32x4_t x, int32x4_t y) {
        return vi(vreinterpretq_s32_s64(vtrn1q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y))));
    };
    const auto high = [](int32x4_t x, int32x4_t y) {
        return vi(vreinterpretq_s32_s64(vtrn2q_s64(vreinterpretq_s64_s32(x), vreinterpretq_s64_s32(y))));
    };
    rows[0] = low(a0, a2);
    rows[1] = low(a1, a3);
    rows[2] = high(a0, a2);
    rows[3] = high(a1, a3);
}
#endif

// Typed vectors of `lanes` elements, by the values of ropewalk::dtype.
template <int type>
ROPEWALK_INLINE vf load_as(const void* p) {
    if constexpr (type == bf16) {
        return load_bf16(p);
    } else if constexpr (type == fp16) {
        return load_fp16(p);
    } else if constexpr (type == fp8) {
        return load_fp8(p);
    } else {
        return vf::load_unaligned(static_cast<const float*>(p));
    }
}
template <int type>
ROPEWALK_INLINE void store_as(void* p, vf x) {
    if constexpr (type == bf16) {
        store_bf16(p, x);
    } else if constexpr (type == fp16) {
        store_fp16(p, x);
    } else if constexpr (type == fp8) {
        store_fp8(p, x);
    } else {
        x.store_unaligned(static_cast<float*>(p));
    }
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
