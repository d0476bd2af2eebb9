// refuse() for the runtime: the formatting itself lives in simd/core, whose dispatch refuses targets in the same way.
#pragma once

#include <cinttypes>

#include "simd/core/refuse.hpp"

namespace ropewalk::runtime {

using ropewalk::refuse;

// "<argument> is <value>; must be <least> to <most>"
[[nodiscard]] inline status check_range(const char* argument, int64_t value, int64_t least, int64_t most) noexcept {
    if (value >= least && value <= most) return {};
    return refuse(status_code::invalid_argument, "%s is %" PRId64 "; must be %" PRId64 " to %" PRId64, argument, value, least, most);
}

}  // namespace ropewalk::runtime
