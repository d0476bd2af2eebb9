// How far attention over stored keys and values may be from the recorded output: derived row by row from what rounding does, not from a constant.
#pragma once

#include <vector>

#include <ropewalk/types.hpp>
#include "tools/lib/decode/trace.hpp"

namespace ropewalk::toolkit {

struct attention_bounds {
    std::vector<double> out;  // [heads, tokens, head_dim]
    std::vector<double> lse;  // [heads, tokens]
};

// Causal attention in double over the layer's q, k, v, rotated in double. Keys stored with errors e move a score by at most
// d_j = scale * sum |q| e_j, hence the output by sum_j p_j d_j |v_j - out|, to first order; values and fp32 sums add their own terms.
attention_bounds bounds_of(const trace& recorded, const trace_layer& layer, const kv_preset& kv);

}  // namespace ropewalk::toolkit
