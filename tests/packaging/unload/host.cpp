// F12 of the field reports: load, use, unload, 250 times, then exit, and what the process holds does not grow with the rounds. The host itself links
// neither the library nor TBB.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <dlfcn.h>
#include <malloc.h>

namespace {

struct holdings {
    int mappings = 0, threads = 0;
    long heap_bytes = 0;     // in use; resident memory would show a leak only after malloc's free megabyte is full
    long anonymous_kib = 0;  // walked by the kernel at each reading; VmRSS comes from counters that lag, and moves with the page cache
};

holdings now() {
    holdings h;
    const auto heap = mallinfo2();
    h.heap_bytes = static_cast<long>(heap.uordblks + heap.hblkhd);
    std::string text;
    for (std::ifstream maps("/proc/self/maps"); std::getline(maps, text);) ++h.mappings;
    for ([[maybe_unused]] const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) ++h.threads;
    for (std::ifstream memory("/proc/self/smaps_rollup"); memory >> text;) {
        if (text == "Anonymous:") memory >> h.anonymous_kib;
    }
    return h;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    // What comes once (a worker that starts late, its stack and its arena of malloc) raises one window; a leak raises every one.
    constexpr int windows = 5, rounds = 50;
    holdings last, least{1 << 30, 1 << 30, 1L << 30, 1L << 30};
    for (int window = 0; window < windows; ++window) {
        for (int round = 0; round < rounds; ++round) {
            void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
            if (plugin == nullptr) return std::printf("dlopen: %s\n", dlerror()), 1;
            const auto use = reinterpret_cast<int (*)()>(dlsym(plugin, "use_ropewalk"));
            const int answer = use != nullptr ? use() : -1;
            if (answer != 0) return std::printf("round %d: use_ropewalk returned %d\n", window * rounds + round, answer), 1;
            if (dlclose(plugin) != 0) return std::printf("dlclose: %s\n", dlerror()), 1;
        }
        const holdings h = now();
        std::printf("after %d rounds: %d mappings, %d threads, %ld bytes of heap, %ld KiB in all\n", (window + 1) * rounds, h.mappings, h.threads,
                    h.heap_bytes, h.anonymous_kib);
        if (window > 0) {
            least.mappings = std::min(least.mappings, h.mappings - last.mappings);
            least.threads = std::min(least.threads, h.threads - last.threads);
            least.heap_bytes = std::min(least.heap_bytes, h.heap_bytes - last.heap_bytes);
            least.anonymous_kib = std::min(least.anonymous_kib, h.anonymous_kib - last.anonymous_kib);
        }
        last = h;
    }
    if (last.anonymous_kib == 0) return std::printf("no Anonymous line in smaps_rollup\n"), 1;
    return least.mappings > 0 || least.threads > 0 || least.heap_bytes > 0 || least.anonymous_kib > 0 ? 1 : 0;
}
