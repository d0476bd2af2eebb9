// The vector vocabulary of the kernels: xsimd batches of the target's pinned architecture, and the few things xsimd lacks or does differently from
// version to version (fused multiply-add on AVX-512 in 8.1.0, 16-bit floats, bf16 pair dots, prefetch) as intrinsics. Only simd/core has intrinsics.
//
// Every function is exact or rounds once, in the same place on every target, so that fp32 kernels built from them give the same bits everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif

#include "simd/core/xsimd_compat.hpp"

#define ROPEWALK_INLINE inline __attribute__((always_inline))
// Before a loop over registers: arrays of vectors live in registers only if every index is a constant, at -O2 too.
#define ROPEWALK_UNROLL _Pragma("GCC unroll 16")

#if defined(ROPEWALK_TARGET_AVX512_BF16) || defined(ROPEWALK_TARGET_NEON_BF16)
#define ROPEWALK_HAS_BF16_DOT 1
#else
#define ROPEWALK_HAS_BF16_DOT 0
#endif
#if defined(ROPEWALK_TARGET_AVX512) || defined(ROPEWALK_TARGET_AVX512_BF16)
#define ROPEWALK_X86_512 1
#else
#define ROPEWALK_X86_512 0
#endif

// Integer dots of four bytes a word: bytes times bytes in one instruction (VNNI, sdot), or 16-bit pairs (pmaddwd).
#if defined(ROPEWALK_TARGET_AVX512_BF16) || defined(ROPEWALK_TARGET_NEON_BF16)
#define ROPEWALK_HAS_BYTE_DOT 1
#else
#define ROPEWALK_HAS_BYTE_DOT 0
#endif
#if defined(__x86_64__) || ROPEWALK_HAS_BYTE_DOT
#define ROPEWALK_HAS_INTEGER_DOT 1
#else
#define ROPEWALK_HAS_INTEGER_DOT 0
#endif

namespace ropewalk::simd::ROPEWALK_TARGET {

inline constexpr int lanes = static_cast<int>(vf::size);
inline constexpr int panel_vectors = 16 / lanes;  // vectors of one fp32 step of a panel: a 64-byte line
// Architectural vector registers: how big register tiles may be.
#if defined(__x86_64__) && !ROPEWALK_X86_512
inline constexpr int vector_registers = 16;
#else
inline constexpr int vector_registers = 32;
#endif

ROPEWALK_INLINE vf load(const float* p) { return vf::load_unaligned(p); }
ROPEWALK_INLINE void store(float* p, vf x) { x.store_unaligned(p); }
ROPEWALK_INLINE vi load_words(const void* p) { return vi::load_unaligned(static_cast<const int32_t*>(p)); }
ROPEWALK_INLINE void store_words(void* p, vi x) { x.store_unaligned(static_cast<int32_t*>(p)); }
ROPEWALK_INLINE vf broadcast(float x) { return vf(x); }
ROPEWALK_INLINE vi broadcast_word(const void* p) {
    int32_t word;
    std::memcpy(&word, p, sizeof word);
    return vi(word);
}
ROPEWALK_INLINE vf zero() { return vf(0.0f); }
ROPEWALK_INLINE vf select(vmask mask, vf yes, vf no) { return xsimd::select(mask, yes, no); }

// a * b + c, one rounding.
ROPEWALK_INLINE vf fmadd(vf a, vf b, vf c) {
#if ROPEWALK_X86_512
    return vf(_mm512_fmadd_ps(a, b, c));
#else
    return xsimd::fma(a, b, c);
#endif
}
// c - a * b, one rounding.
ROPEWALK_INLINE vf fnmadd(vf a, vf b, vf c) {
#if ROPEWALK_X86_512
    return vf(_mm512_fnmadd_ps(a, b, c));
#elif defined(__x86_64__)
    return vf(_mm256_fnmadd_ps(a, b, c));
#else
    return vf(vfmsq_f32(c, a, b));
#endif
}

// a / b, one rounding. Not xsimd's operator: 8.1 divides by an approximate reciprocal on Arm.
ROPEWALK_INLINE vf divide(vf a, vf b) {
#if ROPEWALK_X86_512
    return vf(_mm512_div_ps(a, b));
#elif defined(__x86_64__)
    return vf(_mm256_div_ps(a, b));
#else
    return vf(vdivq_f32(a, b));
#endif
}

// The larger; where one is NaN: b on x86, NaN on Arm. maximum(bound, x) therefore keeps a NaN of x on both. Not xsimd::max, whose answer to NaN
// differs between 8.1 and 14.
ROPEWALK_INLINE vf maximum(vf a, vf b) {
#if ROPEWALK_X86_512
    return vf(_mm512_max_ps(a, b));
#elif defined(__x86_64__)
    return vf(_mm256_max_ps(a, b));
#else
    return vf(vmaxq_f32(a, b));
#endif
}

// The smaller; numbers only.
ROPEWALK_INLINE vf minimum(vf a, vf b) {
#if ROPEWALK_X86_512
    return vf(_mm512_min_ps(a, b));
#elif defined(__x86_64__)
    return vf(_mm256_min_ps(a, b));
#else
    return vf(vminq_f32(a, b));
#endif
}

ROPEWALK_INLINE float reduce_maximum(vf x) {
#if ROPEWALK_X86_512
    return _mm512_reduce_max_ps(x);
#elif defined(__x86_64__)
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_movehdup_ps(m));
    return _mm_cvtss_f32(m);
#else
    return vmaxvq_f32(x);
#endif
}

// Sums over the lanes: halves onto each other, so in one order whatever the compiler.
ROPEWALK_INLINE float reduce_sum(vf x) {
#if ROPEWALK_X86_512
    const __m256 folded = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#elif defined(__x86_64__)
    const __m256 folded = x;
#endif
#if defined(__x86_64__)
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(folded), _mm256_extractf128_ps(folded, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
#else
    const float32x2_t sum = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(sum, 0) + vget_lane_f32(sum, 1);
#endif
}
ROPEWALK_INLINE int32_t reduce_sum(vi x) {
    int32_t values[lanes], sum = 0;
    x.store_unaligned(values);
    for (const int32_t value : values) sum += value;
    return sum;
}

// 0, 1, 2, ..
ROPEWALK_INLINE vf iota() {
    alignas(64) static constexpr float values[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load(values);
}

// Lane i is true where bit i is set.
ROPEWALK_INLINE vmask mask_of_bits(uint32_t bits) {
    alignas(64) static constexpr int32_t powers[16] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
    return xsimd::to_float(vi(static_cast<int32_t>(bits)) & load_words(powers)) > zero();
}

// ---- 16-bit floats ------------------------------------------------------------------------------------------------------------------------

// The upper halves of the words, moved down; zero above.
ROPEWALK_INLINE vi upper_halves(vi words) {
#if ROPEWALK_X86_512
    return vi(_mm512_srli_epi32(words, 16));
#elif defined(__x86_64__)
    return vi(_mm256_srli_epi32(words, 16));
#else
    return vi(vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(words), 16)));
#endif
}

// Words hold two bf16: the even element below, the odd one above.
ROPEWALK_INLINE vf even_bf16(vi words) { return as_float(words << 16); }
ROPEWALK_INLINE vf odd_bf16(vi words) { return as_float(words & vi(static_cast<int32_t>(0xffff0000u))); }

// `lanes` 16-bit values, zero-extended.
ROPEWALK_INLINE vi load_u16(const void* p) {
#if ROPEWALK_X86_512
    return vi(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
#elif defined(__x86_64__)
    return vi(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#else
    return vi(vreinterpretq_s32_u32(vmovl_u16(vld1_u16(static_cast<const uint16_t*>(p)))));
#endif
}
// `lanes` bytes, zero-extended.
ROPEWALK_INLINE vi load_u8(const void* p) {
#if ROPEWALK_X86_512
    return vi(_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#elif defined(__x86_64__)
    return vi(_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
#else
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return vi(vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(word))))));
#endif
}
// The low halves of the words.
ROPEWALK_INLINE void store_u16(void* p, vi words) {
#if ROPEWALK_X86_512
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
#elif defined(__x86_64__)
    const __m256i low = _mm256_shuffle_epi8(
        words, _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1, -1));
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08)));
#else
    vst1_u16(static_cast<uint16_t*>(p), vmovn_u32(vreinterpretq_u32_s32(words)));
#endif
}

ROPEWALK_INLINE vf load_bf16(const void* p) { return as_float(load_u16(p) << 16); }

// The upper halves are x as bf16, rounded to nearest even, subnormals kept (the native x86 conversion flushes them); the lower halves are what
// rounding left there. x is a number, or a NaN whose lower half is zero.
ROPEWALK_INLINE vi round_bf16_number(vf x) {
    const vi bits = as_int(x);
    return bits + (vi(0x7fff) + (upper_halves(bits) & vi(1)));
}
// The same for any x: NaN becomes quiet.
ROPEWALK_INLINE vi round_bf16(vf x) { return as_int(select(x == x, as_float(round_bf16_number(x)), as_float(as_int(x) | vi(0x400000)))); }
// bf16 in the low halves, zero above.
ROPEWALK_INLINE vi to_bf16_words(vf x) { return upper_halves(round_bf16(x)); }
// Words of the upper halves of two: low's below, high's above.
ROPEWALK_INLINE vi join_rounded(vi low, vi high) {
#if ROPEWALK_X86_512
    return vi(_mm512_mask_blend_epi16(0xaaaaaaaau, upper_halves(low), high));
#elif defined(__x86_64__)
    return vi(_mm256_blend_epi16(upper_halves(low), high, 0xaa));
#else
    return vi(vreinterpretq_s32_u32(vsriq_n_u32(vreinterpretq_u32_s32(high), vreinterpretq_u32_s32(low), 16)));
#endif
}
ROPEWALK_INLINE vi join_bf16(vf low, vf high) { return join_rounded(round_bf16(low), round_bf16(high)); }
ROPEWALK_INLINE void store_bf16(void* p, vf x) { store_u16(p, to_bf16_words(x)); }

ROPEWALK_INLINE vf load_fp16(const void* p) {
#if ROPEWALK_X86_512
    return vf(_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))));
#elif defined(__x86_64__)
    return vf(_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))));
#else
    return vf(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(p)))));
#endif
}
ROPEWALK_INLINE void store_fp16(void* p, vf x) {
#if ROPEWALK_X86_512
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__x86_64__)
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    vst1_u16(static_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x)));
#endif
}

// ---- 8-bit elements -------------------------------------------------------------------------------------------------------------------------

// The low bytes of the words.
ROPEWALK_INLINE void store_u8(void* p, vi words) {
#if ROPEWALK_X86_512
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(words));
#elif defined(__x86_64__)
    const __m256i bytes = _mm256_shuffle_epi8(words, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                                                      -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
#else
    const uint16x4_t halves = vmovn_u32(vreinterpretq_u32_s32(words));
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
    const uint32_t word = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    std::memcpy(p, &word, sizeof word);
#endif
}

#if ROPEWALK_HAS_BYTE_DOT
// Bytes 1 of every four words, then their bytes 0.
ROPEWALK_INLINE void store_split_halves(void* p, vi words) {
#if defined(__x86_64__)
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(1, 5, 9, 13, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m512i quarters = _mm512_shuffle_epi8(words, order);
    const __m512i together = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), quarters);
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_castsi512_si256(together));
#else
    static constexpr uint8_t order[8] = {1, 5, 9, 13, 0, 4, 8, 12};
    vst1_u8(static_cast<uint8_t*>(p), vqtbl1_u8(vreinterpretq_u8_s32(words), vld1_u8(order)));
#endif
}
#endif

// OCP E4M3 by way of fp16, which has one exponent bit more and a bias that is 8 larger: sign-extend, shift the exponent into place, clear the copy of
// the sign; the result is the code's value over 256 (code_unit). Subnormals come out right because the fp16 conversion knows them. The NaN codes,
// which pages never hold, read as 480 / 256.
ROPEWALK_INLINE vf load_fp8_unit(const void* p) {
#if ROPEWALK_X86_512
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 7);
    return vf(_mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)))));
#elif defined(__x86_64__)
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p))), 7);
    return vf(_mm256_cvtph_ps(_mm_and_si128(wide, _mm_set1_epi16(static_cast<int16_t>(0xbfff)))));
#else
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    const int16x4_t wide = vshl_n_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)))), 7);
    return vf(vcvt_f32_f16(vreinterpret_f16_u16(vand_u16(vreinterpret_u16_s16(wide), vdup_n_u16(0xbfff)))));
#endif
}
ROPEWALK_INLINE vf load_fp8(const void* p) { return load_fp8_unit(p) * vf(256.0f); }
// 16 of them, without the factor. On AVX2 the bytes are widened together and go through memory: vcvtph2ps from a register takes a shuffle besides, on
// the ports that widening already fills (4 rows: 50 cycles a token and side instead of 60, Zen 3).
ROPEWALK_INLINE void load_fp8_units(const void* p, vf (&out)[panel_vectors]) {
#if defined(__x86_64__) && !ROPEWALK_X86_512
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 7);
    const __m256i halves = _mm256_and_si256(wide, _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
    alignas(32) std::byte copy[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(copy), halves);
    asm("" : "+m"(copy));
    out[0] = vf(_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(copy))));
    out[1] = vf(_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(copy + 16))));
#else
    for (int v = 0; v < panel_vectors; ++v) out[v] = load_fp8_unit(static_cast<const std::byte*>(p) + v * lanes);
#endif
}
// E4M3 in the low bytes, to nearest even; |x| <= 448. Below 2^-6 in units of 2^-9, which is the spacing of floats at 2^14.
ROPEWALK_INLINE vi to_fp8_words(vf x) {
    const vf magnitude = xsimd::abs(x);
    const vi bits = as_int(magnitude);
    const vi small = as_int(magnitude + vf(16384.0f)) - vi(0x46800000);
    const vi large = ((bits + (vi(0x7ffff) + ((bits >> 20) & vi(1)))) >> 20) - vi(960);
    const vi code = as_int(select(magnitude < vf(0x1p-6f), as_float(small), as_float(large)));
    return code | ((as_int(x) >> 24) & vi(0x80));
}
ROPEWALK_INLINE void store_fp8(void* p, vf x) { store_u8(p, to_fp8_words(x)); }

// The nearest integer, to nearest even; |x| < 2^22.
ROPEWALK_INLINE vi nearest(vf x) { return as_int(x + vf(12582912.0f)) - vi(0x4b400000); }

// Element e of words of int8 (4, signed) or int4 (8, codes 0 .. 15: low nibbles of the bytes first).
ROPEWALK_INLINE vi int8_element(vi words, int e) { return e == 3 ? words >> 24 : (words << (24 - 8 * e)) >> 24; }
ROPEWALK_INLINE vi int4_element(vi words, int e) { return (words >> (e % 4 * 8 + e / 4 * 4)) & vi(15); }
ROPEWALK_INLINE vf to_float(vi x) { return xsimd::to_float(x); }

// ---- bf16 pair dot --------------------------------------------------------------------------------------------------------------------------

#if ROPEWALK_HAS_BF16_DOT
// acc + a.even * b.even + a.odd * b.odd for every word, with the rounding of the instruction (it differs between x86 and Arm).
ROPEWALK_INLINE vf dot_bf16_pairs(vf acc, vi a, vi b) {
#if defined(__x86_64__)
    return vf(_mm512_dpbf16_ps(acc, (__m512bh) static_cast<__m512i>(a), (__m512bh) static_cast<__m512i>(b)));
#else
    return vf(vbfdotq_f32(acc, vreinterpretq_bf16_s32(a), vreinterpretq_bf16_s32(b)));
#endif
}
// Stores x as bf16 by the native rounding, which may lose subnormals (for probabilities, where a subnormal weighs nothing), and adds what was stored
// to a sum for each lane, on x86 to one for every two lanes: widening 16 values again takes three instructions of full width, a dot with ones one of
// half.
ROPEWALK_INLINE vf add_bf16_native(void* p, vf x, vf sum) {
#if defined(__x86_64__)
    const __m256bh rounded = _mm512_cvtneps_pbh(x), ones = (__m256bh)_mm256_set1_epi16(0x3f80);
    std::memcpy(p, &rounded, sizeof rounded);
    return vf(_mm512_zextps256_ps512(_mm256_dpbf16_ps(_mm512_castps512_ps256(sum), rounded, ones)));
#else
    vst1_bf16(static_cast<bfloat16_t*>(p), vcvt_bf16_f32(x));
    return sum + load_bf16(p);
#endif
}
#endif

// ---- integer dots ---------------------------------------------------------------------------------------------------------------------------

#if ROPEWALK_HAS_BYTE_DOT
// acc + the four products of each word: unsigned a times signed b on x86, signed times signed on Arm.
ROPEWALK_INLINE vi dot_bytes(vi acc, vi a, vi b) {
#if defined(__x86_64__)
    return vi(_mm512_dpbusd_epi32(acc, a, b));
#else
    return vi(vdotq_s32(acc, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)));
#endif
}
#elif ROPEWALK_HAS_INTEGER_DOT
#if ROPEWALK_X86_512
#define ROPEWALK_X86_OP(name) _mm512_##name
#else
#define ROPEWALK_X86_OP(name) _mm256_##name
#endif
// Signed 16-bit pairs: a.low * b.low + a.high * b.high in every word.
ROPEWALK_INLINE vi multiply_pairs(vi a, vi b) { return vi(ROPEWALK_X86_OP(madd_epi16)(a, b)); }
// Unsigned bytes of a times signed bytes of b, neighbours added, as 16-bit halves of the word; the sums must fit.
ROPEWALK_INLINE vi multiply_bytes(vi a, vi b) { return vi(ROPEWALK_X86_OP(maddubs_epi16)(a, b)); }
ROPEWALK_INLINE vi add_halves(vi a, vi b) { return vi(ROPEWALK_X86_OP(add_epi16)(a, b)); }
// Bytes 0 and 2, or 1 and 3, of every word as signed halves.
ROPEWALK_INLINE vi even_bytes(vi x) { return vi(ROPEWALK_X86_OP(srai_epi16)(ROPEWALK_X86_OP(slli_epi16)(x, 8), 8)); }
ROPEWALK_INLINE vi odd_bytes(vi x) { return vi(ROPEWALK_X86_OP(srai_epi16)(x, 8)); }
// 0 2 1 3 of every four lanes.
ROPEWALK_INLINE vi swap_middle(vi x) {
#if ROPEWALK_X86_512
    return vi(_mm512_shuffle_epi32(x, static_cast<_MM_PERM_ENUM>(0xd8)));
#else
    return vi(_mm256_shuffle_epi32(x, 0xd8));
#endif
}
#undef ROPEWALK_X86_OP
#endif

#if defined(__x86_64__)
// acc + a.low * b.low + a.high * b.high for every word of two int16, modulo 2^32. Two instructions where there is no VNNI.
ROPEWALK_INLINE vi dot_pairs(vi acc, vi a, vi b) {
#if ROPEWALK_HAS_BYTE_DOT
    return vi(_mm512_dpwssd_epi32(acc, a, b));
#else
    return acc + multiply_pairs(a, b);
#endif
}
#endif

// Keeps x, a vf or vi, in a register and hides where it comes from: for loops that must not be optimised away.
template <class Vector>
ROPEWALK_INLINE void keep(Vector& x) {
    auto raw = static_cast<typename Vector::register_type>(x);
#if defined(__x86_64__)
    asm volatile("" : "+v"(raw));
#else
    asm volatile("" : "+w"(raw));
#endif
    x = Vector(raw);
}

// ---- memory ---------------------------------------------------------------------------------------------------------------------------------

// Into L2, not L1: fetching this far ahead would evict what L1 is being used for (design.md section 5).
ROPEWALK_INLINE void prefetch_l2(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// ---- math -----------------------------------------------------------------------------------------------------------------------------------

// 2^t = 2^n 2^r with n = round(t): n comes from adding 1.5 * 2^23, as the sum's low bits, which are shifted into the exponent without a conversion.
// `polynomial(r)` is 2^r on [-0.5, 0.5]. NaN stays NaN. Below -126 the result is less than 2^-126, and 0 at -127 and below.
template <class Polynomial>
ROPEWALK_INLINE vf exp2_by(vf t, Polynomial polynomial) {
    const vf magic(12582912.0f);
    const vf clamped = maximum(vf(-127.0f), t);
    const vf shifted = clamped + magic;
    const vf y = polynomial(clamped - (shifted - magic));
    return as_float(as_int(y) + (as_int(shifted) << 23));
}

// 2^t for t <= 0 (and for t < 128): degree 6 with c0 = 1, so that 2^0 is exactly 1; at most 0.82 ulp (fit in double, then searched around for the
// least error in fp32). Below -126 the result is 0.
ROPEWALK_INLINE vf exp2_core(vf t) {
    const vf scaled = exp2_by(t, [](vf r) {
        vf y = fmadd(vf(0.000154614478f), r, vf(0.00133908843f));
        y = fmadd(y, r, vf(0.00961805694f));
        y = fmadd(y, r, vf(0.0555035919f));
        y = fmadd(y, r, vf(0.240226507f));
        y = fmadd(y, r, vf(0.693147182f));
        return fmadd(y, r, vf(1.0f));
    });
    return select(t < vf(-126.0f), zero(), scaled);
}

#if ROPEWALK_HAS_BF16_DOT
// The same for what is rounded to bf16 next: degree 4 with c0 = 1, relative error 2^-18.4 (least-squares fit reweighted to the least maximum), where
// the rounding has 2^-8.
ROPEWALK_INLINE vf exp2_for_bf16(vf t) {
    return exp2_by(t, [](vf r) {
        vf y = fmadd(vf(0.00958284363f), r, vf(0.0559064262f));
        y = fmadd(y, r, vf(0.240240991f));
        y = fmadd(y, r, vf(0.693124175f));
        return fmadd(y, r, vf(1.0f));
    });
}
#endif

// tanh: for |x| < 0.625 the odd minimax polynomial of Cephes' tanhf (x + x^3 P(x^2)), elsewhere 1 - 2 / (e^2x + 1), which has no cancellation there.
// The branch saves exp2 and a division where all lanes are small, as the scores of real models under a cap of 50 nearly always are.
ROPEWALK_INLINE vf tanh_core(vf x) {
    const vf z = x * x;
    vf p = fmadd(vf(-5.70498872745e-3f), z, vf(2.06390887954e-2f));
    p = fmadd(p, z, vf(-5.37397155531e-2f));
    p = fmadd(p, z, vf(1.33314422036e-1f));
    p = fmadd(p, z, vf(-3.33332819422e-1f));
    const vf small = fmadd(p * z, x, x);
    const vmask is_small = z < vf(0.625f * 0.625f);
    if (xsimd::all(is_small)) return small;
    // e^-2|x| = 2^(-2 log2(e) |x|); tanh = (1 - e) / (1 + e).
    const vf e = exp2_core(xsimd::abs(x) * vf(-2.885390081777927f));
    const vf large = divide(vf(1.0f) - e, vf(1.0f) + e);
    const vf sign = as_float(as_int(x) & vi(static_cast<int32_t>(0x80000000u)));
    return select(is_small, small, as_float(as_int(large) | as_int(sign)));
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
