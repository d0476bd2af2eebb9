#include "tools/lib/machine.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
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

std::string line_in(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

// "32K", "1M": the kernel writes KiB today.
int64_t size_in(const std::string& text) {
    int64_t value = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failed != std::errc()) return 0;
    const std::string unit(end, text.data() + text.size());
    return unit == "K" ? value << 10 : unit == "M" ? value << 20 : value;
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

int32_t processors_in(const std::string& list) {
    int32_t count = 0;
    std::istringstream ranges(list);
    for (std::string range; std::getline(ranges, range, ',');) {
        int first = 0, last = 0;
        const int read = std::sscanf(range.c_str(), "%d-%d", &first, &last);
        if (read >= 1) count += read == 2 ? last - first + 1 : 1;
    }
    return count;
}

cache_sizes read_caches(const std::string& folder) {
    cache_sizes caches;
    int64_t* const sizes[] = {&caches.l1, &caches.l2, &caches.l3};
    for (int index = 0;; ++index) {
        const std::string cache = folder + "/index" + std::to_string(index), type = line_in(cache + "/type");
        if (type.empty()) break;
        const int64_t level = number_in(cache + "/level");
        if (type == "Instruction" || level < 1 || level > 3) continue;
        *sizes[level - 1] = size_in(line_in(cache + "/size"));
        if (level == 3) caches.l3_sharers = std::max(1, processors_in(line_in(cache + "/shared_cpu_list")));
    }
    const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    for (int i = 0; i < 3; ++i) {
        if (*sizes[i] == 0) *sizes[i] = std::max<int64_t>(0, ::sysconf(names[i]));
    }
    return caches;
}

double huge_page_share(std::span<const std::byte> memory) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    std::ifstream file("/proc/self/smaps");
    bool inside = false;
    double resident = 0.0;
    for (std::string line; std::getline(file, line);) {
        unsigned long first = 0, last = 0, kib = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) inside = first <= address && address < last;
        if (!inside) continue;
        if (std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) resident = static_cast<double>(kib);
        if (std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) return resident > 0.0 ? static_cast<double>(kib) / resident : 0.0;
    }
    return -1.0;
}

std::string processor_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(": ");
        if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "";
}

}  // namespace ropewalk::toolkit
