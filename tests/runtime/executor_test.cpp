// What executors promise: every item once, no more threads than told, the caller's floating-point settings. F.. are rows of the field reports.
#include <ropewalk/executor.hpp>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cpu_quota.hpp"
#include "tests/attention_fixture.hpp"
#include "tests/thread_executor.hpp"

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

// The OpenMP pool of the process, as an engine that has one would hand it over.
class openmp_executor final : public executor {
public:
    using region = void (*)(void (*)(void*), void*, unsigned, unsigned);
    explicit openmp_executor(region parallel) : parallel_(parallel) {}

    [[nodiscard]] int32_t concurrency() const noexcept override { return 3; }
    void run(int32_t items, task item, void* context) noexcept override {
        struct {
            task item;
            void* context;
            int32_t items;
            std::atomic<int32_t> next{0};
        } all{item, context, items, {}};
        const auto deal = [](void* shared) {
            auto& a = *static_cast<decltype(all)*>(shared);
            for (int32_t i = a.next++; i < a.items; i = a.next++) a.item(a.context, i);
        };
        parallel_(deal, &all, 3, 0);
    }

private:
    region parallel_;
};

// Decoding that is split, a prompt, a short sequence: all that a plan has.
test::output mixed_step(executor& on) {
    attention_problem p;
    p.heads = 4;
    p.kv_heads = 2;
    p.k_dim = p.v_dim = 32;
    p.q_type = p.out_type = dtype::bf16;
    static const std::vector<test::sequence_input> batch = [&p] {
        std::mt19937 generator(5);
        std::vector<test::sequence_input> made;
        for (const auto& [q_len, kv_len] : {std::pair{1, 2100}, {33, 700}, {1, 40}}) {
            made.push_back(test::sequence_input::random(p, dtype::bf16, dtype::bf16, q_len, kv_len, generator));
        }
        return made;
    }();
    return test::run_attention(p, batch, {.concurrency = on.concurrency(), .on = &on});
}

TEST(executor, attention_has_the_same_bits_on_all_of_them) {
    serial_executor serial;
    const test::output expected = mixed_step(serial);
    EXPECT_TRUE(expected == mixed_step(default_executor()));
    test::thread_executor callbacks(5);
    EXPECT_TRUE(expected == mixed_step(callbacks));
#if ROPEWALK_WITH_TBB
    tbb::task_arena arena(4);
    arena_executor in_arena(arena);
    EXPECT_TRUE(expected == mixed_step(in_arena));
#endif
    // Not under a sanitizer of threads, which does not see how libgomp orders things.
#if !defined(__SANITIZE_THREAD__)
    if (void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL); library != nullptr) {
        openmp_executor openmp(reinterpret_cast<openmp_executor::region>(dlsym(library, "GOMP_parallel")));
        EXPECT_TRUE(expected == mixed_step(openmp));
    }
#endif
}

// fork() leaves all threads but one behind. A child works all the same, alone; it must neither wait for the others nor give other bits.
#if !defined(__SANITIZE_THREAD__)
TEST(executor, a_child_of_fork_works_alone) {
    const test::output expected = mixed_step(default_executor());  // its pool is in use from here on
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(60);  // a child that waits is killed
        if (default_executor().concurrency() != 1) _exit(2);
        test::thread_executor callbacks(3);
        _exit(expected == mixed_step(default_executor()) && expected == mixed_step(callbacks) ? 0 : 1);
    }
    int state = 0;
    ASSERT_EQ(waitpid(child, &state, 0), child);
    EXPECT_TRUE(WIFEXITED(state)) << "killed by signal " << WTERMSIG(state);
    EXPECT_EQ(WEXITSTATUS(state), 0);
    EXPECT_TRUE(expected == mixed_step(default_executor())) << "the parent goes on";
}
#endif

// A tree of files as /proc and /sys have them, removed at the end.
class fake_system {
public:
    explicit fake_system(const std::string& groups) {
        char name[] = "/tmp/ropewalk-quota.XXXXXX";
        root_ = mkdtemp(name);
        write("/proc/self/cgroup", groups);
    }
    ~fake_system() { std::filesystem::remove_all(root_); }

    fake_system& write(const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text << '\n';
        return *this;
    }
    [[nodiscard]] int32_t quota() const { return runtime::cpu_quota(root_.c_str()); }

private:
    std::string root_;
};

TEST(cpu_quota, none_where_nothing_says_so) {
    EXPECT_EQ(fake_system("").quota(), 0);
    EXPECT_EQ(fake_system("0::/").write("/sys/fs/cgroup/cpu.max", "max 100000").quota(), 0);
    EXPECT_EQ(fake_system("2:cpu:/a")
                  .write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1")
                  .write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
                  .quota(),
              0);
    EXPECT_EQ(fake_system("no colons\n0::/a").write("/sys/fs/cgroup/a/cpu.max", "nonsense").quota(), 0);
}

TEST(cpu_quota, version_2_rounds_up) {
    const auto of = [](const char* text) { return fake_system("0::/a/b").write("/sys/fs/cgroup/a/b/cpu.max", text).quota(); };
    EXPECT_EQ(of("150000 100000"), 2);
    EXPECT_EQ(of("200000 100000"), 2);
    EXPECT_EQ(of("1000 100000"), 1);
    EXPECT_EQ(of("9223372036854775807 1"), INT32_MAX);
}

TEST(cpu_quota, the_tightest_group_counts) {
    fake_system s("0::/a/b/c");
    s.write("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000").write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000");
    EXPECT_EQ(s.quota(), 8);
    s.write("/sys/fs/cgroup/a/cpu.max", "300000 100000");
    EXPECT_EQ(s.quota(), 3);
}

// In a container the mount may show its group alone, under a path that is the host's.
TEST(cpu_quota, a_mount_that_is_the_group_itself) {
    EXPECT_EQ(fake_system("0::/docker/1234").write("/sys/fs/cgroup/cpu.max", "400000 100000").quota(), 4);
    EXPECT_EQ(fake_system("0::/").write("/sys/fs/cgroup/unified/cpu.max", "400000 100000").quota(), 4);
}

TEST(cpu_quota, version_1) {
    fake_system s("5:memory:/m\n4:cpu,cpuacct:/docker/1234\n0::/");
    s.write("/sys/fs/cgroup/cpu,cpuacct/docker/1234/cpu.cfs_quota_us", "250000");
    s.write("/sys/fs/cgroup/cpu,cpuacct/docker/1234/cpu.cfs_period_us", "100000");
    EXPECT_EQ(s.quota(), 3);
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

int32_t within_quota(int32_t threads) { return runtime::cpu_quota() > 0 ? std::min(threads, runtime::cpu_quota()) : threads; }

// The default executor follows the arena that the caller is in, and so the limits that the application set.
TEST(executor, F10_default_follows_the_arena_of_the_caller) {
    tbb::task_arena arena(2);
    arena.execute([] {
        EXPECT_EQ(default_executor().concurrency(), within_quota(2));
        tally seen(200);
        default_executor().run(200, tally::item, &seen);
        seen.expect_each_once();
        EXPECT_LE(seen.most_at_work(), 2);
    });
    EXPECT_EQ(default_executor().concurrency(), within_quota(tbb::this_task_arena::max_concurrency()));
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
