#include "runtime/config/layer_ropes.hpp"

#include <algorithm>

#include "runtime/refuse.hpp"

namespace ropewalk::runtime {
namespace {

using nlohmann::json;

bool is_layer_type(const std::string& key) { return key == "full_attention" || key == "sliding_attention" || key == "chunked_attention"; }

// rope_scaling where it says something, else rope_parameters, else what the type has by default: the order of transformers.
config_object dictionary_in(config_object& config, const model_type& type, json& defaults) {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
        const json* found = config.find({key});
        if (found == nullptr) continue;
        if (!found->is_object()) {
            config.refuse(key, "must be an object");
        } else if (!found->empty()) {
            config.know({"rope_parameters"});
            return {*found, std::string(key) + ".", config.fault()};
        }
    }
    defaults = type.rope != nullptr ? json::parse(type.rope) : json::object();
    return {defaults, "rope_parameters.", config.fault()};
}

}  // namespace

layer_ropes::layer_ropes(config_object& config, const model_type& type, int64_t max_positions)
    : config_(&config), type_(&type), max_positions_(max_positions), outer_(dictionary_in(config, type, defaults_)) {
    const json& dictionary = outer_.value();
    nested_ = std::any_of(dictionary.items().begin(), dictionary.items().end(), [](const auto& item) { return is_layer_type(item.key()); });
    if (!nested_) {
        flat_for_full_ = type.local_unscaled;
        if (flat_for_full_ && outer_.path() == "rope_parameters." && !dictionary.empty()) {
            config.refuse("rope_parameters", "must hold full_attention and sliding_attention for this model type");
        }
        return;
    }
    outer_.know({"truncate"});
    for (const auto& [key, value] : dictionary.items()) {
        if (is_layer_type(key)) outer_.know({key.c_str()});
        if (is_layer_type(key) && !value.is_null() && !value.is_object()) outer_.refuse(key.c_str(), "must be an object or null");
    }
    outer_.refuse_unread({}, "must be a layer type, since others are");
}

config_object layer_ropes::dictionary_of(const std::string& layer_type) {
    if (flat_for_full_ && layer_type != "full_attention") return {empty_object(), outer_.path(), outer_.fault()};
    if (!nested_) return outer_;
    const auto found = outer_.value().find(layer_type);
    if (found == outer_.value().end() && !type_->local_unscaled) outer_.refuse(layer_type.c_str(), "must be given, since a layer has this type");
    return {found != outer_.value().end() && found->is_object() ? *found : empty_object(), outer_.path() + layer_type + ".", outer_.fault()};
}

rope_context layer_ropes::context_of(const std::string& layer_type, int32_t head_dim) {
    rope_context context;
    context.type = type_;
    context.theta = config_->number({"rope_theta", "rotary_emb_base", "rope_base"}, type_->theta);
    if (type_->local_unscaled && type_->local_theta != 0.0) {
        const double local = config_->number({"rope_local_base_freq"}, type_->local_theta);
        if (layer_type == "sliding_attention") context.theta = local;
    }
    context.partial = config_->number({"partial_rotary_factor", "rotary_pct", "rotary_percentage", "rope_pct"}, type_->partial);
    context.head_dim = head_dim;
    context.max_positions = max_positions_;
    const int64_t original = config_->integer({"original_max_position_embeddings"}, type_->original_max_position);
    if (!nested_) context.original = original;
    context.truncate = outer_.flag({"truncate"}, true);
    return context;
}

const std::optional<rope_rotation>& layer_ropes::of(const std::string& layer_type, int32_t head_dim) {
    const auto [entry, fresh] = read_.try_emplace({layer_type, head_dim});
    if (!fresh) return entry->second;
    const rope_context context = context_of(layer_type, head_dim);
    if (nested_ && outer_.mentions(layer_type.c_str()) && outer_.value()[layer_type].is_null()) return entry->second;
    config_object keys = dictionary_of(layer_type);
    if (type_->name == "ministral3") keys.know({"llama_4_scaling_beta"});
    rope_rotation rotation;
    rotation.pairing = type_->pairing;
    rotation.parameters = read_rope_keys(keys, context);
    if (config_->ok()) config_->fail(finish_rotation(rotation, head_dim));
    entry->second = std::move(rotation);
    return entry->second;
}

}  // namespace ropewalk::runtime
