// What config.json says of a model of the Llama family.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ropewalk/position_spec.hpp>

namespace llama {

struct config {
    ropewalk::position_config positions;  // attention, layer by layer
    int64_t hidden = 0, intermediate = 0, vocabulary = 0;
    float norm_epsilon = 0.0f;
    bool tied = false;             // the output matrix is that of the embeddings
    std::vector<int32_t> endings;  // tokens that end a text
};

// From the text of a config.json. Throws where a key is missing, or says something that model.cpp does not compute.
config read_config(const std::string& json_text);

}  // namespace llama
