// Who runs the work. ropewalk never starts a thread of its own: it hands items to an executor, and an engine can put its own pool in TBB's place.
#pragma once

#include <cstdint>

#include <ropewalk/export.hpp>

namespace ropewalk {

// A pool of threads, as ropewalk uses it. Implement both functions to bring your own; any number of threads may call run() at once if it allows that.
class ROPEWALK_API executor {
public:
    // One item of work.
    using task = void (*)(void* context, int32_t item);

    virtual ~executor();

    // How many items can run at the same time; at least 1. Plans size their workspace with it.
    [[nodiscard]] virtual int32_t concurrency() const noexcept = 0;

    // Calls item(context, i) exactly once for every i in [0, items), in any order and on any threads, and returns when all have returned.
    // Items never throw. They must see the caller's rounding mode and denormal flags, or equal bits on every thread are lost.
    // ropewalk passes at most concurrency() items and lets each of them take work from a shared cursor, so a pool that has fewer threads
    // free than it promised is slower, never wrong.
    virtual void run(int32_t items, task item, void* context) noexcept = 0;
};

// Runs everything on the calling thread.
class ROPEWALK_API serial_executor final : public executor {
public:
    [[nodiscard]] int32_t concurrency() const noexcept override { return 1; }
    void run(int32_t items, task item, void* context) noexcept override;
};

// The executor of a build with TBB: runs in the arena that the calling thread is in (see tbb.hpp for a given arena). Without TBB it is serial.
// One object for the process; safe to use from any number of threads at once. It has as many threads as the arena, which by TBB's rule is one a CPU
// of the affinity mask that the process began with, and no more than the CPU quota of the process's control groups leaves (containers; read once).
// Where an OpenMP runtime has bound the main thread to one CPU before TBB looked, TBB has no workers: calls then want an executor of the engine's own
// pool. In a child of a fork() that came after the first run it is serial, since TBB's threads stayed with the parent. A shared library of such a
// build stays in the process once it is loaded, whatever dlclose() is told: TBB's workers sleep in code that must not be unmapped. A plugin that
// contains the static library has to see to that itself (link it with -z nodelete).
ROPEWALK_API executor& default_executor() noexcept;

}  // namespace ropewalk
