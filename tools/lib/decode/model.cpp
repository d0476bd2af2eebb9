#include "tools/lib/decode/model.hpp"

#include <utility>

namespace ropewalk::toolkit {
namespace {

model_shape shape(std::string name, int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t layers) {
    model_shape model;
    model.name = std::move(name);
    model.heads = heads;
    model.kv_heads = kv_heads;
    model.head_dim = head_dim;
    model.layers = layers;
    return model;
}

model_shape with_rope(model_shape model, const result<rope_spec>& spec) {
    model.encoding = model_shape::position::rope;
    if (spec.ok()) model.rope = *spec;  // constants below: never refused
    return model;
}

model_shape with_alibi(model_shape model, alibi_rule rule) {
    model.encoding = model_shape::position::alibi;
    model.slopes = rule;
    return model;
}

// Layers 0, 2, 4, ... see 4,096 tokens, the others everything; scores are capped at 50; query_pre_attn_scalar is head_dim, hence the usual scale.
model_shape gemma_2_9b() {
    model_shape model = with_rope(shape("gemma-2-9b", 16, 8, 256, 42), rope_spec::standard(256, 1e4));
    model.softcap = 50.0f;
    model.window = 4096;
    model.window_period = 2;
    return model;
}

}  // namespace

// From the config.json of each model on the Hugging Face hub.
const std::vector<model_shape>& model_presets() {
    static const std::vector<model_shape> presets = {
        with_rope(shape("llama-3.1-8b", 32, 8, 128, 32), rope_spec::llama3({})),
        with_rope(shape("qwen2.5-7b", 28, 4, 128, 28), rope_spec::standard(128, 1e6)),
        with_rope(shape("smollm2-135m", 9, 3, 64, 30), rope_spec::standard(64, 1e5)),
        gemma_2_9b(),
        with_alibi(shape("mpt-7b", 32, 32, 128, 32), alibi_rule::mpt),
        with_alibi(shape("bloom-7b1", 32, 32, 128, 30), alibi_rule::press),
    };
    return presets;
}

const model_shape* find_preset(const std::string& name) {
    for (const model_shape& preset : model_presets()) {
        if (preset.name == name) return &preset;
    }
    return nullptr;
}

std::string preset_names() {
    std::string names;
    for (const model_shape& preset : model_presets()) names += (names.empty() ? "" : ", ") + preset.name;
    return names;
}

}  // namespace ropewalk::toolkit
