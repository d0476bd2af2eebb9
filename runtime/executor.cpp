// The executors that come with the library: serial, and oneTBB where the build has it.
#include <ropewalk/executor.hpp>

#if ROPEWALK_WITH_TBB
#include <ropewalk/tbb.hpp>
#endif

namespace ropewalk {

executor::~executor() = default;

void serial_executor::run(int32_t items, task item, void* context) noexcept {
    for (int32_t i = 0; i < items; ++i) item(context, i);
}

#if ROPEWALK_WITH_TBB

namespace {

class current_arena_executor final : public executor {
public:
    [[nodiscard]] int32_t concurrency() const noexcept override { return tbb::this_task_arena::max_concurrency(); }
    void run(int32_t items, task item, void* context) noexcept override { run_in_current_arena(items, item, context); }
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
