// Configurations of models.
#include <string_view>

#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {
namespace {

// A layer of a stack, and which of the stack's kinds it is.
struct found_layer {
    const position_spec* spec = nullptr;
    int32_t kind = 0;
};

// The decoder or the encoder.
const position_stack* stack_of(call& c, const ropewalk_position_config* config, ropewalk_stack stack) noexcept {
    c.handle("config", config);
    if (!c.ok()) return nullptr;
    if (stack == ROPEWALK_STACK_DECODER) return &config->value.layers;
    if (stack == ROPEWALK_STACK_ENCODER) return &config->value.encoder;
    c.check(refuse(status_code::invalid_argument, "stack is %d; must be 0 (decoder), 1 (encoder) or, for a layer, 2 (cross attention)", stack));
    return nullptr;
}

found_layer layer_of(call& c, const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer) noexcept {
    const auto refuse_layer = [&](int32_t layers) {
        c.check(refuse(status_code::out_of_range, "layer is %d; stack %d has %d layers", layer, stack, layers));
        return found_layer{};
    };
    c.handle("config", config);
    if (c.ok() && stack == ROPEWALK_STACK_CROSS) {
        const auto& cross = config->value.cross_attention;
        if (!cross.has_value() || layer != 0) return refuse_layer(cross.has_value() ? 1 : 0);
        return {&*cross, 0};
    }
    const position_stack* const layers = stack_of(c, config, stack);
    if (layers == nullptr) return {};
    if (layer < 0 || layer >= layers->layers()) return refuse_layer(layers->layers());
    return {&layers->layer(layer), layers->kind_of_layer[static_cast<std::size_t>(layer)]};
}

const rope_rotation* rope_of(call& c, const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer) noexcept {
    const position_spec* const spec = layer_of(c, config, stack, layer).spec;
    if (spec == nullptr) return nullptr;
    if (spec->encoding == position_encoding::rope) return &spec->rope;
    c.check(refuse(status_code::not_found, "layer %d of stack %d has no rope; its encoding is %s", layer, stack, name(spec->encoding).data()));
    return nullptr;
}

void write_encoding(const position_spec& s, ropewalk_position_layer& out) noexcept {
    out.alibi_rule = static_cast<ropewalk_alibi_rule>(s.alibi.rule);
    out.alibi_place = static_cast<ropewalk_bias_place>(s.alibi.place);
    out.alibi_max_exponent = s.alibi.max_exponent;
    out.alibi_symmetric = s.alibi.symmetric;
    out.t5_num_buckets = s.t5.rule.num_buckets;
    out.t5_max_distance = s.t5.rule.max_distance;
    out.t5_bidirectional = s.t5.rule.bidirectional;
    out.t5_shared = s.t5.shared;
    out.xlnet_bidirectional = s.xlnet.bidirectional;
    out.xlnet_bi_data = s.xlnet.bi_data;
    out.xlnet_same_length = s.xlnet.same_length;
    out.xlnet_clamp_len = s.xlnet.clamp_len;
    out.xlnet_mem_len = s.xlnet.mem_len;
    out.xlnet_reuse_len = s.xlnet.reuse_len;
    out.xlnet_untie_r = s.xlnet.untie_r;
    out.deberta_version = s.deberta.version;
    out.deberta_c2p = s.deberta.c2p;
    out.deberta_p2c = s.deberta.p2c;
    out.deberta_buckets = s.deberta.buckets;
    out.deberta_share_keys = s.deberta.share_keys;
    out.deberta_max_distance = s.deberta.max_distance;
    out.deberta_span = s.deberta.span();
    out.deberta_normalise = s.deberta.normalise;
    out.relative_rows = s.relative_rows;
}

void write_layer(const position_spec& s, ropewalk_position_layer& out) noexcept {
    out.encoding = static_cast<ropewalk_position_encoding>(s.encoding);
    out.heads = s.heads;
    out.kv_heads = s.kv_heads;
    out.k_dim = s.k_dim;
    out.v_dim = s.v_dim;
    out.kv_lora_rank = s.kv_lora_rank;
    out.sinks = s.sinks;
    out.prefix_lm = s.prefix_lm;
    out.qk_norm = static_cast<ropewalk_qk_norm_order>(s.qk_norm);
    out.scale = s.scale;
    out.softcap = s.softcap;
    out.span_left = s.span.left;
    out.span_right = s.span.right;
    out.span_chunk = s.span.chunk;
    const query_temperature temperature = s.temperature.value_or(query_temperature{0.0, 1, 0});
    out.has_temperature = s.temperature.has_value();
    out.temperature_beta = temperature.beta;
    out.temperature_floor_length = temperature.floor_length;
    out.temperature_offset = temperature.offset;
}

void write_rope(const rope_rotation& rotation, ropewalk_rope_parameters& out) noexcept {
    const rope_parameters& p = rotation.parameters;
    out.family = static_cast<ropewalk_rope_family>(p.family);
    out.rotary_dim = p.rotary_dim;
    out.pairing = static_cast<ropewalk_rope_pairing>(rotation.pairing);
    out.first_dim = rotation.first_dim;
    out.depends_on_length = p.depends_on_length();
    out.truncate = p.truncate;
    out.axes = rotation.spec.axes();
    out.theta = p.theta;
    out.factor = p.factor;
    out.original_max_position = p.original_max_position;
    out.attention_factor = p.attention_factor;
    out.beta_fast = p.beta_fast;
    out.beta_slow = p.beta_slow;
    out.low_freq_factor = p.low_freq_factor;
    out.high_freq_factor = p.high_freq_factor;
    out.partial_rotary_factor = p.partial_rotary_factor;
    out.alpha = p.alpha;
    out.mixed_b = p.mixed_b;
    out.short_factor = p.short_factor.data();
    out.long_factor = p.long_factor.data();
    out.factors = p.short_factor.size();
    out.divisors = p.divisors.data();
    out.divisors_count = p.divisors.size();
    out.axis_of_pair = p.axis_of_pair.data();
    out.axis_of_pair_count = p.axis_of_pair.size();
}

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

const char* ropewalk_position_encoding_name(ropewalk_position_encoding encoding) { return name(static_cast<position_encoding>(encoding)).data(); }
const char* ropewalk_rope_family_name(ropewalk_rope_family family) { return name(static_cast<rope_family>(family)).data(); }

ropewalk_status ropewalk_position_config_read_hf(const char* text, size_t bytes, ropewalk_position_config** config) {
    call c;
    const auto characters = c.array("text", text, bytes);
    return c.create("config", config, [&] { return read_hf_config(std::string_view(characters.data(), characters.size())); });
}

ropewalk_status ropewalk_position_config_read_gguf(const void* data, size_t bytes, ropewalk_position_config** config) {
    call c;
    const auto content = c.array("data", static_cast<const std::byte*>(data), bytes);
    return c.create("config", config, [&] { return read_gguf_metadata(content); });
}

ropewalk_status ropewalk_position_config_destroy(ropewalk_position_config* config) { return destroy("config", config); }

ropewalk_status ropewalk_position_config_get_info(const ropewalk_position_config* config, ropewalk_position_config_info* info) {
    call c;
    c.handle("config", config);
    c.sized("info", info);
    return c.run([&] {
        info->layers = config->value.layers.layers();
        info->encoder_layers = config->value.encoder.layers();
        info->cross_attention = config->value.cross_attention.has_value();
        info->max_positions = config->value.max_positions;
        info->model_type = config->value.model_type.c_str();
        return status();
    });
}

ropewalk_status ropewalk_position_config_layer(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                               ropewalk_position_layer* out) {
    call c;
    const found_layer found = layer_of(c, config, stack, layer);
    c.sized("out", out);
    return c.run([&] {
        out->kind = found.kind;
        write_layer(*found.spec, *out);
        write_encoding(*found.spec, *out);
        return status();
    });
}

ropewalk_status ropewalk_position_config_rope(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                              ropewalk_rope_parameters* out) {
    call c;
    const rope_rotation* const rotation = rope_of(c, config, stack, layer);
    c.sized("out", out);
    return c.run([&] {
        write_rope(*rotation, *out);
        return status();
    });
}

ropewalk_status ropewalk_position_config_rope_spec(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer, int64_t length,
                                                   ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    call c;
    const rope_rotation* const rotation = rope_of(c, config, stack, layer);
    return c.create("spec", spec, [&] { return rotation->parameters.at(length, static_cast<phase_mode>(phases)); });
}

ropewalk_status ropewalk_position_config_rope_schedule(const ropewalk_position_config* config, ropewalk_stack stack, int32_t layer,
                                                       ropewalk_phase_mode phases, ropewalk_rope_schedule** schedule) {
    call c;
    const rope_rotation* const rotation = rope_of(c, config, stack, layer);
    return c.create("schedule", schedule, [&] { return rotation->parameters.schedule(static_cast<phase_mode>(phases)); });
}

ropewalk_status ropewalk_position_config_absolute(const ropewalk_position_config* config, ropewalk_stack stack, ropewalk_absolute_positions* out,
                                                  ropewalk_sinusoid* sinusoid) {
    call c;
    const position_stack* const layers = stack_of(c, config, stack);
    c.sized("out", out);
    if (sinusoid != nullptr) c.sized("sinusoid", sinusoid);
    return c.run([&] {
        const absolute_positions& a = layers->absolute;
        out->kind = static_cast<ropewalk_position_encoding>(a.kind);
        out->dim = a.dim;
        out->skips_padding = a.skips_padding;
        out->rows = a.rows;
        out->offset = a.offset;
        if (sinusoid != nullptr && a.kind == position_encoding::sinusoidal) write_sinusoid(a.sinusoid, *sinusoid);
        return status();
    });
}
