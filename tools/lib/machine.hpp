// What the tools ask the machine about memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ropewalk::toolkit {

// Bytes that can be allocated without swapping or killing: the smaller of the system's estimate and what the control groups above this process
// leave. -1 where the system does not say.
int64_t available_memory();

// A buffer of this size is read from DRAM, not from a cache: twice the last-level cache the system reports, at least 256 MiB and at most 1 GiB
// (virtual machines report the caches of the whole host).
int64_t beyond_cache_bytes();

// Bytes of the data caches that one processor sees; 0 where there is none or nobody says. An L3 belongs to l3_sharers processors.
struct cache_sizes {
    int64_t l1 = 0, l2 = 0, l3 = 0;
    int32_t l3_sharers = 1;
};
// Linux describes the caches in a folder for each processor; what it leaves out comes from sysconf, which inside virtual machines may tell the L3
// of the whole host.
cache_sizes read_caches(const std::string& folder = "/sys/devices/system/cpu/cpu0/cache");

// How many processors a list of the kernel names: 3 for "0-1,64".
int32_t processors_in(const std::string& list);

// Which part (0 to 1) of the mapping that holds `memory` lies in huge pages: advice can be refused. -1 where the system does not say.
double huge_page_share(std::span<const std::byte> memory);

// The processor as it calls itself; empty where the system does not say.
std::string processor_name();

}  // namespace ropewalk::toolkit
