// Vector relative terms at the border: what a plan takes of them, and what run() hands to the kernels.
#pragma once

#include <ropewalk/relative_attention.hpp>
#include "runtime/attention_plan.hpp"

namespace ropewalk::runtime {

[[nodiscard]] status check_relative(const attention_problem& problem, const attention_batch& batch, int32_t page_tokens) noexcept;
// Copies what check_relative() has seen.
void set_relative(attention_plan::state& plan, const attention_problem& problem, const attention_batch& batch);

// `relative` is null where run() was given none.
[[nodiscard]] status check_relative_tensors(const attention_plan::state& plan, const relative_tensors* relative) noexcept;
[[nodiscard]] simd::relative_inputs relative_inputs_of(const attention_plan::state& plan, const relative_tensors* relative) noexcept;

}  // namespace ropewalk::runtime
