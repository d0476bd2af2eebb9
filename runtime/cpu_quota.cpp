#include "runtime/cpu_quota.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace ropewalk::runtime {
namespace {

int32_t tighter(int32_t a, int32_t b) { return a == 0 || b == 0 ? std::max(a, b) : std::min(a, b); }

// Of one group: cpu.max has "max 100000" or "150000 100000", microseconds in a period; version 1 has two files, with a quota of -1 for none.
int32_t quota_of(const std::string& group) {
    int64_t quota = 0, period = 0;
    if (!(std::ifstream(group + "/cpu.max") >> quota >> period)) {
        std::ifstream(group + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(group + "/cpu.cfs_period_us") >> period;
    }
    if (quota <= 0 || period <= 0) return 0;
    return static_cast<int32_t>(std::min<int64_t>((quota - 1) / period + 1, std::numeric_limits<int32_t>::max()));
}

// A limit of a group holds for those within it, so up to the root of the mount; which in a container may itself be the group that `path` names.
int32_t quota_along(const std::string& mount, std::string path) {
    int32_t tightest = quota_of(mount);
    for (; path.find('/') != std::string::npos; path.erase(path.rfind('/'))) tightest = tighter(tightest, quota_of(mount + path));
    return tightest;
}

}  // namespace

int32_t cpu_quota(const char* root) noexcept try {
    const std::string mounts = std::string(root) + "/sys/fs/cgroup";
    std::ifstream groups(std::string(root) + "/proc/self/cgroup");
    int32_t tightest = 0;
    for (std::string line; std::getline(groups, line);) {  // "0::/path", "4:cpu,cpuacct:/path"
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
        if (controllers.empty()) {
            tightest = tighter(tightest, tighter(quota_along(mounts, path), quota_along(mounts + "/unified", path)));
        } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
            tightest = tighter(tightest, tighter(quota_along(mounts + "/" + controllers, path), quota_along(mounts + "/cpu", path)));
        }
    }
    return tightest;
} catch (...) {
    return 0;  // no memory for a few paths: what comes next will say so
}

}  // namespace ropewalk::runtime
