// Falcon, BLOOM, Baichuan: decoders with ALiBi, or with rope in its place.
#include <cmath>

#include "runtime/config/models.hpp"

namespace ropewalk::runtime {

void read_falcon(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    // Without the architecture of Falcon-40B, one KV head whatever num_kv_heads says, unless multi_query is off. The old name of the 40B says it too.
    const bool grouped = config.flag({"new_decoder_architecture"}, config.text({"model_type"}, "") == "RefinedWeb");
    const bool multi_query = config.flag({"multi_query"}, true);
    if (!grouped && multi_query) layer.kv_heads = 1;
    if (config.flag({"alibi"}, false)) {
        config.know({"rope_theta", "rope_scaling", "rope_parameters"});
        layer.encoding = position_encoding::alibi;
        layer.alibi = {.rule = alibi_rule::falcon, .place = bias_place::before_scale};
    } else {
        out.max_positions = g.max_positions;
        layer.encoding = position_encoding::rope;
        layer.rope = read_rotation(config, type, g);
    }
    append_layers(out.layers, layer, g.layers);
}

void read_bloom(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    config.know({"seq_length"});  // of the training only
    position_spec layer = g.layer;
    layer.encoding = position_encoding::alibi;
    append_layers(out.layers, layer, g.layers);
}

// Both sizes have the same model_type and keys: 7B (hidden 4096) has rope, 13B (hidden 5120) ALiBi. vLLM tells them apart in the same way.
void read_baichuan(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    const bool large = g.hidden == 5120;
    if (!large && g.hidden != 4096) config.refuse("hidden_size", "must be 4096 (rope) or 5120 (ALiBi) for this model type", status_code::unsupported);
    layer.encoding = large ? position_encoding::alibi : position_encoding::rope;
    if (!large) {
        out.max_positions = config.integer({"model_max_length"}, g.max_positions);
        layer.rope = read_rotation(config, type, g);
    }
    append_layers(out.layers, layer, g.layers);
}

}  // namespace ropewalk::runtime
