// refuse() for the runtime: the formatting itself lives in simd/core, whose dispatch refuses targets in the same way.
#pragma once

#include "simd/core/refuse.hpp"

namespace ropewalk::runtime {

using ropewalk::refuse;

}  // namespace ropewalk::runtime
