// An executor over a oneTBB arena that the application owns. Header only, so that the ABI of ropewalk does not depend on TBB's.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <ropewalk/executor.hpp>

// The thread sanitizer does not see how TBB orders its tasks where libtbb itself is not instrumented. What run_in_current_arena tells it is what TBB
// guarantees: what came before the call happens before each item, each item before the return. Races between items still show.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ROPEWALK_THREAD_SANITIZER 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define ROPEWALK_THREAD_SANITIZER 1
#endif
#if defined(ROPEWALK_THREAD_SANITIZER)
#include <sanitizer/tsan_interface.h>
#define ROPEWALK_HAPPENS_BEFORE(mark) __tsan_release(mark)
#define ROPEWALK_HAPPENS_AFTER(mark) __tsan_acquire(mark)
#else
#define ROPEWALK_HAPPENS_BEFORE(mark) static_cast<void>(mark)
#define ROPEWALK_HAPPENS_AFTER(mark) static_cast<void>(mark)
#endif

namespace ropewalk {

// Internal: runs the items in the arena that the calling thread is in. Three things keep the promise of executor::run there:
// - an isolated context: cancelling a task group of the application around this call must not make TBB skip items;
// - this_task_arena::isolate: while the caller waits it takes no foreign task, which might want a lock that the caller holds;
// - fp_settings: workers round and flush denormals as the caller does, so the bits do not depend on who runs an item.
// simple_partitioner: the items are few and already sized, a range of one item is never kept back for the thread that cut it off.
inline void run_in_current_arena(int32_t items, executor::task item, void* context) {
    if (items == 1) return item(context, 0);
    char marks[2];
    char* const called = &marks[0];
    char* const ran = &marks[1];
    const auto run_one = [=](int32_t i) {
        ROPEWALK_HAPPENS_AFTER(called);
        item(context, i);
        ROPEWALK_HAPPENS_BEFORE(ran);
    };
    ROPEWALK_HAPPENS_BEFORE(called);
    tbb::this_task_arena::isolate([=] {
        tbb::task_group_context group(tbb::task_group_context::isolated, tbb::task_group_context::fp_settings);
        tbb::parallel_for(int32_t{0}, items, run_one, tbb::simple_partitioner{}, group);
    });
    ROPEWALK_HAPPENS_AFTER(ran);
}

#undef ROPEWALK_HAPPENS_BEFORE
#undef ROPEWALK_HAPPENS_AFTER

// The arena must outlive the executor. Sizes and priorities are the application's business: nothing here touches global_control.
class arena_executor final : public executor {
public:
    explicit arena_executor(tbb::task_arena& arena) noexcept : arena_(arena) {}

    [[nodiscard]] int32_t concurrency() const noexcept override { return arena_.max_concurrency(); }

    void run(int32_t items, task item, void* context) noexcept override {
        arena_.execute([=] { run_in_current_arena(items, item, context); });
    }

private:
    tbb::task_arena& arena_;
};

}  // namespace ropewalk
