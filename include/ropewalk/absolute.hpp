// Absolute position encodings: a row, computed (sinusoidal) or learned, that is added to a token's embedding.
//
// Everything here takes positions [tokens] in any order, repeats allowed, and x or rows [tokens, 1, dim] as a strided view (heads must be 1) of
// fp32, bf16 or fp16. Sums are formed in fp32 and rounded once, to nearest even; same bits for any number of threads. All positions are checked
// before anything is written. invalid_argument names the argument that is not legal, out_of_range the position that has no row. Thread-safe on
// different tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

// ---- sinusoidal (Vaswani et al., arXiv 1706.03762) ------------------------------------------------------------------------------------

// The order of a row.
enum class sinusoid_columns : int32_t {
    interleaved = 0,   // sin, cos of frequency 0, sin, cos of frequency 1, ..
    concatenated = 1,  // the sines of all frequencies, then the cosines
};

// Row r encodes the angles r * base^(-i / denominator), i = 0 .. ceil(dim / 2) - 1, as their sines and cosines. The row of a position is position +
// offset, of either sign, within 2^31 of 0.
struct ROPEWALK_API sinusoid_spec {
    int32_t dim = 0;  // d >= 1
    sinusoid_columns columns = sinusoid_columns::interleaved;
    double denominator = 0.0;      // d/2 or floor(d/2) - 1 in the published ones; finite and positive
    double base = 10000.0;         // finite, at least 1
    bool zero_odd_column = false;  // odd d: the last column is zero, instead of one sine more than there are cosines
    int64_t offset = 0;
    std::optional<int64_t> zero_row = std::nullopt;  // a row of zeros: padding_idx

    // The paper's, as XLM has it; any d.
    static sinusoid_spec vaswani(int32_t dim) noexcept;
    // Concatenated with the paper's frequencies: Marian, and the relative table of XLNet and Transformer-XL.
    static sinusoid_spec marian(int32_t dim) noexcept;
    // Concatenated, denominator floor(d/2) - 1, a zero column if d is odd. d >= 4. Whisper's encoder and tensor2tensor have no padding; fairseq,
    // M2M100, XGLM have row padding_idx zero, and positions of positions_from_tokens().
    static sinusoid_spec whisper(int32_t dim) noexcept;
    static sinusoid_spec fairseq(int32_t dim, int64_t padding_idx) noexcept;

    // invalid_argument for a field that is not legal.
    [[nodiscard]] status validate() const noexcept;
    bool operator==(const sinusoid_spec&) const = default;
};

// rows[t] becomes the row of positions[t]: formed in double and rounded to fp32 (then to the type of rows, if that is another one). A phase errs by
// at most some |row| 2^-52. A sine or cosine costs some 20 ns; to pay that once, make the rows of all positions a learned_positions.
ROPEWALK_API status sinusoid_rows(const sinusoid_spec& spec, std::span<const int64_t> positions, head_view rows,
                                  executor& on = default_executor()) noexcept;
// x[t] += the row of positions[t].
ROPEWALK_API status sinusoid_add(const sinusoid_spec& spec, std::span<const int64_t> positions, head_view x,
                                 executor& on = default_executor()) noexcept;
// The linear shift: rows[t] = M_k rows[t], where M_k PE(r) = PE(r + k) for every r. M_k turns the sine and cosine of each frequency by its angle k.
// |k| <= 2^31. Not for an odd d without zero_odd_column, whose last sine has no cosine.
ROPEWALK_API status sinusoid_shift(const sinusoid_spec& spec, int64_t k, head_view rows, executor& on = default_executor()) noexcept;

// The positions of XLNet's and Transformer-XL's relative table: key_tokens, key_tokens - 1, .. down to 1 - query_tokens (bidirectional, "bi") or to 0
// ("uni"), one for each row.
struct xlnet_positions_rule {
    int64_t query_tokens = 0, key_tokens = 0;  // each 0 .. 2^30; keys include memory
    bool bidirectional = true;
    int64_t clamp_len = -1;  // positions are clamped to -clamp_len .. clamp_len; not if <= 0
    bool negated = false;    // the second half of the batch with bi_data

    // How many positions there are.
    [[nodiscard]] int64_t rows() const noexcept { return key_tokens + (bidirectional ? query_tokens : 1); }
};
// positions [rule.rows()].
ROPEWALK_API status xlnet_positions(std::span<int64_t> positions, const xlnet_positions_rule& rule) noexcept;

// ---- learned --------------------------------------------------------------------------------------------------------------------------

// A table in the caller's memory; the row of a position is position + offset.
struct learned_positions {
    const_head_view table;  // [rows, 1, dim]
    int64_t offset = 0;     // 0: BERT, GPT-2, RoBERTa with positions_from_tokens(); 2: OPT, BART
};

// rows[t] becomes the row of positions[t], without rounding if the types are the same.
ROPEWALK_API status learned_rows(const learned_positions& learned, std::span<const int64_t> positions, head_view rows,
                                 executor& on = default_executor()) noexcept;
// x[t] += the row of positions[t].
ROPEWALK_API status learned_add(const learned_positions& learned, std::span<const int64_t> positions, head_view x,
                                executor& on = default_executor()) noexcept;

// ---- positions of a padded sequence ---------------------------------------------------------------------------------------------------

// OPT: a token's position is the number of attended tokens before it, a masked one's is -1. mask [tokens]: 0 is masked. Positions of a decode step
// are the last ones of the whole sequence.
ROPEWALK_API status positions_from_mask(std::span<int64_t> positions, std::span<const uint8_t> mask) noexcept;
// fairseq (M2M100, XGLM, RoBERTa): padding_idx + the number of tokens up to this one that are not padding, `past` of earlier calls included; padding
// stays at padding_idx. padding_idx and past: 0 .. 2^31.
ROPEWALK_API status positions_from_tokens(std::span<int64_t> positions, std::span<const int64_t> tokens, int64_t padding_idx,
                                          int64_t past = 0) noexcept;

}  // namespace ropewalk
