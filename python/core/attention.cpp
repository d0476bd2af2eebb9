#include <limits>

#include "bind.hpp"

namespace ropewalk::python {
namespace {

// An attention_problem with what its pointers point to.
struct problem_object {
    attention_problem value;
    std::vector<float> alibi, sinks;
    bias_object bias;
    std::optional<relative_terms> relative;

    [[nodiscard]] attention_problem view() const {
        attention_problem p = value;
        p.alibi_slopes = alibi.empty() ? nullptr : alibi.data();
        p.sinks = sinks.empty() ? nullptr : sinks.data();
        p.bias = bias.bias.empty() ? nullptr : &bias.bias;
        p.relative = relative ? &*relative : nullptr;
        return p;
    }
};

// [heads] float32, or None.
std::vector<float> of_heads(array argument, const char* name, int32_t heads) {
    const numbers<float> values(argument, name);
    if (argument.given() && values.span().size() != static_cast<std::size_t>(std::max(heads, 0))) {
        wrong_value(name, std::to_string(values.span().size()) + " entries", "one for each of " + std::to_string(heads) + " heads");
    }
    return values.copy();
}

problem_object make_problem(int32_t heads, int32_t kv_heads, int32_t k_dim, std::optional<int32_t> v_dim, std::string_view q_type,
                            std::optional<std::string_view> out_type, float scale, float softcap, const std::optional<attention_span>& span,
                            std::string_view precision, array alibi, const bias_object* bias, std::string_view place, array sinks,
                            const std::optional<relative_terms>& relative) {
    static constexpr const char* precisions[] = {"standard", "fast"};
    problem_object made;
    attention_problem& p = made.value;
    p.heads = heads;
    p.kv_heads = kv_heads;
    p.k_dim = k_dim;
    p.v_dim = v_dim.value_or(k_dim);
    p.q_type = dtype_of(q_type, "q_type");
    p.out_type = out_type ? dtype_of(*out_type, "out_type") : p.q_type;
    p.scale = scale;
    p.softcap = softcap;
    p.span = span.value_or(attention_span::causal());
    p.precision = parse_enum<attention_precision>(precision, "precision", precisions);
    p.place = parse_enum<bias_place>(place, "bias_place", place_names);
    made.alibi = of_heads(alibi, "alibi_slopes", heads);
    made.sinks = of_heads(sinks, "sinks", heads);
    if (bias != nullptr) made.bias = *bias;
    made.relative = relative;
    return made;
}

void bind_problem(nb::module_& m) {
    static constexpr int64_t unlimited = attention_span::unlimited;
    nb::class_<attention_span>(m, "AttentionSpan", "Which keys a query at position p sees: p - left .. p + right, within its chunk.")
        .def(
            "__init__",
            [](attention_span* self, std::optional<int64_t> left, std::optional<int64_t> right, int64_t chunk) {
                new (self) attention_span{left.value_or(unlimited), right.value_or(unlimited), chunk};
            },
            "left"_a.none() = nb::none(), "right"_a.none() = 0, "chunk"_a = 0, "None: all; chunk 0: off.")
        .def_static("causal", &attention_span::causal)
        .def_static("full", &attention_span::full)
        .def_static("sliding_window", &attention_span::sliding_window, "window"_a, "Causal; `window` keys, the query's own included.")
        .def_static("symmetric", &attention_span::symmetric, "distance"_a)
        .def_static("chunked", &attention_span::chunked, "positions"_a)
        .def_ro("left", &attention_span::left)
        .def_ro("right", &attention_span::right)
        .def_ro("chunk", &attention_span::chunk)
        .def(
            "__eq__", [](const attention_span& a, const attention_span& b) { return a == b; }, nb::is_operator());
    nb::class_<problem_object>(m, "AttentionProblem", "What all layers that share a plan have in common.")
        .def(
            "__init__",
            [](problem_object* self, int32_t heads, int32_t kv_heads, int32_t k_dim, std::optional<int32_t> v_dim, std::string_view q_type,
               std::optional<std::string_view> out_type, float scale, float softcap, const std::optional<attention_span>& span,
               std::string_view precision, array alibi, const bias_object* bias, std::string_view place, array sinks,
               const std::optional<relative_terms>& relative) {
                new (self) problem_object(make_problem(heads, kv_heads, k_dim, v_dim, q_type, out_type, scale, softcap, span, precision, alibi, bias,
                                                       place, sinks, relative));
            },
            nb::kw_only(), "heads"_a, "kv_heads"_a, "k_dim"_a, "v_dim"_a = nb::none(), "q_type"_a = "fp32", "out_type"_a = nb::none(),
            "scale"_a = 0.0f, "softcap"_a = 0.0f, "span"_a = nb::none(), "precision"_a = "standard", "alibi_slopes"_a.none() = nb::none(),
            "bias"_a.none() = nb::none(), "bias_place"_a = "after_softcap", "sinks"_a.none() = nb::none(), "relative"_a = nb::none(),
            "scale 0: 1 / sqrt(k_dim). span None: causal. out_type None: q_type. alibi_slopes and sinks [heads] float32.\n"
            "Types: fp32, bf16, fp16. precision: 'standard' or 'fast'. bias_place: 'after_softcap', 'before_softcap', 'before_scale'.");
}

void bind_batch(nb::module_& m) {
    const auto q_ints = [](std::vector<int64_t> batch_object::*field, const char* name) {
        return std::pair([field](const batch_object& b) { return b.*field; },
                         [field, name](batch_object& b, array value) { b.*field = numbers<int64_t>(value, name).copy(); });
    };
    const auto first = q_ints(&batch_object::key_first, "key_first"), last = q_ints(&batch_object::key_last, "key_last");
    nb::class_<batch_object>(m, "AttentionBatch", "A ragged batch: sequence i has query rows q_indptr[i] .. q_indptr[i + 1] and kv_lens[i] keys.")
        .def(
            "__init__",
            [](batch_object* self, array q_indptr, array kv_lens, array q_starts, array page_indptr, array page_ids, array kv_indptr,
               array tree_masks, array tree_indptr, array key_first, array key_last, array key_masks, array key_mask_indptr, array q_segments,
               array k_segments) {
                using ints = numbers<int64_t>;
                using words = numbers<uint64_t>;
                using bytes = numbers<uint8_t>;
                new (self) batch_object{
                    .q_indptr = ints(q_indptr, "q_indptr").copy(),
                    .kv_lens = ints(kv_lens, "kv_lens").copy(),
                    .q_starts = ints(q_starts, "q_starts").copy(),
                    .page_indptr = ints(page_indptr, "page_indptr").copy(),
                    .kv_indptr = ints(kv_indptr, "kv_indptr").copy(),
                    .tree_indptr = ints(tree_indptr, "tree_indptr").copy(),
                    .key_first = ints(key_first, "key_first").copy(),
                    .key_last = ints(key_last, "key_last").copy(),
                    .key_mask_indptr = ints(key_mask_indptr, "key_mask_indptr").copy(),
                    .page_ids = numbers<int32_t>(page_ids, "page_ids").copy(),
                    .tree_masks = words(tree_masks, "tree_masks").copy(),
                    .key_masks = words(key_masks, "key_masks").copy(),
                    .q_segments = bytes(q_segments, "q_segments").copy(),
                    .k_segments = bytes(k_segments, "k_segments").copy(),
                };
            },
            nb::kw_only(), "q_indptr"_a, "kv_lens"_a, "q_starts"_a.none() = nb::none(), "page_indptr"_a.none() = nb::none(),
            "page_ids"_a.none() = nb::none(), "kv_indptr"_a.none() = nb::none(), "tree_masks"_a.none() = nb::none(),
            "tree_indptr"_a.none() = nb::none(), "key_first"_a.none() = nb::none(), "key_last"_a.none() = nb::none(),
            "key_masks"_a.none() = nb::none(), "key_mask_indptr"_a.none() = nb::none(), "q_segments"_a.none() = nb::none(),
            "k_segments"_a.none() = nb::none(),
            "int64 arrays or lists; page_ids int32, masks uint64, segments uint8. Either page_indptr [sequences + 1] and page_ids, or kv_indptr\n"
            "[sequences + 1] for plain K and V. key_first, key_last [q tokens]: the keys that a row sees at most (left padding: key_first = "
            "padding).")
        .def_ro("q_indptr", &batch_object::q_indptr)
        .def_ro("kv_lens", &batch_object::kv_lens)
        .def_ro("page_indptr", &batch_object::page_indptr)
        .def_ro("page_ids", &batch_object::page_ids)
        .def_prop_rw("key_first", first.first, first.second, "key_first"_a.none())
        .def_prop_rw("key_last", last.first, last.second, "key_last"_a.none());
}

// The tensors of a layer's relative terms.
struct tensors_object {
    nb::object rows, columns, segments, content_bias, position_bias, segment_bias;
};

// Views into a tensors_object for the time of a call.
struct relative_views {
    tensor rows, columns, segments, content_bias, position_bias, segment_bias;
    relative_tensors value;

    explicit relative_views(const tensors_object& t)
        : rows({t.rows}, "rows", access::read),
          columns({t.columns}, "columns", access::read),
          segments({t.segments}, "segments", access::read),
          content_bias({t.content_bias}, "content_bias", access::read),
          position_bias({t.position_bias}, "position_bias", access::read),
          segment_bias({t.segment_bias}, "segment_bias", access::read),
          value{rows, columns, segments, content_bias, position_bias, segment_bias} {}
};

struct plan_object {
    attention_plan plan;
    problem_object problem;  // of the last build: shapes of results, and what its bias reads
};

// 64-byte aligned memory of the calling thread, which grows to what its runs need.
std::span<std::byte> workspace_of_thread(std::size_t bytes) {
    thread_local std::vector<std::byte> memory;
    if (memory.size() < bytes + page_alignment) memory.resize(bytes + page_alignment);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    return std::span(memory).subspan((page_alignment - address % page_alignment) % page_alignment, bytes);
}

struct run_arguments {
    array q, out, lse;
    const bias_object* bias;
    const tensors_object* relative;
    executor* on;
};

// Runs with whatever keys `run_with(out view, lse, workspace, layer, executor)` binds; returns out.
template <class Run>
nb::object run_plan(const plan_object& p, const run_arguments& a, Run run_with) {
    const tensor q(a.q, "q", access::read);
    nb::object out = a.out.given() ? nb::borrow(a.out.object) : new_like(a.q.object, {q.view().tokens, q.view().heads, p.problem.value.v_dim});
    const tensor out_view({out}, "out", access::write);
    const std::span<float> lse = written<float>(a.lse, "lse");
    std::optional<relative_views> relative;
    if (a.relative != nullptr) relative.emplace(*a.relative);
    const attention_layer layer{a.bias != nullptr ? &a.bias->bias : nullptr, relative ? &relative->value : nullptr};
    const std::span<std::byte> workspace = workspace_of_thread(p.plan.workspace_bytes());
    perform(a.on, [&](executor& e) { return run_with(q, out_view, lse, workspace, layer, e); });
    return out;
}

nb::object run_pages(const plan_object& p, array q, const kv_pages& pages, array out, array lse, const bias_object* bias,
                     const tensors_object* relative, executor* on) {
    return run_plan(p, {q, out, lse, bias, relative, on},
                    [&](const tensor& q_view, const tensor& out_view, auto lse_span, auto workspace, const attention_layer& layer, executor& e) {
                        return run(p.plan, q_view, pages, out_view, lse_span, workspace, layer, e);
                    });
}

nb::object run_plain(const plan_object& p, array q, array k, array v, array out, array lse, const bias_object* bias, const tensors_object* relative,
                     executor* on) {
    const tensor k_view(k, "k", access::read), v_view(v, "v", access::read);
    return run_plan(p, {q, out, lse, bias, relative, on},
                    [&](const tensor& q_view, const tensor& out_view, auto lse_span, auto workspace, const attention_layer& layer, executor& e) {
                        return run(p.plan, q_view, k_view, v_view, out_view, lse_span, workspace, layer, e);
                    });
}

void bind_plan(nb::module_& m) {
    nb::class_<tensors_object>(m, "RelativeTensors",
                               "The tensors of a layer's relative terms: rows and columns [table rows, heads or 1, k_dim], segments\n"
                               "[2, heads or 1, k_dim], the biases [1, heads or 1, k_dim].")
        .def(
            "__init__",
            [](tensors_object* self, array rows, array columns, array segments, array content_bias, array position_bias, array segment_bias) {
                const auto held = [](array a) { return nb::borrow(a.object); };
                new (self) tensors_object{held(rows), held(columns), held(segments), held(content_bias), held(position_bias), held(segment_bias)};
            },
            nb::kw_only(), "rows"_a.none() = nb::none(), "columns"_a.none() = nb::none(), "segments"_a.none() = nb::none(),
            "content_bias"_a.none() = nb::none(), "position_bias"_a.none() = nb::none(), "segment_bias"_a.none() = nb::none());
    nb::class_<plan_object>(m, "AttentionPlan",
                            "What to do in a step: built once, run in every layer of the same geometry. Building again reuses its memory; a plan\n"
                            "that is not being built may run on any number of threads at once.")
        .def(nb::init<>())
        .def(
            "build",
            [](plan_object& p, const problem_object& problem, const batch_object& batch, const kv_layout& layout, int32_t page_count,
               std::optional<int32_t> concurrency) {
                check(p.plan.build(problem.view(), batch.view(), layout, page_count, concurrency ? *concurrency : chosen(nullptr).concurrency()));
                p.problem = problem;
            },
            "problem"_a, "batch"_a, "layout"_a, "page_count"_a, "concurrency"_a = nb::none(),
            "For pages of `layout`; concurrency None: the default executor's.")
        .def(
            "build_plain",
            [](plan_object& p, const problem_object& problem, const batch_object& batch, std::optional<std::string_view> k_type,
               std::optional<std::string_view> v_type, std::optional<int32_t> concurrency) {
                const dtype q = problem.value.q_type;
                check(p.plan.build(problem.view(), batch.view(), k_type ? dtype_of(*k_type, "k_type") : q, v_type ? dtype_of(*v_type, "v_type") : q,
                                   concurrency ? *concurrency : chosen(nullptr).concurrency()));
                p.problem = problem;
            },
            "problem"_a, "batch"_a, "k_type"_a = nb::none(), "v_type"_a = nb::none(), "concurrency"_a = nb::none(),
            "For plain K and V of these types (None: q_type), without a cache.")
        .def("run", &run_pages, "q"_a, "pages"_a, "out"_a.none() = nb::none(), "lse"_a.none() = nb::none(), nb::kw_only(),
             "bias"_a.none() = nb::none(), "relative"_a.none() = nb::none(), "executor"_a.none() = nb::none(),
             "q [tokens, heads, k_dim] over pages; returns out [tokens, heads, v_dim] (made like q where None). lse [tokens, heads] float32.\n"
             "bias replaces the plan's for this layer; relative: the layer's RelativeTensors.")
        .def("run_plain", &run_plain, "q"_a, "k"_a, "v"_a, "out"_a.none() = nb::none(), "lse"_a.none() = nb::none(), nb::kw_only(),
             "bias"_a.none() = nb::none(), "relative"_a.none() = nb::none(), "executor"_a.none() = nb::none(),
             "As run, over k [rows, kv_heads, k_dim] and v [rows, kv_heads, v_dim].")
        .def_prop_ro("workspace_bytes", [](const plan_object& p) { return p.plan.workspace_bytes(); })
        .def_prop_ro("q_tokens", [](const plan_object& p) { return p.plan.q_tokens(); })
        .def_prop_ro("kv_bytes", [](const plan_object& p) { return p.plan.kv_bytes(); })
        .def_prop_ro("flops", [](const plan_object& p) { return p.plan.flops(); });
}

}  // namespace

attention_batch batch_object::view() const {
    return {q_indptr,    kv_lens,   q_starts, page_indptr, page_ids,        kv_indptr,  tree_masks,
            tree_indptr, key_first, key_last, key_masks,   key_mask_indptr, q_segments, k_segments};
}

void bind_attention(nb::module_& m) {
    bind_problem(m);
    bind_batch(m);
    bind_plan(m);
    m.def(
        "merge",
        [](array a, array lse_a, array b, array lse_b, array out, array lse) {
            const tensor a_view(a, "a", access::read), b_view(b, "b", access::read), out_view(out, "out", access::write);
            const numbers<float> first(lse_a, "lse_a"), second(lse_b, "lse_b");
            const std::span<float> merged = written<float>(lse, "lse");
            status state;
            {
                const nb::gil_scoped_release released;
                state = merge(a_view, first, b_view, second, out_view, merged);
            }
            check(state);
        },
        "a"_a, "lse_a"_a, "b"_a, "lse_b"_a, "out"_a, "lse"_a.none() = nb::none(),
        "Merges results a and b [tokens, heads, v_dim] of the same rows over disjoint keys into out (may be a or b); lse_* [tokens, heads] float32.");
}

}  // namespace ropewalk::python
