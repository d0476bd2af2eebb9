// The model types of config.json that are known, with the defaults of transformers' configuration classes (read in 5.24.0) and the rules that no
// key states.
#pragma once

#include <cstdint>
#include <string_view>

#include <ropewalk/rope.hpp>

namespace ropewalk::runtime {

enum class model_form { decoder, mla, gptj, falcon, bloom, mpt, baichuan, t5, xlnet, deberta, bert, gpt2, opt, whisper, m2m100 };

// Which layers have sliding_window, where no layer_types says so.
enum class window_rule {
    none,      // a window in the file is refused
    all,       // every layer, if sliding_window is not null; layer_types is not read
    uniform,   // likewise, and layer_types is read
    qwen,      // with use_sliding_window, the layers from max_window_layers on
    qwen_all,  // with use_sliding_window, all layers
    pattern,   // all but each pattern-th layer
    smollm3,   // with use_sliding_window, the layers without rope
    llama4     // attention_chunk_size in layers with rope
};
enum class nope_rule { none, listed /* no_rope_layers */, full_attention };
enum class scale_rule { head_dim, query_pre_attn_scalar, attention_multiplier, one };
enum class norm_rule { none, before, qk_layernorm, use_qk_norm, llama4 };
enum class axes_rule { one, contiguous, interleaved };

struct model_type {
    std::string_view name;
    model_form form = model_form::decoder;
    int32_t layers = 32, hidden = 4096, heads = 32;
    int32_t kv_heads = 0;  // 0: heads
    int32_t head_dim = 0;  // 0: hidden / heads
    int64_t max_position = 2048;
    double theta = 10000.0;
    double partial = 1.0;
    rope_pairing pairing = rope_pairing::half;
    window_rule window = window_rule::none;
    int32_t pattern = 0;
    int64_t sliding_window = 0;  // 0: null
    nope_rule nope = nope_rule::none;
    scale_rule scale = scale_rule::head_dim;
    norm_rule norm = norm_rule::none;
    axes_rule axes = axes_rule::one;
    int32_t sections[3] = {};
    double softcap = 0.0;
    bool sinks = false;
    // Flat keys (rope_scaling) are for full_attention; sliding layers have local_theta, or rope_theta where that is 0, and no scaling.
    bool local_unscaled = false;
    double local_theta = 0.0;
    int64_t original_max_position = 0;  // a default of the class (Phi-3, where rope is LongRoPE or nothing); 0: none
    const char* rope = nullptr;         // JSON of rope_parameters where the file has none
};

// null where the type is not known.
const model_type* find_model_type(std::string_view name) noexcept;

}  // namespace ropewalk::runtime
