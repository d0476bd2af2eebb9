// Attention on a tile: scores = Q.K over panels, online softmax of the scores, O += P.V. One source for every target.
//
// Q.K and P.V are the same register tile seen twice: R rows (query tokens x heads of the group) times a few vectors, the K or V line loaded and
// widened once for all R rows, the row's value broadcast from memory. There is no horizontal sum: tokens lie in lanes in Q.K, dims in P.V. Every
// score is one FMA chain over the head dimension and every output one chain over tokens, so the shape of the tile never shows in the bits.
//
// Few rows (decode): 16-bit types and fp8 are widened inside the tile, each line is read once from memory.
// Many rows (prefill), and int8 and int4 always: panels are widened once into fp32 scratch that stays in L1 and serves all strips of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/attention/tiles.hpp"
#include "simd/core/kernels.hpp"
#include "simd/core/vec.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

// ---- operands -----------------------------------------------------------------------------------------------------------------------------

// How one vector of K or V turns into `planes` fp32 vectors: consecutive dims of K, consecutive tokens of V.
template <int Type>
struct fma_operand {
    static constexpr int planes = word_elements(Type);
    static constexpr int bytes = planes * type_bits(Type) / 8;  // of one lane
    using vectors = vf[planes];
    static ROPEWALK_INLINE void read(const std::byte* p, vectors& out) {
        if constexpr (Type == fp32) {
            out[0] = load(reinterpret_cast<const float*>(p));
        } else if constexpr (Type == fp16) {
            out[0] = load_fp16(p);
        } else if constexpr (Type == fp8) {
            out[0] = load_fp8(p);
        } else {
            const vi words = load_words(p);
            out[0] = even_bf16(words);
            out[1] = odd_bf16(words);
        }
    }
    // acc += row[0] * vectors[0] (+ row[1] * vectors[1]), in this order.
    static ROPEWALK_INLINE vf accumulate(const float* row, const vectors& x, vf acc) {
        ROPEWALK_UNROLL for (int e = 0; e < planes; ++e) acc = fmadd(broadcast(row[e]), x[e], acc);
        return acc;
    }
    using row_element = float;
};

#if ROPEWALK_HAS_BF16_DOT
struct dot_operand {
    static constexpr int planes = 2;
    static constexpr int bytes = 4;
    using vectors = vi[1];
    static ROPEWALK_INLINE void read(const std::byte* p, vectors& out) { out[0] = load_words(p); }
    static ROPEWALK_INLINE vf accumulate(const uint16_t* row, const vectors& x, vf acc) { return dot_bf16_pairs(acc, x[0], broadcast_word(row)); }
    using row_element = uint16_t;
};
#endif

// ---- register tiles -----------------------------------------------------------------------------------------------------------------------

// Vectors (in groups of 16 lanes = one line) beside R rows. 16 registers: 8 to 12 accumulators feed two FMA units of latency 4, the rest holds the
// line, its widened planes and a broadcast. 32 registers: up to 24.
template <class Operand>
constexpr int groups_beside(int rows) {
    const int budget = vector_registers == 16 ? 8 : (Operand::planes == 1 ? 24 : 16);
    int groups = budget / (rows * panel_vectors);
    if (groups > 4) groups = 4;
    if (groups == 3) groups = 2;  // pages have 1, 2, 4 .. panels
    return groups < 1 ? 1 : groups;
}

// Rows of a full strip: the largest tile that leaves room for its operands.
template <class Operand>
constexpr int full_strip() {
    if (vector_registers == 16) return Operand::planes == 1 ? 6 : 5;
    return ROPEWALK_X86_512 ? 12 : (Operand::planes == 1 ? 6 : 5);
}

// Rows up to which widening inside the tile is cheaper than a pass through scratch.
inline constexpr int few_rows = 16;

// ---- Q.K ------------------------------------------------------------------------------------------------------------------------------------

// Scores of R rows against P panels.
template <class Operand, int R, int P>
ROPEWALK_TILE void qk_tile(const typename Operand::row_element* q, int64_t q_stride, int32_t k_dim, const std::byte* k, int64_t panel_bytes,
                           float* scores, int64_t score_stride, prefetcher& ahead) {
    constexpr int vectors = P * panel_vectors;
    vf acc[R][vectors];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int v = 0; v < vectors; ++v) acc[r][v] = zero(); }
    for (int32_t d = 0; d < k_dim; d += Operand::planes) {
        typename Operand::vectors x[vectors];
        ROPEWALK_UNROLL for (int p = 0; p < P; ++p) {
            ahead.read();
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
                Operand::read(k + p * panel_bytes + v * lanes * Operand::bytes, x[p * panel_vectors + v]);
            }
        }
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            ROPEWALK_UNROLL for (int v = 0; v < vectors; ++v) acc[r][v] = Operand::accumulate(q + r * q_stride + d, x[v], acc[r][v]);
        }
        k += panel * Operand::bytes;
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        ROPEWALK_UNROLL for (int v = 0; v < vectors; ++v) store(scores + r * score_stride + v * lanes, acc[r][v]);
    }
}

// Panels are the outer loop: a panel stays in L1 while all strips pass over it.
template <class Operand>
void qk_strips(const qk_args& args, const std::byte* k, float* scores, int32_t panels, prefetcher& ahead) {
    const int64_t panel_bytes = int64_t{args.k_dim} / Operand::planes * panel * Operand::bytes;
    const auto* q = static_cast<const typename Operand::row_element*>(args.q);
    for_strips<full_strip<Operand>()>(args.rows, [&](auto r, int first) {
        constexpr int R = decltype(r)::value;
        constexpr int P = groups_beside<Operand>(R);
        int32_t p = 0;
        for (; p + P <= panels; p += P) {
            qk_tile<Operand, R, P>(q + first * args.q_stride, args.q_stride, args.k_dim, k + p * panel_bytes, panel_bytes,
                                   scores + first * args.score_stride + p * panel, args.score_stride, ahead);
        }
        for (; p < panels; ++p) {
            qk_tile<Operand, R, 1>(q + first * args.q_stride, args.q_stride, args.k_dim, k + p * panel_bytes, panel_bytes,
                                   scores + first * args.score_stride + p * panel, args.score_stride, ahead);
        }
    });
}

// Panels a pass of many rows: two where the strip's tile is two panels wide.
inline constexpr int32_t pass_panels = ROPEWALK_X86_512 ? 2 : 1;

// Types whose words are widened inside the tile where rows are few.
template <int Type>
inline constexpr bool widens_in_tile = Type != int8&& Type != int4;

// Panels become fp32 [k_dim][16] in scratch; of token-scaled types the codes do.
template <int Type>
void widen_panels(const std::byte* k, int32_t k_dim, int32_t panels, float* out, prefetcher& ahead) {
    constexpr int g = word_elements(Type), step_bytes = panel * g * type_bits(Type) / 8;
    for (int32_t p = 0; p < panels; ++p, k += panel_bytes(Type, k_dim)) {
        for (int32_t step = 0; step < k_dim / g; ++step, out += g * panel) {
            if (step_bytes >= 64 || step % (64 / step_bytes) == 0) ahead.read();
            const std::byte* words = k + k_step_offset(Type, step);
            const std::byte* line = k + k_step_offset(Type, step / 4 * 4) + int4_scale_offset;  // of int4
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
                if constexpr (Type == int8) {
                    const vi x = load_words(words + v * lanes * 4);
                    ROPEWALK_UNROLL for (int e = 0; e < g; ++e) store(out + e * panel + v * lanes, to_float(int8_element(x, e)));
                } else if constexpr (Type == int4) {
                    const vi x = load_words(words + v * lanes * 4);
                    const vf scale = load_fp16(line + v * lanes * 2), mid = load_fp16(line + (panel + v * lanes) * 2);
                    ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                        store(out + e * panel + v * lanes, fmadd(to_float(int4_element(x, e) - vi(8)), scale, mid));
                    }
                } else {
                    using operand = fma_operand<Type>;
                    typename operand::vectors x;
                    operand::read(words + v * lanes * operand::bytes, x);
                    ROPEWALK_UNROLL for (int e = 0; e < g; ++e) store(out + e * panel + v * lanes, x[e]);
                }
            }
        }
    }
}

// Scores of codes become scores of values.
template <int Type>
ROPEWALK_INLINE void scale_scores(const qk_args& args) {
    if constexpr (token_scaled(Type)) {
        for (int32_t r = 0; r < args.rows; ++r) {
            float* s = args.scores + r * args.score_stride;
            for (int32_t t = 0; t < args.panels * panel; t += lanes) store(s + t, load(s + t) * load(args.k_scales + t));
        }
    }
}

template <int Type>
void qk_fma(const qk_args& args) {
    prefetcher ahead(args.prefetch, k_lines(Type, args.k_dim, args.panels));
    if constexpr (widens_in_tile<Type>) {
        if (args.rows <= few_rows) {
            qk_strips<fma_operand<Type>>(args, args.k, args.scores, args.panels, ahead);
            return scale_scores<Type>(args);
        }
    }
    for (int32_t p = 0; p < args.panels; p += pass_panels) {
        const int32_t panels = args.panels - p < pass_panels ? args.panels - p : pass_panels;
        const std::byte* k = args.k + p * panel_bytes(Type, args.k_dim);
        float* scores = args.scores + p * panel;
        if constexpr (Type == fp32) {
            qk_strips<fma_operand<fp32>>(args, k, scores, panels, ahead);
        } else {
            alignas(64) float wide[pass_panels * panel * max_head_dim];
            widen_panels<Type>(k, args.k_dim, panels, wide, ahead);
            qk_strips<fma_operand<fp32>>(args, reinterpret_cast<const std::byte*>(wide), scores, panels, ahead);
        }
    }
    scale_scores<Type>(args);
}

#if ROPEWALK_HAS_BF16_DOT
void qk_dot(const qk_args& args) {
    prefetcher ahead(args.prefetch, int64_t{args.panels} * args.k_dim / 2);
    if (args.rows <= few_rows) return qk_strips<dot_operand>(args, args.k, args.scores, args.panels, ahead);
    const int64_t panel_bytes = int64_t{args.k_dim} * panel * 2;
    for (int32_t p = 0; p < args.panels; p += pass_panels) {
        const int32_t panels = args.panels - p < pass_panels ? args.panels - p : pass_panels;
        qk_strips<dot_operand>(args, args.k + p * panel_bytes, args.scores + p * panel, panels, ahead);
    }
}
#endif

// ---- softmax --------------------------------------------------------------------------------------------------------------------------------

struct visible {
    vf first, last;  // token indices of the row in this tile
    ROPEWALK_INLINE vmask at(vf token) const { return token >= first && token < last; }
};

// Scores of one row become scaled, capped, biased scores in log2 units; returns their maximum over the visible tokens.
template <bool Softcap, bool Bias, bool Masked>
ROPEWALK_INLINE float score_row(const softmax_args& args, int32_t r, float* s, const visible& seen) {
    const vf minus_infinity(-__builtin_inff());
    const vf scale(Softcap ? args.scale / args.softcap : args.scale), cap(args.softcap);
    const vf slope(Bias ? -args.slope[r] : 0.0f), distance(Bias ? args.distance[r] : 0.0f);
    vf best[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) best[v] = minus_infinity;
    vf token[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) token[v] = iota() + vf(static_cast<float>(v * lanes));
    for (int32_t t = 0; t < args.tokens; t += panel) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            float* at = s + t + v * lanes;
            vf x = load(at) * scale;
            if constexpr (Softcap) x = tanh_core(x) * cap;
            if constexpr (Bias) x = fmadd(slope, xsimd::abs(distance - token[v]), x);
            if constexpr (Masked) x = select(seen.at(token[v]), x, minus_infinity);
            store(at, x);
            best[v] = maximum(x, best[v]);
            token[v] = token[v] + vf(static_cast<float>(panel));
        }
    }
    for (int v = 1; v < panel_vectors; ++v) best[0] = maximum(best[0], best[v]);
    return reduce_maximum(best[0]);
}

// Where probabilities go: fp32, or bf16 with the sum taken over the rounded values, so that the weights of a row add up to one.
struct fp32_probability {
    static constexpr int bytes = 4;
    static ROPEWALK_INLINE vf put(std::byte* p, vf x) {
        store(reinterpret_cast<float*>(p), x);
        return x;
    }
};
#if ROPEWALK_HAS_BF16_DOT
struct bf16_probability {
    static constexpr int bytes = 2;
    static ROPEWALK_INLINE vf put(std::byte* p, vf x) {
        store_bf16_native(p, x);
        return load_bf16(p);
    }
};
#endif

template <class Probability, bool Masked>
ROPEWALK_INLINE void probability_row(const softmax_args& args, int32_t r, const float* s, float maximum_so_far, const visible& seen) {
    auto* p = static_cast<std::byte*>(args.p) + r * args.score_stride * Probability::bytes;
    const vf m(maximum_so_far), alpha(args.alpha[r]);
    vf sum[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) sum[v] = zero();
    vf token[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) token[v] = iota() + vf(static_cast<float>(v * lanes));
    for (int32_t t = 0; t < args.tokens; t += panel) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            vf x = exp2_core(load(s + t + v * lanes) - m);
            if constexpr (Masked) {
                // A score of -inf gives 0 by itself, but a NaN in a masked slot must not get through.
                x = select(seen.at(token[v]), x, zero());
                token[v] = token[v] + vf(static_cast<float>(panel));
            }
            sum[v] = sum[v] + Probability::put(p + (t + v * lanes) * Probability::bytes, x);
        }
    }
    float* l = args.l + r * sum_lanes;
    for (int v = 0; v < panel_vectors; ++v) store(l + v * lanes, fmadd(load(l + v * lanes), alpha, sum[v]));
}

template <class Probability, bool Softcap, bool Bias>
void softmax_rows(const softmax_args& args) {
    for (int32_t r = 0; r < args.rows; ++r) {
        float* s = args.scores + r * args.score_stride;
        const bool masked = args.first[r] > 0 || args.last[r] < args.tokens;
        const visible seen{vf(static_cast<float>(args.first[r])), vf(static_cast<float>(args.last[r]))};
        const float best = masked ? score_row<Softcap, Bias, true>(args, r, s, seen) : score_row<Softcap, Bias, false>(args, r, s, seen);
        const float before = args.m[r];
        const float m = best > before ? best : before;
        // Relative to 0 while the row has seen nothing but -inf: all weights are 0 then.
        const float reference = m == -__builtin_inff() ? 0.0f : m;
        args.m[r] = m;
        float alpha = 1.0f;
        if (m != before) {
            float factors[lanes];
            store(factors, exp2_core(vf(before - reference)));
            alpha = factors[0];
        }
        args.alpha[r] = alpha;
        if (masked) {
            probability_row<Probability, true>(args, r, s, reference, seen);
        } else {
            probability_row<Probability, false>(args, r, s, reference, seen);
        }
    }
}

template <class Probability>
void softmax(const softmax_args& args) {
    const bool softcap = args.softcap != 0.0f;
    if (args.slope != nullptr) {
        return softcap ? softmax_rows<Probability, true, true>(args) : softmax_rows<Probability, false, true>(args);
    }
    return softcap ? softmax_rows<Probability, true, false>(args) : softmax_rows<Probability, false, false>(args);
}

// ---- P.V ------------------------------------------------------------------------------------------------------------------------------------

// O of R rows x D groups of 16 dims over `tokens` tokens. v points at the first dim of the group; `first` tells whether o is scaled by alpha.
template <class Operand, int R, int D>
ROPEWALK_TILE void pv_tile(const typename Operand::row_element* p, int64_t p_stride, int32_t tokens, const std::byte* v, int64_t step_bytes, float* o,
                           int64_t o_stride, const float* alpha, prefetcher& ahead) {
    constexpr int vectors = D * panel_vectors;
    vf acc[R][vectors];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const vf factor(alpha != nullptr ? alpha[r] : 1.0f);
        ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) acc[r][i] = load(o + r * o_stride + i * lanes) * factor;
    }
    for (int32_t t = 0; t < tokens; t += Operand::planes) {
        typename Operand::vectors x[vectors];
        ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) {
            if (i % panel_vectors == 0) ahead.read();
            Operand::read(v + i * lanes * Operand::bytes, x[i]);
        }
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) acc[r][i] = Operand::accumulate(p + r * p_stride + t, x[i], acc[r][i]);
        }
        v += step_bytes;
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) store(o + r * o_stride + i * lanes, acc[r][i]); }
}

// All rows over one block of tokens; `first` is the block's first token in the rows of p.
template <class Operand>
void pv_strips(const pv_args& args, int32_t first, int32_t tokens, const std::byte* v, prefetcher& ahead) {
    const int64_t step_bytes = int64_t{args.v_dim} * Operand::bytes;
    const auto* p = static_cast<const typename Operand::row_element*>(args.p) + first;
    const float* alpha = first == 0 ? args.alpha : nullptr;
    for_strips<full_strip<Operand>()>(args.rows, [&](auto r, int row) {
        constexpr int R = decltype(r)::value;
        constexpr int D = groups_beside<Operand>(R);
        const auto* p_row = p + row * args.p_stride;
        float* o = args.o + row * args.o_stride;
        const float* factor = alpha != nullptr ? alpha + row : nullptr;
        int32_t d = 0;
        for (; d + D * 16 <= args.v_dim; d += D * 16) {
            pv_tile<Operand, R, D>(p_row, args.p_stride, tokens, v + int64_t{d} * Operand::bytes, step_bytes, o + d, args.o_stride, factor, ahead);
        }
        for (; d < args.v_dim; d += 16) {
            pv_tile<Operand, R, 1>(p_row, args.p_stride, tokens, v + int64_t{d} * Operand::bytes, step_bytes, o + d, args.o_stride, factor, ahead);
        }
    });
}

// Tokens of a pass of many rows: 16 KiB of fp32 V at dim 128. It must stay well under L1 as whole rows: a column of 64 or more rows that lie a power
// of two apart maps to a few L1 sets only and would be read from L2 again for every strip.
ROPEWALK_INLINE int32_t pass_tokens(int32_t v_dim, int32_t g) {
    int32_t tokens = 4096 / v_dim / g * g;
    if (tokens > 32) tokens = 32;
    const int32_t least = g > 4 ? g : 4;
    return tokens < least ? least : tokens;
}

// Tokens become fp32 [tokens][v_dim] in scratch; of token-scaled types the codes do. `scales` are those of the first token, of int4.
template <int Type>
void widen_tokens(const std::byte* v, const std::byte* scales, int32_t page_tokens, int32_t v_dim, int32_t tokens, float* out, prefetcher& ahead) {
    constexpr int g = word_elements(Type);
    alignas(64) float scale[16] = {}, mid[16] = {};  // int4: of the 8 tokens and 32 dims at hand, in whole vectors
    for (int32_t t = 0; t < tokens; t += g, out += g * v_dim) {
        for (int32_t d = 0; d < v_dim; d += lanes) {
            const int32_t byte = d * g * type_bits(Type) / 8;
            if (byte % 64 == 0) ahead.read();
            const std::byte* words = v + byte;
            if constexpr (Type == int8) {
                const vi x = load_words(words);
                ROPEWALK_UNROLL for (int e = 0; e < g; ++e) store(out + e * v_dim + d, to_float(int8_element(x, e)));
            } else if constexpr (Type == int4) {
                const vi x = load_words(words);
                if (d % scale_group == 0) {
                    const std::byte* from = scales + (d / scale_group * page_tokens + t) * 2;
                    load_halves(from, scale);
                    load_halves(from + v_dim / scale_group * page_tokens * 2, mid);
                }
                ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                    store(out + e * v_dim + d, fmadd(to_float(int4_element(x, e) - vi(8)), vf(scale[e]), vf(mid[e])));
                }
            } else {
                using operand = fma_operand<Type>;
                typename operand::vectors x;
                operand::read(words, x);
                ROPEWALK_UNROLL for (int e = 0; e < g; ++e) store(out + e * v_dim + d, x[e]);
            }
        }
        v += v_bytes(Type, v_dim, g);
    }
}

template <int Type>
void pv_fma(const pv_args& args) {
    constexpr int g = word_elements(Type);
    prefetcher ahead(args.prefetch, v_lines(Type, args.v_dim, args.tokens));
    if constexpr (widens_in_tile<Type>) {
        if (args.rows <= few_rows) return pv_strips<fma_operand<Type>>(args, 0, args.tokens, args.v, ahead);
    }
    const int32_t pass = pass_tokens(args.v_dim, g);
    for (int32_t t = 0; t < args.tokens; t += pass) {
        const int32_t tokens = args.tokens - t < pass ? args.tokens - t : pass;
        const std::byte* v = args.v + v_bytes(Type, args.v_dim, t);
        if constexpr (Type == fp32) {
            pv_strips<fma_operand<fp32>>(args, t, tokens, v, ahead);
        } else {
            alignas(64) float wide[(g > 4 ? g : 4) * max_head_dim];
            static_assert(sizeof wide >= 4096 * sizeof(float));
            const std::byte* scales = Type == int4 ? args.v_scales + t * v_scale_step(Type) : nullptr;
            widen_tokens<Type>(v, scales, args.page_tokens, args.v_dim, tokens, wide, ahead);
            pv_strips<fma_operand<fp32>>(args, t, tokens, reinterpret_cast<const std::byte*>(wide), ahead);
        }
    }
}

#if ROPEWALK_HAS_BF16_DOT
void pv_dot(const pv_args& args) {
    const int64_t step_bytes = int64_t{args.v_dim} * 4;
    prefetcher ahead(args.prefetch, int64_t{args.tokens} / 2 * args.v_dim / 16);
    const int32_t pass = args.rows <= few_rows ? args.tokens : 2 * pass_tokens(args.v_dim, 2);
    for (int32_t t = 0; t < args.tokens; t += pass) {
        const int32_t tokens = args.tokens - t < pass ? args.tokens - t : pass;
        pv_strips<dot_operand>(args, t, tokens, args.v + t / 2 * step_bytes, ahead);
    }
}
#endif

void scale_weights(float* p, int64_t p_stride, int32_t rows, int32_t tokens, const float* scale) {
    for (int32_t r = 0; r < rows; ++r, p += p_stride) {
        int32_t t = 0;
        for (; t + lanes <= tokens; t += lanes) store(p + t, select(load(p + t) == zero(), zero(), load(p + t) * load(scale + t)));
        for (; t < tokens; ++t) p[t] = p[t] == 0.0f ? 0.0f : p[t] * scale[t];
    }
}

// ---- rows of results ------------------------------------------------------------------------------------------------------------------------

// 0 * x is NaN exactly for Inf and NaN.
template <int Type>
bool non_finite(const std::byte* values, int64_t n) {
    using operand = fma_operand<Type>;
    vf sum = zero();
    constexpr int64_t step = lanes * operand::planes;
    int64_t i = 0;
    const auto add = [&](const std::byte* p) {
        typename operand::vectors x;
        operand::read(p, x);
        for (int e = 0; e < operand::planes; ++e) sum = fmadd(x[e], zero(), sum);
    };
    for (; i + step <= n; i += step) add(values + i * type_bytes(Type));
    if (i < n) {
        std::byte padded[lanes * operand::bytes] = {};
        std::memcpy(padded, values + i * type_bytes(Type), static_cast<std::size_t>(n - i) * type_bytes(Type));
        add(padded);
    }
    return !xsimd::all(sum == sum);
}

// f on full vectors, the tail through padded copies.
template <class F>
ROPEWALK_INLINE void for_vectors(int64_t n, F f) {
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) f(i, lanes);
    if (i < n) f(i, static_cast<int>(n - i));
}
ROPEWALK_INLINE vf load_some(const float* p, int n) {
    if (n == lanes) return load(p);
    float padded[lanes] = {};
    std::memcpy(padded, p, static_cast<std::size_t>(n) * sizeof(float));
    return load(padded);
}

void fold(float* total, const float* part, float a, float b, int64_t n) {
    for_vectors(n, [&](int64_t i, int count) {
        const vf y = fmadd(load_some(total + i, count), vf(a), load_some(part + i, count) * vf(b));
        if (count == lanes) return store(total + i, y);
        float padded[lanes];
        store(padded, y);
        std::memcpy(total + i, padded, static_cast<std::size_t>(count) * sizeof(float));
    });
}

template <int Type>
void finish(const float* total, float factor, void* out, int64_t n) {
    auto* target = static_cast<std::byte*>(out);
    for_vectors(n, [&](int64_t i, int count) {
        const vf y = load_some(total + i, count) * vf(factor);
        std::byte padded[lanes * type_bytes(Type)];
        std::byte* at = count == lanes ? target + i * type_bytes(Type) : padded;
        if constexpr (Type == fp32) store(reinterpret_cast<float*>(at), y);
        if constexpr (Type == bf16) store_bf16(at, y);
        if constexpr (Type == fp16) store_fp16(at, y);
        if (count != lanes) std::memcpy(target + i * type_bytes(Type), padded, static_cast<std::size_t>(count) * type_bytes(Type));
    });
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
