// The kernel interface: what every target implements and what the runtime calls. Pure functions over raw pointers; all sizes are checked before.
//
// One `kernel_table` a target; scalar's is the reference (simd/*/x_ref.cpp), the others come from one source each (simd/*/x.kernel.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::simd {

// Index into tables by element type: the values of ropewalk::dtype.
inline constexpr int fp32 = 0;
inline constexpr int bf16 = 1;
inline constexpr int fp16 = 2;
inline constexpr int dtype_count = 3;  // types of tensors
inline constexpr int int8 = 3;         // these only in pages
inline constexpr int int4 = 4;
inline constexpr int fp8 = 5;
inline constexpr int kv_type_count = 6;

constexpr int32_t type_bytes(int type) { return type == fp32 ? 4 : 2; }  // of a tensor's element

inline constexpr int32_t max_head_dim = 1024;            // of K and of V
inline constexpr int32_t panel = 16;                     // tokens in lanes
inline constexpr int32_t tile_tokens = 128;              // softmax tile: part of the numeric contract
inline constexpr int32_t tile_words = tile_tokens / 32;  // of one bit a token
inline constexpr int32_t chunk_tokens = 512;             // fold unit: part of the numeric contract
inline constexpr int32_t sum_lanes = 16;                 // lane t % 16 of a row sums token t: the same on every vector width

// The largest power of two that divides a dim: the block of kv_layout::hadamard.
constexpr int32_t hadamard_block(int32_t dim) { return dim & -dim; }

// ---- the page format: see kv_pages.hpp ------------------------------------------------------------------------------------------------

constexpr int32_t type_bits(int type) {
    switch (type) {
        case fp32: return 32;
        case int8:
        case fp8: return 8;
        case int4: return 4;
        default: return 16;
    }
}
// How many neighbouring elements share a 32-bit word of a page: as many as a dot instruction multiplies in a lane; one where no dot exists for the
// type.
constexpr int32_t word_elements(int type) { return type == bf16 ? 2 : type == int8 ? 4 : type == int4 ? 8 : 1; }

inline constexpr int32_t scale_group = 32;  // dims that share an int4 scale
constexpr bool token_scaled(int type) { return type == int8 || type == fp8; }
constexpr bool quantised(int type) { return type == int4 || token_scaled(type); }
constexpr int32_t largest_code(int type) { return type == int8 ? 127 : 448; }  // of the token-scaled types

// Dims as stored.
constexpr int32_t stored_dim(int32_t dim, int32_t unit) { return (dim + unit - 1) / unit * unit; }
constexpr int32_t stored_k_dim(int type, int32_t k_dim) { return stored_dim(k_dim, type == int4 ? scale_group : word_elements(type)); }
constexpr int32_t stored_v_dim(int type, int32_t v_dim) { return stored_dim(v_dim, type == int4 ? scale_group : panel); }

// Offset of word `step` (dims step * g ..) of a panel: its 16 tokens. int4 has a line of scales and mids behind the four words of a group.
constexpr int64_t int4_scale_offset = 4 * panel * 4;  // of a group's line
constexpr int64_t k_step_offset(int type, int32_t step) {
    return type == int4 ? int64_t{step / 4} * (int4_scale_offset + 64) + step % 4 * (panel * 4)
                        : int64_t{step} * (panel * word_elements(type) * type_bits(type) / 8);
}
constexpr int64_t panel_bytes(int type, int32_t stored) { return k_step_offset(type, stored / word_elements(type)); }
constexpr int64_t v_bytes(int type, int32_t stored, int64_t tokens) { return tokens * stored * type_bits(type) / 8; }
// Bytes of scales of a whole page and one head beside its K part or V part, and how far the scales of two neighbouring tokens lie apart.
constexpr int64_t k_scale_bytes(int type, int32_t page_tokens) { return token_scaled(type) ? int64_t{page_tokens} * 4 : 0; }
constexpr int64_t v_scale_bytes(int type, int32_t stored, int32_t page_tokens) {
    return token_scaled(type) ? int64_t{page_tokens} * 4 : type == int4 ? int64_t{page_tokens} * (stored / scale_group) * 4 : 0;
}
// What kernels multiply with is the code over this: fp8 is widened by way of fp16, whose bias is 8 larger, and whoever applies the token's scale puts
// the factor back for nothing.
constexpr float code_unit(int type) { return type == fp8 ? 256.0f : 1.0f; }
constexpr int64_t v_scale_step(int type) { return type == int4 ? 2 : 4; }

// ---- rope -----------------------------------------------------------------------------------------------------------------------------

// The most pairs that a head may have.
inline constexpr int32_t max_rope_pairs = 1024;

// Where the elements of a pair are read and written; the kernels' table has one function each.
enum rotate_layout : int { half_pairs, interleaved_pairs, interleaved_to_half, half_to_interleaved, rotate_layout_count };

struct rotate_args {
    void* x;              // first element of the rotated slice of the first head
    int64_t head_stride;  // elements
    int32_t heads;
    int32_t pairs;
    const float* cos;      // [pairs]
    const float* sin;      // [pairs]
    int64_t ahead = 0;     // elements from x to what will be rotated some 8 KiB later, which is prefetched meanwhile; 0 where there is nothing
    int32_t distance = 0;  // half_pairs: pair i is (i, i + distance), distance >= pairs; 0 stands for pairs
};
using rotate_function = void (*)(const rotate_args&);

// The pairs of one axis in the row of a token with several positions; all others stay.
struct compose_args {
    const float* from;            // cos [pairs], sin [pairs]
    const uint8_t* axis_of_pair;  // [pairs]
    int32_t axis;
    int32_t pairs;
    float* row;  // cos [pairs], sin [pairs]
};

struct rope_kernels {
    rotate_function rotate[dtype_count][rotate_layout_count];
    void (*compose)(const compose_args&);
};

// ---- conversion and pages ---------------------------------------------------------------------------------------------------------------

// The K part or V part of a record and its scales (null for types without).
struct kv_part {
    std::byte* elements;
    std::byte* scales;
    int32_t page_tokens;
};
using pack_function = void (*)(const float* rows, int64_t row_stride, int32_t dim, const kv_part& part, int32_t first, int32_t count);

struct kv_kernels {
    // n elements of the type to fp32, and back rounding to nearest even.
    void (*load_row[dtype_count])(const void* source, float* row, int64_t n);
    void (*store_row[dtype_count])(const float* row, void* target, int64_t n);
    // Rows [count] of fp32 (row_stride elements apart) become tokens first .. first + count - 1 of a K part or V part, quantised on the way, padding
    // written as zero (in int4 as the code of the group's mid). Tokens before and after are untouched, except that the partners in a 32-bit word are
    // rewritten with their own values. first + count <= page_tokens.
    // Multiplies a row [dim] by the orthonormal Hadamard matrix, block by block; its own inverse.
    void (*hadamard)(float* row, int32_t dim);
    pack_function pack_k[kv_type_count];
    pack_function pack_v[kv_type_count];
    // K panels [panels][k_dim / g][16][g] become V groups [panels * 16 / g][v_dim][g] of their first v_dim dims; dims as stored, zero from k_dim on.
    void (*k_to_v[dtype_count])(const std::byte* k, int32_t k_dim, int32_t panels, int32_t v_dim, std::byte* v);
};

// ---- attention --------------------------------------------------------------------------------------------------------------------------

// Arithmetic of Q.K and P.V.
inline constexpr int fma_fp32 = 0;  // operands widened to fp32
inline constexpr int dot_bf16 = 1;  // bf16 pairs, q and p rounded to bf16; only for bf16 K and V, and only where the target has the instruction
// q and p rounded to integers: of 16 bits with int8 pages, of 8 bits with int4 pages; only where the target has it.
inline constexpr int dot_integer = 2;
inline constexpr int arithmetic_count = 3;

// Rows up to which K and V are widened inside the tile and read from memory once, which is then the limit; more rows pass through scratch.
inline constexpr int32_t few_rows = 16;

// Lines that a kernel asks the memory for while it works: it touches `lines` lines from `next` on, spread evenly over its own reads, and beside each
// the line `again` bytes on, which has been asked for before. A core drops prefetches that come faster than memory answers (Zen 4: a quarter to a
// third of them at one every 3 cycles, none at one every 9), and a read that then waits for memory costs more than asking twice.
struct prefetch_run {
    const std::byte* next = nullptr;
    int32_t lines = 0;
    int64_t again = 0;
};

// scores[r][t] = q[r] . k[t] for `panels` panels of 16 tokens.
struct qk_args {
    const void* q;     // [rows][q_stride]: fp32, bf16 for dot_bf16, what quantise_q wrote for dot_integer
    int64_t q_stride;  // elements, for dot_integer bytes
    int32_t rows;
    int32_t k_dim;          // as stored
    const std::byte* k;     // [panels] of a K part
    const float* k_scales;  // [panels * 16] of a token-scaled type
    int32_t panels;
    float* scores;  // [rows][score_stride]
    int64_t score_stride;
    prefetch_run prefetch;
};
using qk_function = void (*)(const qk_args&);

// Turns a tile of raw scores into probabilities relative to the running maximum, in units of log2.
//   s = score * scale; with softcap: s = softcap * tanh(score * scale / softcap) [all in log2 units]; then s -= slope * |distance - t| or
//   s += bias[t] * bias_factor; with bias_before_softcap inside of tanh
//   m' = max(m, max s); alpha = 2^(m - m'); p = 2^(s - m'); l = l * alpha + p
// Tokens outside [first, last) of a row, or whose bit is clear, get p = 0 without being looked at.
struct softmax_args {
    float* scores;  // [rows][score_stride], tokens 0 .. tokens - 1
    int64_t score_stride;
    int32_t rows;
    int32_t tokens;         // a multiple of 16, at most tile_tokens
    const int32_t* first;   // [rows]
    const int32_t* last;    // [rows]
    float scale;            // includes log2(e)
    float softcap;          // includes log2(e); 0 is off
    const float* slope;     // [rows], includes log2(e); null is off
    const float* distance;  // [rows] position of the row minus position of token 0; read when slope is given
    float* m;               // [rows] running maximum, -inf at the start
    float* alpha;           // [rows] out: factor for what was accumulated before
    float* l;               // [rows][sum_lanes]
    void* p;                // [rows][score_stride]: fp32 (may be scores) or bf16, by the arithmetic of P.V
    // Tree masks: [rows][tile_words], bit t % 32 of word t / 32 is set where the row sees token t; in place of first and last. Null is off.
    const uint32_t* bits = nullptr;
    const float* token_position = nullptr;  // [tokens] in place of t in the distance; read when slope and bits are given
    const float* const* bias = nullptr;     // [rows] of [tokens], at any alignment; null is off. Not beside slope
    float bias_factor = 0.0f;               // includes log2(e)
    bool bias_before_softcap = false;
    prefetch_run prefetch = {};
};
using softmax_function = void (*)(const softmax_args&);

// Tokens of V that lie together in memory: a multiple of word_elements, of 16 for dot_integer.
struct v_run {
    const std::byte* v;       // [tokens / g][v_dim][g]
    const std::byte* scales;  // of the first token
    int32_t tokens;
    prefetch_run prefetch;
};

// o[r] = o[r] * alpha[r] + sum_t p[r][t] v[t] over the tokens of all runs: a whole tile, so that dot_integer has one scale for the integers that p
// becomes and its sums stay integers to the end, and o is read and written once.
struct pv_args {
    // [rows][p_stride]: the tokens of all runs, one after the other; fp32, bf16 for dot_bf16. Of token-scaled types p has been through scale_weights,
    // but not for dot_integer.
    const void* p;
    int64_t p_stride;  // elements
    int32_t rows;
    const v_run* runs;    // [pieces], with at most tile_tokens together
    int32_t pieces;       // at most tile_tokens / panel
    int32_t page_tokens;  // int4 scales and mids lie as [2][v_dim / 32][page_tokens]
    int32_t v_dim;        // as stored
    float* o;             // [rows][o_stride]
    int64_t o_stride;
    const float* alpha;  // [rows]
};
using pv_function = void (*)(const pv_args&);

// Vector relative terms on their way into raw scores [rows][score_stride] of a tile: simd/attention/relative.hpp.
struct relative_kernels {
    // scores[r][t] += term[r * term_stride + t], t < tokens, a multiple of 16. term_stride 0: one row for all.
    void (*add_rows)(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* term, int64_t term_stride);
    // scores[r][t] += term[r - t + 15][t] for 16 tokens; term [rows + 15][16], readable as if rows were a multiple of 16.
    void (*add_diagonals)(float* scores, int64_t score_stride, int32_t rows, const float* term);
    // scores[r][t] += pair[r * pair_stride + (segments[t] != row_segments[r])]; null segments stand for equal ones everywhere.
    void (*add_pairs)(float* scores, int64_t score_stride, int32_t rows, int32_t tokens, const float* pair, int64_t pair_stride,
                      const float* row_segments, const float* segments);
};

struct attention_kernels {
    relative_kernels relative;
    qk_function qk[kv_type_count][arithmetic_count];  // null where the target cannot
    pv_function pv[kv_type_count][arithmetic_count];
    // p[r][t] *= scale[t] * unit, where p is not 0: a masked token may have any scale. unit is the type's code_unit.
    void (*scale_weights)(float* p, int64_t p_stride, int32_t rows, int32_t tokens, const float* scale, float unit);
    // dot_integer: a row of q [k_dim as stored] into at most 4 k_dim bytes. Null where the target cannot.
    void (*quantise_q[kv_type_count])(const float* q, int32_t k_dim, std::byte* out);
    softmax_function softmax[arithmetic_count];  // by the arithmetic of P.V: how p is written (dot_integer: as fp32)
    // True if any of n values [n elements of the type] is Inf or NaN.
    bool (*non_finite[dtype_count])(const std::byte* values, int64_t n);
    // total[i] = total[i] * a + part[i] * b
    void (*fold)(float* total, const float* part, float a, float b, int64_t n);
    // out[i] = total[i] * factor, rounded to the type.
    void (*finish[dtype_count])(const float* total, float factor, void* out, int64_t n);
};

// ---- math -------------------------------------------------------------------------------------------------------------------------------

// y[i] = f(x[i]): the library's own polynomials, exposed for tests and benchmarks.
struct math_kernels {
    void (*exp2)(const float* x, float* y, int64_t n);
    void (*tanh)(const float* x, float* y, int64_t n);
};

// ---- the roof of the machine --------------------------------------------------------------------------------------------------------------

// Loops that do nothing but the one thing that bounds the kernels; benchmarks divide by them.
struct roof_kernels {
    // Reads every line of [data, data + bytes), a multiple of 4096, and returns something that depends on all of it.
    float (*read)(const std::byte* data, int64_t bytes);
    // The same `passes` times, without prefetches, for data that a cache holds.
    float (*read_cached)(const std::byte* data, int64_t bytes, int64_t passes);
    // Copies `bytes`, a multiple of 4096, that do not overlap. Plain stores, as the kernels use: a line is read before it is written.
    void (*copy)(std::byte* target, const std::byte* source, int64_t bytes);
    // x[i] *= factor.
    void (*scale)(float* x, int64_t n, float factor);
    // `rounds` rounds of independent fp32 FMAs on registers; *flops receives how many floating-point operations that was.
    float (*fma)(int64_t rounds, double* flops);
    // The same with the bf16 pair dot; null where the target has none.
    float (*bf16_dot)(int64_t rounds, double* flops);
    // The same with integers that are summed in 32 bits, *operations being products and sums: pairs of int16 (x86), four int8 (VNNI, sdot). Null
    // where the target has none.
    float (*int16_madd)(int64_t rounds, double* operations);
    float (*int8_dot)(int64_t rounds, double* operations);
};

struct kernel_table {
    const char* target;
    rope_kernels rope;
    kv_kernels kv;
    attention_kernels attention;
    math_kernels math;
    roof_kernels roof;
};

// Filled by every target: `namespace ropewalk::simd::<target>`. Declared through the macro so that no target is forgotten.
#define ROPEWALK_DECLARE_TARGET(t)                 \
    namespace t {                                  \
    void fill_rope(rope_kernels& table);           \
    void fill_kv(kv_kernels& table);               \
    void fill_attention(attention_kernels& table); \
    void fill_math(math_kernels& table);           \
    void fill_roof(roof_kernels& table);           \
    }
ROPEWALK_DECLARE_TARGET(scalar)
ROPEWALK_DECLARE_TARGET(avx2)
ROPEWALK_DECLARE_TARGET(avx512)
ROPEWALK_DECLARE_TARGET(avx512_bf16)
ROPEWALK_DECLARE_TARGET(neon)
ROPEWALK_DECLARE_TARGET(neon_bf16)
#undef ROPEWALK_DECLARE_TARGET

}  // namespace ropewalk::simd
