// Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864): specification, table of phases, rotation in place.
//
// Everything a RoPE variant is: pair i of a head is turned by the angle position * inv_freq[i], and multiplied by one amplitude. Phases are formed
// in double precision and rounded once, so a rotation at position 10^6 is as exact as one at position 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

// Which two elements of the rotated slice make pair i, with d = rotary_dim.
enum class rope_pairing : int32_t {
    half = 0,         // (i, i + d/2): NeoX, Hugging Face Llama, Qwen, Mistral, Phi, Gemma
    interleaved = 1,  // (2i, 2i + 1): GPT-J, GLM, Cohere, Meta's Llama
    // Reads (2i, 2i + 1), writes (i, i + d/2): `rope_interleave` of Hugging Face's DeepSeek V3. q.k is that of `interleaved`, but K lies in another
    // order: caches of the two cannot be exchanged. The inverse reads halves and writes neighbours; a shift finds halves and leaves halves.
    interleaved_in_half_out = 2,
};

// How phases are formed.
//   exact   position * inv_freq in double, rounded once
//   hf_f32  as transformers does on CPU: inv_freq and its product with the position are rounded to fp32, cos and sin are those of the rounded
//           product. Given the same inv_freq, phases are the same bits. From some 32k positions on this differs visibly from the exact angle, and
//           phases do not add up: a shift differs from rotating at its target by the rounding of both.
// Every family below takes the mode as its last argument: with hf_f32 it forms inv_freq in the steps of transformers, each rounded to fp32, which
// gives the same values but for an ulp here and there (torch's power is not rounded correctly). Forms that transformers lacks are rounded likewise.
enum class phase_mode : int32_t { exact = 0, hf_f32 = 1 };

// xPos (Sun et al., arXiv 2212.10554): pair i of q is multiplied by zeta_i^((p - center) / base), of k by the reciprocal, with d = rotary_dim and
// zeta_i = (2i + 0.4 d) / (1.4 d). The amplitudes of q.k cancel but for the distance. The center is fixed: flash-attn's moves when its table grows,
// after which cached keys fit no more. Positions end 55 bases from the center, where an amplitude leaves 2^-100 .. 2^100.
struct xpos_scaling {
    double base = 0.0;  // 0: no xPos; 512 in flash-attn and MPT
    double center = 0.0;
    bool operator==(const xpos_scaling&) const = default;
};

// FoPE (Hua et al., arXiv 2412.17739): every channel mixes all frequencies, by tables of each KV head h:
//   cos of pair o = sum over i < frequencies of cos(p inv_freq[i]) cos_mix[h][i][o],  sin alike;  pairs from `frequencies` on stand still
// A head of q uses the tables of its KV head. `frequencies` is `num_inv_freq`, or the number of inv_freq above 2 pi / max_position_embeddings.
struct fope_mix {
    int32_t heads = 0;  // 0: no FoPE; 1: one table for all heads (fope_sep_head false)
    int32_t frequencies = 0;
    std::vector<float> cos_mix, sin_mix;  // [heads][frequencies][frequencies]
    bool operator==(const fope_mix&) const = default;
};

// Frequencies and amplitude: what distinguishes the families. Plain data; may be filled by hand.
struct ROPEWALK_API rope_spec {
    std::vector<double> inv_freq;  // [rotary_dim / 2] radians per position; 0 leaves a pair unturned
    double amplitude = 1.0;        // multiplies cos and sin (YaRN's and LongRoPE's attention factor)
    phase_mode phases = phase_mode::exact;
    // Which of a token's positions turns pair i (M-RoPE and the like): [rotary_dim / 2] values 0 .. 3, or empty: one position a token.
    std::vector<uint8_t> axis_of_pair;
    xpos_scaling xpos;  // neither goes with the other, with several axes or with an amplitude
    fope_mix fope;

    // A rotation times one amplitude, which can be undone and shifted.
    [[nodiscard]] bool pure_rotation() const noexcept { return xpos.base == 0.0 && fope.heads == 0; }
    // Positions that a token has: 1 + the largest axis_of_pair.
    [[nodiscard]] int32_t axes() const noexcept { return axis_of_pair.empty() ? 1 : 1 + *std::max_element(axis_of_pair.begin(), axis_of_pair.end()); }
    // Elements of a head that are turned.
    [[nodiscard]] int32_t rotary_dim() const noexcept { return static_cast<int32_t>(inv_freq.size()) * 2; }
    bool operator==(const rope_spec&) const = default;

    // inv_freq[i] = theta^(-2i/rotary_dim). Refuses a rotary_dim that is odd, negative or above 2048 (0 is legal: nothing turns) and theta <= 0.
    static result<rope_spec> standard(int32_t rotary_dim, double theta, phase_mode phases = phase_mode::exact) noexcept;

    // Position interpolation (Chen et al., arXiv 2306.15595): inv_freq / factor, factor >= 1.
    static result<rope_spec> linear(int32_t rotary_dim, double theta, double factor, phase_mode phases = phase_mode::exact) noexcept;

    // Arguments of llama3().
    struct llama3_parameters {
        int32_t rotary_dim = 128;
        double theta = 500000.0;
        double factor = 8.0;
        double low_freq_factor = 1.0;
        double high_freq_factor = 4.0;
        double original_max_position = 8192.0;
    };
    // Llama 3.1 (transformers, rope_type "llama3"). With wavelength w = 2 pi / inv_freq and L = original_max_position:
    //   w < L/high_freq_factor: kept;  w > L/low_freq_factor: / factor;  between: blended by t = (L/w - low) / (high - low).
    // high == low is legal (the blend is empty); low > high, factor < 1 and L <= 0 are refused.
    static result<rope_spec> llama3(const llama3_parameters& parameters, phase_mode phases = phase_mode::exact) noexcept;

    // NTK-aware scaling with a fixed factor >= 1: theta' = theta * factor^(d/(d-2)). rotary_dim 2 is refused.
    static result<rope_spec> ntk(int32_t rotary_dim, double theta, double factor, phase_mode phases = phase_mode::exact) noexcept;
    // The mixed form of kexue 9706 (vLLM, `mixed_b`): inv_freq[i] / exp(a (i+1)^b), a = ln(factor) / (d/2)^b.
    static result<rope_spec> ntk_mixed(int32_t rotary_dim, double theta, double factor, double mixed_b,
                                       phase_mode phases = phase_mode::exact) noexcept;
    // Hunyuan: rope_type "dynamic" with `alpha`, not dynamic at all: theta' = theta * alpha^(d/(d-2)), alpha >= 1.
    static result<rope_spec> ntk_alpha(int32_t rotary_dim, double theta, double alpha, phase_mode phases = phase_mode::exact) noexcept;
    // Dynamic NTK at a sequence of `length` tokens (transformers): theta' = theta * (factor T / L - (factor - 1))^(d/(d-2)), T = max(length, L), L =
    // max_position. The spec of one length only: a live cache must be rotated anew when it changes, or be pinned to one length.
    static result<rope_spec> dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, int64_t length,
                                         phase_mode phases = phase_mode::exact) noexcept;

    // Arguments of yarn().
    struct yarn_parameters {
        int32_t rotary_dim = 128;
        double theta = 10000.0;
        double factor = 1.0;
        double original_max_position = 4096.0;
        double attention_factor = 1.0;
        double beta_fast = 32.0;
        double beta_slow = 1.0;
        bool truncate = true;  // false (gpt-oss): the limits of the ramp are not rounded to whole pairs
    };
    // YaRN (Peng et al., arXiv 2309.00071). attention_factor is the amplitude, as one number: yarn_amplitude() and yarn_amplitude_ratio() compute it
    // by each stack's rule. Limits are formed in double. Refused: factor < 1, theta <= 1, beta_fast < beta_slow (equal is legal: a step), and a
    // length so short or long that the ramp would run backwards.
    static result<rope_spec> yarn(const yarn_parameters& parameters, phase_mode phases = phase_mode::exact) noexcept;
    // Grok 1's two forms: the ramp blends logarithms of frequencies; and theta' = theta^(ln(L s / 2 pi) / ln(L / 2 pi)) without a ramp (vLLM).
    static result<rope_spec> yarn_log(const yarn_parameters& parameters, phase_mode phases = phase_mode::exact) noexcept;
    static result<rope_spec> theta_scale(int32_t rotary_dim, double theta, double factor, double original_max_position,
                                         phase_mode phases = phase_mode::exact) noexcept;

    // Arguments of longrope().
    struct longrope_parameters {
        int32_t rotary_dim = 128;
        double theta = 10000.0;
        std::span<const double> short_factor, long_factor;  // [rotary_dim / 2]
        double factor = 1.0;
        double original_max_position = 4096.0;
        double attention_factor = 0.0;
    };
    // LongRoPE (Ding et al., arXiv 2402.13753), "su" in old configurations: inv_freq / short_factor while length <= original_max_position, /
    // long_factor beyond. attention_factor 0: longrope_amplitude(factor, original_max_position). Refused: lists of another length than one entry a
    // pair, entries <= 0. rope_schedule (rope_cache.hpp) tells when a growing sequence crosses.
    static result<rope_spec> longrope(const longrope_parameters& parameters, int64_t length, phase_mode phases = phase_mode::exact) noexcept;

    // Gemma 4: of head_dim / 2 pairs, the first int(partial_rotary_factor * head_dim / 2) turn with theta^(-2i/head_dim) / factor, the others stand
    // still.
    static result<rope_spec> proportional(int32_t head_dim, double theta, double partial_rotary_factor, double factor = 1.0,
                                          phase_mode phases = phase_mode::exact) noexcept;

    // inv_freq[i] / factors[i]: explicit factors, e.g. the tensor rope_freqs of GGUF files.
    [[nodiscard]] result<rope_spec> divided(std::span<const double> factors) const noexcept;

    // At most 1024 frequencies, each finite and >= 0 (up to 2^52); an amplitude > 0 (2^-100 .. 2^100, so that it fits fp32); a known phase mode;
    // axis_of_pair as said there.
    [[nodiscard]] status validate() const noexcept;
};

// Amplitudes by the rules of the stacks. YaRN: slope ln(factor) + 1 (1 for factor <= 1); slope 0.1 is the paper's, TeleChat 3 has 0.07.
ROPEWALK_API double yarn_amplitude(double factor, double slope = 0.1) noexcept;
// DeepSeek: yarn_amplitude(factor, 0.1 mscale) / yarn_amplitude(factor, 0.1 mscale_all_dim).
ROPEWALK_API double yarn_amplitude_ratio(double factor, double mscale, double mscale_all_dim) noexcept;
// LongRoPE: sqrt(1 + ln(factor) / ln(original_max_position)), 1 for factor <= 1.
ROPEWALK_API double longrope_amplitude(double factor, double original_max_position) noexcept;

// cos and sin of a spec, in fp32, for every position from 0 to 2^31 - 1.
//
// A growing table fills blocks of rows when they are first asked for, up to max_cached_positions; rows beyond that are computed for the call and
// not kept. A fixed table holds exactly its positions and refuses all others. Rows are never moved or rewritten, so any number of threads
// may use one table at the same time, also while it grows.
class ROPEWALK_API rope_table {
public:
    static constexpr int64_t default_cached_positions = 1 << 20;  // of a growing table: rows of 64 pairs then take 512 MiB

    // Rows 0 .. initial_positions - 1 are filled at once.
    static result<rope_table> growing(const rope_spec& spec, int64_t initial_positions = 0,
                                      int64_t max_cached_positions = default_cached_positions) noexcept;
    // Positions 0 .. max_position - 1, all filled at once; others are refused with out_of_range.
    static result<rope_table> fixed(const rope_spec& spec, int64_t max_position) noexcept;

    rope_table(rope_table&&) noexcept;
    rope_table& operator=(rope_table&&) noexcept;
    ~rope_table();

    [[nodiscard]] const rope_spec& spec() const noexcept;  // what it was made of
    [[nodiscard]] int32_t pairs() const noexcept;          // rotary_dim / 2
    [[nodiscard]] int32_t axes() const noexcept;           // spec().axes(), without counting
    [[nodiscard]] int64_t cached_bytes() const noexcept;   // of the rows that are kept now
    // Largest position that is not refused.
    [[nodiscard]] int64_t max_position() const noexcept;

    // cos [pairs] and sin [pairs] of one position, amplitude included; with xPos those of q, with FoPE those of the first head.
    [[nodiscard]] status row(int64_t position, std::span<float> cos, std::span<float> sin) const noexcept;

    // Internal: what the kernels read. `scratch` receives the row where the table does not keep it; returns cos, with sin at + pairs: [2 * pairs],
    // with xPos these of q and then of k, with FoPE of every head. nullptr when the position is refused. Where memory for a new block is out, the row
    // is formed in scratch.
    [[nodiscard]] const float* find_row(int64_t position, float* scratch) const noexcept;

private:
    struct state;
    static result<rope_table> make(const rope_spec& spec, int64_t accepted, int64_t kept, int64_t initial_rows) noexcept;
    explicit rope_table(std::unique_ptr<state> s) noexcept;
    std::unique_ptr<state> state_;
};

// Which elements of a head a table turns, and in which direction.
struct rope_options {
    rope_pairing pairing = rope_pairing::half;
    // Undoes a rotation: turns by -angle and divides by the amplitude.
    bool inverse = false;
    // First element of the rotated slice inside a head; all elements outside [first_dim, first_dim + rotary_dim) stay untouched.
    int32_t first_dim = 0;
    // Pairing half: pair i is (i, i + pair_distance), at least as far apart as there are pairs; elements between stay untouched, and the slice ends
    // with the last pair. 0: rotary_dim / 2.
    int32_t pair_distance = 0;
    // Turns by -angle and keeps the amplitude: NanoChat's direction, and the way back of an output whose V was rotated.
    bool conjugate = false;
};

// Rotates q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] in place; either may be absent (heads == 0). positions [axes][tokens] with
// axes = table.axes(), stream after stream: any order, repeats allowed; one stream for several axes is refused, not repeated. fp32, bf16, fp16
// (16-bit elements are rotated in fp32 and rounded once, to nearest even). Same bits for any number of threads, and for equal positions on all axes
// as without axes. Refuses a dim that does not hold the slice, dim_stride != 1, overlapping rows of a tensor, any position that the table refuses
// (nothing is rotated then), the inverse of xPos and FoPE, and with FoPE heads that are no multiple of its tables. Thread-safe on different tensors.
//
// M-RoPE: a token of text has t = h = w; after images, text goes on with its index in the sequence plus `rope_deltas` (largest position of the prompt
// + 1 - its length) on all axes. ChatGLM-6B: two calls with a table of head_dim / 2, positions at first_dim 0, block positions at head_dim / 2.
ROPEWALK_API status rope_apply(const rope_table& table, std::span<const int64_t> positions, head_view q, head_view k,
                               const rope_options& options = {}, executor& on = default_executor()) noexcept;

// Moves already rotated vectors by deltas [axes][tokens] positions (either sign): R(p + delta) from R(p). The amplitude is not applied again.
// options.inverse is refused: negate the deltas; so are xPos and FoPE, which are no pure rotations. Errors and threads as rope_apply; |delta| < 2^31.
ROPEWALK_API status rope_shift(const rope_table& table, std::span<const int64_t> deltas, head_view k, const rope_options& options = {},
                               executor& on = default_executor()) noexcept;

}  // namespace ropewalk
