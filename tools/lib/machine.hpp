// What the tools ask the machine about memory.
#pragma once

#include <cstdint>

namespace ropewalk::toolkit {

// Bytes that can be allocated without swapping or killing: the smaller of the system's estimate and what the control groups above this process
// leave. -1 where the system does not say.
int64_t available_memory();

// A buffer of this size is read from DRAM, not from a cache: twice the last-level cache the system reports, at least 256 MiB and at most 1 GiB
// (virtual machines report the caches of the whole host).
int64_t beyond_cache_bytes();

}  // namespace ropewalk::toolkit
