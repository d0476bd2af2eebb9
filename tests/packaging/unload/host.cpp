// F12 of the field reports: load, use, unload, 100 times, then exit. The host itself links neither the library nor TBB.
#include <cstdio>

#include <dlfcn.h>

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    for (int i = 0; i < 100; ++i) {
        void* plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (plugin == nullptr) return std::printf("dlopen: %s\n", dlerror()), 1;
        const auto use = reinterpret_cast<int (*)()>(dlsym(plugin, "use_ropewalk"));
        const int answer = use != nullptr ? use() : -1;
        if (answer != 0) return std::printf("round %d: use_ropewalk returned %d\n", i, answer), 1;
        if (dlclose(plugin) != 0) return std::printf("dlclose: %s\n", dlerror()), 1;
    }
    return 0;
}
