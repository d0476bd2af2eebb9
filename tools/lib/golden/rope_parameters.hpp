// Rope specifications from the keys of a Hugging Face configuration.
#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::toolkit {

// rope_type (default, linear, dynamic, yarn, longrope, llama3, proportional), rope_theta and what the type needs; dynamic and longrope need seq_len
// too, the length of the sequence. `unsupported` names any other type, and multi-axis positions (mrope).
result<rope_spec> rope_spec_of(const nlohmann::json& parameters, int32_t rotary_dim, phase_mode phases = phase_mode::exact);

// pair_style of golden files: half or interleaved; `unsupported` for any other.
result<rope_pairing> pairing_of(const nlohmann::json& parameters);

}  // namespace ropewalk::toolkit
