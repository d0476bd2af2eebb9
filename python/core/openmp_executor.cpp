#include "openmp_executor.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cfenv>

namespace ropewalk::python {
namespace {

std::atomic<bool> forked{false};

struct region {
    executor::task item;
    void* context;
    int32_t items;
    std::fenv_t caller;  // rounding mode and denormal flags
    std::atomic<int32_t> next{0};
};

void work(void* shared) {
    region& r = *static_cast<region*>(shared);
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&r.caller);
    for (int32_t i = r.next++; i < r.items; i = r.next++) r.item(r.context, i);
    std::fesetenv(&own);
}

}  // namespace

result<openmp_executor*> openmp_executor::instance() noexcept {
    static openmp_executor one;
    static const bool found = [] {
        // First what everybody sees (a runtime that was preloaded), then torch's, which is loaded under this name, then the system's.
        void* library = dlsym(RTLD_DEFAULT, "GOMP_parallel") != nullptr ? RTLD_DEFAULT : dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr && dlsym(RTLD_DEFAULT, "GOMP_parallel") == nullptr) return false;
        one.parallel_ = reinterpret_cast<region_function>(dlsym(library, "GOMP_parallel"));
        one.max_threads_ = reinterpret_cast<threads_function>(dlsym(library, "omp_get_max_threads"));
        pthread_atfork(nullptr, nullptr, [] { forked = true; });
        return one.parallel_ != nullptr && one.max_threads_ != nullptr;
    }();
    if (!found) return status(status_code::unsupported, "executor: the process has no OpenMP runtime and libgomp.so.1 cannot be loaded");
    return &one;
}

int32_t openmp_executor::concurrency() const noexcept { return forked ? 1 : std::max(1, max_threads_()); }

void openmp_executor::run(int32_t items, task item, void* context) noexcept {
    region shared{item, context, items, {}, {}};
    std::fegetenv(&shared.caller);
    const int32_t threads = std::min(items, concurrency());
    if (threads <= 1) return work(&shared);
    parallel_(work, &shared, static_cast<unsigned>(threads), 0);
}

}  // namespace ropewalk::python
