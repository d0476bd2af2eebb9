// Running a plan, and merging partial results.
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/attention_plan.hpp"
#include "runtime/pages.hpp"
#include "runtime/refuse.hpp"
#include "runtime/relative_attention.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {
namespace {

using runtime::check_shape;
using runtime::check_type;
using runtime::check_view;
using runtime::refuse;
using runtime::row_address;
using runtime::view_use;

constexpr float infinity = std::numeric_limits<float>::infinity();

struct run_context {
    const attention_plan::state& plan;
    simd::attend_tensors tensors;
    std::byte* workspace;

    std::atomic<int64_t>& cursor() const { return *reinterpret_cast<std::atomic<int64_t>*>(workspace); }
    std::atomic<int32_t>& counter(int32_t index) const { return reinterpret_cast<std::atomic<int32_t>*>(workspace + plan.counters_offset)[index]; }
};

// One item. Of a block in parts, whoever completes the last one folds all of them: nobody waits.
void run_item(const run_context& context, const attention_plan::state::item& item, std::byte* scratch) {
    const attention_plan::state& plan = context.plan;
    const attention_plan::state::block* blocks = &plan.blocks[static_cast<std::size_t>(item.block)];
    const auto place = [&](const attention_plan::state::block& block, int64_t chunk) {
        simd::attend_block rows = plan.rows_of(block);
        if (block.parts > 0) {
            rows.partials = reinterpret_cast<float*>(context.workspace + plan.partials_offset) + block.partial +
                            block.partial_index(chunk) * simd::partial_floats(int64_t{rows.tokens} * plan.shape.group, plan.shape.v_pad);
        }
        return rows;
    };
    simd::attend_block rows[attention_plan::state::most_rows];
    for (int32_t b = 0; b < item.count; ++b) rows[b] = place(blocks[b], item.chunk_first);
    const simd::chunk_results results = blocks->parts == 0                        ? simd::chunk_results::finished
                                        : item.chunk_first == blocks->chunk_first ? simd::chunk_results::folded
                                                                                  : simd::chunk_results::each;
    simd::attend(*plan.kernels, plan.shape, context.tensors, rows, item.count, item.chunk_first, item.chunk_last, results, scratch);
    for (int32_t b = 0; b < item.count; ++b) {
        const attention_plan::state::block& block = blocks[b];
        if (block.parts == 0 || context.counter(block.counter).fetch_add(1, std::memory_order_acq_rel) + 1 < block.parts) continue;
        simd::finish_block(*plan.kernels, plan.shape, context.tensors, place(block, block.chunk_first), block.partial_index(block.chunk_last),
                           scratch);
    }
}

void run_worker(void* opaque, int32_t worker) {
    const auto& context = *static_cast<const run_context*>(opaque);
    const attention_plan::state& plan = context.plan;
    std::byte* scratch = context.workspace + plan.scratch_offset + worker * plan.scratch_bytes;
    const auto count = static_cast<int64_t>(plan.items.size());
    for (;;) {
        const int64_t i = context.cursor().fetch_add(1, std::memory_order_relaxed);
        if (i >= count) return;
        run_item(context, plan.items[static_cast<std::size_t>(i)], scratch);
    }
}

status check_run(const attention_plan::state* plan, bool paged, const const_head_view& q, const const_head_view& out, std::span<const float> lse,
                 std::span<const std::byte> workspace) {
    if (plan == nullptr) return refuse(status_code::invalid_argument, "plan is empty; build() must have succeeded before run()");
    const simd::attend_shape& shape = plan->shape;
    if (paged != (shape.page_tokens != 0)) {
        return refuse(status_code::invalid_argument, "plan was built for %s; run() was given %s", paged ? "plain K and V" : "pages",
                      paged ? "pages" : "plain K and V");
    }
    const auto same_type = [](const char* argument, dtype type, int expected) {
        return static_cast<int>(type) == expected ? status()
                                                  : refuse(status_code::invalid_argument, "%s.type is %d; the plan was built for %s", argument,
                                                           static_cast<int>(type), name(static_cast<dtype>(expected)).data());
    };
    if (auto s = same_type("q", q.type, shape.q_type); !s) return s;
    if (auto s = same_type("out", out.type, shape.out_type); !s) return s;
    const char* reason = "the plan's query tokens, heads and dims";
    if (auto s = check_shape("q", q, {plan->q_tokens, shape.heads, shape.k_dim}, reason); !s) return s;
    if (auto s = check_shape("out", out, {plan->q_tokens, shape.heads, shape.v_dim}, reason); !s) return s;
    if (auto s = check_view("q", q, view_use::read); !s) return s;
    if (auto s = check_view("out", out, view_use::write); !s) return s;
    const int64_t rows = plan->q_tokens * shape.heads;
    if (!lse.empty() && static_cast<int64_t>(lse.size()) != rows) {
        return refuse(status_code::invalid_argument, "lse has %zu elements; must be empty or tokens * heads = %lld", lse.size(),
                      static_cast<long long>(rows));
    }
    if (static_cast<int64_t>(workspace.size()) < plan->workspace_bytes) {
        return refuse(status_code::workspace_too_small, "workspace has %zu bytes; the plan needs %lld", workspace.size(),
                      static_cast<long long>(plan->workspace_bytes));
    }
    if (plan->workspace_bytes > 0 && reinterpret_cast<std::uintptr_t>(workspace.data()) % 64 != 0) {
        return refuse(status_code::invalid_argument, "workspace is at %p; must be 64-byte aligned", static_cast<const void*>(workspace.data()));
    }
    return {};
}

void execute(run_context& context, executor& on) noexcept {
    const attention_plan::state& plan = context.plan;
    if (plan.items.empty()) return;
    new (context.workspace) std::atomic<int64_t>(0);
    for (int32_t c = 0; c < plan.counters; ++c) new (&context.counter(c)) std::atomic<int32_t>(0);
    const int32_t workers = std::min(plan.workers, on.concurrency());
    if (workers <= 1) return run_worker(&context, 0);
    on.run(workers, run_worker, &context);
}

// The bias of a layer, if it has one of its own, has the form of the plan's; its relative tensors are those of the plan's terms.
status check_layer(const attention_plan::state& plan, const attention_layer& layer) {
    if (auto s = runtime::check_relative_tensors(plan, layer.relative); !s) return s;
    if (layer.bias == nullptr) return {};
    const attention_bias::state* given = layer.bias->internals();
    const attention_bias::state* built = plan.bias.internals();
    if (built == nullptr || given == nullptr) {
        return refuse(status_code::invalid_argument, "layer.bias is %s; the plan was built %s one", given == nullptr ? "empty" : "given",
                      built == nullptr ? "without" : "with");
    }
    const simd::attend_bias &a = given->values, &b = built->values;
    if (given->kind != built->kind || given->heads != built->heads || a.height != b.height || a.width != b.width || a.class_token != b.class_token) {
        return refuse(status_code::invalid_argument, "layer.bias differs in its form, heads or grid from the bias that the plan was built with");
    }
    if (given->kind == simd::bias_kind::rows && (given->tokens < plan.q_tokens || a.keys < plan.most_keys)) {
        return refuse(status_code::out_of_range, "layer.bias has rows of %lld tokens and %lld keys; the plan has %lld and %lld",
                      static_cast<long long>(given->tokens), static_cast<long long>(a.keys), static_cast<long long>(plan.q_tokens),
                      static_cast<long long>(plan.most_keys));
    }
    return {};
}

simd::attend_tensors make_tensors(const attention_plan::state& plan, const const_head_view& q, const head_view& out, std::span<float> lse,
                                  const attention_layer& layer) {
    simd::attend_tensors tensors{};
    tensors.q = static_cast<const std::byte*>(q.data);
    tensors.q_token_stride = q.token_stride;
    tensors.q_head_stride = q.head_stride;
    tensors.out = static_cast<std::byte*>(out.data);
    tensors.out_token_stride = out.token_stride;
    tensors.out_head_stride = out.head_stride;
    tensors.lse = lse.empty() ? nullptr : lse.data();
    tensors.slopes = plan.slopes.data();
    tensors.sinks = plan.sinks.data();
    const attention_bias& bias = layer.bias != nullptr ? *layer.bias : plan.bias;
    if (!bias.empty()) tensors.bias = bias.internals()->values;
    tensors.relative = runtime::relative_inputs_of(plan, layer.relative);
    return tensors;
}

}  // namespace

status run(const attention_plan& plan, const_head_view q, const kv_pages& pages, head_view out, std::span<float> lse, std::span<std::byte> workspace,
           executor& on) noexcept {
    return run(plan, q, pages, out, lse, workspace, attention_layer{}, on);
}

status run(const attention_plan& plan, const_head_view q, const_head_view k, const_head_view v, head_view out, std::span<float> lse,
           std::span<std::byte> workspace, executor& on) noexcept {
    return run(plan, q, k, v, out, lse, workspace, attention_layer{}, on);
}

status run(const attention_plan& plan, const_head_view q, const kv_pages& pages, head_view out, std::span<float> lse, std::span<std::byte> workspace,
           const attention_layer& layer, executor& on) noexcept {
    const attention_plan::state* state = plan.internals();
    if (auto s = check_run(state, true, q, out, lse, workspace); !s) return s;
    if (auto s = check_layer(*state, layer); !s) return s;
    if (auto s = runtime::check_pages(pages); !s) return s;
    const kv_layout &given = pages.layout, &built = state->layout;
    if (given.k_type != built.k_type || given.v_type != built.v_type || given.kv_heads != built.kv_heads || given.k_dim != built.k_dim ||
        given.v_dim != built.v_dim || given.page_tokens != built.page_tokens || given.hadamard != built.hadamard || given.v_in_k != built.v_in_k ||
        given.page_stride_bytes() != built.page_stride_bytes() || given.head_stride_bytes() != built.head_stride_bytes()) {
        return refuse(status_code::invalid_argument, "pages.layout differs from the layout that the plan was built for");
    }
    if (pages.count < state->page_count) {
        return refuse(status_code::out_of_range, "pages.count is %d; the plan was built for %d pages", pages.count, state->page_count);
    }
    run_context context{*state, make_tensors(*state, q, out, lse, layer), workspace.data()};
    context.tensors.pages = pages.base;
    execute(context, on);
    return {};
}

status run(const attention_plan& plan, const_head_view q, const_head_view k, const_head_view v, head_view out, std::span<float> lse,
           std::span<std::byte> workspace, const attention_layer& layer, executor& on) noexcept {
    const attention_plan::state* state = plan.internals();
    if (auto s = check_run(state, false, q, out, lse, workspace); !s) return s;
    if (auto s = check_layer(*state, layer); !s) return s;
    const simd::attend_shape& shape = state->shape;
    const auto check_plain = [&](const char* argument, const const_head_view& view, int type, int32_t dim) {
        if (static_cast<int>(view.type) != type) {
            return refuse(status_code::invalid_argument, "%s.type is %d; the plan was built for %s", argument, static_cast<int>(view.type),
                          name(static_cast<dtype>(type)).data());
        }
        if (auto s = check_shape(argument, view, {runtime::any_extent, shape.kv_heads, dim}, "the plan's KV heads and dims"); !s) return s;
        if (view.tokens < state->kv_rows) {
            return refuse(status_code::out_of_range, "%s.tokens is %lld; the plan's kv_indptr ends at %lld", argument,
                          static_cast<long long>(view.tokens), static_cast<long long>(state->kv_rows));
        }
        return check_view(argument, view, view_use::read);
    };
    if (auto s = check_plain("k", k, shape.k_type, shape.k_dim); !s) return s;
    if (auto s = check_plain("v", v, shape.v_type, shape.v_dim); !s) return s;
    run_context context{*state, make_tensors(*state, q, out, lse, layer), workspace.data()};
    context.tensors.k = static_cast<const std::byte*>(k.data);
    context.tensors.v = static_cast<const std::byte*>(v.data);
    context.tensors.k_token_stride = k.token_stride;
    context.tensors.k_head_stride = k.head_stride;
    context.tensors.v_token_stride = v.token_stride;
    context.tensors.v_head_stride = v.head_stride;
    execute(context, on);
    return {};
}

status merge(const_head_view a, std::span<const float> lse_a, const_head_view b, std::span<const float> lse_b, head_view out,
             std::span<float> lse) noexcept {
    status why;
    const simd::kernel_table* kernels = simd::active_kernels(&why);
    if (kernels == nullptr) return why;
    if (auto s = check_view("a", a, view_use::read); !s) return s;
    const runtime::view_shape shape{a.tokens, a.heads, a.dim};
    if (auto s = check_shape("b", b, shape, "the shape of a"); !s) return s;
    if (auto s = check_shape("out", out, shape, "the shape of a"); !s) return s;
    if (auto s = check_view("b", b, view_use::read); !s) return s;
    if (auto s = check_view("out", out, view_use::write); !s) return s;
    constexpr int32_t max_dim = simd::max_head_dim;
    if (a.dim > max_dim) return refuse(status_code::invalid_argument, "a.dim is %d; must be at most %d", a.dim, max_dim);
    const auto rows = static_cast<std::size_t>(a.tokens * a.heads);
    for (const std::size_t size : {lse_a.size(), lse_b.size(), lse.size()}) {
        if (size != rows) {
            return refuse(status_code::invalid_argument, "lse_a, lse_b or lse has %zu elements; must have tokens * heads = %zu", size, rows);
        }
    }
    float x[max_dim], y[max_dim];
    for (int64_t token = 0; token < a.tokens; ++token) {
        for (int32_t head = 0; head < a.heads; ++head) {
            const auto row = static_cast<std::size_t>(token * a.heads + head);
            const float la = lse_a[row], lb = lse_b[row];
            kernels->kv.load_row[static_cast<int>(a.type)](row_address(a, token, head), x, a.dim);
            kernels->kv.load_row[static_cast<int>(b.type)](row_address(b, token, head), y, a.dim);
            float* result = x;
            float merged = la;
            if (la == -infinity) {
                result = y;
                merged = lb;
            } else if (lb != -infinity) {
                const double top = std::max(la, lb);
                const double wa = std::exp(la - top), wb = std::exp(lb - top);
                kernels->attention.fold(x, y, static_cast<float>(wa / (wa + wb)), static_cast<float>(wb / (wa + wb)), a.dim);
                merged = static_cast<float>(top + std::log(wa + wb));
            }
            kernels->kv.store_row[static_cast<int>(out.type)](result, row_address(out, token, head), a.dim);
            lse[row] = merged;
        }
    }
    return {};
}

}  // namespace ropewalk
