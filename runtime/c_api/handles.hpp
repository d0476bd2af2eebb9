// What the opaque handles hold, and the structs that several files read.
#pragma once

#include <vector>

#include "runtime/c_api/call.hpp"

namespace ropewalk::c_api {

class callback_executor final : public executor {
public:
    explicit callback_executor(const ropewalk_executor_callbacks& callbacks) noexcept : callbacks_(callbacks) {}

    [[nodiscard]] int32_t concurrency() const noexcept override { return callbacks_.concurrency; }
    void run(int32_t items, task item, void* context) noexcept override { callbacks_.run(callbacks_.user, items, item, context); }

private:
    ropewalk_executor_callbacks callbacks_;
};

// Memory of an allocator: at most one piece at a time.
class allocated {
public:
    allocated() noexcept = default;
    explicit allocated(const ropewalk_allocator& from) noexcept : from_(from) {}
    allocated(allocated&& other) noexcept : from_(other.from_), memory_(std::exchange(other.memory_, {})) {}
    allocated& operator=(allocated&&) = delete;
    ~allocated() { release(); }

    // Makes it at least so large; what it held is lost if it grows.
    status grow(std::size_t bytes) noexcept;
    [[nodiscard]] std::span<std::byte> memory() const noexcept { return memory_; }

private:
    void release() noexcept;

    ropewalk_allocator from_{};
    std::span<std::byte> memory_;
};

// Null: operator new. A status for callbacks that are missing.
ropewalk_allocator allocator_of(call& c, const char* name, const ropewalk_allocator* allocator) noexcept;

}  // namespace ropewalk::c_api

struct ropewalk_executor : ropewalk::c_api::handle_word {
    ropewalk::c_api::callback_executor value;
};
struct ropewalk_workspace : ropewalk::c_api::handle_word {
    ropewalk::c_api::allocated value;
};
struct ropewalk_rope_spec : ropewalk::c_api::handle_word {
    ropewalk::rope_spec value;
};
struct ropewalk_rope_schedule : ropewalk::c_api::handle_word {
    ropewalk::rope_schedule value;
};
struct ropewalk_rope_table : ropewalk::c_api::handle_word {
    ropewalk::rope_table value;
};
struct ropewalk_attention_bias : ropewalk::c_api::handle_word {
    ropewalk::attention_bias value;
};
struct ropewalk_relative_index : ropewalk::c_api::handle_word {
    ropewalk::relative_index value;
};
struct ropewalk_relative_terms : ropewalk::c_api::handle_word {
    ropewalk::relative_terms value;
};
struct ropewalk_attention_plan : ropewalk::c_api::handle_word {
    ropewalk::attention_plan value;
    // Of build_sequences(), reused.
    ropewalk::kv_cache::batch_storage storage;
    std::vector<ropewalk::sequence_id> sequences;
};
struct ropewalk_kv_cache : ropewalk::c_api::handle_word {
    ropewalk::c_api::allocated pool;  // outlives the cache, which it is declared before
    ropewalk::kv_cache value;
    ropewalk_kv_layout layout;                                 // the cache's, as C reads it
    std::vector<ropewalk::kv_cache::append_request> requests;  // of append(), reused
};
struct ropewalk_position_config : ropewalk::c_api::handle_word {
    ropewalk::position_config value;
};

namespace ropewalk::c_api {

// Null: the default executor.
executor& executor_of(call& c, ropewalk_executor* on) noexcept;

// Null: the defaults.
rope_options options_of(call& c, const ropewalk_rope_options* options) noexcept;
kv_layout layout_of(call& c, const char* name, const ropewalk_kv_layout* layout) noexcept;
kv_pages pages_of(call& c, const ropewalk_kv_pages* pages) noexcept;
t5_bucket_rule rule_of(call& c, const ropewalk_t5_bucket_rule* rule) noexcept;
// The fields that describe the spec; struct_size is left alone.
void write_sinusoid(const sinusoid_spec& spec, ropewalk_sinusoid& out) noexcept;
// Likewise.
void write_layout(const kv_layout& layout, ropewalk_kv_layout& out) noexcept;

}  // namespace ropewalk::c_api
