// The executors that come with the library: serial, and oneTBB where the build has it.
#include <ropewalk/executor.hpp>

#if ROPEWALK_WITH_TBB
#include <pthread.h>

#include <algorithm>
#include <atomic>

#include <ropewalk/tbb.hpp>

#include "runtime/cpu_quota.hpp"
#endif

namespace ropewalk {

executor::~executor() = default;

void serial_executor::run(int32_t items, task item, void* context) noexcept {
    for (int32_t i = 0; i < items; ++i) item(context, i);
}

#if ROPEWALK_WITH_TBB

namespace {

// In a child of fork() TBB's workers are missing, but it counts on them.
std::atomic<bool> forked{false};

// Items dealt to fewer of them.
struct dealer {
    executor::task item;
    void* context;
    int32_t items;
    std::atomic<int32_t> next{0};

    static void deal(void* shared, int32_t) {
        dealer& d = *static_cast<dealer*>(shared);
        for (int32_t i = d.next++; i < d.items; i = d.next++) d.item(d.context, i);
    }
};

class current_arena_executor final : public executor {
public:
    [[nodiscard]] int32_t concurrency() const noexcept override {
        static const int32_t quota = runtime::cpu_quota();
        if (forked) return 1;
        const int32_t threads = tbb::this_task_arena::max_concurrency();
        return quota > 0 ? std::min(quota, threads) : threads;
    }

    void run(int32_t items, task item, void* context) noexcept override {
        static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
        static_cast<void>(watched);
        const int32_t threads = concurrency();
        if (items <= threads && !forked) return run_in_current_arena(items, item, context);
        dealer all{item, context, items, {}};
        if (threads == 1) return dealer::deal(&all, 0);
        run_in_current_arena(threads, dealer::deal, &all);
    }
};

}  // namespace

executor& default_executor() noexcept {
    static current_arena_executor instance;
    return instance;
}

#else

executor& default_executor() noexcept {
    static serial_executor instance;
    return instance;
}

#endif

}  // namespace ropewalk
