// One reader for each form of model: from the top level of config.json to a position_config. Faults are left in the object's status.
#pragma once

#include "runtime/config/json_access.hpp"
#include "runtime/config/model_types.hpp"
#include "runtime/config/stack.hpp"

namespace ropewalk::runtime {

// heads, kv_heads, k_dim, v_dim and scale = 1/sqrt(k_dim) of a layer, and how many there are, under any of their names.
struct model_geometry {
    position_spec layer;
    int32_t layers = 0;
    int32_t hidden = 0;
    int64_t max_positions = 0;
};
model_geometry read_geometry(config_object& config, const model_type& type);

// The one dictionary of a model whose layers all have the same rope; rotation.spec stays empty after a fault.
rope_rotation read_rotation(config_object& config, const model_type& type, const model_geometry& geometry);

void read_decoder(config_object& config, const model_type& type, position_config& out);
void read_mla(config_object& config, const model_type& type, position_config& out);
void read_gptj(config_object& config, const model_type& type, position_config& out);
void read_falcon(config_object& config, const model_type& type, position_config& out);
void read_bloom(config_object& config, const model_type& type, position_config& out);
void read_baichuan(config_object& config, const model_type& type, position_config& out);
void read_mpt(config_object& config, const model_type& type, position_config& out);
void read_t5(config_object& config, const model_type& type, position_config& out);
void read_xlnet(config_object& config, const model_type& type, position_config& out);
void read_deberta(config_object& config, const model_type& type, position_config& out);
void read_bert(config_object& config, const model_type& type, position_config& out);
void read_gpt2(config_object& config, const model_type& type, position_config& out);
void read_opt(config_object& config, const model_type& type, position_config& out);
void read_whisper(config_object& config, const model_type& type, position_config& out);
void read_m2m100(config_object& config, const model_type& type, position_config& out);

}  // namespace ropewalk::runtime
