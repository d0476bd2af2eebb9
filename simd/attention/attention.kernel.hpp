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

// How one vector of K or V turns into `planes` fp32 vectors: consecutive dims of K, consecutive tokens of V. A group is 16 lanes: a line of most
// types.
template <int Type>
struct fma_operand {
    static constexpr int planes = word_elements(Type);
    static constexpr int bytes = planes * type_bits(Type) / 8;  // of one lane
    using vectors = vf[planes];
    static ROPEWALK_INLINE void read_group(const std::byte* p, vectors* out) {
        if constexpr (Type == fp8) {
            vf x[panel_vectors];
            load_fp8_units(p, x);
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) out[v][0] = x[v];
        } else {
            ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) read(p + v * lanes * bytes, out[v]);
        }
    }
    static ROPEWALK_INLINE void read(const std::byte* p, vectors& out) {
        if constexpr (Type == fp32) {
            out[0] = load(reinterpret_cast<const float*>(p));
        } else if constexpr (Type == fp16) {
            out[0] = load_fp16(p);
        } else {
            const vi words = load_words(p);
            out[0] = even_bf16(words);
            out[1] = odd_bf16(words);
        }
    }
    static constexpr int registers = planes;  // of one vector once it is read
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
    static constexpr int registers = 1;
    using vectors = vi[1];
    static ROPEWALK_INLINE void read_group(const std::byte* p, vectors* out) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) out[v][0] = load_words(p + v * lanes * bytes);
    }
    static ROPEWALK_INLINE vf accumulate(const uint16_t* row, const vectors& x, vf acc) { return dot_bf16_pairs(acc, x[0], broadcast_word(row)); }
    using row_element = uint16_t;
};
#endif

// ---- register tiles -----------------------------------------------------------------------------------------------------------------------

// Vectors (in groups of 16 lanes = one line) beside R rows. 16 registers: 8 to 12 accumulators feed two FMA units of latency 4, the rest holds the
// line, its widened planes and a broadcast. 32 registers: up to 24.
template <class Operand>
constexpr int groups_beside(int rows) {
    const int budget = vector_registers == 16 ? 8 : (Operand::registers == 1 ? 24 : 16);
    int groups = budget / (rows * panel_vectors);
    if (groups > 4) groups = 4;
    if (groups == 3) groups = 2;  // pages have 1, 2, 4 .. panels
    return groups < 1 ? 1 : groups;
}

// The rows of a tile. An address is one of a base pointer to every third row plus 0, 1 or 2 strides: an offset for each row takes more general
// registers than there are, and g++ then moves them in and out of vector registers (12 rows, AVX-512: 0.88 instead of 0.97 of the FMA peak, 0.84
// instead of 0.94 of the bf16 dot's; L1, one Zen 4 core).
template <class Element, int R>
struct tile_rows {
    const Element* base[(R + 2) / 3];
    int64_t stride;
    ROPEWALK_INLINE tile_rows(const Element* rows, int64_t row_stride) : stride(row_stride) {
        ROPEWALK_UNROLL for (int i = 0; i < (R + 2) / 3; ++i) base[i] = rows + 3 * i * row_stride;
    }
    ROPEWALK_INLINE const Element* operator[](int r) const { return base[r / 3] + r % 3 * stride; }
    ROPEWALK_INLINE void advance(int elements) {
        ROPEWALK_UNROLL for (int i = 0; i < (R + 2) / 3; ++i) {
            base[i] += elements;
            asm("" : "+r"(base[i]));  // or g++ finds one base and R offsets again
        }
    }
};

// Steps that read one line beside 16 lanes: prefetches are paced by lines.
template <class Operand>
inline constexpr int line_steps = 4 / Operand::bytes;

// Whether a tile asks for what the next one of its rows will read, although walkers have asked twice (prefetch_run). Beside 5 to 8 rows the window of
// a core holds too few lines to hide one that was dropped both times: group 7 1.04, group 8 1.06 of the rate (bf16, two Zen 4 cores, 4 pairs).
template <class Operand, int R>
inline constexpr bool asks_thrice = ROPEWALK_X86_512&& R > 4 && R <= 8 && line_steps<Operand> == 1;

// Rows of a full strip: the largest tile that leaves room for its operands.
template <class Operand>
constexpr int full_strip() {
    if (vector_registers == 16) return Operand::planes == 1 ? 6 : 5;
    return ROPEWALK_X86_512 ? 12 : (Operand::planes == 1 ? 6 : 5);
}

// ---- Q.K ------------------------------------------------------------------------------------------------------------------------------------

// Scores of R rows against P panels.
template <class Operand, int R, int P>
ROPEWALK_TILE void qk_tile(const typename Operand::row_element* q, int64_t q_stride, int32_t k_dim, const std::byte* k, int64_t panel_bytes,
                           float* scores, int64_t score_stride, prefetcher& ahead) {
    constexpr int vectors = P * panel_vectors;
    vf acc[R][vectors];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int v = 0; v < vectors; ++v) acc[r][v] = zero(); }
    tile_rows<typename Operand::row_element, R> row(q, q_stride);
    const auto step = [&]() __attribute__((always_inline)) {
        typename Operand::vectors x[vectors];
        ROPEWALK_UNROLL for (int p = 0; p < P; ++p) Operand::read_group(k + p * panel_bytes, x + p * panel_vectors);
        if constexpr (asks_thrice<Operand, R>) {
            ROPEWALK_UNROLL for (int p = 0; p < P; ++p) prefetch_l2(k + (P + p) * panel_bytes);
        }
        ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
            ROPEWALK_UNROLL for (int v = 0; v < vectors; ++v) acc[r][v] = Operand::accumulate(row[r], x[v], acc[r][v]);
        }
        k += panel * Operand::bytes;
        row.advance(Operand::planes);
    };
    int32_t d = 0;
    for (; d + line_steps<Operand> * Operand::planes <= k_dim; d += line_steps<Operand> * Operand::planes) {
        for (int p = 0; p < P; ++p) ahead.read();
        ROPEWALK_UNROLL for (int i = 0; i < line_steps<Operand>; ++i) step();
    }
    for (; d < k_dim; d += Operand::planes) step();
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
            if constexpr (Type == int8 || Type == int4) {
                const std::byte* line = k + k_step_offset(Type, step / 4 * 4) + int4_scale_offset;  // of int4
                ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
                    const vi x = load_words(words + v * lanes * 4);
                    if constexpr (Type == int8) {
                        ROPEWALK_UNROLL for (int e = 0; e < g; ++e) store(out + e * panel + v * lanes, to_float(int8_element(x, e)));
                    } else {
                        const vf scale = load_fp16(line + v * lanes * 2), mid = load_fp16(line + (panel + v * lanes) * 2);
                        ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                            store(out + e * panel + v * lanes, fmadd(to_float(int4_element(x, e) - vi(8)), scale, mid));
                        }
                    }
                }
            } else {
                typename fma_operand<Type>::vectors x[panel_vectors];
                fma_operand<Type>::read_group(words, x);
                ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                    ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) store(out + e * panel + v * lanes, x[v][e]);
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
            for (int32_t t = 0; t < args.panels * panel; t += lanes) store(s + t, load(s + t) * (load(args.k_scales + t) * vf(code_unit(Type))));
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

// Which tokens of the tile a row sees: at(t, token) tells it for the tokens t .. of one vector, `token` being their indices as floats.
struct all_tokens {};
struct token_range {
    vf first, last;
    ROPEWALK_INLINE vmask at(int32_t, vf token) const { return token >= first && token < last; }
};
struct token_bits {
    const uint32_t* words;
    ROPEWALK_INLINE vmask at(int32_t t, vf) const { return mask_of_bits(words[t / 32] >> t % 32); }
};
template <class Seen>
inline constexpr bool is_masked = !std::is_same_v<Seen, all_tokens>;

// Calls f with what row r sees.
template <class F>
ROPEWALK_INLINE auto with_seen(const softmax_args& args, int32_t r, F f) {
    if (args.bits != nullptr) return f(token_bits{args.bits + r * tile_words});
    if (args.first[r] > 0 || args.last[r] < args.tokens) {
        return f(token_range{vf(static_cast<float>(args.first[r])), vf(static_cast<float>(args.last[r]))});
    }
    return f(all_tokens{});
}

// What a row's scores get for where their tokens are; `unit` is that of the scores. at(t, token, x) adds it to those of the tokens t .. of one
// vector.
struct no_bias {
    template <class Seen>
    static no_bias of(const softmax_args&, int32_t, float, const Seen&) {
        return {};
    }
    ROPEWALK_INLINE vf at(int32_t, vf, vf x) const { return x; }
};
template <class Seen>
struct slope_of_row {
    vf slope, distance;
    const float* token_position;
    ROPEWALK_INLINE vf at(int32_t t, vf token, vf x) const {
        const vf position = std::is_same_v<Seen, token_bits> ? load(token_position + t) : token;
        return fmadd(slope, xsimd::abs(distance - position), x);
    }
};
struct slope_bias {
    template <class Seen>
    static slope_of_row<Seen> of(const softmax_args& args, int32_t r, float unit, const Seen&) {
        return {vf(-args.slope[r] / unit), vf(args.distance[r]), args.token_position};
    }
};
struct row_bias {
    const float* row;
    vf factor;
    template <class Seen>
    static row_bias of(const softmax_args& args, int32_t r, float unit, const Seen&) {
        return {args.bias[r], vf(args.bias_factor / unit)};
    }
    ROPEWALK_INLINE vf at(int32_t t, vf, vf x) const { return fmadd(factor, load(row + t), x); }
};

// Where softcap comes.
enum class softcap { none, before_bias, after_bias };
template <softcap Softcap, class Bias>
inline constexpr bool changes_scores = Softcap != softcap::none || !std::is_same_v<Bias, no_bias>;

// The maximum of a row's scores in log2 units over the visible tokens. Softcap and bias are left in s; the scale alone is applied again when s is
// read the second time, which costs nothing there.
template <softcap Softcap, class Bias, class Seen>
ROPEWALK_INLINE float score_row(const softmax_args& args, int32_t r, float* s, const Seen& seen) {
    const vf minus_infinity(-__builtin_inff());
    const vf scale(Softcap != softcap::none ? args.scale / args.softcap : args.scale), cap(args.softcap);
    const auto bias = Bias::of(args, r, Softcap == softcap::after_bias ? args.softcap : 1.0f, seen);
    vf best[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) best[v] = minus_infinity;
    vf token[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) token[v] = iota() + vf(static_cast<float>(v * lanes));
    for (int32_t t = 0; t < args.tokens; t += panel) {
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            float* at = s + t + v * lanes;
            vf x = load(at);
            if constexpr (changes_scores<Softcap, Bias>) x = x * scale;
            if constexpr (Softcap == softcap::after_bias) x = bias.at(t + v * lanes, token[v], x);
            if constexpr (Softcap != softcap::none) x = tanh_core(x) * cap;
            if constexpr (Softcap != softcap::after_bias) x = bias.at(t + v * lanes, token[v], x);
            if constexpr (changes_scores<Softcap, Bias>) store(at, x);
            if constexpr (is_masked<Seen>) x = select(seen.at(t + v * lanes, token[v]), x, minus_infinity);
            best[v] = maximum(x, best[v]);
            token[v] = token[v] + vf(static_cast<float>(panel));
        }
    }
    for (int v = 1; v < panel_vectors; ++v) best[0] = maximum(best[0], best[v]);
    const float most = reduce_maximum(best[0]);
    return changes_scores<Softcap, Bias> ? most : most * args.scale;
}

// Where probabilities go: fp32, or bf16 with the sum taken over the rounded values, so that the weights of a row add up to one.
struct fp32_probability {
    static constexpr int bytes = 4;
    static ROPEWALK_INLINE vf exp2(vf t) { return exp2_core(t); }
    static ROPEWALK_INLINE vf put(std::byte* p, vf x, vf sum) {
        store(reinterpret_cast<float*>(p), x);
        return sum + x;
    }
};
#if ROPEWALK_HAS_BF16_DOT
struct bf16_probability {
    static constexpr int bytes = 2;
    static ROPEWALK_INLINE vf exp2(vf t) { return exp2_for_bf16(t); }
    static ROPEWALK_INLINE vf put(std::byte* p, vf x, vf sum) { return add_bf16_native(p, x, sum); }
};
#endif

// `scale` is what the scores in s still have to be multiplied by.
template <class Probability, class Seen>
ROPEWALK_INLINE void probability_row(const softmax_args& args, int32_t r, const float* s, float scale, float reference, const Seen& seen,
                                     prefetcher& ahead) {
    auto* p = static_cast<std::byte*>(args.p) + r * args.score_stride * Probability::bytes;
    const vf factor(scale), m(reference), alpha(args.alpha[r]);
    vf sum[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) sum[v] = zero();
    vf token[panel_vectors];
    for (int v = 0; v < panel_vectors; ++v) token[v] = iota() + vf(static_cast<float>(v * lanes));
    for (int32_t t = 0; t < args.tokens; t += panel) {
        ahead.read();
        ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) {
            // Not an FMA: the largest score is to be exactly m, so that its weight is exactly 1.
            vf x = Probability::exp2(load(s + t + v * lanes) * factor - m);
            if constexpr (is_masked<Seen>) {
                // A score of -inf gives 0 by itself, but a NaN in a masked slot must not get through.
                x = select(seen.at(t + v * lanes, token[v]), x, zero());
                token[v] = token[v] + vf(static_cast<float>(panel));
            }
            sum[v] = Probability::put(p + (t + v * lanes) * Probability::bytes, x, sum[v]);
        }
    }
    float* l = args.l + r * sum_lanes;
    for (int v = 0; v < panel_vectors; ++v) store(l + v * lanes, fmadd(load(l + v * lanes), alpha, sum[v]));
}

template <class Probability, softcap Softcap, class Bias>
void softmax_rows(const softmax_args& args) {
    const float scale = changes_scores<Softcap, Bias> ? 1.0f : args.scale;
    prefetcher ahead(args.prefetch, int64_t{args.rows} * args.tokens / panel);
    for (int32_t r = 0; r < args.rows; ++r) {
        float* s = args.scores + r * args.score_stride;
        const float best = with_seen(args, r, [&](const auto& seen) { return score_row<Softcap, Bias>(args, r, s, seen); });
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
        with_seen(args, r, [&](const auto& seen) { probability_row<Probability>(args, r, s, scale, reference, seen, ahead); });
    }
}

template <class Probability, class Bias>
void softmax_biased(const softmax_args& args) {
    if (args.softcap == 0.0f) return softmax_rows<Probability, softcap::none, Bias>(args);
    if constexpr (!std::is_same_v<Bias, no_bias>) {
        if (args.bias_before_softcap) return softmax_rows<Probability, softcap::after_bias, Bias>(args);
    }
    softmax_rows<Probability, softcap::before_bias, Bias>(args);
}

template <class Probability>
void softmax(const softmax_args& args) {
    if (args.bias != nullptr) return softmax_biased<Probability, row_bias>(args);
    if (args.slope != nullptr) return softmax_biased<Probability, slope_bias>(args);
    softmax_biased<Probability, no_bias>(args);
}

// ---- P.V ------------------------------------------------------------------------------------------------------------------------------------

// O of R rows x D groups of 16 dims over the tokens of all runs, which lie step_bytes apart; `offset` bytes into a step the first group begins. alpha
// is null behind the first tokens of a tile.
template <class Operand, int R, int D>
ROPEWALK_TILE void pv_tile(const typename Operand::row_element* p, int64_t p_stride, const v_run* runs, int32_t pieces, int64_t offset,
                           int64_t step_bytes, float* o, int64_t o_stride, const float* alpha, prefetcher* ahead) {
    constexpr int vectors = D * panel_vectors;
    vf acc[R][vectors];
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
        const vf factor(alpha != nullptr ? alpha[r] : 1.0f);
        ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) acc[r][i] = load(o + r * o_stride + i * lanes) * factor;
    }
    tile_rows<typename Operand::row_element, R> row(p, p_stride);
    for (int32_t piece = 0; piece < pieces; ++piece) {
        const std::byte* v = runs[piece].v + offset;
        const auto step = [&]() __attribute__((always_inline)) {
            typename Operand::vectors x[vectors];
            ROPEWALK_UNROLL for (int i = 0; i < D; ++i) Operand::read_group(v + i * 16 * Operand::bytes, x + i * panel_vectors);
            if constexpr (asks_thrice<Operand, R>) {
                ROPEWALK_UNROLL for (int i = 0; i < D; ++i) prefetch_l2(v + (D + i) * 16 * Operand::bytes);
            }
            ROPEWALK_UNROLL for (int r = 0; r < R; ++r) {
                ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) acc[r][i] = Operand::accumulate(row[r], x[i], acc[r][i]);
            }
            v += step_bytes;
            row.advance(Operand::planes);
        };
        const int32_t tokens = runs[piece].tokens;
        int32_t t = 0;
        for (; t + line_steps<Operand> * Operand::planes <= tokens; t += line_steps<Operand> * Operand::planes) {
            for (int i = 0; i < D; ++i) ahead[piece].read();
            ROPEWALK_UNROLL for (int i = 0; i < line_steps<Operand>; ++i) step();
        }
        for (; t < tokens; t += Operand::planes) step();
    }
    ROPEWALK_UNROLL for (int r = 0; r < R; ++r) { ROPEWALK_UNROLL for (int i = 0; i < vectors; ++i) store(o + r * o_stride + i * lanes, acc[r][i]); }
}

// All rows over the tokens of all runs, which are a number of dims wide in memory too.
template <class Operand>
void pv_strips(const pv_args& args, const std::byte* p, const v_run* runs, int32_t pieces, int32_t dims, float* o, const float* alpha,
               prefetcher* ahead) {
    const int64_t step_bytes = int64_t{dims} * Operand::bytes;
    for_strips<full_strip<Operand>()>(args.rows, [&](auto r, int row) {
        constexpr int R = decltype(r)::value;
        constexpr int D = groups_beside<Operand>(R);
        const auto* p_row = reinterpret_cast<const typename Operand::row_element*>(p) + row * args.p_stride;
        float* o_row = o + row * args.o_stride;
        const float* factor = alpha != nullptr ? alpha + row : nullptr;
        int32_t d = 0;
        for (; d + D * 16 <= dims; d += D * 16) {
            pv_tile<Operand, R, D>(p_row, args.p_stride, runs, pieces, int64_t{d} * Operand::bytes, step_bytes, o_row + d, args.o_stride, factor,
                                   ahead);
        }
        for (; d < dims; d += 16) {
            pv_tile<Operand, R, 1>(p_row, args.p_stride, runs, pieces, int64_t{d} * Operand::bytes, step_bytes, o_row + d, args.o_stride, factor,
                                   ahead);
        }
    });
}

// Straight from the page: few rows run by run, so that its lines come nearly in order, many rows over all runs, so that o is read and written once.
template <class Operand>
void pv_runs(const pv_args& args, int type) {
    const auto* p = static_cast<const std::byte*>(args.p);
    run_prefetchers ahead(args, type);
    if (args.rows > few_rows) return pv_strips<Operand>(args, p, args.runs, args.pieces, args.v_dim, args.o, args.alpha, ahead.of);
    for (int32_t i = 0; i < args.pieces; ++i) {
        pv_strips<Operand>(args, p, args.runs + i, 1, args.v_dim, args.o, i == 0 ? args.alpha : nullptr, ahead.of + i);
        p += args.runs[i].tokens * static_cast<int64_t>(sizeof(typename Operand::row_element));
    }
}

// `dims` dims of the run's tokens become fp32 [tokens][dims]; of token-scaled types the codes do.
template <int Type>
void widen_column(const v_run& run, const pv_args& args, int32_t first, int32_t dims, float* out, prefetcher& ahead) {
    constexpr int g = word_elements(Type);
    alignas(64) float scale[16] = {}, mid[16] = {};  // int4: of the 8 tokens and 32 dims at hand, in whole vectors
    for (int32_t t = 0; t < run.tokens; t += g, out += g * dims) {
        const std::byte* v = run.v + v_bytes(Type, args.v_dim, t) + first * g * type_bits(Type) / 8;
        if constexpr (Type == int4) {
            const std::byte* from = run.scales + (first / scale_group * args.page_tokens + t) * 2;
            load_halves(from, scale);
            load_halves(from + args.v_dim / scale_group * args.page_tokens * 2, mid);
        }
        for (int32_t d = 0; d < dims; d += 16) {
            const std::byte* words = v + d * g * type_bits(Type) / 8;
            if ((first + d) * g * type_bits(Type) / 8 % 64 == 0) ahead.read();
            if constexpr (Type == int8 || Type == int4) {
                ROPEWALK_UNROLL for (int i = 0; i < 16; i += lanes) {
                    const vi x = load_words(words + i * 4);
                    ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                        float* at = out + e * dims + d + i;
                        if constexpr (Type == int8) store(at, to_float(int8_element(x, e)));
                        if constexpr (Type == int4) store(at, fmadd(to_float(int4_element(x, e) - vi(8)), vf(scale[e]), vf(mid[e])));
                    }
                }
            } else {
                typename fma_operand<Type>::vectors x[panel_vectors];
                fma_operand<Type>::read_group(words, x);
                ROPEWALK_UNROLL for (int e = 0; e < g; ++e) {
                    ROPEWALK_UNROLL for (int v = 0; v < panel_vectors; ++v) store(out + e * dims + d + v * lanes, x[v][e]);
                }
            }
        }
    }
}

// Dims of a column of V that many rows pass over: the tile of a full strip. All 128 tokens of it lie together in L1 (8 or 16 KiB), so that o is read
// and written once a tile; in the page they are a power of two apart and fall into few L1 sets.
inline constexpr int32_t column_dims = 16 * pass_panels;

// `widen(run, first, dims, out, ahead)` copies a column of a run to `out`, where a token takes token_bytes a dim.
template <class Operand, class Widen>
void pv_columns(const pv_args& args, int type, int64_t token_bytes, Widen widen) {
    alignas(64) std::byte column[tile_tokens * column_dims * 4];
    run_prefetchers ahead(args, type);
    prefetcher nothing({}, 0);
    for (int32_t first = 0; first < args.v_dim; first += column_dims) {
        const int32_t dims = args.v_dim - first < column_dims ? args.v_dim - first : column_dims;
        std::byte* out = column;
        for (int32_t i = 0; i < args.pieces; ++i) {
            widen(args.runs[i], first, dims, out, ahead.of[i]);
            out += args.runs[i].tokens * dims * token_bytes;
        }
        const v_run copied{column, nullptr, ahead.tokens, {}};
        pv_strips<Operand>(args, static_cast<const std::byte*>(args.p), &copied, 1, dims, args.o + first, args.alpha, &nothing);
    }
}

// Whether many rows read V, which needs no widening, in the page. With 512-bit tiles (24 multiply-adds beside two lines of V) they do: the lines' L2
// latency is hidden, and copies cost 4 % of P.V for fp32 and bf16 with 96 rows, 11 % with 32 (Zen 4).
inline bool reads_v_in_page(const pv_args& args) { return ROPEWALK_X86_512 || args.rows <= few_rows; }

template <int Type>
void pv_fma(const pv_args& args) {
    if constexpr (widens_in_tile<Type>) {
        if (Type == fp32 ? reads_v_in_page(args) : args.rows <= few_rows) return pv_runs<fma_operand<Type>>(args, Type);
    }
    pv_columns<fma_operand<fp32>>(args, Type, 4, [&](const v_run& run, int32_t first, int32_t dims, std::byte* out, prefetcher& ahead) {
        widen_column<Type>(run, args, first, dims, reinterpret_cast<float*>(out), ahead);
    });
}

#if ROPEWALK_HAS_BF16_DOT
void pv_dot(const pv_args& args) {
    if (reads_v_in_page(args)) return pv_runs<dot_operand>(args, bf16);
    pv_columns<dot_operand>(args, bf16, 2, [&](const v_run& run, int32_t first, int32_t dims, std::byte* out, prefetcher& ahead) {
        for (int32_t t = 0; t < run.tokens; t += 2, out += dims * 4) {
            const std::byte* v = run.v + v_bytes(bf16, args.v_dim, t) + first * 4;
            for (int32_t d = 0; d < dims; d += 16) {
                ahead.read();
                ROPEWALK_UNROLL for (int i = 0; i < 16; i += lanes) store_words(out + (d + i) * 4, load_words(v + (d + i) * 4));
            }
        }
    });
}
#endif

void scale_weights(float* p, int64_t p_stride, int32_t rows, int32_t tokens, const float* scale, float unit) {
    for (int32_t r = 0; r < rows; ++r, p += p_stride) {
        int32_t t = 0;
        for (; t + lanes <= tokens; t += lanes) store(p + t, select(load(p + t) == zero(), zero(), load(p + t) * (load(scale + t) * vf(unit))));
        for (; t < tokens; ++t) p[t] = p[t] == 0.0f ? 0.0f : p[t] * (scale[t] * unit);
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
