// An engine that works with its own oneTBB.
#include <atomic>
#include <cstdint>

#include <tbb/parallel_for.h>
#include <tbb/version.h>

extern "C" __attribute__((visibility("default"))) int engine_works() {
    std::atomic<int64_t> sum{0};
    tbb::parallel_for(0, 1000, [&](int i) { sum += i; });
    return sum == 999 * 1000 / 2 ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) const char* engine_tbb() { return TBB_runtime_version(); }
