// Executors and allocators of the caller.
#include "tests/c_api/handles.hpp"

#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>

#include <ropewalk/ropewalk.hpp>

namespace ropewalk::test {
namespace {

// A pool that runs items on threads of their own, the last one first, and counts.
struct pool {
    std::atomic<int32_t> runs = 0, items = 0, most = 0;
    std::thread::id caller = std::this_thread::get_id();
    bool from_caller = true;

    static void run(void* user, int32_t items, ropewalk_task task, void* context) {
        pool& self = *static_cast<pool*>(user);
        self.from_caller &= std::this_thread::get_id() == self.caller;
        ++self.runs;
        self.items += items;
        self.most = std::max(self.most.load(), items);
        std::vector<std::thread> threads;
        for (int32_t i = items; i-- > 0;) threads.emplace_back(task, context, i);
        for (std::thread& t : threads) t.join();
    }
    c_executor executor(int32_t concurrency) {
        ropewalk_executor_callbacks callbacks = ropewalk_executor_callbacks_init();
        callbacks.concurrency = concurrency;
        callbacks.user = this;
        callbacks.run = run;
        return make<c_executor>([&](auto** out) { return ropewalk_executor_create(&callbacks, out); });
    }
};

// 4096 tokens of 16 heads: enough for several items.
std::vector<float> rotated(ropewalk_executor* on) {
    constexpr int32_t tokens = 4096, heads = 16, dim = 64;
    const c_table table = standard_table(dim);
    std::vector<float> q(static_cast<std::size_t>(tokens) * heads * dim);
    for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 101) - 50.0f;
    std::vector<int64_t> positions(tokens);
    for (std::size_t i = 0; i < tokens; ++i) positions[i] = static_cast<int64_t>(i);
    const ropewalk_tensor view = ropewalk_tensor_dense(q.data(), ROPEWALK_FP32, tokens, heads, dim);
    expect_ok(ropewalk_rope_apply(table.get(), positions.data(), positions.size(), &view, nullptr, nullptr, on));
    return q;
}

TEST(c_executor_test, a_pool_of_the_caller_does_the_work) {
    pool workers;
    const c_executor executor = workers.executor(3);
    int32_t concurrency = 0;
    expect_ok(ropewalk_executor_concurrency(executor.get(), &concurrency));
    EXPECT_EQ(concurrency, 3);
    // An item that ran twice would have turned its tokens twice, one that did not run not at all.
    const std::vector<float> serial = rotated(ropewalk_executor_serial());
    EXPECT_TRUE(rotated(executor.get()) == serial);
    EXPECT_GE(workers.runs, 1);
    EXPECT_GE(workers.most, 2);
    EXPECT_LE(workers.most, 3);
    EXPECT_TRUE(workers.from_caller);
    EXPECT_TRUE(rotated(nullptr) == serial);
}

TEST(c_executor_test, refuses) {
    pool workers;
    ropewalk_executor_callbacks callbacks = ropewalk_executor_callbacks_init();
    ropewalk_executor* made = nullptr;
    callbacks.concurrency = 2;
    expect_refused(ropewalk_executor_create(&callbacks, &made), ROPEWALK_INVALID_ARGUMENT, "callbacks.run is null");
    callbacks.run = pool::run;
    callbacks.concurrency = 0;
    expect_refused(ropewalk_executor_create(&callbacks, &made), ROPEWALK_INVALID_ARGUMENT, "callbacks.concurrency is 0");
    EXPECT_EQ(made, nullptr);
    expect_refused(ropewalk_executor_destroy(ropewalk_executor_serial()), ROPEWALK_INVALID_ARGUMENT, "executor is that of");
    int32_t concurrency = 0;
    expect_ok(ropewalk_executor_concurrency(ropewalk_executor_serial(), &concurrency));
    EXPECT_EQ(concurrency, 1);
    expect_ok(ropewalk_executor_concurrency(nullptr, &concurrency));
    EXPECT_EQ(concurrency, default_executor().concurrency());
}

// Keeps a list of what it gave, and fails if something else comes back.
struct heap {
    struct piece {
        std::size_t bytes, alignment;
    };
    std::map<void*, piece> live;
    std::size_t given = 0;
    bool empty = false;         // has nothing left
    std::size_t misplaced = 0;  // bytes by which what it gives is off

    static void* allocate(void* user, std::size_t bytes, std::size_t alignment) {
        heap& self = *static_cast<heap*>(user);
        if (self.empty) return nullptr;
        void* const memory = static_cast<char*>(::operator new (bytes + self.misplaced, std::align_val_t{alignment})) + self.misplaced;
        self.live[memory] = {bytes, alignment};
        self.given += 1;
        return memory;
    }
    static void release(void* user, void* memory, std::size_t bytes, std::size_t alignment) {
        heap& self = *static_cast<heap*>(user);
        ASSERT_EQ(self.live.count(memory), 1u);
        EXPECT_EQ(self.live[memory].bytes, bytes);
        EXPECT_EQ(self.live[memory].alignment, alignment);
        self.live.erase(memory);
        ::operator delete (static_cast<char*>(memory) - self.misplaced, std::align_val_t{alignment});
    }
    ropewalk_allocator allocator() {
        ropewalk_allocator a = ropewalk_allocator_init();
        a.user = this;
        a.allocate = allocate;
        a.release = release;
        return a;
    }
};

struct cache_config {
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    ropewalk_kv_cache_config config = ropewalk_kv_cache_config_init();
    cache_config() {
        layout.kv_heads = 1;
        layout.k_dim = layout.v_dim = 16;
        config.layers = 2;
        config.page_count = 3;
        config.layout = &layout;
    }
};

TEST(c_allocator, gives_the_pool_of_a_cache) {
    heap memory;
    const ropewalk_allocator allocator = memory.allocator();
    cache_config c;
    c.config.allocator = &allocator;
    int64_t bytes = 0;
    expect_ok(ropewalk_kv_cache_required_bytes(&c.config, &bytes));
    {
        const c_cache cache = make<c_cache>([&](auto** out) { return ropewalk_kv_cache_create(&c.config, out); });
        ASSERT_EQ(memory.live.size(), 1u);
        EXPECT_EQ(memory.live.begin()->second.bytes, static_cast<std::size_t>(bytes));
        ropewalk_kv_pages pages = ropewalk_kv_pages_init();
        expect_ok(ropewalk_kv_cache_pages(cache.get(), 0, &pages));
        EXPECT_EQ(pages.base, memory.live.begin()->first);
        EXPECT_EQ(pages.count, 3);
        EXPECT_EQ(pages.layout->k_dim, 16);
    }
    EXPECT_TRUE(memory.live.empty());
}

TEST(c_allocator, gives_workspaces) {
    heap memory;
    const ropewalk_allocator allocator = memory.allocator();
    {
        const c_workspace workspace = make<c_workspace>([&](auto** out) { return ropewalk_workspace_create(&allocator, out); });
        void *first = nullptr, *again = nullptr;
        expect_ok(ropewalk_workspace_reserve(workspace.get(), 0, &first));
        EXPECT_EQ(first, nullptr);
        expect_ok(ropewalk_workspace_reserve(workspace.get(), 1000, &first));
        expect_ok(ropewalk_workspace_reserve(workspace.get(), 500, &again));  // large enough
        EXPECT_EQ(first, again);
        EXPECT_EQ(memory.given, 1u);
        expect_ok(ropewalk_workspace_reserve(workspace.get(), 5000, &again));
        EXPECT_EQ(memory.given, 2u);
        EXPECT_EQ(memory.live.size(), 1u);
        memory.empty = true;
        expect_refused(ropewalk_workspace_reserve(workspace.get(), 6000, &first), ROPEWALK_OUT_OF_MEMORY, "no 6000 bytes");
        expect_ok(ropewalk_workspace_reserve(workspace.get(), 5000, &first));  // it still has those
        EXPECT_EQ(first, again);
    }
    EXPECT_TRUE(memory.live.empty());
}

TEST(c_allocator, failures_leave_nothing_behind) {
    heap memory;
    ropewalk_allocator allocator = memory.allocator();
    cache_config c;
    c.config.allocator = &allocator;
    ropewalk_kv_cache* cache = nullptr;
    memory.empty = true;
    expect_refused(ropewalk_kv_cache_create(&c.config, &cache), ROPEWALK_OUT_OF_MEMORY, "allocator has no");
    memory.empty = false;
    memory.misplaced = 8;
    expect_refused(ropewalk_kv_cache_create(&c.config, &cache), ROPEWALK_INVALID_ARGUMENT, "must be aligned to 64");
    EXPECT_TRUE(memory.live.empty());
    memory.misplaced = 0;
    alignas(64) static unsigned char own[1 << 16];
    c.config.memory = own;
    c.config.memory_bytes = sizeof own;
    expect_refused(ropewalk_kv_cache_create(&c.config, &cache), ROPEWALK_INVALID_ARGUMENT, "config.memory is given beside allocator");
    EXPECT_TRUE(memory.live.empty());
    allocator.release = nullptr;
    c.config.memory = nullptr;
    c.config.memory_bytes = 0;
    expect_refused(ropewalk_kv_cache_create(&c.config, &cache), ROPEWALK_INVALID_ARGUMENT, "config.allocator.release is null");
    EXPECT_EQ(cache, nullptr);

    c.config.allocator = nullptr;
    c.config.memory = own;
    expect_refused(ropewalk_kv_cache_create(&c.config, &cache), ROPEWALK_INVALID_ARGUMENT, "config.memory_bytes is 0");
    c.config.memory_bytes = sizeof own;
    const c_cache made = make<c_cache>([&](auto** out) { return ropewalk_kv_cache_create(&c.config, out); });
    ropewalk_kv_pages pages = ropewalk_kv_pages_init();
    expect_ok(ropewalk_kv_cache_pages(made.get(), 0, &pages));
    EXPECT_EQ(pages.base, own);
}

}  // namespace
}  // namespace ropewalk::test
