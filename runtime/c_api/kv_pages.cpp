// Level 1 of the KV cache: pages that anybody may own.
#include <iterator>

#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {

kv_layout layout_of(call& c, const char* name, const ropewalk_kv_layout* layout) noexcept {
    c.sized(name, layout);
    if (!c.ok()) return {};
    return {.k_type = static_cast<dtype>(layout->k_type),
            .v_type = static_cast<dtype>(layout->v_type),
            .kv_heads = layout->kv_heads,
            .k_dim = layout->k_dim,
            .v_dim = layout->v_dim,
            .page_tokens = layout->page_tokens,
            .hadamard = layout->hadamard != 0,
            .v_in_k = layout->v_in_k != 0,
            .head_stride = layout->head_stride,
            .page_stride = layout->page_stride};
}

void write_layout(const kv_layout& layout, ropewalk_kv_layout& out) noexcept {
    out.k_type = static_cast<ropewalk_dtype>(layout.k_type);
    out.v_type = static_cast<ropewalk_dtype>(layout.v_type);
    out.kv_heads = layout.kv_heads;
    out.k_dim = layout.k_dim;
    out.v_dim = layout.v_dim;
    out.page_tokens = layout.page_tokens;
    out.hadamard = layout.hadamard;
    out.v_in_k = layout.v_in_k;
    out.head_stride = layout.head_stride;
    out.page_stride = layout.page_stride;
}

kv_pages pages_of(call& c, const ropewalk_kv_pages* pages) noexcept {
    c.sized("pages", pages);
    if (!c.ok()) return {};
    return {static_cast<std::byte*>(pages->base), layout_of(c, "pages.layout", pages->layout), pages->count};
}

namespace {

// Null: none.
kv_append_rope rope_of(call& c, const ropewalk_kv_append_rope* rope) noexcept {
    if (rope == nullptr) return {};
    c.sized("rope", rope);
    if (!c.ok() || rope->table == nullptr) return {};
    c.handle("rope.table", rope->table);
    return {&rope->table->value, c.array("rope.positions", rope->positions, rope->positions_count), options_of(c, rope->options)};
}

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

ropewalk_status ropewalk_kv_layout_sizes(const ropewalk_kv_layout* layout, ropewalk_kv_sizes* sizes) {
    call c;
    const kv_layout l = layout_of(c, "layout", layout);
    if (sizes != nullptr) c.sized("sizes", sizes);
    return c.run([&] {
        const status valid = l.validate();
        if (!valid.ok() || sizes == nullptr) return valid;
        sizes->k_part_bytes = l.k_part_bytes();
        sizes->v_part_bytes = l.v_part_bytes();
        sizes->k_scale_bytes = l.k_scale_bytes();
        sizes->v_scale_bytes = l.v_scale_bytes();
        sizes->record_bytes = l.record_bytes();
        sizes->head_stride_bytes = l.head_stride_bytes();
        sizes->page_stride_bytes = l.page_stride_bytes();
        sizes->token_bytes = l.token_bytes();
        return valid;
    });
}

const char* ropewalk_kv_preset_name(int32_t i) {
    return i >= 0 && i < static_cast<int32_t>(std::size(kv_presets)) ? kv_presets[i].name.data() : nullptr;
}

ropewalk_status ropewalk_kv_layout_set_preset(ropewalk_kv_layout* layout, const char* text) {
    call c;
    c.sized("layout", layout);
    c.pointer("name", text);
    return c.run([&] {
        const kv_preset* const preset = find_kv_preset(text);
        if (preset == nullptr) return refuse(status_code::not_found, "name is \"%s\"; must be one of ropewalk_kv_preset_name()", text);
        layout->k_type = static_cast<ropewalk_dtype>(preset->k_type);
        layout->v_type = static_cast<ropewalk_dtype>(preset->v_type);
        layout->hadamard = preset->hadamard;
        return status();
    });
}

ropewalk_status ropewalk_kv_append(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const ropewalk_tensor* k,
                                   const ropewalk_tensor* v, const ropewalk_kv_append_rope* rope, ropewalk_executor* on) {
    call c;
    const kv_pages into = pages_of(c, pages);
    const auto where = c.array("slots", slots, slots_count);
    const head_view k_view = c.view("k", k), v_view = c.view("v", v);
    const kv_append_rope turned = rope_of(c, rope);
    executor& who = executor_of(c, on);
    return c.run([&] { return kv_append(into, where, k_view, v_view, turned, who); });
}

ropewalk_status ropewalk_kv_gather(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const ropewalk_tensor* k,
                                   const ropewalk_tensor* v, ropewalk_executor* on) {
    call c;
    const kv_pages from = pages_of(c, pages);
    const auto where = c.array("slots", slots, slots_count);
    const head_view k_view = c.view("k", k), v_view = c.view("v", v);
    executor& who = executor_of(c, on);
    return c.run([&] { return kv_gather(from, where, k_view, v_view, who); });
}

ropewalk_status ropewalk_kv_rerotate(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const int64_t* positions,
                                     size_t positions_count, const ropewalk_rope_table* from, const ropewalk_rope_table* to,
                                     const ropewalk_rope_options* options, ropewalk_executor* on) {
    call c;
    const kv_pages in = pages_of(c, pages);
    const auto where = c.array("slots", slots, slots_count), at = c.array("positions", positions, positions_count);
    c.handle("from", from);
    c.handle("to", to);
    const rope_options how = options_of(c, options);
    executor& who = executor_of(c, on);
    return c.run([&] { return kv_rerotate(in, where, at, from->value, to->value, how, who); });
}

ropewalk_status ropewalk_kv_shift(const ropewalk_kv_pages* pages, const int64_t* slots, size_t slots_count, const int64_t* deltas,
                                  size_t deltas_count, const ropewalk_rope_table* table, const ropewalk_rope_options* options,
                                  ropewalk_executor* on) {
    call c;
    const kv_pages in = pages_of(c, pages);
    const auto where = c.array("slots", slots, slots_count), by = c.array("deltas", deltas, deltas_count);
    c.handle("table", table);
    const rope_options how = options_of(c, options);
    executor& who = executor_of(c, on);
    return c.run([&] { return kv_shift(in, where, by, table->value, how, who); });
}
