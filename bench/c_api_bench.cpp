// What a call through the C ABI costs beyond the same call in C++: of a problem so small that the call is most of it.
#include <ropewalk/ropewalk.h>

#include "bench/bench.hpp"

namespace ropewalk::bench {
namespace {

constexpr int32_t dim = 16, keys = 16;

void require_c(ropewalk_status code) {
    if (code != ROPEWALK_OK) require(status(static_cast<status_code>(code), ropewalk_last_error()));
}

// One query token, one head, 16 keys in one page, for both sides.
struct tiny_step {
    alignas(64) std::byte memory[2 * keys * dim * sizeof(float)] = {};
    alignas(64) std::byte workspace[1 << 16] = {};
    float q[dim] = {1.0f}, k[dim] = {1.0f}, out[dim] = {};
    int64_t q_indptr[2] = {0, 1}, page_indptr[2] = {0, 1}, kv_len = keys, slot = 3, position = 3;
    int32_t page_id = 0;
    serial_executor serial;

    kv_layout layout{.k_type = dtype::fp32, .v_type = dtype::fp32, .kv_heads = 1, .k_dim = dim, .v_dim = dim, .page_tokens = keys};
    kv_pages pages{memory, layout, 1};
    attention_plan plan;
    rope_table table = require(rope_table::growing(require(rope_spec::standard(dim, 10000.0))));
    head_view q_view = dense_view(static_cast<void*>(q), dtype::fp32, 1, 1, dim), k_view = dense_view(static_cast<void*>(k), dtype::fp32, 1, 1, dim),
              out_view = dense_view(static_cast<void*>(out), dtype::fp32, 1, 1, dim);

    ropewalk_kv_layout c_layout = ropewalk_kv_layout_init();
    ropewalk_kv_pages c_pages = ropewalk_kv_pages_init();
    ropewalk_attention_plan* c_plan = nullptr;
    ropewalk_rope_table* c_table = nullptr;
    ropewalk_kv_append_rope c_rope = ropewalk_kv_append_rope_init();
    ropewalk_tensor c_q = ropewalk_tensor_dense(q, ROPEWALK_FP32, 1, 1, dim), c_k = ropewalk_tensor_dense(k, ROPEWALK_FP32, 1, 1, dim),
                    c_out = ropewalk_tensor_dense(out, ROPEWALK_FP32, 1, 1, dim);

    tiny_step() {
        attention_problem problem;
        problem.heads = problem.kv_heads = 1;
        problem.k_dim = problem.v_dim = dim;
        require(plan.build(problem, {q_indptr, {&kv_len, 1}, {}, page_indptr, {&page_id, 1}, {}}, layout, 1, 1));

        c_layout.k_type = c_layout.v_type = ROPEWALK_FP32;
        c_layout.kv_heads = 1;
        c_layout.k_dim = c_layout.v_dim = dim;
        c_layout.page_tokens = keys;
        c_pages.base = memory;
        c_pages.count = 1;
        c_pages.layout = &c_layout;
        ropewalk_attention_problem c_problem = ropewalk_attention_problem_init();
        c_problem.heads = c_problem.kv_heads = 1;
        c_problem.k_dim = c_problem.v_dim = dim;
        ropewalk_attention_batch batch = ropewalk_attention_batch_init();
        batch.sequences = 1;
        batch.q_indptr = q_indptr;
        batch.kv_lens = &kv_len;
        batch.page_indptr = page_indptr;
        batch.page_ids = &page_id;
        batch.page_ids_count = 1;
        require_c(ropewalk_attention_plan_create(&c_plan));
        require_c(ropewalk_attention_plan_build_paged(c_plan, &c_problem, &batch, &c_layout, 1, 1));
        ropewalk_rope_spec* spec = nullptr;
        require_c(ropewalk_rope_spec_standard(dim, 10000.0, ROPEWALK_PHASES_EXACT, &spec));
        require_c(ropewalk_rope_table_growing(spec, 0, ROPEWALK_DEFAULT_CACHED_POSITIONS, &c_table));
        require_c(ropewalk_rope_spec_destroy(spec));
        c_rope.table = c_table;
        c_rope.positions = &position;
        c_rope.positions_count = 1;
    }
    ~tiny_step() {
        require_c(ropewalk_attention_plan_destroy(c_plan));
        require_c(ropewalk_rope_table_destroy(c_table));
    }
};

using call_function = void (*)(tiny_step& s);
struct operation {
    const char* name;
    call_function c, cpp;
};

const operation operations[] = {
    {"run",
     [](tiny_step& s) {
         require_c(ropewalk_run_paged(s.c_plan, &s.c_q, &s.c_pages, &s.c_out, nullptr, 0, s.workspace, sizeof s.workspace, nullptr,
                                      ropewalk_executor_serial()));
     },
     [](tiny_step& s) { require(run(s.plan, s.q_view, s.pages, s.out_view, {}, s.workspace, s.serial)); }},
    {"rope_apply",
     [](tiny_step& s) { require_c(ropewalk_rope_apply(s.c_table, &s.position, 1, &s.c_q, nullptr, nullptr, ropewalk_executor_serial())); },
     [](tiny_step& s) {
         require(rope_apply(s.table, {&s.position, 1}, s.q_view, {}, {}, s.serial));
     }},
    {"kv_append", [](tiny_step& s) { require_c(ropewalk_kv_append(&s.c_pages, &s.slot, 1, &s.c_k, &s.c_k, &s.c_rope, ropewalk_executor_serial())); },
     [](tiny_step& s) {
         require(kv_append(s.pages, {&s.slot, 1}, s.k_view, s.k_view, {&s.table, {&s.position, 1}, {}}, s.serial));
     }},
};

double seconds_of_calls(tiny_step& s, call_function call) {
    constexpr int32_t calls = 2000;
    const toolkit::stopwatch watch;
    for (int32_t i = 0; i < calls; ++i) call(s);
    return watch.seconds() / calls;
}

// ns_over: nanoseconds of a call through C less those of the same in C++, right after it; ns_cpp: the latter.
void c_call(benchmark::State& state, const operation& o) {
    tiny_step s;
    run_iterations(
        state, "ns_over", [&](int64_t) { return seconds_of_calls(s, o.c); },
        [&](int64_t, double seconds, samples& counters) {
            const double cpp = seconds_of_calls(s, o.cpp);
            counters.add("ns_over", (seconds - cpp) * 1e9);
            counters.add("ns_cpp", cpp * 1e9);
        });
}

}  // namespace

void register_c_api() {
    for (const operation& o : operations) {
        // Each iteration counts as one call: fixed, or the benchmark would go on for its minimum time.
        constexpr int64_t iterations = 200;
        for_targets(
            "c_call", o.name, [&o](benchmark::State& state, const simd::kernel_table&) { c_call(state, o); }, iterations);
    }
}

}  // namespace ropewalk::bench
