// Published biases over distance, as attention_bias.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/attention_bias.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/relative_buckets.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// Distances up to which the functions below form a table.
inline constexpr int64_t max_bias_distance = int64_t{1} << 20;

// T5 (Raffel et al., arXiv 1910.10683), mT5, UMT5: weight [num_buckets, heads] is relative_attention_bias.weight. T5 shares that of its first layer;
// UMT5 has one for each, which run() takes as attention_layer::bias. These models have no softmax scale (problem.scale = 1) and no bias in cross
// attention. Exact at any distance: buckets saturate at max_distance. Errors as of t5_buckets(); invalid_argument for a weight of another size, a
// max_distance beyond max_bias_distance or an entry that is not finite; out_of_memory. Thread-safe.
[[nodiscard]] ROPEWALK_API result<attention_bias> t5_bias(std::span<const float> weight, int32_t heads, const t5_bucket_rule& rule) noexcept;

// KERPLE, logarithmic form (Chi et al., arXiv 2205.09921): -r1_h ln(1 + r2_h |delta|), formed in double and rounded once; r1 and r2 [heads], finite
// and positive. Beyond max_distance, 1 to max_bias_distance, which is to cover the longest context, the bias stays what it is there: 8 max_distance
// bytes a head. invalid_argument, out_of_memory. Thread-safe.
[[nodiscard]] ROPEWALK_API result<attention_bias> kerple_bias(std::span<const float> r1, std::span<const float> r2, int64_t max_distance) noexcept;

}  // namespace ropewalk
