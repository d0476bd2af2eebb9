// The header as C++, alone first; what its initialisers set is what the C++ API has.
#include <ropewalk/ropewalk.h>

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include <ropewalk/ropewalk.hpp>

extern "C" void ropewalk_test_c99_inits(ropewalk_tensor* tensor, ropewalk_kv_layout* layout, ropewalk_attention_problem* problem,
                                        ropewalk_attention_batch* batch, ropewalk_position_layer* layer);

namespace ropewalk::test {
namespace {

TEST(c_header, c99_and_cpp_agree_on_structs) {
    ropewalk_tensor tensor;
    ropewalk_kv_layout layout;
    ropewalk_attention_problem problem;
    ropewalk_attention_batch batch;
    ropewalk_position_layer layer;
    ropewalk_test_c99_inits(&tensor, &layout, &problem, &batch, &layer);
    const auto same = [](const auto& c, const auto& cpp) { return c.struct_size == sizeof cpp && std::memcmp(&c, &cpp, sizeof cpp) == 0; };
    EXPECT_TRUE(same(tensor, ropewalk_tensor_init()));
    EXPECT_TRUE(same(layout, ropewalk_kv_layout_init()));
    EXPECT_TRUE(same(problem, ropewalk_attention_problem_init()));
    EXPECT_TRUE(same(batch, ropewalk_attention_batch_init()));
    EXPECT_TRUE(same(layer, ropewalk_position_layer_init()));
}

TEST(c_header, defaults_are_those_of_cpp) {
    const auto layout = ropewalk_kv_layout_init();
    const kv_layout cpp_layout;
    EXPECT_EQ(layout.k_type, static_cast<int32_t>(cpp_layout.k_type));
    EXPECT_EQ(layout.v_type, static_cast<int32_t>(cpp_layout.v_type));
    EXPECT_EQ(layout.page_tokens, cpp_layout.page_tokens);

    const auto problem = ropewalk_attention_problem_init();
    const attention_problem cpp_problem;
    EXPECT_EQ(problem.span_left, cpp_problem.span.left);
    EXPECT_EQ(problem.span_right, cpp_problem.span.right);
    EXPECT_EQ(problem.span_chunk, cpp_problem.span.chunk);
    EXPECT_EQ(problem.q_type, static_cast<int32_t>(cpp_problem.q_type));
    EXPECT_EQ(problem.out_type, static_cast<int32_t>(cpp_problem.out_type));
    EXPECT_EQ(problem.precision, static_cast<int32_t>(cpp_problem.precision));
    EXPECT_EQ(problem.place, static_cast<int32_t>(cpp_problem.place));

    const auto options = ropewalk_rope_options_init();
    EXPECT_EQ(options.pairing, static_cast<int32_t>(rope_options().pairing));
    EXPECT_EQ(ropewalk_rope_frequencies_init().amplitude, rope_spec().amplitude);

    const auto temperature = ropewalk_query_temperature_init();
    EXPECT_EQ(query_temperature({temperature.beta, temperature.floor_length, temperature.offset}), query_temperature());
    const auto t5 = ropewalk_t5_bucket_rule_init();
    EXPECT_EQ(t5_bucket_rule({t5.num_buckets, t5.max_distance, t5.bidirectional != 0}), t5_bucket_rule());
    const auto deberta = ropewalk_deberta_bucket_rule_init();
    EXPECT_EQ(deberta.position_buckets, deberta_bucket_rule().position_buckets);
    EXPECT_EQ(deberta.max_relative_positions, deberta_bucket_rule().max_relative_positions);
    const auto xlnet = ropewalk_xlnet_positions_rule_init();
    EXPECT_EQ(xlnet.bidirectional != 0, xlnet_positions_rule().bidirectional);
    EXPECT_EQ(xlnet.clamp_len, xlnet_positions_rule().clamp_len);
    EXPECT_EQ(ropewalk_sinusoid_init().base, sinusoid_spec().base);
}

TEST(c_header, defaults_of_rope_families_are_those_of_cpp) {
    const auto llama3 = ropewalk_llama3_parameters_init();
    const rope_spec::llama3_parameters cpp_llama3;
    EXPECT_EQ(llama3.rotary_dim, cpp_llama3.rotary_dim);
    EXPECT_EQ(llama3.theta, cpp_llama3.theta);
    EXPECT_EQ(llama3.factor, cpp_llama3.factor);
    EXPECT_EQ(llama3.low_freq_factor, cpp_llama3.low_freq_factor);
    EXPECT_EQ(llama3.high_freq_factor, cpp_llama3.high_freq_factor);
    EXPECT_EQ(llama3.original_max_position, cpp_llama3.original_max_position);

    const auto yarn = ropewalk_yarn_parameters_init();
    const rope_spec::yarn_parameters cpp_yarn;
    EXPECT_EQ(yarn.rotary_dim, cpp_yarn.rotary_dim);
    EXPECT_EQ(yarn.theta, cpp_yarn.theta);
    EXPECT_EQ(yarn.factor, cpp_yarn.factor);
    EXPECT_EQ(yarn.original_max_position, cpp_yarn.original_max_position);
    EXPECT_EQ(yarn.attention_factor, cpp_yarn.attention_factor);
    EXPECT_EQ(yarn.beta_fast, cpp_yarn.beta_fast);
    EXPECT_EQ(yarn.beta_slow, cpp_yarn.beta_slow);
    EXPECT_EQ(yarn.truncate != 0, cpp_yarn.truncate);

    const auto longrope = ropewalk_longrope_parameters_init();
    const rope_spec::longrope_parameters cpp_longrope;
    EXPECT_EQ(longrope.rotary_dim, cpp_longrope.rotary_dim);
    EXPECT_EQ(longrope.theta, cpp_longrope.theta);
    EXPECT_EQ(longrope.factor, cpp_longrope.factor);
    EXPECT_EQ(longrope.original_max_position, cpp_longrope.original_max_position);
    EXPECT_EQ(longrope.attention_factor, cpp_longrope.attention_factor);
}

TEST(c_header, names_and_version) {
    EXPECT_STREQ(ropewalk_version(), version());
    EXPECT_EQ(ropewalk_check_version(ROPEWALK_VERSION_MAJOR, ROPEWALK_VERSION_MINOR), ROPEWALK_OK);
    EXPECT_EQ(ropewalk_check_version(ROPEWALK_VERSION_MAJOR + 1, ROPEWALK_VERSION_MINOR), ROPEWALK_UNSUPPORTED);
    EXPECT_EQ(ropewalk_check_version(ROPEWALK_VERSION_MAJOR, ROPEWALK_VERSION_MINOR + 1), ROPEWALK_UNSUPPORTED);
    EXPECT_STREQ(ropewalk_status_name(ROPEWALK_NEEDS_REROTATION), "needs_rerotation");
    EXPECT_STREQ(ropewalk_status_name(99), "unknown");
    EXPECT_STREQ(ropewalk_dtype_name(ROPEWALK_FP8), "fp8");
    EXPECT_STREQ(ropewalk_position_encoding_name(ROPEWALK_POSITIONS_T5_BUCKETS), "t5_buckets");
    EXPECT_STREQ(ropewalk_position_encoding_name(-1), "unknown");
    EXPECT_STREQ(ropewalk_rope_family_name(ROPEWALK_ROPE_LLAMA3), "llama3");
    EXPECT_STREQ(ropewalk_rope_family_name(99), "unknown");
    EXPECT_EQ(ropewalk_element_bytes(ROPEWALK_BF16), 2);
    EXPECT_EQ(ropewalk_element_bytes(ROPEWALK_INT4), 0);
    EXPECT_EQ(ropewalk_element_bytes(-1), 0);
    EXPECT_STREQ(ropewalk_target_name(ROPEWALK_TARGET_AVX512_BF16), "avx512_bf16");
    EXPECT_EQ(ropewalk_target_compiled(ROPEWALK_TARGET_SCALAR), 1);
    EXPECT_EQ(ropewalk_target_supported(ROPEWALK_TARGET_SCALAR), 1);
    EXPECT_STREQ(ropewalk_kv_preset_name(0), "fp32");
    EXPECT_EQ(ropewalk_kv_preset_name(1000), nullptr);
    EXPECT_EQ(ropewalk_kv_preset_name(-1), nullptr);
}

TEST(c_header, target_in_force) {
    ropewalk_target active = -1, named = -1;
    ASSERT_EQ(ropewalk_active_target(&active), ROPEWALK_OK);
    EXPECT_EQ(active, static_cast<int32_t>(active_target().value()));
    EXPECT_EQ(ropewalk_target_from_name(ropewalk_target_name(active), &named), ROPEWALK_OK);
    EXPECT_EQ(named, active);
    EXPECT_EQ(ropewalk_limit_target(active), ROPEWALK_OK);
    EXPECT_NE(ropewalk_limit_target(12345), ROPEWALK_OK);
    EXPECT_NE(ropewalk_target_from_name("sse9", &named), ROPEWALK_OK);
    EXPECT_EQ(named, active);
}

}  // namespace
}  // namespace ropewalk::test
