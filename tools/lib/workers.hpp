// A given number of worker threads as an executor: a oneTBB arena, or the calling thread alone where the build has no TBB.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ropewalk/executor.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::toolkit {

class workers {
public:
    // Most threads that create() gives: the processors this process may use, 1 without TBB.
    static int32_t available();
    // 1 .. available(). More threads than processors would measure the scheduler.
    static result<workers> create(int32_t threads);

    workers(workers&&) noexcept;
    workers& operator=(workers&&) noexcept;
    ~workers();

    [[nodiscard]] executor& on() const;
    // Runs the body inside the arena, so that the calls it makes need not enter it one by one.
    void enter(const std::function<void()>& body) const;

private:
    struct state;
    explicit workers(std::unique_ptr<state> s);
    std::unique_ptr<state> state_;
};

}  // namespace ropewalk::toolkit
