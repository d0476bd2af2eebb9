// The architectures of GGUF files that are known: what llama.cpp says of them in code, not in keys.
#pragma once

#include <string_view>

#include <ropewalk/position_spec.hpp>
#include "runtime/config/model_types.hpp"

namespace ropewalk::runtime {

// Base and scaling of layers with a window.
enum class local_rope {
    same,      // as the others, but for rope.freq_base_swa
    unscaled,  // the base of the others, no scaling (OLMo 3)
    own_base   // base 10000 where rope.freq_base_swa is missing, no scaling (Gemma 3 and 4)
};

struct gguf_type {
    std::string_view name;
    position_encoding encoding = position_encoding::rope;
    rope_pairing pairing = rope_pairing::half;
    axes_rule axes = axes_rule::one;
    int32_t pattern = 0;  // every pattern-th layer has no window; 0: all layers are alike
    local_rope local = local_rope::same;
    bool nope_each_fourth = false;
    bool nope_without_window = false;
    bool sinks = false;
    bool truncate = true;  // of YaRN: false is gpt-oss as it was trained; ggml rounds the limits
    bool bidirectional = false;
    double softcap = 0.0;
    qk_norm_order norm = qk_norm_order::none;
    double log_multiplier = 0.0;  // what rope.scaling.yarn_log_multiplier is divided by to give mscale_all_dim; 0: the key is refused
};

// null where the architecture is not known.
const gguf_type* find_gguf_type(std::string_view name) noexcept;

}  // namespace ropewalk::runtime
