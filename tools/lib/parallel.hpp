// Calls a function object on an executor, and a stopwatch: what every measurement here needs.
#pragma once

#include <chrono>
#include <cstdint>
#include <type_traits>

#include <ropewalk/executor.hpp>

namespace ropewalk::toolkit {

// body(item) for every item in [0, items).
template <class Body>
void parallel(executor& on, int32_t items, Body&& body) {
    using plain = std::remove_reference_t<Body>;
    on.run(
        items, [](void* context, int32_t item) { (*static_cast<plain*>(context))(item); }, &body);
}

class stopwatch {
public:
    stopwatch() : start_(clock::now()) {}
    [[nodiscard]] double seconds() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

private:
    using clock = std::chrono::steady_clock;
    clock::time_point start_;
};

}  // namespace ropewalk::toolkit
