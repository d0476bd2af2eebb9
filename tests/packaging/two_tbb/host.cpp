// Loads a plugin that uses ropewalk and an engine that has another oneTBB, lets both work at the same time, and expects right results of both.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include <dlfcn.h>

namespace {

template <class Function>
Function load(const char* path, const char* name) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::printf("dlopen: %s\n", dlerror());
    return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

bool mapped(const char* name) {
    std::string line;
    for (std::ifstream maps("/proc/self/maps"); std::getline(maps, line);) {
        if (line.find(name) != std::string::npos) return true;
    }
    return false;
}

int failures(int (*work)()) {
    int failed = 0;
    for (int i = 0; i < 500; ++i) failed += work() != 0;
    return failed;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const auto ours = load<int (*)()>(argv[1], "use_ropewalk"), engine = load<int (*)()>(argv[2], "engine_works");
    const auto version = load<const char* (*)()>(argv[2], "engine_tbb");
    if (ours == nullptr || engine == nullptr || version == nullptr) return 1;
    int engine_failures = 0;
    std::thread beside([&] { engine_failures = failures(engine); });
    const int our_failures = failures(ours);
    beside.join();
    std::printf("engine on oneTBB %s; failures: %d of the engine, %d of ours\n", version(), engine_failures, our_failures);
    // Otherwise both had the same one, and nothing was tested.
    const bool two = mapped("/libtbb.so.2b") && mapped("/libtbb.so.12") && std::strncmp(version(), "2022", 4) == 0;
    if (!two) std::printf("there are no two of them in the process\n");
    return two && engine_failures + our_failures == 0 ? 0 : 1;
}
