// Callbacks of the caller: its pool, its memory.
#include <new>

#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {
namespace {

void run_serial(void*, int32_t items, ropewalk_task task, void* context) {
    for (int32_t i = 0; i < items; ++i) task(context, i);
}

void* new_memory(void*, std::size_t bytes, std::size_t alignment) { return ::operator new (bytes, std::align_val_t{alignment}, std::nothrow); }
void delete_memory(void*, void* memory, std::size_t, std::size_t alignment) { ::operator delete (memory, std::align_val_t{alignment}); }

constexpr std::size_t alignment = page_alignment;  // of workspaces too

}  // namespace

executor& executor_of(call& c, ropewalk_executor* on) noexcept {
    if (on == nullptr) return default_executor();
    c.handle("on", on);
    return on->value;
}

ropewalk_allocator allocator_of(call& c, const char* name, const ropewalk_allocator* allocator) noexcept {
    if (allocator == nullptr) return {sizeof(ropewalk_allocator), 0, nullptr, new_memory, delete_memory};
    c.sized(name, allocator);
    if (!c.ok()) return {};
    if (allocator->allocate == nullptr || allocator->release == nullptr) {
        c.check(refuse(status_code::invalid_argument, "%s.%s is null; must be given", name, allocator->allocate == nullptr ? "allocate" : "release"));
    }
    return *allocator;
}

status allocated::grow(std::size_t bytes) noexcept {
    if (bytes <= memory_.size()) return {};
    void* const memory = from_.allocate(from_.user, bytes, alignment);
    if (memory == nullptr) return refuse(status_code::out_of_memory, "the allocator has no %zu bytes left", bytes);
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) {
        from_.release(from_.user, memory, bytes, alignment);
        return refuse(status_code::invalid_argument, "allocator.allocate gave %p; must be aligned to %zu bytes", memory, alignment);
    }
    release();
    memory_ = {static_cast<std::byte*>(memory), bytes};
    return {};
}

void allocated::release() noexcept {
    if (!memory_.empty()) from_.release(from_.user, memory_.data(), memory_.size(), alignment);
}

}  // namespace ropewalk::c_api

using namespace ropewalk;
using c_api::call;

ropewalk_status ropewalk_executor_create(const ropewalk_executor_callbacks* callbacks, ropewalk_executor** out) {
    call c;
    c.sized("callbacks", callbacks);
    return c.create("executor", out, [&]() -> result<c_api::callback_executor> {
        if (callbacks->run == nullptr) return status(status_code::invalid_argument, "callbacks.run is null; must be given");
        if (callbacks->concurrency < 1) {
            return refuse(status_code::invalid_argument, "callbacks.concurrency is %d; must be >= 1", callbacks->concurrency);
        }
        return c_api::callback_executor(*callbacks);
    });
}

ropewalk_status ropewalk_executor_destroy(ropewalk_executor* on) {
    if (on == ropewalk_executor_serial()) {
        return c_api::report(status(status_code::invalid_argument, "executor is that of ropewalk_executor_serial(); nobody destroys it"));
    }
    return c_api::destroy("executor", on);
}

ropewalk_executor* ropewalk_executor_serial(void) {
    static ropewalk_executor serial{{}, c_api::callback_executor({sizeof(ropewalk_executor_callbacks), 1, nullptr, c_api::run_serial})};
    return &serial;
}

ropewalk_status ropewalk_executor_concurrency(const ropewalk_executor* on, int32_t* concurrency) {
    call c;
    if (on != nullptr) c.handle("executor", on);
    return c.get("concurrency", concurrency,
                 [&]() -> result<int32_t> { return on != nullptr ? on->value.concurrency() : default_executor().concurrency(); });
}

ropewalk_status ropewalk_workspace_create(const ropewalk_allocator* allocator, ropewalk_workspace** workspace) {
    call c;
    const ropewalk_allocator from = c_api::allocator_of(c, "allocator", allocator);
    return c.create("workspace", workspace, [&] { return result<c_api::allocated>(c_api::allocated(from)); });
}

ropewalk_status ropewalk_workspace_destroy(ropewalk_workspace* workspace) { return c_api::destroy("workspace", workspace); }

ropewalk_status ropewalk_workspace_reserve(ropewalk_workspace* workspace, size_t bytes, void** memory) {
    call c;
    c.handle("workspace", workspace);
    c.pointer("memory", memory);
    return c.run([&] {
        const status grown = workspace->value.grow(bytes);
        if (grown.ok()) *memory = workspace->value.memory().data();
        return grown;
    });
}
