// Handles of the C ABI that destroy themselves, and the two outcomes of a call.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <ropewalk/ropewalk.h>
#include <ropewalk/types.hpp>

namespace ropewalk::test {

template <auto Destroy>
struct destroyer {
    template <class Handle>
    void operator()(Handle* h) const {
        EXPECT_EQ(Destroy(h), ROPEWALK_OK) << ropewalk_last_error();
    }
};
template <class Handle, auto Destroy>
using owned = std::unique_ptr<Handle, destroyer<Destroy>>;

using c_executor = owned<ropewalk_executor, ropewalk_executor_destroy>;
using c_workspace = owned<ropewalk_workspace, ropewalk_workspace_destroy>;
using c_spec = owned<ropewalk_rope_spec, ropewalk_rope_spec_destroy>;
using c_schedule = owned<ropewalk_rope_schedule, ropewalk_rope_schedule_destroy>;
using c_table = owned<ropewalk_rope_table, ropewalk_rope_table_destroy>;
using c_bias = owned<ropewalk_attention_bias, ropewalk_attention_bias_destroy>;
using c_index = owned<ropewalk_relative_index, ropewalk_relative_index_destroy>;
using c_terms = owned<ropewalk_relative_terms, ropewalk_relative_terms_destroy>;
using c_plan = owned<ropewalk_attention_plan, ropewalk_attention_plan_destroy>;
using c_cache = owned<ropewalk_kv_cache, ropewalk_kv_cache_destroy>;
using c_config = owned<ropewalk_position_config, ropewalk_position_config_destroy>;

inline void expect_ok(ropewalk_status status) { EXPECT_EQ(status, ROPEWALK_OK) << ropewalk_last_error(); }

// A call that fails with `code` and a text that has `words`.
inline void expect_refused(ropewalk_status status, ropewalk_status code, const std::string& words) {
    EXPECT_EQ(ropewalk_status_name(status), std::string(ropewalk_status_name(code))) << ropewalk_last_error();
    EXPECT_NE(std::string(ropewalk_last_error()).find(words), std::string::npos) << "\"" << ropewalk_last_error() << "\" lacks \"" << words << "\"";
}

// The handle that create(&handle) makes.
template <class Owned, class Create>
Owned make(Create create) {
    typename Owned::pointer made = nullptr;
    expect_ok(create(&made));
    EXPECT_NE(made, nullptr);
    return Owned(made);
}

inline c_spec standard_spec(int32_t rotary_dim) {
    return make<c_spec>([=](auto** out) { return ropewalk_rope_spec_standard(rotary_dim, 10000.0, ROPEWALK_PHASES_EXACT, out); });
}
inline c_table standard_table(int32_t rotary_dim) {
    const c_spec spec = standard_spec(rotary_dim);
    return make<c_table>([&](auto** out) { return ropewalk_rope_table_growing(spec.get(), 0, ROPEWALK_DEFAULT_CACHED_POSITIONS, out); });
}
inline c_plan empty_plan() {
    return make<c_plan>([](auto** out) { return ropewalk_attention_plan_create(out); });
}

// The C view of a C++ one.
template <class Void>
ropewalk_tensor tensor_of(const basic_head_view<Void>& view) {
    ropewalk_tensor t = ropewalk_tensor_init();
    t.type = static_cast<int32_t>(view.type);
    t.data = const_cast<void*>(view.data);
    t.tokens = view.tokens;
    t.heads = view.heads;
    t.dim = view.dim;
    t.token_stride = view.token_stride;
    t.head_stride = view.head_stride;
    t.dim_stride = view.dim_stride;
    return t;
}

}  // namespace ropewalk::test
