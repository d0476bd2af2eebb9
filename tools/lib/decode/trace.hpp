// Recorded activations of a real model: q, k before rope and v of some of its layers, and the attention output the model computed from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ropewalk/status.hpp>
#include "tools/lib/decode/model.hpp"
#include "tools/lib/golden/reader.hpp"

namespace ropewalk::toolkit {

struct trace_layer {
    int64_t number = 0;         // in the model
    std::vector<float> q;       // [heads, tokens, head_dim], before rope, as in the file
    std::vector<float> k, v;    // [kv_heads, tokens, head_dim]
    std::vector<double> out;    // [heads, tokens, head_dim], recorded in fp32
    std::vector<double> lse;    // [heads, tokens], fp64
    double recorded_error = 0;  // largest error of the recorded output itself, against fp64
};

struct trace {
    model_shape model;  // its layers are those of the trace
    int64_t tokens = 0;
    int64_t prompt_tokens = 0;  // the rest was generated
    std::vector<trace_layer> layers;
};

// What is wrong with the file goes to the reader; `unsupported` if its rope is not built yet.
status load_trace(golden_reader& golden, trace& loaded);

}  // namespace ropewalk::toolkit
