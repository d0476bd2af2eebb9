/**
 * @file
 * ropewalk from C, and from every language that calls C: C99, no C++ needed to read it.
 *
 * A step of a server, per batch and per layer (examples/decode_step.c is the whole program, docs/c.md how to build it):
 *
 *     ropewalk_kv_cache_append             slots for the new tokens
 *     ropewalk_attention_plan_build_sequences    once a step
 *     ropewalk_rope_apply                  once a layer: rotates q in place,
 *     ropewalk_kv_append                   writes k and v into pages, k rotated on the way,
 *     ropewalk_run_paged                   attends
 *
 * Rules that hold for every declaration below, unless it says otherwise:
 *
 * Status. A function returns ropewalk_status, 0 for success. Any other code means that the call changed nothing; ropewalk_last_error() then has a
 * text that names the argument, the value it had and the rule it broke. Nothing prints, aborts, throws or starts a thread.
 *
 * Shapes are in brackets, slowest dimension first. Counts count elements, strides too; names that end in _bytes count bytes. An array is a pointer
 * and a count; a null pointer goes with count 0 only, and stands for "not given".
 *
 * Structs begin with struct_size, the sizeof that the caller was compiled with. ropewalk_<struct>_init() sets it, and every other field to its
 * default, which is 0 unless the field says "Default". Later versions add fields at the end only: a struct that is larger than the library knows is
 * taken if all that is beyond is 0, and refused (ROPEWALK_UNSUPPORTED) if not; any other size is refused (ROPEWALK_INVALID_ARGUMENT). It has 32 bits
 * so that layouts do not depend on size_t, and shares eight bytes with the field behind it: no struct has padding. `reserved` is 0. Structs that a
 * function fills ("out") are initialised by the caller too.
 *
 * Enumerations are int32_t with fixed values; a value that is none of those listed is refused. Truth values are int32_t: 0 is false, all else true.
 *
 * Handles are opaque. ropewalk_<handle>_destroy() takes null and does nothing then; everything else refuses null. A library built without NDEBUG also
 * recognises a handle that was destroyed. Two handles share nothing that shows: one may be destroyed while what was made of it lives, except where
 * "must outlive" is said. A function keeps no pointer to its arguments after it returns, except where "kept" is said.
 *
 * Threads. Any number of threads may read a handle (const in the signature) at the same time; one that changes it must be alone. Operations on
 * tensors are thread-safe on different tensors. An executor may be used by any number of threads at once if its callbacks allow it. The error text is
 * the thread's own.
 *
 * The last argument `on` says who does the work: null is the default, oneTBB in the arena that the calling thread is in (serial in a build without
 * TBB). Results have the same bits on every executor.
 */
#ifndef ROPEWALK_ROPEWALK_H
#define ROPEWALK_ROPEWALK_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <ropewalk/export.hpp>  // macros only: both are C as well
#include <ropewalk/version.hpp>

#ifdef __cplusplus
extern "C" {
#endif

/* The initialiser of a struct whose defaults are 0. */
#define ROPEWALK_DEFINE_INIT(type)         \
    static inline type type##_init(void) { \
        type value;                        \
        memset(&value, 0, sizeof value);   \
        value.struct_size = sizeof value;  \
        return value;                      \
    }

/* ---- status, version, target --------------------------------------------------------------------------------------------------------- */

/** 0, or why a call failed. */
typedef int32_t ropewalk_status;
enum {
    ROPEWALK_OK = 0,
    ROPEWALK_INVALID_ARGUMENT = 1, /**< an argument breaks a rule; the text says which */
    ROPEWALK_OUT_OF_RANGE = 2,     /**< a position, page, slot or length lies outside what exists */
    ROPEWALK_UNSUPPORTED = 3,      /**< legal, but this build or this host cannot do it */
    ROPEWALK_OUT_OF_PAGES = 4,     /**< the page pool cannot satisfy the request */
    ROPEWALK_OUT_OF_MEMORY = 5,    /**< the host, or an allocator callback, has no memory left */
    ROPEWALK_WORKSPACE_TOO_SMALL = 6,
    ROPEWALK_NOT_FOUND = 7,       /**< no such sequence, or nothing of that name */
    ROPEWALK_CORRUPT_DATA = 8,    /**< a file or blob does not hold what it claims */
    ROPEWALK_NEEDS_REROTATION = 9 /**< the keys of a sequence have to be rotated anew first (ropewalk_rope_schedule_check_growth) */
};

/** The name of a code, e.g. "invalid_argument"; "unknown" for others. Static. */
ROPEWALK_API const char* ropewalk_status_name(ropewalk_status status);

/**
 * Text of the calling thread's last call that failed, zero-terminated, at most 231 bytes; "" if none has. A call that succeeds leaves it alone.
 * Valid until the thread's next call that fails, or its end.
 */
ROPEWALK_API const char* ropewalk_last_error(void);

/** Version of the linked library, "major.minor.patch". Static. That of this header: ROPEWALK_VERSION_MAJOR, _MINOR, _PATCH. */
ROPEWALK_API const char* ropewalk_version(void);

/**
 * ROPEWALK_UNSUPPORTED if the linked library does not serve callers compiled with this version of the header: the major version differs, or the
 * library's minor version is lower, or, while major is 0, differs. Call it once as ropewalk_check_version(ROPEWALK_VERSION_MAJOR,
 * ROPEWALK_VERSION_MINOR).
 */
ROPEWALK_API ropewalk_status ropewalk_check_version(int32_t major, int32_t minor);

/** Instruction sets, in ascending order within an architecture; the feature sets are cumulative. */
typedef int32_t ropewalk_target;
enum {
    ROPEWALK_TARGET_SCALAR = 0,      /**< portable, double precision where it matters: the reference */
    ROPEWALK_TARGET_AVX2 = 1,        /**< AVX2 FMA F16C */
    ROPEWALK_TARGET_AVX512 = 2,      /**< + AVX-512 F CD DQ BW VL */
    ROPEWALK_TARGET_AVX512_BF16 = 3, /**< + AVX512_VNNI AVX512_BF16 */
    ROPEWALK_TARGET_NEON = 16,       /**< Armv8-A Advanced SIMD */
    ROPEWALK_TARGET_NEON_BF16 = 17   /**< + dotprod i8mm bf16 */
};

/** Static, e.g. "avx2"; "unknown" for others. */
ROPEWALK_API const char* ropewalk_target_name(ropewalk_target target);
/** The target of that name. */
ROPEWALK_API ropewalk_status ropewalk_target_from_name(const char* name, ropewalk_target* target);
/** 1 if kernels for the target are part of the library, else 0. */
ROPEWALK_API int32_t ropewalk_target_compiled(ropewalk_target target);
/** 1 if they may run on this host (instructions present and enabled by the operating system), else 0. */
ROPEWALK_API int32_t ropewalk_target_supported(ropewalk_target target);
/**
 * The target in force: the best that was compiled and that the host supports, limited by the environment variable ROPEWALK_ISA or by
 * ropewalk_limit_target(). Fails where ROPEWALK_ISA names none, or one that cannot run here; every operation then fails likewise.
 */
ROPEWALK_API ropewalk_status ropewalk_active_target(ropewalk_target* target);
/** Uses the target from now on; for start-up and tests. Calls that are running keep theirs. Thread-safe. */
ROPEWALK_API ropewalk_status ropewalk_limit_target(ropewalk_target target);

/* ---- element types and tensors ------------------------------------------------------------------------------------------------------- */

/** Types of elements. */
typedef int32_t ropewalk_dtype;
enum {
    ROPEWALK_FP32 = 0,
    ROPEWALK_BF16 = 1, /**< the upper 16 bits of an fp32 */
    ROPEWALK_FP16 = 2, /**< IEEE binary16 */
    /* Only in KV pages, quantised on append: */
    ROPEWALK_INT8 = 3, /**< one fp32 scale per token and head */
    ROPEWALK_INT4 = 4, /**< a scale and a mid per token, head and 32 dims */
    ROPEWALK_FP8 = 5   /**< OCP E4M3, one fp32 scale per token and head */
};

/** Static, e.g. "bf16"; "unknown" for others. */
ROPEWALK_API const char* ropewalk_dtype_name(ropewalk_dtype type);
/** Bytes of one element of a tensor; 0 for a type that tensors cannot have. */
ROPEWALK_API int32_t ropewalk_element_bytes(ropewalk_dtype type);

/**
 * A view of a tensor [tokens, heads, dim] in the caller's memory, e.g. of Q inside a packed QKV buffer. Strides may be anything that keeps rows
 * apart, but dim_stride must be 1. The base needs the alignment of its element type only. tokens == 0 is an empty tensor. Where a tensor is optional,
 * a null pointer to the view (or heads == 0) says that it is absent. Tensors that a function only reads are passed as they are: nothing is written to
 * them.
 */
typedef struct ropewalk_tensor {
    uint32_t struct_size;
    ropewalk_dtype type;
    void* data;
    int64_t tokens;
    int32_t heads;
    int32_t dim;
    int64_t token_stride;
    int64_t head_stride;
    int64_t dim_stride; /**< Default 1. */
} ropewalk_tensor;

/** The view of a dense tensor. */
static inline ropewalk_tensor ropewalk_tensor_dense(void* data, ropewalk_dtype type, int64_t tokens, int32_t heads, int32_t dim) {
    ropewalk_tensor value;
    value.struct_size = sizeof value;
    value.type = type;
    value.data = data;
    value.tokens = tokens;
    value.heads = heads;
    value.dim = dim;
    value.token_stride = heads;
    value.token_stride *= dim; /* in 64 bits */
    value.head_stride = dim;
    value.dim_stride = 1;
    return value;
}
static inline ropewalk_tensor ropewalk_tensor_init(void) { return ropewalk_tensor_dense(NULL, ROPEWALK_FP32, 0, 0, 0); }

/* ---- executors: who does the work ---------------------------------------------------------------------------------------------------- */

/** Who does the work: a pool of threads. ropewalk starts none of its own. */
typedef struct ropewalk_executor ropewalk_executor;

/** One item of work. Never throws, never unwinds. */
typedef void (*ropewalk_task)(void* context, int32_t item);

/** The caller's pool. */
typedef struct ropewalk_executor_callbacks {
    uint32_t struct_size;
    /** How many items can run at the same time; at least 1. Plans size their workspace with it. */
    int32_t concurrency;
    /** Handed to run as it is. */
    void* user;
    /**
     * Calls task(context, i) exactly once for every i in [0, items), in any order and on any threads, and returns when all have returned. Items must
     * see the caller's rounding mode and denormal flags, or equal bits on every thread are lost. ropewalk passes at most `concurrency` items and lets
     * each of them take work from a shared cursor: a pool with fewer threads free than it promised is slower, never wrong. Must not unwind
     * (exceptions, panics, longjmp). Called by the thread that called ropewalk.
     */
    void (*run)(void* user, int32_t items, ropewalk_task task, void* context);
} ropewalk_executor_callbacks;
ROPEWALK_DEFINE_INIT(ropewalk_executor_callbacks)

/** An executor of the caller's pool. The callbacks are copied; user must outlive the executor. */
ROPEWALK_API ropewalk_status ropewalk_executor_create(const ropewalk_executor_callbacks* callbacks, ropewalk_executor** executor);
ROPEWALK_API ropewalk_status ropewalk_executor_destroy(ropewalk_executor* executor);
/** Runs everything on the calling thread. One for the process, for any number of threads at once; never destroyed (that is refused). */
ROPEWALK_API ropewalk_executor* ropewalk_executor_serial(void);
/** How many items run at the same time on it; null: on the default executor. */
ROPEWALK_API ropewalk_status ropewalk_executor_concurrency(const ropewalk_executor* executor, int32_t* concurrency);

/* ---- allocators: large memory (pool of a cache, workspace of plans). All else comes from operator new, which the process may replace. --- */

/** The caller's memory. */
typedef struct ropewalk_allocator {
    uint32_t struct_size;
    uint32_t reserved;
    /** Handed to both callbacks as it is. */
    void* user;
    /** Memory of at least `bytes` > 0, aligned to `alignment`, a power of two (64 or more); null: none is left. */
    void* (*allocate)(void* user, size_t bytes, size_t alignment);
    /** Takes back what allocate gave, with the same numbers. */
    void (*release)(void* user, void* memory, size_t bytes, size_t alignment);
} ropewalk_allocator;
ROPEWALK_DEFINE_INIT(ropewalk_allocator)

/** Memory for attention runs that grows and never shrinks. A convenience: ropewalk_run_paged() and _plain() take any memory that is aligned. */
typedef struct ropewalk_workspace ropewalk_workspace;

/** Empty. The allocator is copied, its user must outlive the workspace; null: operator new. */
ROPEWALK_API ropewalk_status ropewalk_workspace_create(const ropewalk_allocator* allocator, ropewalk_workspace** workspace);
ROPEWALK_API ropewalk_status ropewalk_workspace_destroy(ropewalk_workspace* workspace);
/**
 * Makes the workspace at least `bytes` large; memory receives its start, 64-byte aligned, null while it is empty. What it held is lost if it grows,
 * and the old memory is gone. One run at a time may use it.
 */
ROPEWALK_API ropewalk_status ropewalk_workspace_reserve(ropewalk_workspace* workspace, size_t bytes, void** memory);

/* ---- rotary position embedding: frequencies ------------------------------------------------------------------------------------------ */

/** Which two elements of the rotated slice make pair i, with d = rotary_dim. */
typedef int32_t ropewalk_rope_pairing;
enum {
    ROPEWALK_PAIRING_HALF = 0,        /**< (i, i + d/2): NeoX, Hugging Face Llama, Qwen, Mistral, Phi, Gemma */
    ROPEWALK_PAIRING_INTERLEAVED = 1, /**< (2i, 2i + 1): GPT-J, GLM, Cohere, Meta's Llama */
    /** Reads (2i, 2i + 1), writes (i, i + d/2): rope_interleave of Hugging Face's DeepSeek V3. Caches of the two cannot be exchanged. */
    ROPEWALK_PAIRING_INTERLEAVED_IN_HALF_OUT = 2
};

/** How phases are formed. */
typedef int32_t ropewalk_phase_mode;
enum {
    ROPEWALK_PHASES_EXACT = 0, /**< position * inv_freq in double, rounded once */
    ROPEWALK_PHASES_HF_F32 = 1 /**< in fp32, step by step as transformers does on CPU: the same bits given the same inv_freq */
};

/**
 * Frequencies and amplitude of a RoPE variant: pair i of a head is turned by position * inv_freq[i] and multiplied by the amplitude. Never changes.
 */
typedef struct ropewalk_rope_spec ropewalk_rope_spec;

/** A spec as plain data. */
typedef struct ropewalk_rope_frequencies {
    uint32_t struct_size;
    ropewalk_phase_mode phases;
    const double* inv_freq; /**< [pairs] radians per position; 0 leaves a pair unturned; at most 1024, finite, >= 0 */
    size_t pairs;           /**< rotary_dim / 2 */
    /** [pairs] values 0 .. 3: which of a token's positions turns the pair (M-RoPE and the like); null: one position a token. */
    const uint8_t* axis_of_pair;
    double amplitude; /**< Default 1. Multiplies cos and sin (attention factor of YaRN and LongRoPE); 2^-100 .. 2^100 */
    /** xPos (arXiv 2212.10554): q is multiplied by zeta_i^((p - center) / base), k by the reciprocal, zeta_i = (2i + 0.4 d) / (1.4 d). 0: off. */
    double xpos_base;
    double xpos_center;
    /** FoPE (arXiv 2412.17739): cos of pair o = sum over i < fope_frequencies of cos(p inv_freq[i]) fope_cos_mix[h][i][o], sin alike. */
    int32_t fope_heads; /**< KV heads that have tables of their own; 1: all share one; 0: no FoPE */
    int32_t fope_frequencies;
    const float* fope_cos_mix; /**< [fope_heads][fope_frequencies][fope_frequencies] */
    const float* fope_sin_mix;
} ropewalk_rope_frequencies;
static inline ropewalk_rope_frequencies ropewalk_rope_frequencies_init(void) {
    ropewalk_rope_frequencies value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.amplitude = 1.0;
    return value;
}

/** From plain data, which is copied. Neither xPos nor FoPE goes with the other, with several axes or with an amplitude. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_create(const ropewalk_rope_frequencies* frequencies, ropewalk_rope_spec** spec);
ROPEWALK_API ropewalk_status ropewalk_rope_spec_destroy(ropewalk_rope_spec* spec);
/** Out: the spec as plain data. Its pointers are the spec's: valid as long as that lives. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_get(const ropewalk_rope_spec* spec, ropewalk_rope_frequencies* frequencies);
/** equal receives 1 if both turn alike (layers of equal specs can share a table), else 0. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_equal(const ropewalk_rope_spec* a, const ropewalk_rope_spec* b, int32_t* equal);

/** inv_freq[i] = theta^(-2i/rotary_dim). rotary_dim even, 0 .. 2048 (0: nothing turns), theta > 0. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_standard(int32_t rotary_dim, double theta, ropewalk_phase_mode phases, ropewalk_rope_spec** spec);
/** Position interpolation (arXiv 2306.15595): inv_freq / factor, factor >= 1. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_linear(int32_t rotary_dim, double theta, double factor, ropewalk_phase_mode phases,
                                                       ropewalk_rope_spec** spec);

/** Arguments of ropewalk_rope_spec_llama3(). */
typedef struct ropewalk_llama3_parameters {
    uint32_t struct_size;
    int32_t rotary_dim;           /**< Default 128. */
    double theta;                 /**< Default 500000. */
    double factor;                /**< Default 8. */
    double low_freq_factor;       /**< Default 1. */
    double high_freq_factor;      /**< Default 4. */
    double original_max_position; /**< Default 8192. */
} ropewalk_llama3_parameters;
static inline ropewalk_llama3_parameters ropewalk_llama3_parameters_init(void) {
    ropewalk_llama3_parameters value;
    value.struct_size = sizeof value;
    value.rotary_dim = 128;
    value.theta = 500000.0;
    value.factor = 8.0;
    value.low_freq_factor = 1.0;
    value.high_freq_factor = 4.0;
    value.original_max_position = 8192.0;
    return value;
}
/**
 * Llama 3.1. With wavelength w = 2 pi / inv_freq and L = original_max_position: w < L/high_freq_factor: kept; w > L/low_freq_factor: / factor;
 * between: blended by (L/w - low) / (high - low).
 */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_llama3(const ropewalk_llama3_parameters* parameters, ropewalk_phase_mode phases,
                                                       ropewalk_rope_spec** spec);

/** NTK-aware scaling with a fixed factor >= 1: theta' = theta * factor^(d/(d-2)). */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_ntk(int32_t rotary_dim, double theta, double factor, ropewalk_phase_mode phases,
                                                    ropewalk_rope_spec** spec);
/** The mixed form (kexue 9706; vLLM, mixed_b): inv_freq[i] / exp(a (i+1)^b), a = ln(factor) / (d/2)^b. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_ntk_mixed(int32_t rotary_dim, double theta, double factor, double mixed_b, ropewalk_phase_mode phases,
                                                          ropewalk_rope_spec** spec);
/** Hunyuan (rope_type "dynamic" with alpha): theta' = theta * alpha^(d/(d-2)), alpha >= 1. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_ntk_alpha(int32_t rotary_dim, double theta, double alpha, ropewalk_phase_mode phases,
                                                          ropewalk_rope_spec** spec);
/**
 * Dynamic NTK at a sequence of `length` tokens: theta' = theta * (factor T / L - (factor - 1))^(d/(d-2)), T = max(length, L), L = max_position. Of
 * one length only: see ropewalk_rope_schedule.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, int64_t length,
                                                            ropewalk_phase_mode phases, ropewalk_rope_spec** spec);

/** Arguments of ropewalk_rope_spec_yarn(). */
typedef struct ropewalk_yarn_parameters {
    uint32_t struct_size;
    int32_t rotary_dim;           /**< Default 128. */
    double theta;                 /**< Default 10000. More than 1. */
    double factor;                /**< Default 1. At least 1. */
    double original_max_position; /**< Default 4096. */
    double attention_factor;      /**< Default 1. The amplitude: ropewalk_yarn_amplitude() and _ratio() give it by each stack's rule. */
    double beta_fast;             /**< Default 32. At least beta_slow. */
    double beta_slow;             /**< Default 1. */
    int32_t truncate;             /**< Default 1. 0 (gpt-oss): the limits of the ramp are not rounded to whole pairs. */
    int32_t logarithmic;          /**< 1: the ramp blends logarithms of frequencies (Grok 1). */
} ropewalk_yarn_parameters;
static inline ropewalk_yarn_parameters ropewalk_yarn_parameters_init(void) {
    ropewalk_yarn_parameters value;
    value.struct_size = sizeof value;
    value.rotary_dim = 128;
    value.theta = 10000.0;
    value.factor = 1.0;
    value.original_max_position = 4096.0;
    value.attention_factor = 1.0;
    value.beta_fast = 32.0;
    value.beta_slow = 1.0;
    value.truncate = 1;
    value.logarithmic = 0;
    return value;
}
/** YaRN (arXiv 2309.00071). Refused too: lengths so short or long that the ramp would run backwards. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_yarn(const ropewalk_yarn_parameters* parameters, ropewalk_phase_mode phases,
                                                     ropewalk_rope_spec** spec);
/** theta' = theta^(ln(L s / 2 pi) / ln(L / 2 pi)), L = original_max_position, s = factor (Grok 1 in vLLM). */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_theta_scale(int32_t rotary_dim, double theta, double factor, double original_max_position,
                                                            ropewalk_phase_mode phases, ropewalk_rope_spec** spec);

/** Arguments of ropewalk_rope_spec_longrope(). */
typedef struct ropewalk_longrope_parameters {
    uint32_t struct_size;
    int32_t rotary_dim;           /**< Default 128. */
    double theta;                 /**< Default 10000. */
    const double* short_factor;   /**< [pairs], > 0 */
    const double* long_factor;    /**< [pairs], > 0 */
    size_t pairs;                 /**< rotary_dim / 2 */
    double factor;                /**< Default 1. */
    double original_max_position; /**< Default 4096. */
    double attention_factor;      /**< The amplitude; 0: ropewalk_longrope_amplitude(factor, original_max_position). */
} ropewalk_longrope_parameters;
static inline ropewalk_longrope_parameters ropewalk_longrope_parameters_init(void) {
    ropewalk_longrope_parameters value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.rotary_dim = 128;
    value.theta = 10000.0;
    value.factor = 1.0;
    value.original_max_position = 4096.0;
    return value;
}
/** LongRoPE (arXiv 2402.13753): inv_freq / short_factor while length <= original_max_position, / long_factor beyond. See ropewalk_rope_schedule. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_longrope(const ropewalk_longrope_parameters* parameters, int64_t length, ropewalk_phase_mode phases,
                                                         ropewalk_rope_spec** spec);
/** Gemma 4: of head_dim / 2 pairs the first int(partial_rotary_factor * head_dim / 2) turn with theta^(-2i/head_dim) / factor, the others stand
 * still. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_proportional(int32_t head_dim, double theta, double partial_rotary_factor, double factor,
                                                             ropewalk_phase_mode phases, ropewalk_rope_spec** spec);
/** A new spec with inv_freq[i] / factors[i]: explicit factors [count], e.g. the tensor rope_freqs of GGUF files. */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_divided(const ropewalk_rope_spec* spec, const double* factors, size_t count,
                                                        ropewalk_rope_spec** divided);

/** Which pairs each of several positions turns. Axes of the last three are t, h, w = 0, 1, 2, whatever the order in a configuration. */
typedef int32_t ropewalk_axis_order;
enum {
    ROPEWALK_AXES_CONTIGUOUS = 0,  /**< t..t h..h w..w: Qwen2-VL and 2.5-VL, GLM-4.1V; any number of axes up to 4: XDRoPE of Hunyuan */
    ROPEWALK_AXES_INTERLEAVED = 1, /**< Qwen3-VL: pair i is h's if i % 3 == 1 and i < 3 h, w's if i % 3 == 2 and i < 3 w, else t's */
    ROPEWALK_AXES_CYCLIC = 2,      /**< GLM: t h w t h w .., an axis that has had its pairs is passed over */
    ROPEWALK_AXES_ALTERNATING = 3  /**< ERNIE-4.5-VL and Bailing: h w h w .., then t to the end; h == w */
};
/**
 * A new spec with axes. sections [count], each >= 0, together rotary_dim / 2: how many pairs each axis turns; 2 to 4 of them if contiguous, else 3.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_with_axes(const ropewalk_rope_spec* spec, ropewalk_axis_order order, const int32_t* sections,
                                                          size_t count, ropewalk_rope_spec** with_axes);
/**
 * Two axes, the first half of the pairs and the second, each with theta^(-2j / (rotary_dim / 2)). Qwen2-VL's vision tower: (y, x), pairing half;
 * Llama 4's: (x + 1, y + 1), (0, 0) for the class token, interleaved. rotary_dim: a multiple of 4, 4 .. 2048.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_vision_2d(int32_t rotary_dim, double theta, ropewalk_rope_spec** spec);
/** Pixtral's: theta^(-2i / rotary_dim) of even i on the first half, turned by the row (axis 0), of odd i on the second, by the column (axis 1). */
ROPEWALK_API ropewalk_status ropewalk_rope_spec_pixtral_2d(int32_t rotary_dim, double theta, ropewalk_rope_spec** spec);

/** slope ln(factor) + 1, 1 for factor <= 1; slope 0.1 is YaRN's paper, TeleChat 3 has 0.07. */
ROPEWALK_API double ropewalk_yarn_amplitude(double factor, double slope);
/** DeepSeek: yarn_amplitude(factor, 0.1 mscale) / yarn_amplitude(factor, 0.1 mscale_all_dim). */
ROPEWALK_API double ropewalk_yarn_amplitude_ratio(double factor, double mscale, double mscale_all_dim);
/** sqrt(1 + ln(factor) / ln(original_max_position)), 1 for factor <= 1. */
ROPEWALK_API double ropewalk_longrope_amplitude(double factor, double original_max_position);

/** A spec for every length of a sequence: with LongRoPE and dynamic NTK, keys and queries of different lengths do not belong together. */
typedef struct ropewalk_rope_schedule ropewalk_rope_schedule;

/** The same frequencies at every length. The spec is copied. */
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_constant(const ropewalk_rope_spec* spec, ropewalk_rope_schedule** schedule);
/** Errors as ropewalk_rope_spec_longrope(). Nothing of parameters is kept. */
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_longrope(const ropewalk_longrope_parameters* parameters, ropewalk_phase_mode phases,
                                                             ropewalk_rope_schedule** schedule);
/** Errors as ropewalk_rope_spec_dynamic_ntk(). */
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position,
                                                                ropewalk_phase_mode phases, ropewalk_rope_schedule** schedule);
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_destroy(ropewalk_rope_schedule* schedule);
/** A new spec: the frequencies of a sequence of `length` >= 0 tokens. */
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_spec_at(const ropewalk_rope_schedule* schedule, int64_t length, ropewalk_rope_spec** spec);
/**
 * ROPEWALK_OK if keys that were rotated at length `from` stay valid at length `to`, longer or shorter; ROPEWALK_NEEDS_REROTATION if not: then
 * ropewalk_kv_rerotate() all layers, or keep the table in use. From length 0 it is always ok.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_schedule_check_growth(const ropewalk_rope_schedule* schedule, int64_t from, int64_t to);

/* ---- rotary position embedding: tables and rotation ---------------------------------------------------------------------------------- */

/** cos and sin of a spec, fp32. Rows are never moved: any number of threads may use a table at the same time, also while it grows. */
typedef struct ropewalk_rope_table ropewalk_rope_table;

/** Rows that a growing table keeps: with 64 pairs 512 MiB. */
#define ROPEWALK_DEFAULT_CACHED_POSITIONS 1048576

/**
 * Positions 0 .. 2^31 - 1. Rows 0 .. initial_positions - 1 are filled at once, others in blocks when they are first asked for, up to
 * max_cached_positions (ROPEWALK_DEFAULT_CACHED_POSITIONS); rows beyond are computed for the call and not kept. The spec is copied.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_table_growing(const ropewalk_rope_spec* spec, int64_t initial_positions, int64_t max_cached_positions,
                                                         ropewalk_rope_table** table);
/** Positions 0 .. max_position - 1, all filled at once; others are refused with ROPEWALK_OUT_OF_RANGE. The spec is copied. */
ROPEWALK_API ropewalk_status ropewalk_rope_table_fixed(const ropewalk_rope_spec* spec, int64_t max_position, ropewalk_rope_table** table);
ROPEWALK_API ropewalk_status ropewalk_rope_table_destroy(ropewalk_rope_table* table);

/** What a table is, and takes, now. */
typedef struct ropewalk_rope_table_info {
    uint32_t struct_size;
    int32_t pairs;
    int32_t axes;          /**< positions that a token has */
    int32_t pure_rotation; /**< 1: can be undone and shifted (neither xPos nor FoPE) */
    int64_t cached_bytes;
    int64_t max_position; /**< largest position that is not refused */
} ropewalk_rope_table_info;
ROPEWALK_DEFINE_INIT(ropewalk_rope_table_info)
/** Out: info. */
ROPEWALK_API ropewalk_status ropewalk_rope_table_get_info(const ropewalk_rope_table* table, ropewalk_rope_table_info* info);
/** A new spec, equal to the table's. */
ROPEWALK_API ropewalk_status ropewalk_rope_table_spec(const ropewalk_rope_table* table, ropewalk_rope_spec** spec);
/** cos [pairs] and sin [pairs] of one position, amplitude included; with xPos those of q, with FoPE those of the first head. */
ROPEWALK_API ropewalk_status ropewalk_rope_table_row(const ropewalk_rope_table* table, int64_t position, float* cos, float* sin, size_t pairs);

/** Which elements of a head a table turns, and in which direction. */
typedef struct ropewalk_rope_options {
    uint32_t struct_size;
    ropewalk_rope_pairing pairing;
    int32_t inverse;       /**< 1: undoes a rotation: turns by -angle and divides by the amplitude */
    int32_t first_dim;     /**< of the rotated slice in a head; elements outside [first_dim, first_dim + rotary_dim) stay untouched */
    int32_t pair_distance; /**< pairing half: pair i is (i, i + pair_distance), at least `pairs` apart; 0: rotary_dim / 2 */
    int32_t conjugate;     /**< 1: turns by -angle and keeps the amplitude */
} ropewalk_rope_options;
ROPEWALK_DEFINE_INIT(ropewalk_rope_options)

/**
 * Rotates q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] in place; either may be null. positions [axes][tokens], stream after stream,
 * any order, repeats allowed; positions_count = axes * tokens. fp32, bf16, fp16 (rotated in fp32, rounded once to nearest even). options: null for
 * the defaults. Refuses a dim that does not hold the slice, overlapping rows, a position that the table refuses, the inverse of xPos and FoPE.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_apply(const ropewalk_rope_table* table, const int64_t* positions, size_t positions_count,
                                                 const ropewalk_tensor* q, const ropewalk_tensor* k, const ropewalk_rope_options* options,
                                                 ropewalk_executor* on);
/**
 * Moves rotated vectors k by deltas [axes][tokens] positions, of either sign, |delta| < 2^31: R(p + delta) from R(p). The amplitude is not applied
 * again. Refuses options->inverse (negate the deltas), xPos and FoPE.
 */
ROPEWALK_API ropewalk_status ropewalk_rope_shift(const ropewalk_rope_table* table, const int64_t* deltas, size_t deltas_count,
                                                 const ropewalk_tensor* k, const ropewalk_rope_options* options, ropewalk_executor* on);

/* ---- absolute positions -------------------------------------------------------------------------------------------------------------- */
/* x and rows are [tokens, 1, dim], fp32, bf16 or fp16; positions [count] with count = tokens. Sums are fp32, rounded once. All positions are checked
   before anything is written. */

/** The order of a row. */
typedef int32_t ropewalk_sinusoid_columns;
enum {
    ROPEWALK_COLUMNS_INTERLEAVED = 0, /**< sin, cos of frequency 0, sin, cos of frequency 1, and so on */
    ROPEWALK_COLUMNS_CONCATENATED = 1 /**< the sines of all frequencies, then the cosines */
};
/** Row r encodes the angles r * base^(-i / denominator) as sines and cosines; a position has row position + offset, within 2^31 of 0. */
typedef struct ropewalk_sinusoid {
    uint32_t struct_size;
    int32_t dim; /**< d >= 1 */
    ropewalk_sinusoid_columns columns;
    int32_t zero_odd_column; /**< odd d: the last column is zero, instead of one sine more than there are cosines */
    int32_t has_zero_row;    /**< 1: row zero_row is zeros (padding_idx) */
    uint32_t reserved;
    double denominator; /**< d/2 or floor(d/2) - 1 in the published ones; finite and positive */
    double base;        /**< Default 10000. Finite, at least 1 */
    int64_t offset;
    int64_t zero_row;
} ropewalk_sinusoid;
static inline ropewalk_sinusoid ropewalk_sinusoid_init(void) {
    ropewalk_sinusoid value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.base = 10000.0;
    return value;
}
/** Out: the paper's (Vaswani et al., arXiv 1706.03762), as XLM has it; any d. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_vaswani(int32_t dim, ropewalk_sinusoid* spec);
/** Out: concatenated, the paper's frequencies: Marian, the relative table of XLNet and Transformer-XL. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_marian(int32_t dim, ropewalk_sinusoid* spec);
/** Out: concatenated, denominator floor(d/2) - 1: Whisper's encoder, tensor2tensor. d >= 4. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_whisper(int32_t dim, ropewalk_sinusoid* spec);
/** Out: likewise with row padding_idx zero: fairseq, M2M100, XGLM; positions of ropewalk_positions_from_tokens(). */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_fairseq(int32_t dim, int64_t padding_idx, ropewalk_sinusoid* spec);
/** rows[t] becomes the row of positions[t]. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_rows(const ropewalk_sinusoid* spec, const int64_t* positions, size_t count,
                                                    const ropewalk_tensor* rows, ropewalk_executor* on);
/** x[t] += the row of positions[t]. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_add(const ropewalk_sinusoid* spec, const int64_t* positions, size_t count, const ropewalk_tensor* x,
                                                   ropewalk_executor* on);
/** rows[t] = M_k rows[t], where M_k turns the row of r into that of r + k, |k| <= 2^31. Not for an odd d without zero_odd_column. */
ROPEWALK_API ropewalk_status ropewalk_sinusoid_shift(const ropewalk_sinusoid* spec, int64_t k, const ropewalk_tensor* rows, ropewalk_executor* on);

/** Positions of XLNet's and Transformer-XL's relative table: key_tokens, .. down to 1 - query_tokens (bidirectional) or to 0. */
typedef struct ropewalk_xlnet_positions_rule {
    uint32_t struct_size;
    int32_t bidirectional; /**< Default 1. */
    int32_t negated;       /**< 1: the second half of the batch with bi_data */
    uint32_t reserved;
    int64_t query_tokens; /**< 0 .. 2^30 */
    int64_t key_tokens;   /**< 0 .. 2^30, memory included */
    int64_t clamp_len;    /**< Default -1. Positions are clamped to -clamp_len .. clamp_len; not if <= 0 */
} ropewalk_xlnet_positions_rule;
static inline ropewalk_xlnet_positions_rule ropewalk_xlnet_positions_rule_init(void) {
    ropewalk_xlnet_positions_rule value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.bidirectional = 1;
    value.clamp_len = -1;
    return value;
}
/** positions [count], count = key_tokens + (bidirectional ? query_tokens : 1). */
ROPEWALK_API ropewalk_status ropewalk_xlnet_positions(int64_t* positions, size_t count, const ropewalk_xlnet_positions_rule* rule);

/** A learned table in the caller's memory; a position has row position + offset. */
typedef struct ropewalk_learned_positions {
    uint32_t struct_size;
    uint32_t reserved;
    const ropewalk_tensor* table; /**< [rows, 1, dim] */
    int64_t offset;               /**< 0: BERT, GPT-2, RoBERTa with ropewalk_positions_from_tokens(); 2: OPT, BART */
} ropewalk_learned_positions;
ROPEWALK_DEFINE_INIT(ropewalk_learned_positions)
/** rows[t] becomes the row of positions[t]. */
ROPEWALK_API ropewalk_status ropewalk_learned_rows(const ropewalk_learned_positions* learned, const int64_t* positions, size_t count,
                                                   const ropewalk_tensor* rows, ropewalk_executor* on);
/** x[t] += the row of positions[t]. */
ROPEWALK_API ropewalk_status ropewalk_learned_add(const ropewalk_learned_positions* learned, const int64_t* positions, size_t count,
                                                  const ropewalk_tensor* x, ropewalk_executor* on);

/** OPT: the number of attended tokens before a token, -1 for a masked one. positions [count], mask [count]: 0 is masked. */
ROPEWALK_API ropewalk_status ropewalk_positions_from_mask(int64_t* positions, const uint8_t* mask, size_t count);
/**
 * fairseq (M2M100, XGLM, RoBERTa): padding_idx + tokens up to this one that are not padding, `past` of earlier calls included; padding: padding_idx.
 */
ROPEWALK_API ropewalk_status ropewalk_positions_from_tokens(int64_t* positions, const int64_t* tokens, size_t count, int64_t padding_idx,
                                                            int64_t past);

/** Queries grow with their position: q is multiplied by 1 + beta ln(1 + floor((position + offset) / floor_length)) (arXiv 2501.19399). */
typedef struct ropewalk_query_temperature {
    uint32_t struct_size;
    uint32_t reserved;
    double beta;          /**< Default 0.1. Finite, >= 0 */
    int64_t floor_length; /**< Default 8192. >= 1 */
    int64_t offset;       /**< 0 .. 2^31. Llama 4: 1; Ministral 3: 0 */
} ropewalk_query_temperature;
static inline ropewalk_query_temperature ropewalk_query_temperature_init(void) {
    ropewalk_query_temperature value;
    value.struct_size = sizeof value;
    value.reserved = 0;
    value.beta = 0.1;
    value.floor_length = 8192;
    value.offset = 0;
    return value;
}
/** factor receives the factor at a position >= 0. */
ROPEWALK_API ropewalk_status ropewalk_query_temperature_at(const ropewalk_query_temperature* temperature, int64_t position, double* factor);
/** Multiplies q [tokens, heads, head_dim] in place; positions [count], 0 .. 2^31 - 1. Tokens whose factor is 1 keep their bits. */
ROPEWALK_API ropewalk_status ropewalk_scale_queries(const ropewalk_tensor* q, const int64_t* positions, size_t count,
                                                    const ropewalk_query_temperature* temperature, ropewalk_executor* on);

/* ---- biases and relative terms ------------------------------------------------------------------------------------------------------- */

/** How slopes follow from the number of heads. */
typedef int32_t ropewalk_alibi_rule;
enum {
    ROPEWALK_ALIBI_PRESS = 0, /**< the paper's (arXiv 2108.12409), BLOOM */
    ROPEWALK_ALIBI_MPT = 1,   /**< the series of the next power of two, its even entries first */
    ROPEWALK_ALIBI_FALCON = 2 /**< Press, rounded to bf16; Falcon adds the bias before the scale: ROPEWALK_BIAS_BEFORE_SCALE */
};
/** slopes [heads] receives one positive slope per query head. max_exponent: 8 in the paper, alibi_bias_max in MPT; finite, positive. */
ROPEWALK_API ropewalk_status ropewalk_alibi_slopes(float* slopes, size_t heads, ropewalk_alibi_rule rule, double max_exponent);

/** Where a bias is added. */
typedef int32_t ropewalk_bias_place;
enum {
    ROPEWALK_BIAS_AFTER_SOFTCAP = 0,  /**< softcap(scale * q.k) + bias: most models */
    ROPEWALK_BIAS_BEFORE_SOFTCAP = 1, /**< softcap(scale * q.k + bias) */
    ROPEWALK_BIAS_BEFORE_SCALE = 2    /**< softcap(scale * (q.k + bias)): Falcon */
};

/** Relative positions to buckets (T5, mT5, UMT5, MPNet, WavLM; arXiv 1910.10683). */
typedef struct ropewalk_t5_bucket_rule {
    uint32_t struct_size;
    int32_t num_buckets;   /**< Default 32. 2 .. 1024; if bidirectional even and at least 4 */
    int32_t max_distance;  /**< Default 128. More than n / 2, n = num_buckets, halved if bidirectional */
    int32_t bidirectional; /**< Default 1 (encoders): keys after the query have the upper half. 0 (decoders): they have bucket 0 */
} ropewalk_t5_bucket_rule;
static inline ropewalk_t5_bucket_rule ropewalk_t5_bucket_rule_init(void) {
    ropewalk_t5_bucket_rule value;
    value.struct_size = sizeof value;
    value.num_buckets = 32;
    value.max_distance = 128;
    value.bidirectional = 1;
    return value;
}
/** buckets[i] receives the bucket of KEY minus QUERY position first_relative_position + i; buckets [count]. */
ROPEWALK_API ropewalk_status ropewalk_t5_buckets(int32_t* buckets, size_t count, int64_t first_relative_position,
                                                 const ropewalk_t5_bucket_rule* rule);

/** Log buckets of DeBERTa v2 and v3 (arXiv 2006.03654). */
typedef struct ropewalk_deberta_bucket_rule {
    uint32_t struct_size;
    int32_t position_buckets;       /**< Default 256. 2 .. 1024 */
    int32_t max_relative_positions; /**< Default 512. More than position_buckets / 2 + 1 */
} ropewalk_deberta_bucket_rule;
static inline ropewalk_deberta_bucket_rule ropewalk_deberta_bucket_rule_init(void) {
    ropewalk_deberta_bucket_rule value;
    value.struct_size = sizeof value;
    value.position_buckets = 256;
    value.max_relative_positions = 512;
    return value;
}
/** buckets[i] receives the bucket of QUERY minus KEY position first_relative_position + i, within twice position_buckets; buckets [count]. */
ROPEWALK_API ropewalk_status ropewalk_deberta_buckets(int32_t* buckets, size_t count, int64_t first_relative_position,
                                                      const ropewalk_deberta_bucket_rule* rule);

/** A bias that attention adds to its scores: a function of where query and key stand, one for each query head. Never changes. */
typedef struct ropewalk_attention_bias ropewalk_attention_bias;

/**
 * table [heads][table_count / heads]: at delta = position of the key - position of the query head h adds entry delta - first_delta; smaller and
 * larger deltas the first and the last entry. Copied. Entries are finite; |first_delta| <= 2^31.
 */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_over_distance(const float* table, size_t table_count, int32_t heads, int64_t first_delta,
                                                                   ropewalk_attention_bias** bias);
/**
 * Tokens on a grid of height x width, row by row (Swin, BEiT): table [(2 height - 1) (2 width - 1)][heads]; query (y, x) and key (y', x') add entry
 * (y - y' + height - 1) (2 width - 1) + x - x' + width - 1. With a class token, which stands before the grid, three more entries follow: the query is
 * the class token, the key is, both are. Copied. Extents 1 .. 4096.
 */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_over_grid(const float* table, size_t table_count, int32_t heads, int32_t height, int32_t width,
                                                               int32_t class_token, ropewalk_attention_bias** bias);
/**
 * Values in the caller's memory, [tokens, heads, keys] by row of q, query head and index of the key in its sequence; strides >= 0, 0 where rows
 * share. The pointer is kept: values must outlive plans and runs that use the bias, and may change between runs. -inf hides a key, whose V must then
 * be finite; other values must be finite, unchecked.
 */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_of_rows(const float* values, int64_t tokens, int32_t heads, int64_t keys, int64_t token_stride,
                                                             int64_t head_stride, ropewalk_attention_bias** bias);
/**
 * T5, mT5, UMT5: weight [num_buckets, heads] is relative_attention_bias.weight, weight_count its elements. These models have no scale (scale = 1).
 */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_t5(const float* weight, size_t weight_count, int32_t heads, const ropewalk_t5_bucket_rule* rule,
                                                        ropewalk_attention_bias** bias);
/** KERPLE, logarithmic (arXiv 2205.09921): -r1_h ln(1 + r2_h |delta|); r1, r2 [heads], positive; constant beyond max_distance, 1 .. 2^20. */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_kerple(const float* r1, const float* r2, size_t heads, int64_t max_distance,
                                                            ropewalk_attention_bias** bias);
/** Plans that were built with it keep what they need. */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_destroy(ropewalk_attention_bias* bias);
/** heads receives the query heads that the bias is for. */
ROPEWALK_API ropewalk_status ropewalk_attention_bias_heads(const ropewalk_attention_bias* bias, int32_t* heads);

/** Which row of a relative table belongs to delta = QUERY position - KEY position. Never changes. */
typedef struct ropewalk_relative_index ropewalk_relative_index;

/** rows[delta - first_delta], before the first and behind the last as these; -1: no row, the terms are 0. Copied. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_create(int64_t first_delta, const int32_t* rows, size_t count, ropewalk_relative_index** index);
/** DeBERTa v1, and v2 without buckets: row clamp(delta + span, 0, 2 span - 1) of 2 span rows; span 1 .. 2^24. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_deberta(int32_t span, ropewalk_relative_index** index);
/** DeBERTa v2 and v3: the same of the log bucket of delta, span = position_buckets. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_deberta_buckets(int32_t position_buckets, int32_t max_relative_positions,
                                                                     ropewalk_relative_index** index);
/** Shaw (arXiv 1803.02155), wav2vec2-bert: row clamp(-delta, -left, right) + left; 0 .. 2^24 each. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_shaw(int32_t left, int32_t right, ropewalk_relative_index** index);
/** BERT relative_key and relative_key_query: row delta + max_position_embeddings - 1 of 2 max_position_embeddings - 1. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_bert(int32_t max_position_embeddings, ropewalk_relative_index** index);
/** XLNet, Transformer-XL: row k_len - delta; bidirectional: down to position -q_len + 1, else to 0, and the term of a later key is 0. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_xlnet(int64_t q_len, int64_t k_len, int32_t bidirectional, ropewalk_relative_index** index);
ROPEWALK_API ropewalk_status ropewalk_relative_index_destroy(ropewalk_relative_index* index);
/** What it was made of. rows is the index's: valid as long as that lives. */
ROPEWALK_API ropewalk_status ropewalk_relative_index_rows(const ropewalk_relative_index* index, int64_t* first_delta, const int32_t** rows,
                                                          size_t* count);

/**
 * Which vector terms there are beside q.k:
 *   (q_i + u_h) . k_j + (q_i + v_h) . R_h[idx(delta)] + k_j . C_h[idx(delta)] + (q_i + s_h) . E_h[segment_i != segment_j],  delta = position_i - j
 * The tensors differ from layer to layer and go to runs: ropewalk_relative_tensors. Never changes.
 */
typedef struct ropewalk_relative_terms ropewalk_relative_terms;

/** rows: (q + v).R; columns: k.C; segments: (q + s).E. index is copied; it may be null without rows and columns. */
ROPEWALK_API ropewalk_status ropewalk_relative_terms_create(int32_t rows, int32_t columns, int32_t segments, const ropewalk_relative_index* index,
                                                            ropewalk_relative_terms** terms);
ROPEWALK_API ropewalk_status ropewalk_relative_terms_destroy(ropewalk_relative_terms* terms);

/**
 * The tensors of a layer, fp32, bf16 or fp16. R, C, E are given exactly if the plan has their terms. Heads: those of the queries, or 1: all share.
 */
typedef struct ropewalk_relative_tensors {
    uint32_t struct_size;
    uint32_t reserved;
    const ropewalk_tensor* rows;          /**< R [more than the largest index, heads or 1, k_dim] or null */
    const ropewalk_tensor* columns;       /**< C, likewise */
    const ropewalk_tensor* segments;      /**< E [2, heads or 1, k_dim] or null */
    const ropewalk_tensor* content_bias;  /**< u [1, heads or 1, k_dim] or null (XLNet r_w_bias) */
    const ropewalk_tensor* position_bias; /**< v, likewise (r_r_bias); not without R */
    const ropewalk_tensor* segment_bias;  /**< s, likewise (r_s_bias); not without E */
} ropewalk_relative_tensors;
ROPEWALK_DEFINE_INIT(ropewalk_relative_tensors)

/* ---- pages --------------------------------------------------------------------------------------------------------------------------- */

/**
 * A page holds page_tokens tokens of all KV heads of one layer; per KV head one contiguous record, 64-byte aligned: K part, V part, scales. Records
 * have the same layout on every target (ropewalk/kv_pages.hpp draws it), so pages can be moved between machines.
 */
typedef struct ropewalk_kv_layout {
    uint32_t struct_size;
    ropewalk_dtype k_type; /**< Default ROPEWALK_BF16. Any; K and V independently */
    ropewalk_dtype v_type; /**< Default ROPEWALK_BF16. */
    int32_t kv_heads;
    int32_t k_dim;       /**< 1 .. 1024 */
    int32_t v_dim;       /**< 1 .. 1024 */
    int32_t page_tokens; /**< Default 64. 16, 32, 64, 128 or 256 */
    int32_t hadamard;    /**< 1: rows are stored turned by a Hadamard matrix, so that few bits lose less (arXiv 2404.00456) */
    int32_t v_in_k;      /**< 1: V is the first v_dim dims of K and is not stored (MLA in absorbed form); types equal, 16 or 32 bits */
    uint32_t reserved;
    int64_t head_stride; /**< BYTES from one head's record to the next, a multiple of 64; 0: tightly packed */
    int64_t page_stride; /**< BYTES from one page to the next, likewise */
} ropewalk_kv_layout;
static inline ropewalk_kv_layout ropewalk_kv_layout_init(void) {
    ropewalk_kv_layout value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.k_type = ROPEWALK_BF16;
    value.v_type = ROPEWALK_BF16;
    value.page_tokens = 64;
    return value;
}

/** Bytes of a page and of its parts. */
typedef struct ropewalk_kv_sizes {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t k_part_bytes;
    int64_t v_part_bytes;
    int64_t k_scale_bytes; /**< 0 for types without scales, and for int4, whose scales lie in the K part */
    int64_t v_scale_bytes;
    int64_t record_bytes;      /**< the sum of these four */
    int64_t head_stride_bytes; /**< that in force */
    int64_t page_stride_bytes; /**< likewise: bytes of a page */
    int64_t token_bytes;       /**< that one token of one layer takes */
} ropewalk_kv_sizes;
ROPEWALK_DEFINE_INIT(ropewalk_kv_sizes)

/** Checks the layout and fills sizes, which may be null. */
ROPEWALK_API ropewalk_status ropewalk_kv_layout_sizes(const ropewalk_kv_layout* layout, ropewalk_kv_sizes* sizes);
/** Names of pairs of types that go well together ("bf16", "k8v4", ..), i from 0; null behind the last. Static. */
ROPEWALK_API const char* ropewalk_kv_preset_name(int32_t i);
/** Sets k_type, v_type and hadamard of the layout by the name of a preset. ROPEWALK_NOT_FOUND. */
ROPEWALK_API ropewalk_status ropewalk_kv_layout_set_preset(ropewalk_kv_layout* layout, const char* name);

/** Pages that anybody may own. base is 64-byte aligned; page ids index it. */
typedef struct ropewalk_kv_pages {
    uint32_t struct_size;
    int32_t count;
    void* base;
    const ropewalk_kv_layout* layout;
} ropewalk_kv_pages;
ROPEWALK_DEFINE_INIT(ropewalk_kv_pages)

/** A slot is page id * page_tokens + index in the page; tokens with this one are skipped (padding rows of a batch). */
#define ROPEWALK_NO_SLOT (-1)

/** Rotation of K on its way into the pages. */
typedef struct ropewalk_kv_append_rope {
    uint32_t struct_size;
    uint32_t reserved;
    const ropewalk_rope_table* table; /**< null: K is stored as it comes */
    const int64_t* positions;         /**< [axes][tokens] */
    size_t positions_count;
    const ropewalk_rope_options* options; /**< null: the defaults */
} ropewalk_kv_append_rope;
ROPEWALK_DEFINE_INIT(ropewalk_kv_append_rope)

/**
 * Writes k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim] (fp32, bf16, fp16; either may be null: its part of the slots stays) into slots
 * [tokens], rotating K and converting both to the pages' types on the way. rope: null for none. With v_in_k v must be null. Slots must differ: one
 * named twice is recognised as long as slots form at most 64 runs of consecutive ones, else the last token wins. Allocates nothing. Thread-safe for
 * different slots, also in one page if they are 8 or more apart.
 */
ROPEWALK_API ropewalk_status ropewalk_kv_append(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const ropewalk_tensor* k,
                                                const ropewalk_tensor* v, const ropewalk_kv_append_rope* rope, ropewalk_executor* on);
/** The reverse: reads slots [tokens] back into k and v, of which one may be null. Rows of skipped slots stay; a slot may be read more than once. */
ROPEWALK_API ropewalk_status ropewalk_kv_gather(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const ropewalk_tensor* k,
                                                const ropewalk_tensor* v, ropewalk_executor* on);
/**
 * K of slots [tokens], turned by `from` at positions [axes][tokens], becomes what `to` makes of it; one layer a call. Quantised types are rounded
 * once more. A page that several sequences share is rotated for all of them. Pure rotations of as many pairs and axes only; inverse is refused.
 * Allocates nothing.
 */
ROPEWALK_API ropewalk_status ropewalk_kv_rerotate(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const int64_t* positions,
                                                  size_t positions_count, const ropewalk_rope_table* from, const ropewalk_rope_table* to,
                                                  const ropewalk_rope_options* options, ropewalk_executor* on);
/** Moves K of slots [tokens] by deltas [axes][tokens] positions, |delta| < 2^31: R(p + delta) from R(p). A key whose delta is 0 is not written. */
ROPEWALK_API ropewalk_status ropewalk_kv_shift(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const int64_t* deltas,
                                               size_t deltas_count, const ropewalk_rope_table* table, const ropewalk_rope_options* options,
                                               ropewalk_executor* on);

/* ---- KV cache: sequences over pages of its own --------------------------------------------------------------------------------------- */

/** One thread at a time may change a cache (no const); const calls and ropewalk_kv_append() into its pages may run beside each other. */
typedef struct ropewalk_kv_cache ropewalk_kv_cache;

/** Handle of a sequence. Ids are not reused within a cache: a stale one gives ROPEWALK_NOT_FOUND. 0 never names a sequence. */
typedef int64_t ropewalk_sequence;

/** What ropewalk_kv_cache_create() makes. */
typedef struct ropewalk_kv_cache_config {
    uint32_t struct_size;
    int32_t layers;     /**< >= 1 */
    int32_t page_count; /**< >= 1; pages of the pool, each holds page_tokens tokens of every layer */
    uint32_t reserved;
    const ropewalk_kv_layout* layout; /**< strides 0 */
    /** The pool in the caller's memory, which must outlive the cache: 64-byte aligned, at least ropewalk_kv_cache_required_bytes(). */
    void* memory;
    size_t memory_bytes;
    /** Gives the pool where memory is null (copied; its user must outlive the cache). Both null: the cache maps its own, in huge pages. */
    const ropewalk_allocator* allocator;
} ropewalk_kv_cache_config;
ROPEWALK_DEFINE_INIT(ropewalk_kv_cache_config)

/** layers * page_count * bytes of a page; memory and allocator are not looked at. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_required_bytes(const ropewalk_kv_cache_config* config, int64_t* bytes);
/** No page is touched. Refuses memory beside an allocator. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_create(const ropewalk_kv_cache_config* config, ropewalk_kv_cache** cache);
ROPEWALK_API ropewalk_status ropewalk_kv_cache_destroy(ropewalk_kv_cache* cache);

/** An empty sequence whose first token gets position first_position, 0 .. 2^31 - 1. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_create_sequence(ropewalk_kv_cache* cache, int64_t first_position, ropewalk_sequence* sequence);
/** A new sequence with the parent's tokens, sharing all pages (copy on write). ROPEWALK_OUT_OF_PAGES only where the parent has reserved pages. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_fork(ropewalk_kv_cache* cache, ropewalk_sequence parent, ropewalk_sequence* sequence);
/** Returns the pages that nobody else holds. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_free(ropewalk_kv_cache* cache, ropewalk_sequence sequence);
/** Makes sure that `tokens` more tokens can be appended without asking for pages and without allocating. ROPEWALK_OUT_OF_PAGES. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_reserve(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t tokens);
/**
 * Reserves slots for tokens[i] more tokens of sequences[i], i < count, all or nothing (ROPEWALK_OUT_OF_PAGES). slots and positions [sum of tokens]
 * receive one entry a token, in order; positions may be null. A sequence may be named once. Allocates only where a page table, or the list of
 * sequences, outgrows what it ever was. Pages shared with a fork are copied here: what ropewalk_kv_append() has written by then is in the copy.
 */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_append(ropewalk_kv_cache* cache, const ropewalk_sequence* sequences, const int64_t* tokens,
                                                      size_t count, int64_t* slots, size_t slots_count, int64_t* positions, size_t positions_count);
/** Forgets all tokens from `length` on (rollback of drafts); ends a reservation. length may not exceed the current one. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_truncate(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t length);
/**
 * Forgets tokens at the front that no later query sees (sliding windows): the whole pages within the first `tokens`, at most the length. Out: how many
 * tokens went, by which the sequence is shorter and its first position larger; the next token's position is what it was.
 */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_trim_front(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t tokens, int64_t* gone);

/** What a sequence holds. */
typedef struct ropewalk_sequence_info {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t length;
    int64_t next_position;     /**< that the next appended token gets */
    const int32_t* page_table; /**< [page_count] pages that hold tokens, in order; the cache's, valid until the sequence changes */
    size_t page_count;
} ropewalk_sequence_info;
ROPEWALK_DEFINE_INIT(ropewalk_sequence_info)
/** Out: info. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_sequence_info(const ropewalk_kv_cache* cache, ropewalk_sequence sequence,
                                                             ropewalk_sequence_info* info);
/** Slots of tokens [first, first + count), e.g. for ropewalk_kv_gather(). */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_slots(const ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t first, int64_t* slots,
                                                     size_t count);
/** Out: the pages of a layer, 0 <= layer < layers. Their layout is the cache's: valid as long as that lives. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_pages(const ropewalk_kv_cache* cache, int32_t layer, ropewalk_kv_pages* pages);

/** What a cache holds now. */
typedef struct ropewalk_kv_cache_stats {
    uint32_t struct_size;
    int32_t layers;
    int32_t total_pages;
    int32_t free_pages;   /**< pages set aside by reserve are not free */
    int32_t shared_pages; /**< held by more than one sequence */
    int32_t sequences;
    int64_t tokens;     /**< sum of the sequences' lengths */
    int64_t used_bytes; /**< pages that are not free, all layers */
    int64_t total_bytes;
} ropewalk_kv_cache_stats;
ROPEWALK_DEFINE_INIT(ropewalk_kv_cache_stats)
/** Out: stats. */
ROPEWALK_API ropewalk_status ropewalk_kv_cache_get_stats(const ropewalk_kv_cache* cache, ropewalk_kv_cache_stats* stats);

/* ---- attention ----------------------------------------------------------------------------------------------------------------------- */
/*
 *   score(i, j) = softcap(scale * q_i . k_j) - slope_h * |position_i - j|  or  + bias_h(j - position_i)      over the keys j that query i sees
 *   out_i       = sum_j softmax_j(score) v_j,      lse_i = ln sum_j exp(score)
 *
 * Query head h reads KV head h / (heads / kv_heads). A row that sees no key gives out 0 and lse -inf. A row's result has the same bits whatever the
 * number of threads, the batch it runs in, how its prefill was chunked and which pages hold its keys (on one target).
 */

/** How q and the probabilities enter products with stored keys and values. */
typedef int32_t ropewalk_attention_precision;
enum {
    /** An fp32 query is never rounded; a 16-bit one meets bf16 pages in bf16 dots, int8 pages in integer dots with q and p at 16 bits. */
    ROPEWALK_PRECISION_STANDARD = 0,
    ROPEWALK_PRECISION_FAST = 1 /**< also rounds fp32 queries, and meets int4 pages with q and p at 8 bits: errors up to a few 1e-3 of max |v| */
};

/** Of a span: no limit. */
#define ROPEWALK_UNLIMITED INT64_MAX

/** What a step computes, whatever the batch. A query at position p sees keys p - span_left <= j <= p + span_right, with a chunk only of its own. */
typedef struct ropewalk_attention_problem {
    uint32_t struct_size;
    int32_t heads; /**< query heads, a multiple of kv_heads */
    int32_t kv_heads;
    int32_t k_dim; /**< 1 .. 1024; width of q and k */
    int32_t v_dim; /**< 1 .. 1024; width of v and out */
    ropewalk_dtype q_type;
    ropewalk_dtype out_type;
    ropewalk_attention_precision precision;
    ropewalk_bias_place place; /**< of bias and alibi_slopes */
    float scale;               /**< of the scores; 0: 1 / sqrt(k_dim). Finite, not negative */
    float softcap;             /**< cap * tanh(score / cap) (Gemma 2); 0: off. Finite, not negative */
    uint32_t reserved;
    int64_t span_left;                   /**< Default ROPEWALK_UNLIMITED. >= 0; a window of W keys, the query's own included, is W - 1 */
    int64_t span_right;                  /**< >= 0; 0 is causal, ROPEWALK_UNLIMITED with the same left is full attention */
    int64_t span_chunk;                  /**< keys of the same chunk of so many positions only (Llama 4); 0: off */
    const float* alibi_slopes;           /**< [heads] or null */
    const ropewalk_attention_bias* bias; /**< of `heads` heads, or null; not beside alibi_slopes */
    const float* sinks;                  /**< [heads] or null: a logit that takes part in the softmax but has no value (gpt-oss); lse includes it */
    const ropewalk_relative_terms* relative; /**< or null */
} ropewalk_attention_problem;
static inline ropewalk_attention_problem ropewalk_attention_problem_init(void) {
    ropewalk_attention_problem value;
    memset(&value, 0, sizeof value);
    value.struct_size = sizeof value;
    value.span_left = ROPEWALK_UNLIMITED;
    return value;
}

/**
 * A ragged batch: each sequence brings q_len query tokens and has kv_len keys; prefill, chunked prefill and decode may be mixed. Row r of q belongs
 * to sequence s with q_indptr[s] <= r < q_indptr[s + 1]. Positions here count from the sequence's first key, whatever position rope gave it. Arrays
 * are read by the build function only and may die after it.
 */
typedef struct ropewalk_attention_batch {
    uint32_t struct_size;
    uint32_t reserved;
    size_t sequences;
    const int64_t* q_indptr; /**< [sequences + 1], ascending from 0 */
    const int64_t* kv_lens;  /**< [sequences], 0 .. 2^31 - 1 */
    const int64_t* q_starts; /**< [sequences] position of the first query token; null: kv_len - q_len */
    /** Keys in pages: sequence s owns page_ids[page_indptr[s] .. page_indptr[s + 1]), at least ceil(kv_len / page_tokens). */
    const int64_t* page_indptr; /**< [sequences + 1], ascending from 0 */
    const int32_t* page_ids;
    size_t page_ids_count;
    /** Plain keys: rows kv_indptr[s] .. + kv_len of K and V. Exactly one of page_indptr and kv_indptr is given. */
    const int64_t* kv_indptr; /**< [sequences + 1], ascending from 0 */
    /**
     * Trees of drafted tokens (speculative verification): words tree_masks[tree_indptr[s] .. tree_indptr[s + 1]), [q_len][ceil(q_len / 64)]; bit j %
     * 64 of word j / 64 of row i: query token i sees drafted key kv_len - q_len + j. Bit i of row i is set, none above. A token's position is kv_len
     * - q_len + (bits in its row) - 1. An empty range: no tree. Null: none has one.
     */
    const uint64_t* tree_masks;
    size_t tree_masks_count;
    const int64_t* tree_indptr; /**< [sequences + 1], ascending from 0 */
    /** Masks of any form: words key_masks[key_mask_indptr[s] .. key_mask_indptr[s + 1]), [q_len][ceil(kv_len / 64)], bit as above for key j. */
    const uint64_t* key_masks;
    size_t key_masks_count;
    const int64_t* key_mask_indptr; /**< [sequences + 1], ascending from 0 */
    size_t q_tokens;                /**< of key_first, key_last and q_segments: q_indptr[sequences]. Not looked at where all three are null */
    /** [q_tokens] or null: a query token sees keys key_first <= j < key_last at most, 0 .. kv_len (prefix-LM, packed documents, left padding). */
    const int64_t* key_first;
    const int64_t* key_last;
    /** Where problem.relative has segments. Key j is at kv_indptr[s] + j of k_segments, with pages at page_indptr[s] * page_tokens + j. */
    const uint8_t* q_segments; /**< [q_tokens] or null */
    const uint8_t* k_segments;
    size_t k_segments_count;
} ropewalk_attention_batch;
ROPEWALK_DEFINE_INIT(ropewalk_attention_batch)

/** What to do in a step: offsets only, so one plan serves every layer of the same geometry, on any number of threads, each with its own workspace. */
typedef struct ropewalk_attention_plan ropewalk_attention_plan;

/** Unbuilt. Keep it: building anew reuses its memory. */
ROPEWALK_API ropewalk_status ropewalk_attention_plan_create(ropewalk_attention_plan** plan);
ROPEWALK_API ropewalk_status ropewalk_attention_plan_destroy(ropewalk_attention_plan* plan);
/**
 * For keys in pages of a layout; page ids are below page_count. concurrency: of the executor that will run it (ropewalk_executor_concurrency), 0:
 * that of the default one. Slopes, sinks, terms and a bias (but for the values of ropewalk_attention_bias_of_rows) are copied.
 */
ROPEWALK_API ropewalk_status ropewalk_attention_plan_build_paged(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                                 const ropewalk_attention_batch* batch, const ropewalk_kv_layout* layout,
                                                                 int32_t page_count, int32_t concurrency);
/** For plain K [rows, kv_heads, k_dim] and V [rows, kv_heads, v_dim] of the given types. */
ROPEWALK_API ropewalk_status ropewalk_attention_plan_build_plain(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                                 const ropewalk_attention_batch* batch, ropewalk_dtype k_type, ropewalk_dtype v_type,
                                                                 int32_t concurrency);
/**
 * For sequences of a cache: query tokens of sequences[i], i < count, are its last q_lens[i], 0 <= q_lens[i] <= length. A sequence may be named more
 * than once. masks: null, or a batch of which trees, key masks, ranges and segments are taken; its sequences, lengths and tables of keys must be null
 * or 0.
 */
ROPEWALK_API ropewalk_status ropewalk_attention_plan_build_sequences(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                                     const ropewalk_kv_cache* cache, const ropewalk_sequence* sequences,
                                                                     const int64_t* q_lens, size_t count, const ropewalk_attention_batch* masks,
                                                                     int32_t concurrency);

/** What a run of a plan needs and does. */
typedef struct ropewalk_attention_plan_info {
    uint32_t struct_size;
    uint32_t reserved;
    size_t workspace_bytes; /**< that a run needs */
    int64_t q_tokens;
    int64_t kv_bytes; /**< of K and V that a run reads from memory, each once per KV head and sequence, common pages once */
    double flops;     /**< multiply-adds times two */
} ropewalk_attention_plan_info;
ROPEWALK_DEFINE_INIT(ropewalk_attention_plan_info)
/** All 0 for a plan that is not built. */
ROPEWALK_API ropewalk_status ropewalk_attention_plan_get_info(const ropewalk_attention_plan* plan, ropewalk_attention_plan_info* info);

/** What differs between the layers that one plan serves. */
typedef struct ropewalk_attention_layer {
    uint32_t struct_size;
    uint32_t reserved;
    const ropewalk_attention_bias* bias;       /**< in place of the plan's, and of its form (UMT5: one a layer); null: the plan's */
    const ropewalk_relative_tensors* relative; /**< null exactly if the plan has no relative terms */
} ropewalk_attention_layer;
ROPEWALK_DEFINE_INIT(ropewalk_attention_layer)

/**
 * q [tokens, heads, k_dim], out [tokens, heads, v_dim], which may not overlap q; lse [tokens, heads] dense, natural logarithm, lse_count = tokens *
 * heads, or null. Pages of the plan's layout. workspace: workspace_bytes of the plan, 64-byte aligned; nobody else's during the run. layer: null for
 * the plan's. Allocates nothing, uses at most the plan's concurrency.
 */
ROPEWALK_API ropewalk_status ropewalk_run_paged(const ropewalk_attention_plan* plan, const ropewalk_tensor* q, const ropewalk_kv_pages* pages,
                                                const ropewalk_tensor* out, float* lse, size_t lse_count, void* workspace, size_t workspace_bytes,
                                                const ropewalk_attention_layer* layer, ropewalk_executor* on);
/** The same over plain k [rows, kv_heads, k_dim] and v [rows, kv_heads, v_dim]. */
ROPEWALK_API ropewalk_status ropewalk_run_plain(const ropewalk_attention_plan* plan, const ropewalk_tensor* q, const ropewalk_tensor* k,
                                                const ropewalk_tensor* v, const ropewalk_tensor* out, float* lse, size_t lse_count, void* workspace,
                                                size_t workspace_bytes, const ropewalk_attention_layer* layer, ropewalk_executor* on);
/**
 * Merges two partial results of the same rows over disjoint keys: what one pass over all keys would give. a, b, out [tokens, heads, v_dim] of any
 * types, out may be a or b; lse_a, lse_b, lse [tokens, heads], lse_count elements each. Parts computed with sinks count the sink twice.
 */
ROPEWALK_API ropewalk_status ropewalk_merge(const ropewalk_tensor* a, const float* lse_a, const ropewalk_tensor* b, const float* lse_b,
                                            const ropewalk_tensor* out, float* lse, size_t lse_count);

/* ---- what a model does with positions, from its configuration ------------------------------------------------------------------------ */

/** One ropewalk_position_layer for every attention layer. Never changes. */
typedef struct ropewalk_position_config ropewalk_position_config;

/**
 * From config.json of Hugging Face, text [bytes] (transformers 4 and 5, text_config of multimodal models). ROPEWALK_INVALID_ARGUMENT names key, value
 * and rule; ROPEWALK_CORRUPT_DATA: no JSON object; ROPEWALK_UNSUPPORTED: a model type or form that is not known. A key that would change numbers and
 * is not known is refused by name.
 */
ROPEWALK_API ropewalk_status ropewalk_position_config_read_hf(const char* text, size_t bytes, ropewalk_position_config** config);
/**
 * From the head of a GGUF file of version 2 or 3, little-endian: data [bytes] ends where the data of the first tensor begins, or behind the tensors
 * rope_freqs, rope_factors_long and rope_factors_short if it has them. Bounds are checked everywhere: ROPEWALK_CORRUPT_DATA.
 */
ROPEWALK_API ropewalk_status ropewalk_position_config_read_gguf(const void* data, size_t bytes, ropewalk_position_config** config);
ROPEWALK_API ropewalk_status ropewalk_position_config_destroy(ropewalk_position_config* config);

/** What a configuration describes. */
typedef struct ropewalk_position_config_info {
    uint32_t struct_size;
    int32_t layers; /**< of the decoder, or the only stack */
    int32_t encoder_layers;
    int32_t cross_attention; /**< 1: each decoder layer attends to the encoder too */
    int64_t max_positions;   /**< 0: the model sets no limit */
    const char* model_type;  /**< model_type, or general.architecture; the configuration's, valid as long as that lives */
} ropewalk_position_config_info;
ROPEWALK_DEFINE_INIT(ropewalk_position_config_info)
/** Out: info. */
ROPEWALK_API ropewalk_status ropewalk_position_config_get_info(const ropewalk_position_config* config, ropewalk_position_config_info* info);

/** Layers that share a residual stream. */
typedef int32_t ropewalk_stack;
enum {
    ROPEWALK_STACK_DECODER = 0, /**< or the only stack */
    ROPEWALK_STACK_ENCODER = 1,
    ROPEWALK_STACK_CROSS = 2 /**< one layer, 0: how every decoder layer attends to the encoder */
};

/** What carries the position in a layer. */
typedef int32_t ropewalk_position_encoding;
enum {
    ROPEWALK_POSITIONS_NONE = 0,               /**< NoPE, and cross attention */
    ROPEWALK_POSITIONS_ROPE = 1,               /**< ropewalk_position_config_rope() */
    ROPEWALK_POSITIONS_ALIBI = 2,              /**< fields alibi_* */
    ROPEWALK_POSITIONS_T5_BUCKETS = 3,         /**< t5_* */
    ROPEWALK_POSITIONS_XLNET = 4,              /**< xlnet_* */
    ROPEWALK_POSITIONS_DEBERTA = 5,            /**< deberta_* */
    ROPEWALK_POSITIONS_RELATIVE_KEY = 6,       /**< Shaw, one term; relative_rows */
    ROPEWALK_POSITIONS_RELATIVE_KEY_QUERY = 7, /**< with the second term k . E as well */
    ROPEWALK_POSITIONS_LEARNED = 8,            /**< ropewalk_position_config_absolute() */
    ROPEWALK_POSITIONS_SINUSOIDAL = 9          /**< likewise */
};

/** Static, e.g. "rope"; "unknown" for others. */
ROPEWALK_API const char* ropewalk_position_encoding_name(ropewalk_position_encoding encoding);

/** Where q and k are normalised. */
typedef int32_t ropewalk_qk_norm_order;
enum { ROPEWALK_QK_NORM_NONE = 0, ROPEWALK_QK_NORM_BEFORE_ROPE = 1, ROPEWALK_QK_NORM_AFTER_ROPE = 2 };

/** Attention of one layer. Fields of an encoding that the layer does not have are not to be looked at. */
typedef struct ropewalk_position_layer {
    uint32_t struct_size;
    ropewalk_position_encoding encoding;
    int32_t kind; /**< layers of equal content have the same, from 0 */
    int32_t heads;
    int32_t kv_heads;
    int32_t k_dim; /**< of a head; MLA: of the expanded form, [nope | rope] */
    int32_t v_dim;
    int32_t kv_lora_rank; /**< MLA: in absorbed form k_dim is kv_lora_rank + rotary_dim, v_dim is kv_lora_rank; else 0 */
    int32_t sinks;        /**< 1: a learned logit per head takes part in the softmax */
    int32_t prefix_lm;    /**< 1: tokens of the prefix see one another in both directions */
    ropewalk_qk_norm_order qk_norm;
    int32_t has_temperature; /**< 1: queries are scaled, fields temperature_* as of ropewalk_query_temperature */
    double scale;            /**< of q . k, mscale^2 and the like included */
    double softcap;          /**< 0: off */
    int64_t span_left;       /**< as in ropewalk_attention_problem */
    int64_t span_right;
    int64_t span_chunk;
    double temperature_beta;
    int64_t temperature_floor_length;
    int64_t temperature_offset;
    ropewalk_alibi_rule alibi_rule;
    ropewalk_bias_place alibi_place;
    double alibi_max_exponent;
    int32_t alibi_symmetric; /**< 1: bidirectional, - slope |i - j| on both sides */
    int32_t t5_num_buckets;  /**< as in ropewalk_t5_bucket_rule */
    int32_t t5_max_distance;
    int32_t t5_bidirectional;
    int32_t t5_shared; /**< 1: one table for all layers (T5, mT5); 0: one a layer (UMT5) */
    int32_t xlnet_bidirectional;
    int32_t xlnet_bi_data;     /**< 1: the second half of a batch has distances of the other sign */
    int32_t xlnet_same_length; /**< 1: every query sees equally many keys */
    int64_t xlnet_clamp_len;   /**< <= 0: distances are not clamped */
    int64_t xlnet_mem_len;     /**< tokens of memory */
    int64_t xlnet_reuse_len;   /**< tokens of the segment that enter the memory; 0: all */
    int32_t xlnet_untie_r;     /**< 1: u and v of every layer; 0: shared */
    int32_t deberta_version;   /**< 1: no buckets, biases of q and v apart. v3 is 2 with share_keys */
    int32_t deberta_c2p;       /**< content to position */
    int32_t deberta_p2c;       /**< position to content */
    int32_t deberta_buckets;   /**< log buckets; 0: none */
    int32_t deberta_share_keys;
    int64_t deberta_max_distance;
    int64_t deberta_span;      /**< rows of the table on either side of distance 0 */
    int32_t deberta_normalise; /**< 1: LayerNorm over the table */
    uint32_t reserved;
    int64_t relative_rows; /**< of the table of relative_key */
} ropewalk_position_layer;
ROPEWALK_DEFINE_INIT(ropewalk_position_layer)
/** Out: attention of one layer of a stack. */
ROPEWALK_API ropewalk_status ropewalk_position_config_layer(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                                            ropewalk_position_layer* out);

/** Which function forms the frequencies: ropewalk_rope_spec_<family>(). */
typedef int32_t ropewalk_rope_family;
enum {
    ROPEWALK_ROPE_STANDARD = 0,
    ROPEWALK_ROPE_LINEAR = 1,
    ROPEWALK_ROPE_NTK = 2,
    ROPEWALK_ROPE_NTK_MIXED = 3,
    ROPEWALK_ROPE_NTK_ALPHA = 4,
    ROPEWALK_ROPE_DYNAMIC_NTK = 5,
    ROPEWALK_ROPE_YARN = 6,
    ROPEWALK_ROPE_LONGROPE = 7,
    ROPEWALK_ROPE_LLAMA3 = 8,
    ROPEWALK_ROPE_PROPORTIONAL = 9
};

/** Static, e.g. "yarn"; "unknown" for others. */
ROPEWALK_API const char* ropewalk_rope_family_name(ropewalk_rope_family family);

/** The rotation of a layer: arguments of the function of its family above; those that it does not take have their defaults. */
typedef struct ropewalk_rope_parameters {
    uint32_t struct_size;
    ropewalk_rope_family family;
    int32_t rotary_dim; /**< proportional: the head dim */
    ropewalk_rope_pairing pairing;
    int32_t first_dim;         /**< of the rotated slice in a head of k_dim elements */
    int32_t depends_on_length; /**< 1: dynamic_ntk and longrope */
    int32_t truncate;
    int32_t axes; /**< positions that a token has */
    double theta;
    double factor;
    double original_max_position; /**< of yarn, longrope, llama3; max_position of dynamic_ntk */
    double attention_factor;
    double beta_fast;
    double beta_slow;
    double low_freq_factor;
    double high_freq_factor;
    double partial_rotary_factor;
    double alpha;
    double mixed_b;
    /* Arrays are the configuration's: valid as long as that lives. Each may be empty. */
    const double* short_factor; /**< [factors] */
    const double* long_factor;  /**< [factors] */
    size_t factors;
    const double* divisors; /**< [divisors_count] explicit factors on top: ropewalk_rope_spec_divided() */
    size_t divisors_count;
    const uint8_t* axis_of_pair; /**< [axis_of_pair_count] as in ropewalk_rope_frequencies */
    size_t axis_of_pair_count;
} ropewalk_rope_parameters;
ROPEWALK_DEFINE_INIT(ropewalk_rope_parameters)
/** ROPEWALK_NOT_FOUND for a layer without rope. */
ROPEWALK_API ropewalk_status ropewalk_position_config_rope(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                                           ropewalk_rope_parameters* out);
/** A new spec: the rotation of a layer for sequences of `length` tokens (0 where it does not depend on it). ROPEWALK_NOT_FOUND without rope. */
ROPEWALK_API ropewalk_status ropewalk_position_config_rope_spec(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                                                int64_t length, ropewalk_phase_mode phases, ropewalk_rope_spec** spec);
/** A new schedule: the specs of all lengths. ROPEWALK_NOT_FOUND without rope. */
ROPEWALK_API ropewalk_status ropewalk_position_config_rope_schedule(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                                                    ropewalk_phase_mode phases, ropewalk_rope_schedule** schedule);

/** Rows that are added to the embeddings before a stack. */
typedef struct ropewalk_absolute_positions {
    uint32_t struct_size;
    ropewalk_position_encoding kind; /**< none, learned or sinusoidal */
    int32_t dim;
    int32_t skips_padding; /**< 1: positions count real tokens only, padding reads row offset - 1 (RoBERTa, OPT, M2M100) */
    int64_t rows;          /**< of the table; a position beyond it is an error */
    int64_t offset;        /**< position p reads row p + offset */
} ropewalk_absolute_positions;
ROPEWALK_DEFINE_INIT(ropewalk_absolute_positions)
/** Of the decoder or the encoder. sinusoid may be null; it is filled where kind is sinusoidal. */
ROPEWALK_API ropewalk_status ropewalk_position_config_absolute(const ropewalk_position_config* config, ropewalk_stack stack,
                                                               ropewalk_absolute_positions* out, ropewalk_sinusoid* sinusoid);

#undef ROPEWALK_DEFINE_INIT

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_ROPEWALK_H */
