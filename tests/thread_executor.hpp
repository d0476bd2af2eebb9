// An executor that is not TBB: as many new threads as items, as an engine with a pool of its own would have. More threads than cores are fine, and
// wanted: they make bad luck in the order of things likely.
#pragma once

#include <thread>
#include <vector>

#include <ropewalk/executor.hpp>

namespace ropewalk::test {

class thread_executor final : public executor {
public:
    explicit thread_executor(int32_t threads) : threads_(threads) {}

    [[nodiscard]] int32_t concurrency() const noexcept override { return threads_; }
    void run(int32_t items, task item, void* context) noexcept override {
        std::vector<std::thread> others;
        for (int32_t i = 1; i < items; ++i) others.emplace_back(item, context, i);
        if (items > 0) item(context, 0);
        for (std::thread& t : others) t.join();
    }

private:
    int32_t threads_;
};

}  // namespace ropewalk::test
