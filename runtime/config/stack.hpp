// What the readers of all sources share.
#pragma once

#include <ropewalk/position_spec.hpp>

namespace ropewalk::runtime {

constexpr int32_t max_config_layers = 4096;

// Adds a layer; an equal one that is there already is shared.
void append_layer(position_stack& stack, const position_spec& layer);
void append_layers(position_stack& stack, const position_spec& layer, int32_t count);

// [sum of sections] axis of every pair: section k belongs to axis k (contiguous: Qwen2-VL), or, with s_1 and s_2 the second and third section, pair i
// to axis 1 if i % 3 == 1 and i < 3 s_1, to axis 2 if i % 3 == 2 and i < 3 s_2, else to axis 0 (interleaved: Qwen3-VL).
std::vector<uint8_t> axes_of_sections(const std::vector<int64_t>& sections, bool interleaved);

// Fills rotation.spec from rotation.parameters; refuses a slice that leaves the head.
status finish_rotation(rope_rotation& rotation, int32_t k_dim) noexcept;

// Puts a prefix before the text of a failure.
status prefixed(const char* prefix, const status& failure) noexcept;

}  // namespace ropewalk::runtime
