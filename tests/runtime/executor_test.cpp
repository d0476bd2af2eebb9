// What executors promise: every item once, no more threads than told, the caller's floating-point settings. F.. are rows of the field reports.
#include <ropewalk/executor.hpp>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#if ROPEWALK_WITH_TBB
#include <tbb/global_control.h>

#include <ropewalk/tbb.hpp>
#endif

namespace ropewalk {
namespace {

// Counts how often each item ran, on which threads, and how many ran at the same time. (A pool may send another of its threads in the middle of a
// run, so that more threads than its limit have been seen: the limit is on those at work at a time.)
class tally {
public:
    explicit tally(int32_t items) : counts_(static_cast<std::size_t>(items)) {}

    static void item(void* context, int32_t i) {
        tally& self = *static_cast<tally*>(context);
        ++self.counts_[static_cast<std::size_t>(i)];
        {
            const std::lock_guard lock(self.mutex_);
            self.threads_.insert(std::this_thread::get_id());
            self.most_at_work_ = std::max(self.most_at_work_, ++self.at_work_);
        }
        // Long enough for sleeping workers to wake up (25 to 40 us) and take part.
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
        while (std::chrono::steady_clock::now() < end) {
        }
        const std::lock_guard lock(self.mutex_);
        --self.at_work_;
    }

    void expect_each_once() const {
        for (std::size_t i = 0; i < counts_.size(); ++i) EXPECT_EQ(counts_[i], 1) << "item " << i;
    }
    [[nodiscard]] const std::set<std::thread::id>& threads() const { return threads_; }
    [[nodiscard]] int32_t most_at_work() const { return most_at_work_; }

private:
    std::vector<std::atomic<int>> counts_;
    std::mutex mutex_;
    std::set<std::thread::id> threads_;
    int32_t at_work_ = 0;
    int32_t most_at_work_ = 0;
};

void expect_each_item_once(executor& on) {
    ASSERT_GE(on.concurrency(), 1);
    for (const int32_t items : {0, 1, 2, 3, 7, on.concurrency(), 100}) {
        SCOPED_TRACE(items);
        tally seen(items);
        on.run(items, tally::item, &seen);
        seen.expect_each_once();
        EXPECT_LE(seen.most_at_work(), on.concurrency());
    }
}

TEST(executor, default_runs_each_item_once) {
    expect_each_item_once(default_executor());
    EXPECT_EQ(&default_executor(), &default_executor());
}

TEST(executor, serial_runs_in_order_on_the_calling_thread) {
    serial_executor on;
    EXPECT_EQ(on.concurrency(), 1);
    expect_each_item_once(on);
    std::vector<int32_t> order;
    on.run(
        5, [](void* context, int32_t i) { static_cast<std::vector<int32_t>*>(context)->push_back(i); }, &order);
    EXPECT_EQ(order, (std::vector<int32_t>{0, 1, 2, 3, 4}));
    tally seen(10);
    on.run(10, tally::item, &seen);
    EXPECT_EQ(seen.threads(), std::set{std::this_thread::get_id()});
}

TEST(executor, one_item_runs_on_the_calling_thread) {
    tally seen(1);
    default_executor().run(1, tally::item, &seen);
    EXPECT_EQ(seen.threads(), std::set{std::this_thread::get_id()});
}

void count_one(void* count, int32_t) { ++*static_cast<std::atomic<int>*>(count); }
void count_five(void* count, int32_t) { default_executor().run(5, count_one, count); }

TEST(executor, default_may_be_used_from_many_threads_and_nested) {
    std::vector<std::thread> callers;
    for (int c = 0; c < 4; ++c) {
        callers.emplace_back([] {
            std::atomic<int> runs{0};
            for (int round = 0; round < 50; ++round) default_executor().run(8, count_one, &runs);
            EXPECT_EQ(runs, 400);
            for (int round = 0; round < 10; ++round) default_executor().run(8, count_five, &runs);
            EXPECT_EQ(runs, 800);
        });
    }
    for (std::thread& caller : callers) caller.join();
}

// Rounding mode (and with it the denormal flags) of the caller reaches every thread: else bits would depend on who runs an item.
TEST(executor, items_see_the_floating_point_settings_of_the_caller) {
    const int before = std::fegetround();
    for (const int mode : {FE_UPWARD, FE_TONEAREST, FE_TOWARDZERO}) {
        std::fesetround(mode);
        std::vector<int> seen(64, -1);
        default_executor().run(
            64,
            [](void* context, int32_t i) {
                (*static_cast<std::vector<int>*>(context))[static_cast<std::size_t>(i)] = std::fegetround();
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            },
            &seen);
        std::fesetround(before);
        EXPECT_EQ(seen, std::vector<int>(64, mode));
    }
}

#if ROPEWALK_WITH_TBB

// F10: a limit is honoured, whatever the host has.
TEST(executor, F10_arena_limits_the_threads) {
    for (const int limit : {1, 2, 3}) {
        SCOPED_TRACE(limit);
        tbb::task_arena arena(limit);
        arena_executor on(arena);
        EXPECT_EQ(on.concurrency(), limit);
        expect_each_item_once(on);
        tally seen(200);
        on.run(200, tally::item, &seen);
        EXPECT_LE(seen.most_at_work(), limit);
    }
}

// The default executor follows the arena that the caller is in, and so the limits that the application set.
TEST(executor, F10_default_follows_the_arena_of_the_caller) {
    tbb::task_arena arena(2);
    arena.execute([] {
        EXPECT_EQ(default_executor().concurrency(), 2);
        tally seen(200);
        default_executor().run(200, tally::item, &seen);
        seen.expect_each_once();
        EXPECT_LE(seen.most_at_work(), 2);
    });
    EXPECT_EQ(default_executor().concurrency(), tbb::this_task_arena::max_concurrency());
}

TEST(executor, never_touches_global_control) {
    const std::size_t before = tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
    expect_each_item_once(default_executor());
    EXPECT_EQ(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism), before);
}

// A task group of the application that was cancelled must not make a call inside it lose items.
TEST(executor, runs_all_items_inside_a_cancelled_group) {
    tbb::task_group_context group;
    std::atomic<bool> ran{false};
    tbb::parallel_for(
        0, 1,
        [&](int) {
            group.cancel_group_execution();
            tally seen(50);
            default_executor().run(50, tally::item, &seen);
            seen.expect_each_once();
            ran = true;
        },
        tbb::simple_partitioner{}, group);
    EXPECT_TRUE(ran);
}

// While it waits, the calling thread takes no task of the application: that task may want a lock which the caller holds. Two items meet, one on the
// caller, one on a worker; foreign tasks appear; the caller's item ends, the worker's goes on for 5 ms.
TEST(executor, the_waiting_caller_takes_no_foreign_task) {
    struct meeting {
        std::thread::id caller = std::this_thread::get_id();
        std::atomic<int> started{0};
        std::atomic<bool> spawned{false};
        bool wait_for(const std::function<bool()>& condition) const {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
            while (!condition() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
            return condition();
        }
    } met;
    tbb::task_arena arena(3, 2);  // two threads of the test, one worker
    std::atomic<int> foreign_on_caller{0};
    std::thread application([&] {
        arena.execute([&] {
            if (!met.wait_for([&] { return met.started == 2; })) return;
            tbb::task_group group;
            for (int i = 0; i < 10; ++i) group.run([&] { foreign_on_caller += std::this_thread::get_id() == met.caller; });
            met.spawned = true;
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            group.wait();
        });
    });
    arena.execute([&] {
        default_executor().run(
            2,
            [](void* context, int32_t) {
                meeting& m = *static_cast<meeting*>(context);
                ++m.started;
                m.wait_for([&] { return m.spawned.load(); });
                if (std::this_thread::get_id() != m.caller) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            },
            &met);
    });
    application.join();
    if (!met.spawned) GTEST_SKIP() << "no worker came within 2 s";
    EXPECT_EQ(foreign_on_caller, 0);
}

#else

TEST(executor, default_is_serial_without_tbb) { EXPECT_EQ(default_executor().concurrency(), 1); }

#endif

}  // namespace
}  // namespace ropewalk
