#include "tools/lib/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ropewalk::toolkit {
namespace {

constexpr int64_t unknown = -1;

// A file that holds one number; "max" and anything else that is no number is unknown.
int64_t number_in(const std::string& path) {
    std::ifstream file(path);
    int64_t value = unknown;
    return file >> value ? value : unknown;
}

int64_t system_available() {
    std::ifstream file("/proc/meminfo");
    std::string key, unit;
    for (int64_t kib = 0; file >> key >> kib; std::getline(file, unit)) {
        if (key == "MemAvailable:") return kib * 1024;
    }
    return unknown;
}

// limit - usage of one control group; page cache is counted as used, which errs to the safe side.
int64_t group_available(const std::string& limit, const std::string& usage) {
    const int64_t most = number_in(limit), used = number_in(usage);
    if (most < 0 || used < 0) return unknown;
    return std::max<int64_t>(0, most - used);
}

// The groups of this process and all above it, version 2 ("0::/path") and version 1 ("n:memory:/path").
int64_t groups_available() {
    int64_t least = std::numeric_limits<int64_t>::max();
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);) {
        const bool version2 = line.starts_with("0::"), version1 = line.find(":memory:") != std::string::npos;
        if (!version1 && !version2) continue;
        const std::string root = version2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (std::string path = line.substr(line.rfind(':') + 1);; path.erase(path.rfind('/'))) {
            const std::string group = root + (path == "/" ? "" : path);
            const int64_t left = version2 ? group_available(group + "/memory.max", group + "/memory.current")
                                          : group_available(group + "/memory.limit_in_bytes", group + "/memory.usage_in_bytes");
            if (left >= 0) least = std::min(least, left);
            if (path.empty() || path.rfind('/') == std::string::npos) break;
        }
    }
    return least;
}

}  // namespace

int64_t available_memory() {
    const int64_t system = system_available();
    return system < 0 ? unknown : std::min(system, groups_available());
}

int64_t beyond_cache_bytes() {
    const int64_t cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
    return std::clamp<int64_t>(2 * std::max<int64_t>(cache, 0), int64_t{256} << 20, int64_t{1} << 30);
}

}  // namespace ropewalk::toolkit
