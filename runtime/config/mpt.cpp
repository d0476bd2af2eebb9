// MPT: attn_config, as transformers and llm-foundry write it.
#include <cmath>
#include <string>

#include "runtime/config/models.hpp"
#include "runtime/config/rope_keys.hpp"

namespace ropewalk::runtime {
namespace {

config_object object_in(config_object& around, const char* key) {
    const nlohmann::json* found = around.find({key});
    if (found != nullptr && !found->is_object()) around.refuse(key, "must be an object");
    return {found != nullptr && found->is_object() ? *found : empty_object(), around.path() + key + ".", around.fault()};
}

// rope_impl "dail" turns as flash-attention does, "hf" as Llama does: halves both, so only what scales differs.
rope_rotation read_mpt_rope(config_object& attention, const model_geometry& g) {
    rope_rotation rotation;
    rotation.parameters.rotary_dim = g.layer.k_dim;
    rotation.parameters.theta = attention.number({"rope_theta"}, 10000.0);
    const std::string implementation = attention.text({"rope_impl"}, "dail");
    config_object dail = object_in(attention, "rope_dail_config"), hf = object_in(attention, "rope_hf_config");
    if (implementation == "dail") {
        dail.know({"pos_idx_in_fp32", "xpos_scale_base"});  // of the precision, and of xpos
        if (dail.text({"type"}, "original") != "original") dail.refuse("type", "must be original", status_code::unsupported);
        dail.refuse_unread({}, "is not known in rope_dail_config");
    } else if (implementation == "hf") {
        const std::string kind = hf.text({"type"}, "no_scaling");
        rotation.parameters.factor = hf.number({"factor"}, 1.0);
        rotation.parameters.original_max_position = static_cast<double>(g.max_positions);
        if (kind == "linear") {
            rotation.parameters.family = rope_family::linear;
        } else if (kind == "dynamic") {
            rotation.parameters.family = rope_family::dynamic_ntk;
        } else if (kind != "no_scaling") {
            hf.refuse("type", "must be no_scaling, linear or dynamic", status_code::unsupported);
        } else {
            rotation.parameters.factor = 1.0;
        }
        hf.refuse_unread({}, "is not known in rope_hf_config");
    } else {
        attention.refuse("rope_impl", "must be dail or hf", status_code::unsupported);
    }
    if (attention.ok()) attention.fail(finish_rotation(rotation, g.layer.k_dim));
    return rotation;
}

void read_heads(config_object& attention, position_spec& layer) {
    const std::string kind = attention.text({"attn_type"}, "multihead_attention");
    if (kind == "multiquery_attention") {
        layer.kv_heads = 1;
    } else if (kind == "grouped_query_attention") {
        layer.kv_heads = attention.small({"kv_n_heads"}, layer.heads);
        if (layer.heads % layer.kv_heads != 0) attention.refuse("kv_n_heads", "must divide n_heads, " + std::to_string(layer.heads));
    } else if (kind != "multihead_attention") {
        attention.refuse("attn_type", "must be multihead_attention, multiquery_attention or grouped_query_attention", status_code::unsupported);
    }
    attention.know({"kv_n_heads"});
}

}  // namespace

void read_mpt(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    config_object attention = object_in(config, "attn_config");
    // What has no part in positions or scores here: dropout, the implementation, clipping of q, k and v before they come here.
    attention.know({"attn_pdrop", "attn_impl", "clip_qkv", "qk_gn", "fused_qkv", "model_type", "init_device", "rope", "rope_theta", "rope_impl",
                    "rope_dail_config", "rope_hf_config"});
    read_heads(attention, layer);
    layer.scale = attention.number({"softmax_scale"}, layer.scale);
    if (!(layer.scale > 0.0)) attention.refuse("softmax_scale", "must be positive");
    layer.softcap = attention.number({"attn_logit_softcapping"}, 0.0);
    layer.prefix_lm = attention.flag({"prefix_lm"}, false);
    if (attention.flag({"qk_ln"}, false)) layer.qk_norm = qk_norm_order::before_rope;
    const int64_t window = attention.integer({"sliding_window_size"}, -1, -1);
    if (window > 0) layer.span = attention_span::sliding_window(window);
    layer.alibi = {alibi_rule::mpt, attention.number({"alibi_bias_max"}, 8.0)};
    if (!(layer.alibi.max_exponent > 0.0)) attention.refuse("alibi_bias_max", "must be positive");
    const bool rope = attention.flag({"rope"}, false), learned = config.flag({"learned_pos_emb"}, true);
    out.max_positions = g.max_positions;
    // transformers turns ALiBi on where nothing is said; a file that has rope is llm-foundry's, where it is off then.
    if (attention.flag({"alibi"}, !rope)) {
        if (rope) attention.refuse("rope", "must be false where alibi is true");
        layer.encoding = position_encoding::alibi;
        out.max_positions = 0;
    } else if (rope) {
        layer.encoding = position_encoding::rope;
        layer.rope = read_mpt_rope(attention, g);
    } else if (learned) {
        layer.encoding = position_encoding::learned;
        out.layers.absolute = learned_table(g.max_positions, 0, g.hidden);
    }
    if (layer.encoding != position_encoding::alibi) layer.alibi = {};
    attention.refuse_unread({}, "is not known in attn_config");
    append_layers(out.layers, layer, g.layers);
}

}  // namespace ropewalk::runtime
