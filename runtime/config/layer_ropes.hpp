// The rope of each layer type of a decoder: flat or nested dictionaries, old and new keys.
#pragma once

#include <map>
#include <optional>

#include "runtime/config/models.hpp"
#include "runtime/config/rope_keys.hpp"

namespace ropewalk::runtime {

class layer_ropes {
public:
    layer_ropes(config_object& config, const model_type& type, int64_t max_positions);

    layer_ropes(const layer_ropes&) = delete;
    layer_ropes& operator=(const layer_ropes&) = delete;

    // Of layers of this type with this head dim; nothing where the dictionary is null: no position at all. Each is read once.
    const std::optional<rope_rotation>& of(const std::string& layer_type, int32_t head_dim);
    // The dictionary itself, flat, for what a form reads besides.
    config_object& dictionary() { return outer_; }

private:
    [[nodiscard]] config_object dictionary_of(const std::string& layer_type);
    rope_context context_of(const std::string& layer_type, int32_t head_dim);

    config_object* config_;
    const model_type* type_;
    int64_t max_positions_;
    nlohmann::json defaults_;
    bool nested_ = false;
    bool flat_for_full_ = false;  // rope_scaling beside nested defaults: Gemma 3, OLMo 3
    config_object outer_;
    std::map<std::pair<std::string, int32_t>, std::optional<rope_rotation>> read_;
};

}  // namespace ropewalk::runtime
