// RoPE with several positions a token (rope_spec::axis_of_pair): which model turns which pair by which position.
//
// Positions are handed in stream after stream, [axes][tokens]; see rope_apply. Frequencies keep their index whatever turns their pair, except in
// vision_2d. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/export.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// How sections, which say how many pairs each axis turns, are dealt to the pairs. Axes of the last three are t, h, w = 0, 1, 2, whatever the order in
// a configuration.
enum class axis_order : int32_t {
    // t..t h..h w..w: M-RoPE of Qwen2-VL and 2.5-VL ([16, 24, 24], arXiv 2409.12191), GLM-4.1V; any number of axes up to 4: XDRoPE of Hunyuan.
    contiguous = 0,
    // Qwen3-VL (`mrope_interleaved`): pair i belongs to h if i % 3 == 1 and i < 3 h, to w if i % 3 == 2 and i < 3 w, else to t; so what the others
    // leave over is t's (ggml gives it to a fourth stream).
    interleaved = 1,
    // GLM (`mrope_interleaved_glm` of SGLang and vLLM): t h w t h w .., an axis that has had its pairs is passed over.
    cyclic = 2,
    // ERNIE-4.5-VL (configured as [h, w, t]) and Bailing ([t, h, w]): h w h w .., then t to the end; h == w.
    alternating = 3,
};

// The spec with its axes. sections [axes]: each at least 0, together rotary_dim / 2; 2 to 4 of them if contiguous, else t, h, w. Refuses anything
// else, by name. Axes at the end that get no pair are no axes: [64, 0, 0] has one.
ROPEWALK_API result<rope_spec> with_axes(const rope_spec& spec, axis_order order, std::span<const int32_t> sections) noexcept;

// Two axes, the first half of the pairs and the second, each with the frequencies theta^(-2j / (rotary_dim / 2)), j < rotary_dim / 4.
//   Qwen2-VL's vision tower: positions (y, x), pairing half.
//   Llama 4's: positions (x + 1, y + 1) and (0, 0) for the class token, pairing interleaved.
// Refuses a rotary_dim that is no multiple of 4 or not 4 .. 2048, and theta <= 0.
ROPEWALK_API result<rope_spec> vision_2d(int32_t rotary_dim, double theta) noexcept;

// Pixtral's vision tower: the frequencies theta^(-2i / rotary_dim) of even i on the first half of the pairs, turned by the row (axis 0), of odd i on
// the second, turned by the column (axis 1). Errors as vision_2d.
ROPEWALK_API result<rope_spec> pixtral_2d(int32_t rotary_dim, double theta) noexcept;

}  // namespace ropewalk
