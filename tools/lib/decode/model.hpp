// The attention shape of a model: what a decode step needs to know of it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ropewalk/alibi.hpp>
#include <ropewalk/attention.hpp>
#include <ropewalk/rope.hpp>

namespace ropewalk::toolkit {

struct model_shape {
    std::string name;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t layers = 0;
    float scale = 0.0f;         // 0: 1 / sqrt(head_dim)
    float softcap = 0.0f;       // 0: off
    int64_t window = 0;         // keys a windowed layer sees, its own token included; 0: no layer is windowed
    int32_t window_period = 1;  // layers l with l % window_period == 0 are windowed

    enum class position { none, rope, alibi };
    position encoding = position::none;
    rope_spec rope;  // of position::rope
    rope_pairing pairing = rope_pairing::half;
    alibi_rule slopes = alibi_rule::press;  // of position::alibi

    [[nodiscard]] bool windowed(int32_t layer) const { return window > 0 && layer % window_period == 0; }
};

// Published shapes by name: llama-3.1-8b, qwen2.5-7b, smollm2-135m, gemma-2-9b, mpt-7b, bloom-7b1.
const std::vector<model_shape>& model_presets();
// Null where there is none of that name.
const model_shape* find_preset(const std::string& name);
// "llama-3.1-8b, qwen2.5-7b, ..."
std::string preset_names();

}  // namespace ropewalk::toolkit
