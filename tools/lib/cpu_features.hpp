// Names of the processor features that matter here, as their vendors spell them.
#pragma once

#include <string>
#include <vector>

#include "simd/core/dispatch.hpp"

namespace ropewalk::toolkit {

// What the processor has and what of it the operating system has switched on: "avx2", "os:zmm", ...
std::vector<std::string> cpu_features(const simd::cpu_words& words);

}  // namespace ropewalk::toolkit
