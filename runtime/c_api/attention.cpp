// Plans and runs.
#include <optional>

#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {
namespace {

attention_problem problem_of(call& c, const ropewalk_attention_problem* p) noexcept {
    c.sized("problem", p);
    if (!c.ok()) return {};
    if (p->bias != nullptr) c.handle("problem.bias", p->bias);
    if (p->relative != nullptr) c.handle("problem.relative", p->relative);
    return {.heads = p->heads,
            .kv_heads = p->kv_heads,
            .k_dim = p->k_dim,
            .v_dim = p->v_dim,
            .q_type = static_cast<dtype>(p->q_type),
            .out_type = static_cast<dtype>(p->out_type),
            .scale = p->scale,
            .softcap = p->softcap,
            .span = {p->span_left, p->span_right, p->span_chunk},
            .precision = static_cast<attention_precision>(p->precision),
            .alibi_slopes = p->alibi_slopes,
            .bias = p->bias != nullptr ? &p->bias->value : nullptr,
            .place = static_cast<bias_place>(p->place),
            .sinks = p->sinks,
            .relative = p->relative != nullptr ? &p->relative->value : nullptr};
}

// Trees, masks, ranges and segments: of sequences that somebody else describes too.
void read_masks(call& c, const ropewalk_attention_batch& b, std::size_t sequences, attention_batch& out) noexcept {
    out.tree_masks = c.array("batch.tree_masks", b.tree_masks, b.tree_masks_count);
    out.tree_indptr = call::optional_array(b.tree_indptr, sequences + 1);
    out.key_masks = c.array("batch.key_masks", b.key_masks, b.key_masks_count);
    out.key_mask_indptr = call::optional_array(b.key_mask_indptr, sequences + 1);
    out.key_first = call::optional_array(b.key_first, b.q_tokens);
    out.key_last = call::optional_array(b.key_last, b.q_tokens);
    out.q_segments = call::optional_array(b.q_segments, b.q_tokens);
    out.k_segments = c.array("batch.k_segments", b.k_segments, b.k_segments_count);
}

attention_batch batch_of(call& c, const ropewalk_attention_batch* b) noexcept {
    c.sized("batch", b);
    if (c.ok() && b->sequences > INT32_MAX) {
        c.check(refuse(status_code::invalid_argument, "batch.sequences is %zu; must be below 2^31", b->sequences));
    }
    if (!c.ok()) return {};
    attention_batch out;
    out.q_indptr = c.array("batch.q_indptr", b->q_indptr, b->sequences + 1);
    out.kv_lens = c.array("batch.kv_lens", b->kv_lens, b->sequences);
    out.q_starts = call::optional_array(b->q_starts, b->sequences);
    out.page_indptr = call::optional_array(b->page_indptr, b->sequences + 1);
    out.page_ids = c.array("batch.page_ids", b->page_ids, b->page_ids_count);
    out.kv_indptr = call::optional_array(b->kv_indptr, b->sequences + 1);
    read_masks(c, *b, b->sequences, out);
    return out;
}

// A batch that describes nothing but these.
void read_masks_only(call& c, const ropewalk_attention_batch* b, std::size_t sequences, attention_batch& out) noexcept {
    c.sized("masks", b);
    if (!c.ok()) return;
    if (b->sequences != 0 || b->q_indptr || b->kv_lens || b->q_starts || b->page_indptr || b->page_ids || b->kv_indptr) {
        c.check(status(status_code::invalid_argument, "masks describes sequences, lengths or keys; the cache does: must be null or 0"));
    }
    read_masks(c, *b, sequences, out);
}

int32_t concurrency_of(int32_t concurrency) noexcept { return concurrency != 0 ? concurrency : default_executor().concurrency(); }

// Null: the plan's. `storage` outlives the layer.
attention_layer layer_of(call& c, const ropewalk_attention_layer* layer, std::optional<relative_tensors>& storage) noexcept {
    if (layer == nullptr) return {};
    c.sized("layer", layer);
    if (!c.ok()) return {};
    if (layer->bias != nullptr) c.handle("layer.bias", layer->bias);
    attention_layer out;
    out.bias = layer->bias != nullptr ? &layer->bias->value : nullptr;
    if (const ropewalk_relative_tensors* r = layer->relative; r != nullptr) {
        c.sized("layer.relative", r);
        if (!c.ok()) return {};
        storage = relative_tensors{c.view("layer.relative.rows", r->rows),
                                   c.view("layer.relative.columns", r->columns),
                                   c.view("layer.relative.segments", r->segments),
                                   c.view("layer.relative.content_bias", r->content_bias),
                                   c.view("layer.relative.position_bias", r->position_bias),
                                   c.view("layer.relative.segment_bias", r->segment_bias)};
        out.relative = &*storage;
    }
    return out;
}

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

ropewalk_status ropewalk_attention_plan_create(ropewalk_attention_plan** plan) {
    call c;
    c.pointer("plan", plan);
    return c.run([&] {
        *plan = new ropewalk_attention_plan{};
        return status();
    });
}

ropewalk_status ropewalk_attention_plan_destroy(ropewalk_attention_plan* plan) { return destroy("plan", plan); }

ropewalk_status ropewalk_attention_plan_build_paged(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                    const ropewalk_attention_batch* batch, const ropewalk_kv_layout* layout, int32_t page_count,
                                                    int32_t concurrency) {
    call c;
    c.handle("plan", plan);
    const attention_problem p = problem_of(c, problem);
    const attention_batch b = batch_of(c, batch);
    const kv_layout l = layout_of(c, "layout", layout);
    return c.run([&] { return plan->value.build(p, b, l, page_count, concurrency_of(concurrency)); });
}

ropewalk_status ropewalk_attention_plan_build_plain(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                    const ropewalk_attention_batch* batch, ropewalk_dtype k_type, ropewalk_dtype v_type,
                                                    int32_t concurrency) {
    call c;
    c.handle("plan", plan);
    const attention_problem p = problem_of(c, problem);
    const attention_batch b = batch_of(c, batch);
    return c.run([&] { return plan->value.build(p, b, static_cast<dtype>(k_type), static_cast<dtype>(v_type), concurrency_of(concurrency)); });
}

ropewalk_status ropewalk_attention_plan_build_sequences(ropewalk_attention_plan* plan, const ropewalk_attention_problem* problem,
                                                        const ropewalk_kv_cache* cache, const ropewalk_sequence* sequences, const int64_t* q_lens,
                                                        size_t count, const ropewalk_attention_batch* masks, int32_t concurrency) {
    call c;
    c.handle("plan", plan);
    const attention_problem p = problem_of(c, problem);
    c.handle("cache", cache);
    const auto named = c.array("sequences", sequences, count), lengths = c.array("q_lens", q_lens, count);
    attention_batch extra;
    if (masks != nullptr) read_masks_only(c, masks, count, extra);
    return c.run([&]() -> status {
        plan->sequences.clear();
        for (const ropewalk_sequence sequence : named) plan->sequences.push_back(static_cast<sequence_id>(sequence));
        const result<attention_batch> batch = cache->value.batch(plan->sequences, lengths, plan->storage);
        if (!batch.ok()) return batch.state();
        extra.q_indptr = batch->q_indptr;
        extra.kv_lens = batch->kv_lens;
        extra.q_starts = batch->q_starts;
        extra.page_indptr = batch->page_indptr;
        extra.page_ids = batch->page_ids;
        return plan->value.build(p, extra, cache->value.layout(), cache->value.pages(0).count, concurrency_of(concurrency));
    });
}

ropewalk_status ropewalk_attention_plan_get_info(const ropewalk_attention_plan* plan, ropewalk_attention_plan_info* info) {
    call c;
    c.handle("plan", plan);
    c.sized("info", info);
    return c.run([&] {
        info->workspace_bytes = plan->value.workspace_bytes();
        info->q_tokens = plan->value.q_tokens();
        info->kv_bytes = plan->value.kv_bytes();
        info->flops = plan->value.flops();
        return status();
    });
}

ropewalk_status ropewalk_run_paged(const ropewalk_attention_plan* plan, const ropewalk_tensor* q, const ropewalk_kv_pages* pages,
                                   const ropewalk_tensor* out, float* lse, size_t lse_count, void* workspace, size_t workspace_bytes,
                                   const ropewalk_attention_layer* layer, ropewalk_executor* on) {
    call c;
    c.handle("plan", plan);
    const head_view q_view = c.view("q", q), out_view = c.view("out", out);
    const kv_pages keys = pages_of(c, pages);
    const auto sums = c.array("lse", lse, lse_count);
    const auto memory = c.array("workspace", static_cast<std::byte*>(workspace), workspace_bytes);
    std::optional<relative_tensors> tensors;
    const attention_layer special = layer_of(c, layer, tensors);
    executor& who = executor_of(c, on);
    return c.run([&] { return run(plan->value, q_view, keys, out_view, sums, memory, special, who); });
}

ropewalk_status ropewalk_run_plain(const ropewalk_attention_plan* plan, const ropewalk_tensor* q, const ropewalk_tensor* k, const ropewalk_tensor* v,
                                   const ropewalk_tensor* out, float* lse, size_t lse_count, void* workspace, size_t workspace_bytes,
                                   const ropewalk_attention_layer* layer, ropewalk_executor* on) {
    call c;
    c.handle("plan", plan);
    const head_view q_view = c.view("q", q), k_view = c.view("k", k), v_view = c.view("v", v), out_view = c.view("out", out);
    const auto sums = c.array("lse", lse, lse_count);
    const auto memory = c.array("workspace", static_cast<std::byte*>(workspace), workspace_bytes);
    std::optional<relative_tensors> tensors;
    const attention_layer special = layer_of(c, layer, tensors);
    executor& who = executor_of(c, on);
    return c.run([&] { return run(plan->value, q_view, k_view, v_view, out_view, sums, memory, special, who); });
}

ropewalk_status ropewalk_merge(const ropewalk_tensor* a, const float* lse_a, const ropewalk_tensor* b, const float* lse_b, const ropewalk_tensor* out,
                               float* lse, size_t lse_count) {
    call c;
    const head_view a_view = c.view("a", a), b_view = c.view("b", b), out_view = c.view("out", out);
    const auto sums_a = c.array("lse_a", lse_a, lse_count), sums_b = c.array("lse_b", lse_b, lse_count);
    const auto sums = c.array("lse", lse, lse_count);
    return c.run([&] { return merge(a_view, sums_a, b_view, sums_b, out_view, sums); });
}
