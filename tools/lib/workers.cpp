#include "tools/lib/workers.hpp"

#include <utility>

#include "tools/lib/refusal.hpp"

#if ROPEWALK_WITH_TBB
#include <ropewalk/tbb.hpp>
#endif

namespace ropewalk::toolkit {

#if ROPEWALK_WITH_TBB

struct workers::state {
    explicit state(int32_t threads) : arena(threads), on(arena) {}
    tbb::task_arena arena;
    arena_executor on;
};

int32_t workers::available() { return tbb::this_task_arena::max_concurrency(); }
void workers::enter(const std::function<void()>& body) const { state_->arena.execute(body); }

#else

struct workers::state {
    explicit state(int32_t) {}
    serial_executor on;
};

int32_t workers::available() { return 1; }
void workers::enter(const std::function<void()>& body) const { body(); }

#endif

result<workers> workers::create(int32_t threads) {
    const int32_t most = available();
    if (threads < 1 || threads > most) return refusal(status_code::invalid_argument, "threads is {}; must be 1 to {} on this machine", threads, most);
    return workers(std::make_unique<state>(threads));
}

workers::workers(std::unique_ptr<state> s) : state_(std::move(s)) {}
workers::workers(workers&&) noexcept = default;
workers& workers::operator=(workers&&) noexcept = default;
workers::~workers() = default;

executor& workers::on() const { return state_->on; }

}  // namespace ropewalk::toolkit
