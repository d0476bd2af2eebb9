// Attention with integer dots: Q.K over int8 and int4 pages and P.V over them, q and p rounded to integers. int8 pages meet 16-bit q and p (error
// near that of fp32), int4 pages 8-bit ones. Sums of products are exact in int32, so neither the shape of a register tile nor the order of anything
// shows in the bits.
//
// Per 32-bit word of a page (four int8, or eight int4 as two sets of four nibbles):
//   byte dot (VNNI, sdot)   int8: one dot with the high bytes of the row's four integers and one with the low bytes, in the end high * 256 + low;
//                           int4: one dot for each set of nibbles
//   pairs (AVX2, AVX-512F)  int8: bytes widened to two vectors of 16-bit pairs (3 operations for the whole group of rows), two pmaddwd a row;
//                           int4: pmaddubsw on each set of nibbles, summed in 16 bits while that cannot overflow, then widened by pmaddwd with ones
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/attention/tiles.hpp"
#include "simd/core/kernels.hpp"
#include "simd/core/quantise.hpp"
#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

// Largest magnitude of a 16-bit q or p: 127 * 256, so that both bytes fit whatever their signs.
inline constexpr float largest_weight16 = 32512.0f;
// Of 8-bit ones: q is signed; p is unsigned on x86 and signed on Arm.
inline constexpr float largest_q8 = 127.0f;
#if defined(__x86_64__)
inline constexpr float largest_p8 = 255.0f;
#else
inline constexpr float largest_p8 = 127.0f;
#endif

// A row of integers as the dots read it: for four of them (dims of q, tokens of p) 8 bytes of 16-bit ones or 4 bytes of 8-bit ones. `signed_low`: the
// low byte is the signed operand of the dot.
template <bool signed_low>
ROPEWALK_INLINE void store_weights16(std::byte* out, vi n) {
#if !ROPEWALK_HAS_BYTE_DOT
    store_u16(out, swap_middle(n));  // words of (0, 2) and (1, 3), as even_bytes and odd_bytes give them
#else
    // A low byte of 128 and more counts as 256 less, which the high byte makes up for.
    store_split_halves(out, signed_low ? (n + vi(128)) ^ vi(128) : n);
#endif
}

// ---- int8: sums of products with a row of 16-bit integers ---------------------------------------------------------------------------------

enum class side { k, v };

template <side Side>
struct int8_words {
#if ROPEWALK_HAS_BYTE_DOT
    static constexpr int sums = 2;
    vi x;
    ROPEWALK_INLINE void read(const std::byte* p) {
        x = load_words(p);
#if defined(__x86_64__)
        if constexpr (Side == side::k) x = x ^ vi(static_cast<int32_t>(0x80808080u));  // k + 128, unsigned
#endif
    }
    ROPEWALK_INLINE void add(const std::byte* weights, vi (&sum)[sums]) const {
        const vi high = broadcast_word(weights), low = broadcast_word(weights + 4);
#if defined(__x86_64__)
        sum[0] = Side == side::k ? dot_bytes(sum[0], x, high) : dot_bytes(sum[0], high, x);
        sum[1] = Side == side::k ? dot_bytes(sum[1], x, low) : dot_bytes(sum[1], low, x);
#else
        sum[0] = dot_bytes(sum[0], x, high);
        sum[1] = dot_bytes(sum[1], x, low);
#endif
    }
    static ROPEWALK_INLINE vi total(const vi (&sum)[sums]) { return (sum[0] << 8) + sum[1]; }
#else
    static constexpr int sums = 1;
    vi even, odd;
    ROPEWALK_INLINE void read(const std::byte* p) {
        const vi x = load_words(p);
        even = even_bytes(x);
        odd = odd_bytes(x);
    }
    ROPEWALK_INLINE void add(const std::byte* weights, vi (&sum)[sums]) const {
        sum[0] = sum[0] + multiply_pairs(even, broadcast_word(weights)) + multiply_pairs(odd, broadcast_word(weights + 4));
    }
    static ROPEWALK_INLINE vi total(const vi (&sum)[sums]) { return sum[0]; }
#endif
};

// What a dot of unsigned k + 128 has too much: 128 times the sum of the row.
inline constexpr bool k_is_biased = ROPEWALK_HAS_BYTE_DOT && ROPEWALK_X86_512;

// Rows of a tile that is a line (16 words) wide: 8 sums of 16 registers on AVX2, up to 16 of 32 elsewhere.
inline constexpr int integer_rows = vector_registers == 16 ? 4 : ROPEWALK_X86_512 ? 8 : 2;

// R rows by a line of words.
template <side Side, int R>
struct int8_tile {
    using words_type = int8_words<Side>;
    vi sum[R][panel_vectors][words_type::sums];

    ROPEWALK_INLINE int8_tile() {
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
                ROPEWALK_UNROLL for (int i = 0; i < words_type::sums; ++i) sum[r][v][i] = vi(0);
            }
        }
    }
    // Each step reads the line `step_bytes` on and 8 more bytes of each row.
    ROPEWALK_INLINE void add(const std::byte* weights, int64_t weight_stride, int32_t steps, const std::byte* words, int64_t step_bytes,
                             prefetcher& ahead) {
        for (int32_t step = 0; step < steps; ++step) {
            ahead.read();
            words_type x[panel_vectors];
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) x[v].read(words + v * lanes * 4);
            ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
                ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) x[v].add(weights + r * weight_stride, sum[r][v]);
            }
            words += step_bytes;
            weights += 8;
        }
    }
    ROPEWALK_INLINE vi total(int r, int v) const { return words_type::total(sum[r][v]); }
};

// ---- q ------------------------------------------------------------------------------------------------------------------------------------

// A quantised row of q: `weights` bytes, then these. Everything together takes at most 4 bytes a dim.
struct q_row_end {
    float scale;  // of the integers
    int32_t sum;  // of the integers (int8)
};
constexpr int32_t weight_bytes(int type) { return type == int8 ? 2 : 1; }  // of one integer
// int4: behind that, for each group of 32 dims, [groups] exact sums of q over the scale, then [groups] -8 times the sums of the integers.

template <int Type>
void quantise_q(const float* q, int32_t k_dim, std::byte* out) {
    float largest = 0.0f, check = 0.0f;
    for (int32_t d = 0; d < k_dim; ++d) {
        const float magnitude = __builtin_fabsf(q[d]);
        largest = magnitude > largest ? magnitude : largest;
        check += magnitude * 0.0f;
    }
    const bool finite = check == 0.0f;
    // |sum of 512 products| < 2^31 at 127 * 256 * 127; wider heads get a bit less.
    const float most = Type == int4 ? largest_q8 : k_dim <= 512 ? largest_weight16 : largest_weight16 / 2.0f;
    const code_range range = code_range_of(largest, finite, most);
    q_row_end end{range.scale, 0};
    float sums[max_head_dim / scale_group] = {};
    int32_t integer_sums[max_head_dim / scale_group] = {};
    constexpr int32_t step = lanes > 4 ? lanes : 4;
    for (int32_t d = 0; d < k_dim; d += step) {
        float x[step] = {};
        int32_t n[step];
        for (int32_t i = 0; i < step && d + i < k_dim; ++i) {
            x[i] = finite ? q[d + i] * range.inverse : 0.0f;
            sums[d / scale_group] += x[i];
        }
        for (int32_t i = 0; i < step; i += lanes) store_words(n + i, nearest(load(x + i)));
        for (int32_t i = 0; i < step; ++i) {
            end.sum += n[i];
            integer_sums[d / scale_group] += n[i];
        }
        std::byte piece[step * 2];
        for (int32_t i = 0; i < step; i += lanes) {
            if constexpr (Type == int8) store_weights16<true>(piece + i * 2, load_words(n + i));
            if constexpr (Type == int4) store_u8(piece + i, load_words(n + i));
        }
        const int32_t count = k_dim - d < step ? k_dim - d : step;
        std::memcpy(out + d * weight_bytes(Type), piece, static_cast<std::size_t>(count * weight_bytes(Type)));
    }
    out += k_dim * weight_bytes(Type);
    std::memcpy(out, &end, sizeof end);
    if constexpr (Type == int4) {
        const auto groups = static_cast<std::size_t>(k_dim / scale_group);
        for (int32_t& sum : integer_sums) sum *= -8;
        std::memcpy(out + sizeof end, sums, groups * 4);
        std::memcpy(out + sizeof end + groups * 4, integer_sums, groups * 4);
    }
}

template <class T>
ROPEWALK_INLINE T read_as(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// ---- Q.K ------------------------------------------------------------------------------------------------------------------------------------

// Scores of R rows against one panel.
template <int R>
ROPEWALK_TILE void qk_int8_tile(const std::byte* q, int64_t q_stride, int32_t k_dim, const std::byte* k, const float* k_scales, float* scores,
                                int64_t score_stride, prefetcher& ahead) {
    int8_tile<side::k, R> tile;
    tile.add(q, q_stride, k_dim / 4, k, panel * 4, ahead);
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const auto end = read_as<q_row_end>(q + r * q_stride + k_dim * 2);
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            vi sum = tile.total(r, v);
            if constexpr (k_is_biased) sum = sum - vi(static_cast<int32_t>(128u * static_cast<uint32_t>(end.sum)));
            store(scores + r * score_stride + v * lanes, to_float(sum) * (load(k_scales + v * lanes) * vf(end.scale)));
        }
    }
}

// A set of nibbles of eight, as bytes 0 .. 15.
ROPEWALK_INLINE vi low_nibbles(vi x) { return x & vi(0x0f0f0f0f); }
ROPEWALK_INLINE vi high_nibbles(vi x) { return (x >> 4) & vi(0x0f0f0f0f); }

// Rows of a tile of int4 keys, and the panels beside them. Each sum takes a float and an integer register. On AVX2 four rows by one vector (two by
// two is 10 % slower), where registers allow by two panels, so that a word of q is loaded once for both.
inline constexpr int int4_k_rows = ROPEWALK_X86_512 ? 6 : integer_rows;
inline constexpr int int4_panels = ROPEWALK_X86_512 ? 2 : 1;
inline constexpr int int4_vectors = vector_registers == 16 ? 1 : panel_vectors;

// Scores of R rows against the tokens of P panels from lane `token` on. value = scale * (n - 8) + mid, so score = sum over groups of
// scale * (n.q - 8 sum q) + mid * sum q, all in units of the row's scale.
template <int R, int P>
ROPEWALK_TILE void qk_int4_tile(const std::byte* q, int64_t q_stride, int32_t k_dim, const std::byte* k, int token, float* scores,
                                int64_t score_stride, prefetcher& ahead) {
    constexpr int V = P * int4_vectors;
    vf acc[R][V];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int v = 0; v < V; ++v) acc[r][v] = zero(); }
    const std::byte* ends = q + k_dim;
    const int64_t groups = k_dim / scale_group, next_panel = panel_bytes(int4, k_dim);
    const auto lane_of = [token](int v) { return token + v % int4_vectors * lanes; };
    for (int64_t g = 0; g < groups; ++g, k += int4_scale_offset + 64) {
        const std::byte* group_sums = ends + static_cast<int64_t>(sizeof(q_row_end)) + g * 4;
        vi sum[R][V];
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            const vi start = ROPEWALK_HAS_BYTE_DOT ? broadcast_word(group_sums + r * q_stride + groups * 4) : vi(0);
            ROPEWALK_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = start;
        }
        if (token == 0) {
            for (int i = 0; i < 5 * P; ++i) ahead.read();
        }
        // A real loop: unrolled, g++ puts the products of all steps first and spills them.
        _Pragma("GCC unroll 1") for (int step = 0; step < 4; ++step, q += 8) {
            vi low[V], high[V];
            ROPEWALK_UNROLL for (int v = 0; v < V; ++v) {
                const vi x = load_words(k + v / int4_vectors * next_panel + (step * panel + lane_of(v)) * 4);
                low[v] = low_nibbles(x);
                high[v] = high_nibbles(x);
            }
            ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
                const vi q_low = broadcast_word(q + r * q_stride), q_high = broadcast_word(q + r * q_stride + 4);
                ROPEWALK_UNROLL for (int v = 0; v < V; ++v) {
#if ROPEWALK_HAS_BYTE_DOT
                    sum[r][v] = dot_bytes(dot_bytes(sum[r][v], low[v], q_low), high[v], q_high);
#else
                    sum[r][v] =
                        add_halves(sum[r][v], add_halves(multiply_bytes(low[v], q_low), multiply_bytes(high[v], q_high)));  // 8 * 2 * 15 * 127 < 2^15
#endif
                }
            }
        }
        ROPEWALK_UNROLL for (int v = 0; v < V; ++v) {
            const std::byte* line = k + v / int4_vectors * next_panel + int4_scale_offset;
            const vf scale = load_fp16(line + lane_of(v) * 2), mid = load_fp16(line + (panel + lane_of(v)) * 2);
            ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
                const std::byte* group_sum = group_sums + r * q_stride;
#if !ROPEWALK_HAS_BYTE_DOT
                sum[r][v] = multiply_pairs(sum[r][v], vi(0x00010001)) + broadcast_word(group_sum + groups * 4);
#endif
                acc[r][v] = fmadd(to_float(sum[r][v]), scale, acc[r][v]);
                acc[r][v] = fmadd(mid, as_float(broadcast_word(group_sum)), acc[r][v]);
            }
        }
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const vf scale(read_as<q_row_end>(ends + r * q_stride).scale);
        ROPEWALK_UNROLL for (int v = 0; v < V; ++v) { store(scores + r * score_stride + v / int4_vectors * panel + lane_of(v), acc[r][v] * scale); }
    }
}

// q_stride in bytes here.
void qk_int8(const qk_args& args) {
    prefetcher ahead(args.prefetch, k_lines(int8, args.k_dim, args.panels));
    const auto* q = static_cast<const std::byte*>(args.q);
    for (int32_t p = 0; p < args.panels; ++p) {
        const std::byte* k = args.k + p * panel_bytes(int8, args.k_dim);
        for_strips<integer_rows>(args.rows, [&](auto r, int first) {
            qk_int8_tile<decltype(r)::value>(q + first * args.q_stride, args.q_stride, args.k_dim, k, args.k_scales + p * panel,
                                             args.scores + first * args.score_stride + p * panel, args.score_stride, ahead);
        });
    }
}

void qk_int4(const qk_args& args) {
    prefetcher ahead(args.prefetch, k_lines(int4, args.k_dim, args.panels));
    const auto* q = static_cast<const std::byte*>(args.q);
    for (int32_t p = 0; p < args.panels; p += int4_panels) {
        const std::byte* k = args.k + p * panel_bytes(int4, args.k_dim);
        for_strips<int4_k_rows>(args.rows, [&](auto r, int first) {
            constexpr int R = decltype(r)::value;
            const auto tile = [&](auto panels) __attribute__((always_inline)) {
                for (int token = 0; token < panel; token += int4_vectors * lanes) {
                    qk_int4_tile<R, decltype(panels)::value>(q + first * args.q_stride, args.q_stride, args.k_dim, k, token,
                                                             args.scores + first * args.score_stride + p * panel, args.score_stride, ahead);
                }
            };
            p + int4_panels <= args.panels ? tile(constant<int4_panels>{}) : tile(constant<1>{});
        });
    }
}

// ---- P.V ------------------------------------------------------------------------------------------------------------------------------------

// Rows of integer weights of one tile: p times the tokens' scales (of one group of dims in int4), relative to the largest.
struct weight_rows {
    alignas(64) std::byte weights[integer_rows][tile_tokens * 2];
    float factor[integer_rows];    // one integer step
    float mid[integer_rows];       // int4: sum of p * mid
    int32_t offset[integer_rows];  // int4 without byte dots: 8 times the sum of the weights
};

// Scales and mids of the tile's tokens for one group of dims, in order.
struct tile_scales {
    alignas(64) float scale[tile_tokens];
    alignas(64) float mid[tile_tokens];
    bool finite;
};

template <int Type>
void read_scales(const pv_args& args, int32_t group, tile_scales& out) {
    vf check = zero();
    int32_t at = 0;
    for (int32_t i = 0; i < args.pieces; ++i) {
        const v_run& run = args.runs[i];
        const std::byte* scale = run.scales + (Type == int4 ? int64_t{group} * args.page_tokens * 2 : 0);
        const std::byte* mid = scale + int64_t{args.v_dim / scale_group} * args.page_tokens * 2;
        for (int32_t t = 0; t < run.tokens; t += lanes, at += lanes) {
            const vf s = Type == int4 ? load_fp16(scale + t * 2) : load(reinterpret_cast<const float*>(scale) + t);
            store(out.scale + at, s);
            check = fmadd(s, zero(), check);
            if constexpr (Type == int4) {
                const vf m = load_fp16(mid + t * 2);
                store(out.mid + at, m);
                check = fmadd(m, zero(), check);
            }
        }
    }
    out.finite = xsimd::all(check == check);
}

// int4 codes are 0 .. 15 and stand for -8 .. 7. A byte dot takes them as signed bytes of sixteen times that; pairs of unsigned ones have too much by
// `offset`.
inline constexpr float v_unit = ROPEWALK_HAS_BYTE_DOT ? 1.0f / 16 : 1.0f;

// R rows at a time, so that their scales are loaded once and their reductions overlap. p is finite or the row's sum of weights is not, and then
// nothing here matters.
template <int Type, int R>
ROPEWALK_INLINE void quantise_rows(const float* p, int64_t p_stride, int32_t tokens, const tile_scales& scales, weight_rows& rows, int first) {
    constexpr float most = Type == int8 ? largest_weight16 : largest_p8;
    vf largest[R], mids[R];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) largest[r] = mids[r] = zero();
    for (int32_t t = 0; t < tokens; t += lanes) {
        const vf scale = load(scales.scale + t), mid = Type == int4 ? load(scales.mid + t) : zero();
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            const vf x = load(p + r * p_stride + t);
            largest[r] = maximum(x * scale, largest[r]);
            if constexpr (Type == int4) mids[r] = fmadd(x, mid, mids[r]);
        }
    }
    vf inverse[R];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const code_range range = code_range_of(reduce_maximum(largest[r]), true, most);
        inverse[r] = vf(range.inverse);
        rows.factor[first + r] = range.scale * (Type == int4 ? v_unit : 1.0f);
        if constexpr (Type == int4) rows.mid[first + r] = reduce_sum(mids[r]);
    }
    constexpr bool offset = Type == int4 && !ROPEWALK_HAS_BYTE_DOT;
    const vf magic(12582912.0f);
    vi sum[R];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) sum[r] = vi(0);
    for (int32_t t = 0; t < tokens; t += lanes) {
        const vf scale = load(scales.scale + t);
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            std::byte* weights = rows.weights[first + r];
            // The low bits of the sum are the nearest integer, as in nearest(); the stores take no others.
            const vi n = as_int(fmadd(load(p + r * p_stride + t), scale * inverse[r], magic));
            if constexpr (Type == int8) store_weights16<!ROPEWALK_X86_512>(weights + t * 2, n);
            if constexpr (Type == int4) store_u8(weights + t, n);
            if constexpr (offset) sum[r] = sum[r] + (n & vi(0xff));
        }
    }
    if constexpr (offset) {
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) rows.offset[first + r] = 8 * reduce_sum(sum[r]);
    }
}

// The same for a row of a tile that holds a scale of Inf or NaN: the row is NaN if it sees that token, and where its weight is 0 it is masked.
template <int Type>
__attribute__((noinline)) void quantise_masked_row(const float* p, int32_t tokens, const tile_scales& scales, weight_rows& rows, int r) {
    tile_scales own = scales;
    bool seen = false;
    for (int32_t t = 0; t < tokens; ++t) {
        const bool bad = !(scales.scale[t] * 0.0f == 0.0f) || (Type == int4 && !(scales.mid[t] * 0.0f == 0.0f));
        if (!bad) continue;
        own.scale[t] = own.mid[t] = 0.0f;
        seen = seen || p[t] != 0.0f;
    }
    quantise_rows<Type, 1>(p, 0, tokens, own, rows, r);
    if (seen) rows.factor[r] = __builtin_nanf("");
}

// O of R rows and 16 dims over all runs of the tile.
template <int R>
ROPEWALK_TILE void pv_int8_tile(const weight_rows& rows, const pv_args& args, int32_t d, float* o, const float* alpha, prefetcher* ahead) {
    int8_tile<side::v, R> tile;
    const std::byte* weights = rows.weights[0];
    for (int32_t i = 0; i < args.pieces; ++i) {
        tile.add(weights, sizeof rows.weights[0], args.runs[i].tokens / 4, args.runs[i].v + d * 4, int64_t{args.v_dim} * 4, ahead[i]);
        weights += args.runs[i].tokens * 2;
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            float* at = o + r * args.o_stride + d + v * lanes;
            store(at, fmadd(to_float(tile.total(r, v)), vf(rows.factor[r]), load(at) * vf(alpha[r])));
        }
    }
}

// Vectors of dims of a tile of int4 values: where registers allow a whole group, so that a word of weights is loaded once for both.
inline constexpr int int4_dims = ROPEWALK_X86_512 ? 2 : 1;

// acc + what 16 tokens, two words of nibbles, give.
template <int R>
ROPEWALK_INLINE void add_v_words(const std::byte* weights, const std::byte* words, int64_t step_bytes, vi (&acc)[R][int4_dims]) {
    vi nibbles[4][int4_dims];
    ROPEWALK_UNROLL for (int v = 0; v < int4_dims; ++v) {
        ROPEWALK_UNROLL for (int i = 0; i < 2; ++i) {
            const vi x = load_words(words + i * step_bytes + v * lanes * 4);
#if ROPEWALK_HAS_BYTE_DOT
            const vi signs = x ^ vi(static_cast<int32_t>(0x88888888u)), upper(static_cast<int32_t>(0xf0f0f0f0u));
            nibbles[2 * i][v] = (signs << 4) & upper;
            nibbles[2 * i + 1][v] = signs & upper;
#else
            nibbles[2 * i][v] = low_nibbles(x);
            nibbles[2 * i + 1][v] = high_nibbles(x);
#endif
        }
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const std::byte* p = weights + r * static_cast<int64_t>(sizeof weight_rows::weights[0]);
        vi four[4];
        ROPEWALK_UNROLL for (int i = 0; i < 4; ++i) four[i] = broadcast_word(p + i * 4);
        ROPEWALK_UNROLL for (int v = 0; v < int4_dims; ++v) {
#if ROPEWALK_HAS_BYTE_DOT
            ROPEWALK_UNROLL for (int i = 0; i < 4; ++i) acc[r][v] = dot_bytes(acc[r][v], four[i], nibbles[i][v]);
#else
            const vi low = add_halves(multiply_bytes(four[0], nibbles[0][v]), multiply_bytes(four[1], nibbles[1][v]));
            const vi high = add_halves(multiply_bytes(four[2], nibbles[2][v]), multiply_bytes(four[3], nibbles[3][v]));
            acc[r][v] = acc[r][v] + multiply_pairs(add_halves(low, high), vi(0x00010001));  // 4 * 2 * 255 * 15 < 2^15
#endif
        }
    }
}

// O of R rows and int4_dims vectors of dims.
template <int R>
ROPEWALK_TILE void pv_int4_tile(const weight_rows& rows, const pv_args& args, int32_t d, float* o, const float* alpha, prefetcher* ahead) {
    vi acc[R][int4_dims];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int v = 0; v < int4_dims; ++v) acc[r][v] = vi(0); }
    const std::byte* weights = rows.weights[0];
    const int64_t step_bytes = int64_t{args.v_dim} * 4;
    constexpr int lines = 2 * (int4_dims * lanes > 16 ? int4_dims * lanes / 16 : 1);  // of 16 tokens
    for (int32_t i = 0; i < args.pieces; ++i) {
        const v_run& run = args.runs[i];
        const std::byte* words = run.v + d * 4;
        for (int32_t t = 0; t < run.tokens; t += 16, words += 2 * step_bytes) {
            if (d % 16 == 0) {
                for (int line = 0; line < lines; ++line) ahead[i].read();
            }
            add_v_words<R>(weights + t, words, step_bytes, acc);
        }
        weights += run.tokens;
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        ROPEWALK_UNROLL for (int v = 0; v < int4_dims; ++v) {
            float* at = o + r * args.o_stride + d + v * lanes;
            const vi total = ROPEWALK_HAS_BYTE_DOT ? acc[r][v] : acc[r][v] - vi(rows.offset[r]);
            store(at, fmadd(to_float(total), vf(rows.factor[r]), fmadd(load(at), vf(alpha[r]), vf(rows.mid[r]))));
        }
    }
}

template <int Type>
void pv_integer(const pv_args& args) {
    run_prefetchers ahead(args, Type);
    const int32_t group = Type == int4 ? scale_group : args.v_dim;
    tile_scales scales;
    for (int32_t first = 0; first < args.v_dim; first += group) {
        read_scales<Type>(args, first / group, scales);
        for_strips<integer_rows>(args.rows, [&](auto r, int row) {
            constexpr int R = decltype(r)::value;
            weight_rows rows;
            const float* p = static_cast<const float*>(args.p) + row * args.p_stride;
            if (scales.finite) {
                quantise_rows<Type, R>(p, args.p_stride, ahead.tokens, scales, rows, 0);
            } else {
                for (int i = 0; i < R; ++i) quantise_masked_row<Type>(p + i * args.p_stride, ahead.tokens, scales, rows, i);
            }
            float* o = args.o + row * args.o_stride;
            if constexpr (Type == int8) {
                for (int32_t d = first; d < first + group; d += 16) pv_int8_tile<R>(rows, args, d, o, args.alpha + row, ahead.of);
            } else {
                for (int32_t d = first; d < first + group; d += int4_dims * lanes) pv_int4_tile<R>(rows, args, d, o, args.alpha + row, ahead.of);
            }
        });
    }
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
