// What the readers of all sources share.
#pragma once

#include <ropewalk/position_spec.hpp>
#include <ropewalk/rope_axes.hpp>

namespace ropewalk::runtime {

constexpr int32_t max_config_layers = 4096;

// Adds a layer; an equal one that is there already is shared.
void append_layer(position_stack& stack, const position_spec& layer);
void append_layers(position_stack& stack, const position_spec& layer, int32_t count);

// A learned table.
absolute_positions learned_table(int64_t rows, int64_t offset, int32_t dim);

// axis_of_pair of as many pairs as the sections have together, and the refusals of with_axes(). Sections of 0 at the end are left out.
result<std::vector<uint8_t>> axes_of_sections(std::span<const int64_t> sections, axis_order order);

// Fills rotation.spec from rotation.parameters; refuses a slice that leaves the head.
status finish_rotation(rope_rotation& rotation, int32_t k_dim) noexcept;

// Puts a prefix before the text of a failure.
status prefixed(const char* prefix, const status& failure) noexcept;

}  // namespace ropewalk::runtime
