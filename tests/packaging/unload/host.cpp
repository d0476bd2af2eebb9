// F12 of the field reports: load, use, unload, 100 times, then exit, and what the process holds does not grow. The host itself links neither the
// library nor TBB.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <dlfcn.h>

namespace {

struct holdings {
    int mappings = 0, threads = 0;
    long resident_kib = 0;
};

holdings now() {
    holdings h;
    std::string text;
    for (std::ifstream maps("/proc/self/maps"); std::getline(maps, text);) ++h.mappings;
    for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++h.threads;
    for (std::ifstream status("/proc/self/status"); status >> text;) {
        if (text == "VmRSS:") status >> h.resident_kib;
    }
    return h;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    holdings settled;
    for (int i = 0; i < 100; ++i) {
        void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (plugin == nullptr) return std::printf("dlopen: %s\n", dlerror()), 1;
        const auto use = reinterpret_cast<int (*)()>(dlsym(plugin, "use_ropewalk"));
        const int answer = use != nullptr ? use() : -1;
        if (answer != 0) return std::printf("round %d: use_ropewalk returned %d\n", i, answer), 1;
        if (dlclose(plugin) != 0) return std::printf("dlclose: %s\n", dlerror()), 1;
        if (i == 9) settled = now();  // what stays, TBB's workers among it, is there
    }
    const holdings end = now();
    std::printf("mappings %d -> %d, threads %d -> %d, resident %ld -> %ld KiB\n", settled.mappings, end.mappings, settled.threads, end.threads,
                settled.resident_kib, end.resident_kib);
    // 90 rounds: a leak of a page a round would be 360 KiB. Mappings: an arena of malloc for a worker that came late.
    const bool grew = end.mappings > settled.mappings + 4 || end.threads > settled.threads + 1 || end.resident_kib > settled.resident_kib + 256;
    return grew ? 1 : 0;
}
