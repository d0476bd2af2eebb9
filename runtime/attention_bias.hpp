// What an attention bias holds.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/attention_bias.hpp>
#include "simd/attention/attend.hpp"

namespace ropewalk {

struct attention_bias::state {
    simd::bias_kind kind = simd::bias_kind::none;
    int32_t heads = 0;
    int64_t tokens = 0;  // rows: of q
    simd::attend_bias values{};
    std::vector<float> table;  // where values.data points, but for rows
};

}  // namespace ropewalk
