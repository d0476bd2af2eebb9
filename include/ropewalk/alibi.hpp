// ALiBi slopes (Press et al., "Train Short, Test Long", arXiv 2108.12409). The bias itself is computed inside attention: see attention.hpp.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// How slopes follow from the number of heads.
enum class alibi_rule : int32_t {
    // Press, BLOOM: with n the largest power of two <= heads, heads 1..n get 2^(-M h / n), the others the odd-numbered entries of the
    // series for 2n.
    press = 0,
    // MPT: the series of the next power of two P >= heads; if P != heads its entries 2, 4, .. and then 1, 3, .., cut at heads.
    mpt = 1,
    // Press, rounded to bf16 as Falcon has it. Falcon adds the bias before the softmax scale: bias_place::before_scale (attention_bias.hpp).
    // Its products with the distance are fp32 here; transformers rounds these to bf16 too in some models, which moves far keys by up to 2^-9.
    falcon = 2,
};

// slopes [heads] receives one positive slope per QUERY head, formed in double and rounded once. max_exponent is M above: 8 in the paper,
// `alibi_bias_max` in MPT. Refuses an empty span and a max_exponent that is not finite and positive. Thread-safe.
ROPEWALK_API status alibi_slopes(std::span<float> slopes, alibi_rule rule = alibi_rule::press, double max_exponent = 8.0) noexcept;

}  // namespace ropewalk
