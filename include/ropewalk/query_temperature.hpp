// Query temperature: queries grow with the logarithm of their position, so that attention over long contexts stays sharp ("scalable softmax",
// arXiv 2501.19399).
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

// q is multiplied by 1 + beta ln(1 + floor((position + offset) / floor_length)), which is exactly 1 below the floor.
//   Llama 4, in layers without rope: beta `attn_scale` 0.1, floor_length `floor_scale` 8192, offset 1
//   Ministral 3 and Mistral Large 3, all layers, after rope: beta `llama_4_scaling_beta` 0.1, offset 0, floor_length
//   `original_max_position_embeddings`
struct ROPEWALK_API query_temperature {
    double beta = 0.1;
    int64_t floor_length = 8192;
    int64_t offset = 0;

    // The factor at a position >= 0.
    [[nodiscard]] double at(int64_t position) const noexcept;
    // beta finite and >= 0; floor_length >= 1; offset 0 .. 2^31.
    [[nodiscard]] status validate() const noexcept;
    bool operator==(const query_temperature&) const = default;
};

// Multiplies q [tokens, heads, head_dim] in place by the factor of each token's position, rounded to fp32; positions [tokens], 0 .. 2^31 - 1. fp32,
// bf16, fp16 (multiplied in fp32, rounded once to nearest even). Tokens whose factor is 1 keep their bits. Refuses what rope_apply refuses of a view.
// Nothing is changed on an error. Thread-safe on different tensors.
ROPEWALK_API status scale_queries(head_view q, std::span<const int64_t> positions, const query_temperature& temperature,
                                  executor& on = default_executor()) noexcept;

}  // namespace ropewalk
