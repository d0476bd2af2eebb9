// CPU time that the control groups of the process leave it. Containers are limited by it, and an affinity mask does not show it.
#pragma once

#include <cstdint>

namespace ropewalk::runtime {

// The quota of the tightest group in CPUs, rounded up; 0: none. Both versions of control groups, as files under `root`/proc and `root`/sys.
int32_t cpu_quota(const char* root = "") noexcept;

}  // namespace ropewalk::runtime
