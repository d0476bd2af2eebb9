// What the C ABI refuses itself, and that refusals of the C++ API come through: a code, a text that names the argument, and nothing changed.
#include "tests/c_api/handles.hpp"

#include <cstdint>
#include <thread>

#include <ropewalk/ropewalk.hpp>
#include "tests/allocations.hpp"

namespace ropewalk::test {
namespace {

// The struct as a caller has it whose version is `more` bytes longer.
template <class Struct>
struct later_version {
    Struct known;
    unsigned char more[16] = {};
    explicit later_version(const Struct& s) : known(s) { known.struct_size = sizeof(Struct) + 16; }
};

ropewalk_status spec_of(const ropewalk_llama3_parameters* parameters) {
    ropewalk_rope_spec* spec = nullptr;
    const ropewalk_status status = ropewalk_rope_spec_llama3(parameters, ROPEWALK_PHASES_EXACT, &spec);
    EXPECT_EQ(spec != nullptr, status == ROPEWALK_OK);
    ropewalk_rope_spec_destroy(spec);
    return status;
}

TEST(c_errors, foreign_struct_size) {
    ropewalk_llama3_parameters parameters = ropewalk_llama3_parameters_init();
    expect_ok(spec_of(&parameters));
    for (const uint32_t size : {uint32_t{0}, uint32_t{4}, static_cast<uint32_t>(sizeof parameters) - 8, uint32_t{1} << 20, ~uint32_t{0}}) {
        parameters.struct_size = size;
        expect_refused(spec_of(&parameters), ROPEWALK_INVALID_ARGUMENT, "parameters.struct_size is " + std::to_string(size) + "; must be 48");
    }
    later_version later(ropewalk_llama3_parameters_init());
    expect_ok(spec_of(&later.known));
    later.more[15] = 1;
    expect_refused(spec_of(&later.known), ROPEWALK_UNSUPPORTED, "parameters.struct_size is 64 and something is set beyond 48");
}

TEST(c_errors, foreign_struct_size_of_every_argument) {
    const c_table table = standard_table(8);
    ropewalk_tensor q = ropewalk_tensor_init();
    q.struct_size = 8;
    expect_refused(ropewalk_rope_apply(table.get(), nullptr, 0, &q, nullptr, nullptr, nullptr), ROPEWALK_INVALID_ARGUMENT, "q.struct_size is 8");
    ropewalk_rope_options options = ropewalk_rope_options_init();
    options.struct_size += 4000000;
    expect_refused(ropewalk_rope_apply(table.get(), nullptr, 0, nullptr, nullptr, &options, nullptr), ROPEWALK_INVALID_ARGUMENT,
                   "options.struct_size");
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.struct_size = 0;
    ropewalk_kv_pages pages = ropewalk_kv_pages_init();
    pages.layout = &layout;
    expect_refused(ropewalk_kv_append(&pages, nullptr, 0, nullptr, nullptr, nullptr, nullptr), ROPEWALK_INVALID_ARGUMENT, "pages.layout.struct_size");
    const c_plan plan = empty_plan();
    ropewalk_attention_problem problem = ropewalk_attention_problem_init();
    ropewalk_attention_batch batch = ropewalk_attention_batch_init();
    batch.reserved = 7;
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), &problem, &batch, 0, 0, 1), ROPEWALK_INVALID_ARGUMENT, "batch.reserved is 7");
    problem.struct_size = 1;
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), &problem, &batch, 0, 0, 1), ROPEWALK_INVALID_ARGUMENT, "problem.struct_size");
    ropewalk_attention_plan_info info = ropewalk_attention_plan_info_init();
    info.struct_size = 0;
    info.q_tokens = 12;
    expect_refused(ropewalk_attention_plan_get_info(plan.get(), &info), ROPEWALK_INVALID_ARGUMENT, "info.struct_size");
    EXPECT_EQ(info.q_tokens, 12);
}

TEST(c_errors, null_handles) {
    ropewalk_rope_spec* spec = nullptr;
    ropewalk_rope_table* table = nullptr;
    int32_t number = 0;
    int64_t slot = 0;
    const ropewalk_tensor tensor = ropewalk_tensor_init();
    const ropewalk_attention_problem problem = ropewalk_attention_problem_init();
    const ropewalk_attention_batch batch = ropewalk_attention_batch_init();
    ropewalk_sequence sequence = 0;
    const auto null = ROPEWALK_INVALID_ARGUMENT;
    expect_refused(ropewalk_rope_table_growing(nullptr, 0, 0, &table), null, "spec is null");
    expect_refused(ropewalk_rope_spec_standard(8, 1e4, 0, nullptr), null, "spec is null");
    expect_refused(ropewalk_rope_spec_llama3(nullptr, 0, &spec), null, "parameters is null");
    expect_refused(ropewalk_rope_apply(nullptr, nullptr, 0, &tensor, nullptr, nullptr, nullptr), null, "table is null");
    expect_refused(ropewalk_rope_schedule_check_growth(nullptr, 0, 1), null, "schedule is null");
    expect_refused(ropewalk_attention_bias_heads(nullptr, &number), null, "bias is null");
    expect_refused(ropewalk_attention_plan_build_plain(nullptr, &problem, &batch, 0, 0, 1), null, "plan is null");
    expect_refused(ropewalk_run_plain(nullptr, &tensor, &tensor, &tensor, &tensor, nullptr, 0, nullptr, 0, nullptr, nullptr), null, "plan is null");
    expect_refused(ropewalk_run_paged(nullptr, &tensor, nullptr, &tensor, nullptr, 0, nullptr, 0, nullptr, nullptr), null, "plan is null");
    expect_refused(ropewalk_kv_cache_create_sequence(nullptr, 0, &sequence), null, "cache is null");
    expect_refused(ropewalk_kv_cache_append(nullptr, nullptr, nullptr, 0, &slot, 1, nullptr, 0), null, "cache is null");
    expect_refused(ropewalk_kv_cache_create(nullptr, nullptr), null, "config is null");
    expect_refused(ropewalk_position_config_get_info(nullptr, nullptr), null, "config is null");
    expect_refused(ropewalk_executor_create(nullptr, nullptr), null, "callbacks is null");
    expect_refused(ropewalk_workspace_reserve(nullptr, 1, nullptr), null, "workspace is null");
    EXPECT_EQ(spec, nullptr);
    EXPECT_EQ(table, nullptr);
    const c_plan plan = empty_plan();
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), nullptr, &batch, 0, 0, 1), null, "problem is null");
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), &problem, nullptr, 0, 0, 1), null, "batch is null");
    expect_refused(ropewalk_run_plain(plan.get(), &tensor, &tensor, &tensor, &tensor, nullptr, 0, nullptr, 0, nullptr, nullptr), null, "plan");
    expect_refused(ropewalk_relative_terms_create(1, 0, 0, nullptr, nullptr), null, "index is null");
}

TEST(c_errors, destroying_null_does_nothing) {
    expect_ok(ropewalk_executor_destroy(nullptr));
    expect_ok(ropewalk_workspace_destroy(nullptr));
    expect_ok(ropewalk_rope_spec_destroy(nullptr));
    expect_ok(ropewalk_rope_schedule_destroy(nullptr));
    expect_ok(ropewalk_rope_table_destroy(nullptr));
    expect_ok(ropewalk_attention_bias_destroy(nullptr));
    expect_ok(ropewalk_relative_index_destroy(nullptr));
    expect_ok(ropewalk_relative_terms_destroy(nullptr));
    expect_ok(ropewalk_attention_plan_destroy(nullptr));
    expect_ok(ropewalk_kv_cache_destroy(nullptr));
    expect_ok(ropewalk_position_config_destroy(nullptr));
}

TEST(c_errors, use_after_destroy_in_a_debug_build) {
#ifdef NDEBUG
    GTEST_SKIP() << "a build with NDEBUG does not look";
#else
    ropewalk_rope_spec* const spec = standard_spec(8).release();
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = 1;
    layout.k_dim = layout.v_dim = 16;
    ropewalk_kv_cache_config config = ropewalk_kv_cache_config_init();
    config.layers = config.page_count = 1;
    config.layout = &layout;
    ropewalk_kv_cache* const cache = make<c_cache>([&](auto** out) { return ropewalk_kv_cache_create(&config, out); }).release();
    expect_ok(ropewalk_rope_spec_destroy(spec));
    expect_ok(ropewalk_kv_cache_destroy(cache));
    ropewalk_rope_table* table = nullptr;
    expect_refused(ropewalk_rope_table_growing(spec, 0, 0, &table), ROPEWALK_INVALID_ARGUMENT, "spec is no handle, or one that was destroyed");
    expect_refused(ropewalk_rope_spec_destroy(spec), ROPEWALK_INVALID_ARGUMENT, "spec is no handle, or one that was destroyed");
    ropewalk_sequence sequence = 0;
    expect_refused(ropewalk_kv_cache_create_sequence(cache, 0, &sequence), ROPEWALK_INVALID_ARGUMENT,
                   "cache is no handle, or one that was destroyed");
#endif
}

TEST(c_errors, null_arrays_with_a_count) {
    const c_table table = standard_table(8);
    float slope = 0.0f;
    const auto null = ROPEWALK_INVALID_ARGUMENT;
    expect_refused(ropewalk_rope_apply(table.get(), nullptr, 3, nullptr, nullptr, nullptr, nullptr), null, "positions is null; its count is 3");
    expect_refused(ropewalk_alibi_slopes(nullptr, 4, 0, 8.0), null, "slopes is null; its count is 4");
    expect_refused(ropewalk_rope_table_row(table.get(), 0, &slope, nullptr, 1), null, "sin is null");
    expect_refused(ropewalk_position_config_read_hf(nullptr, 5, nullptr), null, "text is null");
    const c_plan plan = empty_plan();
    const ropewalk_attention_problem problem = ropewalk_attention_problem_init();
    ropewalk_attention_batch batch = ropewalk_attention_batch_init();
    batch.sequences = 2;
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), &problem, &batch, 0, 0, 1), null, "batch.q_indptr is null; its count is 3");
    batch.sequences = SIZE_MAX;
    expect_refused(ropewalk_attention_plan_build_plain(plan.get(), &problem, &batch, 0, 0, 1), null, "batch.sequences is");
}

TEST(c_errors, values_of_no_enumeration) {
    const auto bad = ROPEWALK_INVALID_ARGUMENT;
    std::vector<float> data(8);
    const int64_t position = 1;
    ropewalk_rope_spec* spec = nullptr;
    expect_refused(ropewalk_rope_spec_standard(8, 1e4, 2, &spec), bad, "phases is 2");
    const c_spec standard = standard_spec(8);
    const int32_t sections[3] = {2, 1, 1};
    expect_refused(ropewalk_rope_spec_with_axes(standard.get(), 4, sections, 3, &spec), bad, "order is 4");
    EXPECT_EQ(spec, nullptr);
    const c_table table = standard_table(8);
    ropewalk_tensor tensor = ropewalk_tensor_dense(data.data(), 9, 1, 1, 8);
    expect_refused(ropewalk_rope_apply(table.get(), &position, 1, &tensor, nullptr, nullptr, nullptr), bad, "q.type is 9");
    tensor.type = ROPEWALK_FP32;
    ropewalk_rope_options options = ropewalk_rope_options_init();
    options.pairing = 3;
    expect_refused(ropewalk_rope_apply(table.get(), &position, 1, &tensor, nullptr, &options, nullptr), bad, "options.pairing is 3");
    expect_refused(ropewalk_alibi_slopes(data.data(), 8, -1, 8.0), bad, "rule is -1");
    ropewalk_sinusoid sinusoid = ropewalk_sinusoid_init();
    expect_ok(ropewalk_sinusoid_vaswani(8, &sinusoid));
    sinusoid.columns = 2;
    expect_refused(ropewalk_sinusoid_rows(&sinusoid, &position, 1, &tensor, nullptr), bad, "columns is 2");
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = layout.k_dim = layout.v_dim = 16;
    layout.k_type = 6;
    expect_refused(ropewalk_kv_layout_sizes(&layout, nullptr), bad, "k_type is 6");
    expect_refused(ropewalk_kv_layout_set_preset(&layout, "k9v9"), ROPEWALK_NOT_FOUND, "name is \"k9v9\"");
    EXPECT_EQ(layout.k_type, 6);
}

TEST(c_errors, values_of_no_enumeration_in_a_problem) {
    const int64_t indptr[2] = {0, 1}, kv_len = 1;
    ropewalk_attention_batch batch = ropewalk_attention_batch_init();
    batch.sequences = 1;
    batch.q_indptr = batch.kv_indptr = indptr;
    batch.kv_lens = &kv_len;
    const c_plan plan = empty_plan();
    const auto build = [&](auto change, int32_t k_type = 0) {
        ropewalk_attention_problem problem = ropewalk_attention_problem_init();
        problem.heads = problem.kv_heads = 1;
        problem.k_dim = problem.v_dim = 16;
        change(problem);
        return ropewalk_attention_plan_build_plain(plan.get(), &problem, &batch, k_type, 0, 1);
    };
    const auto bad = ROPEWALK_INVALID_ARGUMENT;
    expect_ok(build([](auto&) {}));
    expect_refused(build([](auto& p) { p.q_type = 7; }), bad, "problem.q_type is 7");
    expect_refused(build([](auto& p) { p.out_type = -7; }), bad, "problem.out_type is -7");
    expect_refused(build([](auto& p) { p.precision = 2; }), bad, "problem.precision is 2");
    expect_refused(build([](auto& p) { p.place = 3; }), bad, "problem.place is 3");
    expect_refused(build([](auto&) {}, 77), bad, "k_type is 77");
}

TEST(c_errors, masks_of_a_cache_describe_nothing_else) {
    ropewalk_kv_layout layout = ropewalk_kv_layout_init();
    layout.kv_heads = 1;
    layout.k_dim = layout.v_dim = 16;
    ropewalk_kv_cache_config config = ropewalk_kv_cache_config_init();
    config.layers = config.page_count = 1;
    config.layout = &layout;
    const c_cache cache = make<c_cache>([&](auto** out) { return ropewalk_kv_cache_create(&config, out); });
    const c_plan plan = empty_plan();
    ropewalk_attention_problem problem = ropewalk_attention_problem_init();
    problem.heads = problem.kv_heads = 1;
    problem.k_dim = problem.v_dim = 16;
    ropewalk_attention_batch masks = ropewalk_attention_batch_init();
    expect_ok(ropewalk_attention_plan_build_sequences(plan.get(), &problem, cache.get(), nullptr, nullptr, 0, &masks, 1));
    masks.sequences = 1;
    expect_refused(ropewalk_attention_plan_build_sequences(plan.get(), &problem, cache.get(), nullptr, nullptr, 0, &masks, 1),
                   ROPEWALK_INVALID_ARGUMENT, "masks describes");
    const ropewalk_sequence unknown = 12345;
    const int64_t one = 1;
    expect_refused(ropewalk_attention_plan_build_sequences(plan.get(), &problem, cache.get(), &unknown, &one, 1, nullptr, 1), ROPEWALK_NOT_FOUND,
                   "sequences[0] is 12345");
}

TEST(c_errors, out_of_memory_is_a_status) {
    const c_spec spec = standard_spec(64);
    ropewalk_rope_frequencies frequencies = ropewalk_rope_frequencies_init();
    expect_ok(ropewalk_rope_spec_get(spec.get(), &frequencies));
    ropewalk_rope_spec* copy = nullptr;
    for (int64_t granted = 0; granted < 2; ++granted) {  // the frequencies, the handle
        const allocation_limit limit(granted);
        EXPECT_EQ(ropewalk_rope_spec_create(&frequencies, &copy), ROPEWALK_OUT_OF_MEMORY);
        EXPECT_EQ(copy, nullptr);
    }
}

TEST(c_errors, text_is_the_threads_own) {
    expect_refused(ropewalk_alibi_slopes(nullptr, 4, 0, 8.0), ROPEWALK_INVALID_ARGUMENT, "slopes is null");
    std::thread([] {
        EXPECT_STREQ(ropewalk_last_error(), "");
        expect_refused(ropewalk_rope_schedule_check_growth(nullptr, 0, 1), ROPEWALK_INVALID_ARGUMENT, "schedule is null");
    }).join();
    EXPECT_EQ(std::string(ropewalk_last_error()).rfind("slopes is null", 0), 0u);
    float slope = 0.0f;
    expect_ok(ropewalk_alibi_slopes(&slope, 1, 0, 8.0));  // a call that succeeds leaves it
    EXPECT_EQ(std::string(ropewalk_last_error()).rfind("slopes is null", 0), 0u);
}

}  // namespace
}  // namespace ropewalk::test
