// Models with absolute positions, T5's buckets, and the vector terms of XLNet and DeBERTa.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "runtime/config/models.hpp"

namespace ropewalk::runtime {
namespace {

// Heads and head dim of the two stacks of Whisper and M2M100, whose names begin with encoder_ and decoder_.
position_spec half_of(config_object& config, const model_type& type, const char* heads_key, int32_t width) {
    position_spec layer;
    layer.heads = layer.kv_heads = config.small({heads_key}, type.heads);
    layer.k_dim = layer.v_dim = width / layer.heads;
    if (width % layer.heads != 0) config.refuse(heads_key, "must divide d_model, " + std::to_string(width));
    layer.scale = 1.0 / std::sqrt(std::max(layer.k_dim, 1));
    return layer;
}

void read_encoder_decoder(config_object& config, const model_type& type, position_encoding encoder_kind, position_encoding decoder_kind,
                          position_config& out) {
    const int32_t width = config.small({"d_model"}, type.hidden);
    position_spec encoder = half_of(config, type, "encoder_attention_heads", width),
                  decoder = half_of(config, type, "decoder_attention_heads", width);
    encoder.encoding = encoder_kind;
    encoder.span = attention_span::full();
    decoder.encoding = decoder_kind;
    out.cross_attention = decoder;
    out.cross_attention->encoding = position_encoding::none;
    out.cross_attention->span = attention_span::full();
    append_layers(out.encoder, encoder, config.small({"encoder_layers"}, type.layers, 1, max_config_layers));
    append_layers(out.layers, decoder, config.small({"decoder_layers"}, type.layers, 1, max_config_layers));
    out.encoder.absolute.dim = out.layers.absolute.dim = width;
}

}  // namespace

void read_t5(config_object& config, const model_type& type, position_config& out) {
    model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    layer.k_dim = layer.v_dim = config.small({"d_kv"}, 64);
    layer.scale = 1.0;  // T5 folds 1 / sqrt(d) into its weights
    layer.encoding = position_encoding::t5_buckets;
    t5_bucket_rule& rule = layer.t5.rule;
    rule.num_buckets = config.small({"relative_attention_num_buckets"}, 32);
    rule.max_distance = config.small({"relative_attention_max_distance"}, 128, 1, std::numeric_limits<int32_t>::max());
    layer.t5.shared = type.name != "umt5";
    if (rule.num_buckets < 4 || rule.num_buckets % 2 != 0) config.refuse("relative_attention_num_buckets", "must be even and at least 4");
    if (rule.max_distance <= rule.num_buckets / 2) config.refuse("relative_attention_max_distance", "must be above half the buckets");
    const int32_t decoders = config.small({"num_decoder_layers"}, g.layers, 1, max_config_layers);
    position_spec encoder = layer;
    encoder.span = attention_span::full();
    rule.bidirectional = false;
    append_layers(out.encoder, encoder, g.layers);
    append_layers(out.layers, layer, decoders);
    out.cross_attention = layer;
    out.cross_attention->encoding = position_encoding::none;
    out.cross_attention->t5 = {};
    out.cross_attention->span = attention_span::full();
}

void read_xlnet(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    layer.encoding = position_encoding::xlnet;
    const std::string kind = config.text({"attn_type"}, "bi");
    if (kind != "bi" && kind != "uni") config.refuse("attn_type", "must be bi or uni");
    layer.xlnet.bidirectional = kind == "bi";
    layer.span = layer.xlnet.bidirectional ? attention_span::full() : attention_span::causal();
    layer.xlnet.clamp_len = config.integer({"clamp_len"}, -1, -1);
    layer.xlnet.mem_len = config.mentions("mem_len") ? config.integer({"mem_len"}, 0, 0) : 512;
    layer.xlnet.reuse_len = config.integer({"reuse_len"}, 0, 0);
    layer.xlnet.bi_data = config.flag({"bi_data"}, false);
    layer.xlnet.same_length = config.flag({"same_length"}, false);
    layer.xlnet.untie_r = config.flag({"untie_r"}, true);
    append_layers(out.layers, layer, g.layers);
}

void read_deberta(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    position_spec layer = g.layer;
    layer.span = attention_span::full();
    deberta_terms& terms = layer.deberta;
    terms.version = type.name == "deberta" ? 1 : 2;
    std::vector<std::string> kinds;
    const nlohmann::json* given = config.find({"pos_att_type"});
    if (given != nullptr && given->is_string()) {  // "p2c|c2p", in files older than lists
        const std::string text = given->get<std::string>() + "|";
        for (std::size_t at = 0, end; (end = text.find('|', at)) != std::string::npos; at = end + 1) kinds.push_back(text.substr(at, end - at));
    } else {
        kinds = config.texts("pos_att_type");
    }
    for (const std::string& kind : kinds) {
        if (kind != "c2p" && kind != "p2c") config.refuse("pos_att_type", "must be of c2p and p2c", status_code::unsupported);
        terms.c2p = terms.c2p || kind == "c2p";
        terms.p2c = terms.p2c || kind == "p2c";
    }
    layer.scale = 1.0 / std::sqrt(std::max(layer.k_dim, 1) * (1.0 + terms.c2p + terms.p2c));
    const int64_t distance = config.integer({"max_relative_positions"}, -1, -1);
    terms.max_distance = distance < 1 ? g.max_positions : distance;
    if (terms.version == 2) {
        const int64_t buckets = config.integer({"position_buckets"}, -1, -1, 65536);
        if (buckets == 0) config.refuse("position_buckets", "must be positive, or -1 for none");
        terms.buckets = static_cast<int32_t>(std::max<int64_t>(buckets, 0));
        terms.share_keys = config.flag({"share_att_key"}, false);
        const std::string norm = config.text({"norm_rel_ebd"}, "none");
        if (norm != "none" && norm != "layer_norm") config.refuse("norm_rel_ebd", "must be none or layer_norm", status_code::unsupported);
        terms.normalise = norm == "layer_norm";
    }
    const bool relative = config.flag({"relative_attention"}, false), absolute = config.flag({"position_biased_input"}, true);
    if (absolute) out.layers.absolute = learned_table(g.max_positions, 0, g.hidden);
    layer.encoding = relative ? position_encoding::deberta : absolute ? position_encoding::learned : position_encoding::none;
    if (!relative) terms = {};
    append_layers(out.layers, layer, g.layers);
}

void read_bert(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    position_spec layer = g.layer;
    layer.span = config.flag({"is_decoder"}, false) ? attention_span::causal() : attention_span::full();
    const bool offset = type.name != "bert";  // RoBERTa counts from padding_idx + 1
    const int64_t first = offset ? config.integer({"pad_token_id"}, 1, 0) + 1 : 0;
    out.max_positions = std::max<int64_t>(g.max_positions - first, 0);
    const std::string kind = config.text({"position_embedding_type"}, "absolute");
    layer.encoding = position_encoding::learned;
    if (kind == "relative_key") layer.encoding = position_encoding::relative_key;
    if (kind == "relative_key_query") layer.encoding = position_encoding::relative_key_query;
    if (kind == "absolute") {
        out.layers.absolute = learned_table(g.max_positions, first, g.hidden);
        out.layers.absolute.skips_padding = offset;
    } else if (layer.encoding == position_encoding::learned) {
        config.refuse("position_embedding_type", "must be absolute, relative_key or relative_key_query", status_code::unsupported);
    } else {
        layer.relative_rows = 2 * g.max_positions - 1;
    }
    append_layers(out.layers, layer, g.layers);
}

void read_gpt2(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    out.layers.absolute = learned_table(g.max_positions, 0, g.hidden);
    const bool scaled = config.flag({"scale_attn_weights"}, true), by_layer = config.flag({"scale_attn_by_inverse_layer_idx"}, false);
    for (int32_t i = 0; i < g.layers; ++i) {
        position_spec layer = g.layer;
        layer.encoding = position_encoding::learned;
        layer.scale = (scaled ? layer.scale : 1.0) / (by_layer ? i + 1 : 1);
        append_layer(out.layers, layer);
    }
}

void read_opt(config_object& config, const model_type& type, position_config& out) {
    const model_geometry g = read_geometry(config, type);
    out.max_positions = g.max_positions;
    out.layers.absolute = learned_table(g.max_positions + 2, 2, config.small({"hidden_size"}, g.hidden, 1, 1 << 20));
    out.layers.absolute.skips_padding = true;
    position_spec layer = g.layer;
    layer.encoding = position_encoding::learned;
    append_layers(out.layers, layer, g.layers);
}

void read_whisper(config_object& config, const model_type& type, position_config& out) {
    read_encoder_decoder(config, type, position_encoding::sinusoidal, position_encoding::learned, out);
    out.max_positions = config.integer({"max_target_positions"}, type.max_position);
    out.layers.absolute = learned_table(out.max_positions, 0, out.layers.absolute.dim);
    absolute_positions& encoder = out.encoder.absolute;
    encoder.kind = position_encoding::sinusoidal;
    encoder.sinusoid = sinusoid_spec::whisper(encoder.dim);
    encoder.rows = config.integer({"max_source_positions"}, 1500);
    if (encoder.dim % 2 != 0 || encoder.dim < 4) config.refuse("d_model", "must be even and at least 4");
}

void read_m2m100(config_object& config, const model_type& type, position_config& out) {
    read_encoder_decoder(config, type, position_encoding::sinusoidal, position_encoding::sinusoidal, out);
    out.max_positions = config.integer({"max_position_embeddings"}, type.max_position);
    absolute_positions& encoder = out.encoder.absolute;
    encoder.kind = position_encoding::sinusoidal;
    const int64_t padding = config.integer({"pad_token_id"}, 1, 0);
    encoder.sinusoid = sinusoid_spec::fairseq(encoder.dim, padding);
    encoder.sinusoid.offset = encoder.offset = padding + 1;
    encoder.rows = out.max_positions + 2;
    encoder.skips_padding = true;
    out.layers.absolute = encoder;
    if (encoder.dim < 4) config.refuse("d_model", "must be at least 4");
}

}  // namespace ropewalk::runtime
