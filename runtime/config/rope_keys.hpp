// rope_scaling and rope_parameters of config.json.
#pragma once

#include "runtime/config/json_access.hpp"
#include "runtime/config/model_types.hpp"
#include "runtime/config/stack.hpp"

namespace ropewalk::runtime {

// What the keys of one rope dictionary are read against.
struct rope_context {
    const model_type* type = nullptr;
    double theta = 10000.0;  // where the dictionary has no rope_theta
    double partial = 1.0;    // nor partial_rotary_factor
    int32_t head_dim = 0;
    int64_t max_positions = 0;
    int64_t original = 0;  // original_max_position_embeddings of the top level, which wins; 0: none
    bool truncate = true;  // of the outermost dictionary, where transformers looks it up
    bool nested = false;
};

// Every key is read or refused.
rope_parameters read_rope_keys(config_object& keys, const rope_context& context);

// mscale^2 of DeepSeek's softmax scale: (1 + 0.1 mscale_all_dim ln factor)^2, 1 without scaling or mscale_all_dim.
double deepseek_scale(config_object& keys, const rope_parameters& rope);

}  // namespace ropewalk::runtime
