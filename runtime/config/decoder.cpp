// Decoders with rope: Llama and its relatives.
#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/config/layer_ropes.hpp"
#include "runtime/config/models.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::runtime {
namespace {

constexpr const char* full = "full_attention";
constexpr const char* sliding = "sliding_attention";
constexpr const char* chunked = "chunked_attention";

// What layers differ in.
struct layer_plan {
    std::vector<std::string> types;  // [layers]
    std::vector<bool> rope;          // [layers]
    int64_t window = 0;
    int64_t chunk = 0;
};

// sliding_window where it is in force, else 0.
int64_t window_of(config_object& config, const model_type& type) {
    if (type.window == window_rule::none || type.window == window_rule::llama4) return 0;
    const int64_t given = config.mentions("sliding_window") ? 0 : type.sliding_window;
    const int64_t window = config.integer({"sliding_window"}, given, 0);
    const bool switched = type.window == window_rule::qwen || type.window == window_rule::qwen_all || type.window == window_rule::smollm3;
    if (switched) config.know({"max_window_layers"});
    return switched && !config.flag({"use_sliding_window"}, false) ? 0 : window;
}

// 0 where a layer has no rope. The list holds 1 for rope; an empty one stands for the interval.
std::vector<bool> layers_with_rope(config_object& config, const model_type& type, int32_t layers) {
    std::vector<bool> rope(static_cast<std::size_t>(layers), true);
    if (type.nope != nope_rule::listed) return rope;
    const int64_t interval = config.integer({"no_rope_layer_interval"}, 4);
    const std::vector<double> listed = config.numbers("no_rope_layers");
    if (!listed.empty() && listed.size() != rope.size()) {
        config.refuse("no_rope_layers", "must have an entry for each of " + std::to_string(layers) + " layers");
        return rope;
    }
    for (std::size_t i = 0; i < rope.size(); ++i) {
        rope[i] = listed.empty() ? static_cast<int64_t>(i + 1) % interval != 0 : listed[i] != 0.0;
    }
    return rope;
}

std::string default_type(const model_type& type, const layer_plan& plan, int32_t pattern, std::size_t i) {
    switch (type.window) {
        case window_rule::none: return full;
        case window_rule::all:
        case window_rule::uniform:
        case window_rule::qwen_all: return plan.window != 0 ? sliding : full;
        case window_rule::qwen: return plan.window != 0 && static_cast<int64_t>(i) >= pattern ? sliding : full;
        case window_rule::pattern: return static_cast<int32_t>(i + 1) % pattern != 0 ? sliding : full;
        case window_rule::smollm3: return plan.window != 0 && !plan.rope[i] ? sliding : full;
        case window_rule::llama4: return plan.rope[i] && plan.chunk != 0 ? chunked : full;
    }
    return full;
}

void check_types(config_object& config, const model_type& type, const layer_plan& plan) {
    const bool one_kind = type.window == window_rule::all || type.window == window_rule::qwen_all;
    for (const std::string& layer_type : plan.types) {
        if (layer_type != full && layer_type != sliding && layer_type != chunked) {
            return config.refuse("layer_types", "must hold full_attention, sliding_attention or chunked_attention", status_code::unsupported);
        }
        if (one_kind && layer_type != (plan.window != 0 ? sliding : full)) {
            return config.refuse("layer_types", "must be the same for all layers of this model type, by sliding_window");
        }
        if (layer_type == sliding && plan.window == 0) return config.refuse("sliding_window", "must be given: a layer is sliding_attention");
        if (layer_type == chunked && plan.chunk == 0) return config.refuse("attention_chunk_size", "must be given: a layer is chunked_attention");
    }
}

layer_plan read_plan(config_object& config, const model_type& type, int32_t layers) {
    layer_plan plan;
    plan.window = window_of(config, type);
    if (type.window == window_rule::llama4) plan.chunk = config.mentions("attention_chunk_size") ? config.integer({"attention_chunk_size"}, 0) : 8192;
    plan.rope = layers_with_rope(config, type, layers);
    int32_t pattern = type.pattern;
    if (type.window == window_rule::qwen) pattern = config.small({"max_window_layers"}, pattern, 0);
    if (type.window == window_rule::pattern) pattern = config.small({"sliding_window_pattern", "_sliding_window_pattern"}, pattern);
    plan.types = config.texts("layer_types");
    if (!plan.types.empty() && plan.types.size() != static_cast<std::size_t>(layers)) {
        config.refuse("layer_types", "must have an entry for each of " + std::to_string(layers) + " layers");
    }
    if (plan.types.empty()) {
        for (std::size_t i = 0; i < plan.rope.size(); ++i) plan.types.push_back(default_type(type, plan, pattern, i));
        if (type.name == "gemma4_text" && !plan.types.empty()) plan.types.back() = full;
    }
    check_types(config, type, plan);
    if (type.nope == nope_rule::full_attention && config.ok()) {
        for (std::size_t i = 0; i < plan.rope.size(); ++i) plan.rope[i] = plan.types[i] != full;
    }
    return plan;
}

double scale_of(config_object& config, const model_type& type, int32_t head_dim) {
    double scale = 1.0 / std::sqrt(head_dim);
    if (type.scale == scale_rule::one) scale = 1.0;
    if (type.scale == scale_rule::attention_multiplier) scale = config.number({"attention_multiplier"}, 1.0);
    if (type.scale == scale_rule::query_pre_attn_scalar) scale = 1.0 / std::sqrt(config.number({"query_pre_attn_scalar"}, 256.0));
    if (!(std::isfinite(scale) && scale > 0.0)) {
        config.fail(refuse(status_code::invalid_argument, "softmax scale is %g; must be finite and positive", scale));
    }
    return scale;
}

qk_norm_order norm_of(config_object& config, const model_type& type) {
    switch (type.norm) {
        case norm_rule::none: return qk_norm_order::none;
        case norm_rule::before: return qk_norm_order::before_rope;
        case norm_rule::qk_layernorm: return config.flag({"qk_layernorm"}, false) ? qk_norm_order::before_rope : qk_norm_order::none;
        case norm_rule::use_qk_norm: return config.flag({"use_qk_norm"}, false) ? qk_norm_order::before_rope : qk_norm_order::none;
        case norm_rule::llama4: return config.flag({"use_qk_norm"}, true) ? qk_norm_order::after_rope : qk_norm_order::none;
    }
    return qk_norm_order::none;
}

// use_bidirectional_attention of Gemma: whether attention is bidirectional.
bool bidirectional_of(config_object& config, const model_type& type) {
    if (!type.name.starts_with("gemma")) return false;
    const nlohmann::json* given = config.find({"use_bidirectional_attention"});
    if (given == nullptr || *given == false) return false;
    if (type.name == "gemma4_text") {
        if (*given == "vision") return false;  // causal but inside images, which no position tells
        if (*given == "all") return true;
    } else if (*given == true && type.name != "gemma2") {
        return true;
    }
    config.refuse("use_bidirectional_attention", "must be false for this model type", status_code::unsupported);
    return false;
}

// Gemma 4: what its full_attention layers have in place of head_dim and num_key_value_heads.
struct full_layers {
    int32_t head_dim = 0, kv_heads = 0;
};
full_layers gemma4_full(config_object& config, const position_spec& common) {
    full_layers of{config.small({"global_head_dim"}, 512), common.kv_heads};
    const int32_t kv_heads = config.small({"num_global_key_value_heads"}, common.kv_heads);
    if (config.flag({"attention_k_eq_v"}, false)) of.kv_heads = kv_heads;
    return of;
}

// transformers 5 writes Gemma 4's exceptions as {"05": {"head_dim": 512}, ...}.
void apply_per_layer_config(config_object& config, int32_t layer, position_spec& spec) {
    const nlohmann::json* all = config.find({"per_layer_config"});
    if (all == nullptr || !all->is_object()) return;
    for (const auto& [key, value] : all->items()) {
        if (key.empty() || key.size() > 6 || key.find_first_not_of("0123456789") != std::string::npos || std::stoi(key) != layer) continue;
        config_object exception(value.is_object() ? value : *all, "per_layer_config." + key + ".", config.fault());
        spec.k_dim = spec.v_dim = exception.small({"head_dim"}, spec.k_dim);
        spec.kv_heads = exception.small({"num_key_value_heads"}, spec.kv_heads);
        exception.refuse_unread({}, "is not known for a layer");
    }
}

attention_span span_of(const layer_plan& plan, const std::string& layer_type, bool bidirectional) {
    if (layer_type == chunked) return attention_span::chunked(plan.chunk);
    if (layer_type != sliding) return bidirectional ? attention_span::full() : attention_span::causal();
    // transformers makes w / 2 + 1 of a bidirectional window and sees distances below that.
    return bidirectional ? attention_span::symmetric(plan.window / 2) : attention_span::sliding_window(plan.window);
}

using temperature_option = std::optional<query_temperature>;

temperature_option llama4_temperature(config_object& config) {
    const query_temperature temperature{config.number({"attn_scale"}, 0.1), config.integer({"floor_scale"}, 8192), 1};
    return config.flag({"attn_temperature_tuning"}, true) ? temperature_option(temperature) : std::nullopt;
}

temperature_option ministral3_temperature(config_object& config, config_object& rope, int64_t max_positions) {
    const double beta = rope.number({"llama_4_scaling_beta"}, 0.0);
    const int64_t original = config.integer({"original_max_position_embeddings"}, rope.integer({"original_max_position_embeddings"}, max_positions));
    return beta != 0.0 ? temperature_option(query_temperature{beta, original, 0}) : std::nullopt;
}

void check_position_type(config_object& config, const model_type& type) {
    const std::string kind = config.text({"position_embedding_type"}, "rope");
    const bool neighbours = type.pairing == rope_pairing::interleaved;
    if (kind == "rope" || kind == "rotary" || (kind == "rope_gptj" && neighbours)) return;
    config.refuse("position_embedding_type", "must be rope for this model type", status_code::unsupported);
}

}  // namespace

model_geometry read_geometry(config_object& config, const model_type& type) {
    model_geometry g;
    g.layers = config.small({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, type.layers, 1, max_config_layers);
    g.hidden = config.small({"hidden_size", "n_embd", "d_model", "n_embed"}, type.hidden, 1, 1 << 20);
    position_spec& layer = g.layer;
    layer.heads = config.small({"num_attention_heads", "n_head", "n_heads", "num_heads"}, type.heads);
    const bool kv_null = config.mentions("num_key_value_heads") || type.kv_heads == 0;
    layer.kv_heads = config.small({"num_key_value_heads", "num_kv_heads", "n_head_kv"}, kv_null ? layer.heads : type.kv_heads);
    const bool dim_null = config.mentions("head_dim") || type.head_dim == 0;
    layer.k_dim = layer.v_dim = config.small({"head_dim", "d_head", "attention_head_size"}, dim_null ? g.hidden / layer.heads : type.head_dim, 0);
    g.max_positions = config.integer({"max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len"}, type.max_position);
    if (layer.heads % layer.kv_heads != 0) {
        config.fail(
            refuse(status_code::invalid_argument, "num_key_value_heads is %d; must divide num_attention_heads, %d", layer.kv_heads, layer.heads));
    }
    if (layer.k_dim == 0) {
        config.fail(refuse(status_code::invalid_argument, "head_dim is 0; hidden_size is %d for %d heads", g.hidden, layer.heads));
    }
    layer.scale = 1.0 / std::sqrt(std::max(layer.k_dim, 1));
    return g;
}

rope_rotation read_rotation(config_object& config, const model_type& type, const model_geometry& geometry) {
    layer_ropes ropes(config, type, geometry.max_positions);
    return ropes.of(full, geometry.layer.k_dim).value_or(rope_rotation{});
}

void read_decoder(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    const layer_plan plan = read_plan(config, type, g.layers);
    check_position_type(config, type);
    layer_ropes ropes(config, type, g.max_positions);
    position_spec common = g.layer;
    common.scale = scale_of(config, type, common.k_dim);
    if (type.scale == scale_rule::query_pre_attn_scalar) {  // Gemma 2 and 3
        common.softcap = config.mentions("attn_logit_softcapping") ? config.number({"attn_logit_softcapping"}, 0.0) : type.softcap;
    }
    common.sinks = type.sinks;
    common.qk_norm = norm_of(config, type);
    const bool bidirectional = bidirectional_of(config, type);
    const temperature_option nope_temperature = type.window == window_rule::llama4 ? llama4_temperature(config) : std::nullopt;
    const bool gemma4 = type.name == "gemma4_text";
    const full_layers global = gemma4 ? gemma4_full(config, common) : full_layers{};
    if (type.name == "ministral3") common.temperature = ministral3_temperature(config, ropes.dictionary(), g.max_positions);
    for (int32_t i = 0; i < g.layers && config.ok(); ++i) {
        const std::string& layer_type = plan.types[static_cast<std::size_t>(i)];
        position_spec layer = common;
        if (gemma4 && config.has({"per_layer_config"})) {
            apply_per_layer_config(config, i, layer);
        } else if (gemma4 && layer_type == full) {
            layer.k_dim = layer.v_dim = global.head_dim;
            layer.kv_heads = global.kv_heads;
        }
        layer.span = span_of(plan, layer_type, bidirectional);
        if (plan.rope[static_cast<std::size_t>(i)] && ropes.of(layer_type, layer.k_dim).has_value()) {
            layer.encoding = position_encoding::rope;
            layer.rope = *ropes.of(layer_type, layer.k_dim);
        } else {
            layer.temperature = nope_temperature;
            if (type.norm == norm_rule::llama4) layer.qk_norm = qk_norm_order::none;
        }
        append_layer(out.layers, layer);
    }
    config.know({"final_logit_softcapping"});
    if (config.number({"rotary_scaling_factor"}, 1.0) != 1.0) config.refuse("rotary_scaling_factor", "must be 1");
}

void read_mla(config_object& config, const model_type& type, position_config& out) {
    model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    position_spec layer = g.layer;
    const int32_t nope = config.small({"qk_nope_head_dim"}, 128, 0), turned = config.small({"qk_rope_head_dim"}, 64, 0);
    config.know({"head_dim", "qk_head_dim"});  // transformers derives both
    layer.k_dim = nope + turned;
    layer.v_dim = config.small({"v_head_dim"}, 128);
    layer.kv_lora_rank = config.small({"kv_lora_rank"}, 512);
    layer.encoding = position_encoding::rope;
    layer_ropes ropes(config, type, g.max_positions);
    layer.rope = ropes.of(full, turned).value_or(rope_rotation{});
    layer.rope.first_dim = nope;
    if (type.name == "deepseek_v3") {
        const bool neighbours = config.flag({"rope_interleave"}, true);  // turned as neighbours, written as halves
        layer.rope.pairing = neighbours ? rope_pairing::interleaved_in_half_out : rope_pairing::half;
    }
    layer.scale = deepseek_scale(ropes.dictionary(), layer.rope.parameters) / std::sqrt(layer.k_dim);
    append_layers(out.layers, layer, g.layers);
}

void read_gptj(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    position_spec layer = g.layer;
    if (!config.flag({"rotary"}, true)) config.refuse("rotary", "must be true for this model type", status_code::unsupported);
    const int32_t turned = config.mentions("rotary_dim") ? config.small({"rotary_dim"}, layer.k_dim) : 64;
    layer.encoding = position_encoding::rope;
    layer.rope.pairing = type.pairing;
    layer.rope.parameters.rotary_dim = turned;
    if (config.ok()) config.fail(finish_rotation(layer.rope, layer.k_dim));
    append_layers(out.layers, layer, g.layers);
}

}  // namespace ropewalk::runtime
