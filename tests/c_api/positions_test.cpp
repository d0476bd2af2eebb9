// Frequencies, tables, absolute positions, buckets, indices and configurations: what the C ABI gives is what the C++ API gives.
#include "tests/c_api/handles.hpp"

#include <cstring>
#include <string_view>

#include <ropewalk/ropewalk.hpp>

namespace ropewalk::test {
namespace {

constexpr ropewalk_phase_mode m = ROPEWALK_PHASES_HF_F32;

// The spec that a handle holds, through the C ABI.
rope_spec read(const ropewalk_rope_spec* spec) {
    ropewalk_rope_frequencies f = ropewalk_rope_frequencies_init();
    expect_ok(ropewalk_rope_spec_get(spec, &f));
    rope_spec s;
    s.inv_freq.assign(f.inv_freq, f.inv_freq + f.pairs);
    s.amplitude = f.amplitude;
    s.phases = static_cast<phase_mode>(f.phases);
    if (f.axis_of_pair != nullptr) s.axis_of_pair.assign(f.axis_of_pair, f.axis_of_pair + f.pairs);
    s.xpos = {f.xpos_base, f.xpos_center};
    s.fope.heads = f.fope_heads;
    s.fope.frequencies = f.fope_frequencies;
    const auto mixed = static_cast<std::size_t>(f.fope_heads * f.fope_frequencies * f.fope_frequencies);
    s.fope.cos_mix.assign(f.fope_cos_mix, f.fope_cos_mix + mixed);
    s.fope.sin_mix.assign(f.fope_sin_mix, f.fope_sin_mix + mixed);
    return s;
}

template <class Create>
void expect_spec(const result<rope_spec>& expected, Create create) {
    ASSERT_TRUE(expected.ok()) << expected.state().text();
    EXPECT_TRUE(read(make<c_spec>(create).get()) == *expected);
}

TEST(c_rope, families) {
    constexpr auto f32 = phase_mode::hf_f32;
    expect_spec(rope_spec::standard(64, 1e6, f32), [](auto** s) { return ropewalk_rope_spec_standard(64, 1e6, m, s); });
    expect_spec(rope_spec::linear(64, 1e4, 4.0, f32), [](auto** s) { return ropewalk_rope_spec_linear(64, 1e4, 4.0, m, s); });
    expect_spec(rope_spec::ntk(64, 1e4, 3.0, f32), [](auto** s) { return ropewalk_rope_spec_ntk(64, 1e4, 3.0, m, s); });
    expect_spec(rope_spec::ntk_mixed(64, 1e4, 3.0, 0.6, f32), [](auto** s) { return ropewalk_rope_spec_ntk_mixed(64, 1e4, 3.0, 0.6, m, s); });
    expect_spec(rope_spec::ntk_alpha(64, 1e4, 1000.0, f32), [](auto** s) { return ropewalk_rope_spec_ntk_alpha(64, 1e4, 1000.0, m, s); });
    expect_spec(rope_spec::dynamic_ntk(64, 1e4, 2.0, 2048.0, 5000, f32),
                [](auto** s) { return ropewalk_rope_spec_dynamic_ntk(64, 1e4, 2.0, 2048.0, 5000, m, s); });
    expect_spec(rope_spec::theta_scale(64, 1e4, 2.0, 2048.0, f32),
                [](auto** s) { return ropewalk_rope_spec_theta_scale(64, 1e4, 2.0, 2048.0, m, s); });
    expect_spec(rope_spec::proportional(64, 1e4, 0.25, 8.0, f32), [](auto** s) { return ropewalk_rope_spec_proportional(64, 1e4, 0.25, 8.0, m, s); });
    expect_spec(vision_2d(64, 1e4), [](auto** s) { return ropewalk_rope_spec_vision_2d(64, 1e4, s); });
    expect_spec(pixtral_2d(64, 1e4), [](auto** s) { return ropewalk_rope_spec_pixtral_2d(64, 1e4, s); });
    EXPECT_EQ(ropewalk_yarn_amplitude(16.0, 0.1), yarn_amplitude(16.0, 0.1));
    EXPECT_EQ(ropewalk_yarn_amplitude_ratio(40.0, 1.0, 0.5), yarn_amplitude_ratio(40.0, 1.0, 0.5));
    EXPECT_EQ(ropewalk_longrope_amplitude(32.0, 4096.0), longrope_amplitude(32.0, 4096.0));
}

TEST(c_rope, families_with_parameters) {
    ropewalk_llama3_parameters l = ropewalk_llama3_parameters_init();
    l.rotary_dim = 64;
    l.theta = 4e5;
    l.factor = 32.0;
    l.low_freq_factor = 2.0;
    l.high_freq_factor = 6.0;
    l.original_max_position = 4096.0;
    expect_spec(rope_spec::llama3({64, 4e5, 32.0, 2.0, 6.0, 4096.0}), [&](auto** s) { return ropewalk_rope_spec_llama3(&l, 0, s); });

    ropewalk_yarn_parameters y = ropewalk_yarn_parameters_init();
    y.rotary_dim = 64;
    y.theta = 15e4;
    y.factor = 32.0;
    y.original_max_position = 2048.0;
    y.attention_factor = 1.25;
    y.beta_fast = 30.0;
    y.beta_slow = 2.0;
    y.truncate = 0;
    const rope_spec::yarn_parameters cpp_yarn{64, 15e4, 32.0, 2048.0, 1.25, 30.0, 2.0, false};
    expect_spec(rope_spec::yarn(cpp_yarn), [&](auto** s) { return ropewalk_rope_spec_yarn(&y, 0, s); });
    y.logarithmic = 1;
    expect_spec(rope_spec::yarn_log(cpp_yarn), [&](auto** s) { return ropewalk_rope_spec_yarn(&y, 0, s); });
}

TEST(c_rope, schedules) {
    const std::vector<double> near(16, 1.5), far(16, 7.0);
    ropewalk_longrope_parameters p = ropewalk_longrope_parameters_init();
    p.rotary_dim = 32;
    p.theta = 1e5;
    p.short_factor = near.data();
    p.long_factor = far.data();
    p.pairs = 16;
    p.factor = 8.0;
    p.original_max_position = 1000.0;
    p.attention_factor = 1.5;
    const rope_spec::longrope_parameters cpp{32, 1e5, near, far, 8.0, 1000.0, 1.5};
    expect_spec(rope_spec::longrope(cpp, 1001), [&](auto** s) { return ropewalk_rope_spec_longrope(&p, 1001, 0, s); });
    const auto longrope = make<c_schedule>([&](auto** s) { return ropewalk_rope_schedule_longrope(&p, 0, s); });
    expect_spec(rope_spec::longrope(cpp, 1000), [&](auto** s) { return ropewalk_rope_schedule_spec_at(longrope.get(), 1000, s); });
    expect_ok(ropewalk_rope_schedule_check_growth(longrope.get(), 900, 1000));
    expect_refused(ropewalk_rope_schedule_check_growth(longrope.get(), 900, 1001), ROPEWALK_NEEDS_REROTATION, "");

    const auto dynamic = make<c_schedule>([](auto** s) { return ropewalk_rope_schedule_dynamic_ntk(32, 1e4, 2.0, 100.0, 0, s); });
    expect_spec(rope_spec::dynamic_ntk(32, 1e4, 2.0, 100.0, 150), [&](auto** s) { return ropewalk_rope_schedule_spec_at(dynamic.get(), 150, s); });
    const c_spec standard = standard_spec(32);
    const auto constant = make<c_schedule>([&](auto** s) { return ropewalk_rope_schedule_constant(standard.get(), s); });
    expect_ok(ropewalk_rope_schedule_check_growth(constant.get(), 1, 1 << 20));
}

TEST(c_rope, plain_data_round_trip) {
    rope_spec axes = with_axes(*rope_spec::standard(16, 1e4), axis_order::interleaved, std::vector<int32_t>{4, 2, 2}).value();
    rope_spec fope = *rope_spec::standard(8, 1e4);
    fope.fope = {2, 3, std::vector<float>(18, 0.5f), std::vector<float>(18, 0.25f)};
    rope_spec xpos = *rope_spec::standard(8, 1e4);
    xpos.xpos = {512.0, 100.0};
    for (const rope_spec& s : {axes, fope, xpos}) {
        ropewalk_rope_frequencies f = ropewalk_rope_frequencies_init();
        f.inv_freq = s.inv_freq.data();
        f.pairs = s.inv_freq.size();
        f.axis_of_pair = s.axis_of_pair.empty() ? nullptr : s.axis_of_pair.data();
        f.xpos_base = s.xpos.base;
        f.xpos_center = s.xpos.center;
        f.fope_heads = s.fope.heads;
        f.fope_frequencies = s.fope.frequencies;
        f.fope_cos_mix = s.fope.cos_mix.data();
        f.fope_sin_mix = s.fope.sin_mix.data();
        expect_spec(s, [&](auto** out) { return ropewalk_rope_spec_create(&f, out); });
        f.amplitude = -1.0;
        ropewalk_rope_spec* refused = nullptr;
        expect_refused(ropewalk_rope_spec_create(&f, &refused), ROPEWALK_INVALID_ARGUMENT, "amplitude");
    }
    const c_spec standard = standard_spec(16);
    const int32_t sections[3] = {4, 2, 2};
    const c_spec dealt =
        make<c_spec>([&](auto** out) { return ropewalk_rope_spec_with_axes(standard.get(), ROPEWALK_AXES_INTERLEAVED, sections, 3, out); });
    EXPECT_TRUE(read(dealt.get()) == axes);
    const std::vector<double> factors(8, 3.0);
    expect_spec(rope_spec::standard(16, 1e4)->divided(factors),
                [&](auto** out) { return ropewalk_rope_spec_divided(standard.get(), factors.data(), factors.size(), out); });
    int32_t equal = -1;
    expect_ok(ropewalk_rope_spec_equal(standard.get(), dealt.get(), &equal));
    EXPECT_EQ(equal, 0);
    expect_ok(ropewalk_rope_spec_equal(standard.get(), standard_spec(16).get(), &equal));
    EXPECT_EQ(equal, 1);
}

TEST(c_rope, tables) {
    const c_spec spec = standard_spec(16);
    const rope_spec cpp_spec = *rope_spec::standard(16, 1e4);
    const auto fixed = make<c_table>([&](auto** t) { return ropewalk_rope_table_fixed(spec.get(), 100, t); });
    const rope_table cpp = rope_table::fixed(cpp_spec, 100).value();
    ropewalk_rope_table_info info = ropewalk_rope_table_info_init();
    expect_ok(ropewalk_rope_table_get_info(fixed.get(), &info));
    EXPECT_EQ(info.pairs, 8);
    EXPECT_EQ(info.axes, 1);
    EXPECT_EQ(info.pure_rotation, 1);
    EXPECT_EQ(info.cached_bytes, cpp.cached_bytes());
    EXPECT_EQ(info.max_position, 99);
    std::vector<float> cos(8), sin(8), cpp_cos(8), cpp_sin(8);
    expect_ok(ropewalk_rope_table_row(fixed.get(), 99, cos.data(), sin.data(), 8));
    ASSERT_TRUE(cpp.row(99, cpp_cos, cpp_sin).ok());
    EXPECT_EQ(cos, cpp_cos);
    EXPECT_EQ(sin, cpp_sin);
    expect_refused(ropewalk_rope_table_row(fixed.get(), 100, cos.data(), sin.data(), 8), ROPEWALK_OUT_OF_RANGE, "100");
    expect_spec(cpp_spec, [&](auto** s) { return ropewalk_rope_table_spec(fixed.get(), s); });
}

TEST(c_rope, options_and_shifts) {
    const c_table table = standard_table(8);
    const rope_table cpp = rope_table::growing(*rope_spec::standard(8, 1e4)).value();
    std::vector<float> a(4 * 2 * 20), b;
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i) * 0.125f;
    b = a;
    const std::vector<int64_t> positions{3, 0, 1000, 77}, deltas{-3, 5, 6, -7};
    ropewalk_rope_options options = ropewalk_rope_options_init();
    options.first_dim = 4;
    options.pair_distance = 6;
    options.conjugate = 1;
    const rope_options cpp_options{.pairing = rope_pairing::half, .inverse = false, .first_dim = 4, .pair_distance = 6, .conjugate = true};
    const ropewalk_tensor view = ropewalk_tensor_dense(a.data(), ROPEWALK_FP32, 4, 2, 20);
    const head_view cpp_view = dense_view(static_cast<void*>(b.data()), dtype::fp32, 4, 2, 20);
    expect_ok(ropewalk_rope_apply(table.get(), positions.data(), 4, nullptr, &view, &options, nullptr));
    ASSERT_TRUE(rope_apply(cpp, positions, {}, cpp_view, cpp_options).ok());
    EXPECT_EQ(a, b);
    options = ropewalk_rope_options_init();
    options.pairing = ROPEWALK_PAIRING_INTERLEAVED;
    expect_ok(ropewalk_rope_shift(table.get(), deltas.data(), 4, &view, &options, nullptr));
    ASSERT_TRUE(rope_shift(cpp, deltas, cpp_view, {.pairing = rope_pairing::interleaved}).ok());
    EXPECT_EQ(a, b);
    options.inverse = 1;
    expect_ok(ropewalk_rope_apply(table.get(), positions.data(), 4, &view, nullptr, &options, nullptr));
    ASSERT_TRUE(rope_apply(cpp, positions, cpp_view, {}, {.pairing = rope_pairing::interleaved, .inverse = true}).ok());
    EXPECT_EQ(a, b);
}

TEST(c_absolute, sinusoids) {
    const std::vector<int64_t> positions{0, 5, 1, 100};
    const auto expect_rows = [&](auto fill, const sinusoid_spec& cpp) {
        ropewalk_sinusoid spec = ropewalk_sinusoid_init();
        expect_ok(fill(&spec));
        std::vector<float> a(4 * 10, 0.5f), b = a;
        const ropewalk_tensor x = ropewalk_tensor_dense(a.data(), ROPEWALK_FP32, 4, 1, 10);
        const head_view y = dense_view(static_cast<void*>(b.data()), dtype::fp32, 4, 1, 10);
        expect_ok(ropewalk_sinusoid_add(&spec, positions.data(), 4, &x, nullptr));
        ASSERT_TRUE(sinusoid_add(cpp, positions, y).ok());
        EXPECT_EQ(a, b);
        expect_ok(ropewalk_sinusoid_rows(&spec, positions.data(), 4, &x, nullptr));
        ASSERT_TRUE(sinusoid_rows(cpp, positions, y).ok());
        EXPECT_EQ(a, b);
        expect_ok(ropewalk_sinusoid_shift(&spec, 17, &x, nullptr));
        ASSERT_TRUE(sinusoid_shift(cpp, 17, y).ok());
        EXPECT_EQ(a, b);
    };
    expect_rows([](auto* s) { return ropewalk_sinusoid_vaswani(10, s); }, sinusoid_spec::vaswani(10));
    expect_rows([](auto* s) { return ropewalk_sinusoid_marian(10, s); }, sinusoid_spec::marian(10));
    expect_rows([](auto* s) { return ropewalk_sinusoid_whisper(10, s); }, sinusoid_spec::whisper(10));
    expect_rows([](auto* s) { return ropewalk_sinusoid_fairseq(10, 5, s); }, sinusoid_spec::fairseq(10, 5));
    ropewalk_sinusoid spec = ropewalk_sinusoid_init();
    expect_refused(ropewalk_sinusoid_whisper(3, &spec), ROPEWALK_INVALID_ARGUMENT, "");
}

TEST(c_absolute, learned_rows_and_positions) {
    std::vector<float> table(7 * 6), a(3 * 6, 1.0f);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
    const ropewalk_tensor rows = ropewalk_tensor_dense(table.data(), ROPEWALK_FP32, 7, 1, 6),
                          x = ropewalk_tensor_dense(a.data(), ROPEWALK_FP32, 3, 1, 6);
    ropewalk_learned_positions learned = ropewalk_learned_positions_init();
    learned.table = &rows;
    learned.offset = 2;
    const std::vector<int64_t> at{0, 4, 1};
    expect_ok(ropewalk_learned_add(&learned, at.data(), 3, &x, nullptr));
    EXPECT_EQ(a[0], 1.0f + table[2 * 6]);
    EXPECT_EQ(a[6 + 5], 1.0f + table[6 * 6 + 5]);
    expect_ok(ropewalk_learned_rows(&learned, at.data(), 3, &x, nullptr));
    EXPECT_EQ(a[12], table[3 * 6]);
    const std::vector<int64_t> beyond{0, 5, 1};
    expect_refused(ropewalk_learned_rows(&learned, beyond.data(), 3, &x, nullptr), ROPEWALK_OUT_OF_RANGE, "positions[1]");

    std::vector<int64_t> positions(4);
    const std::vector<uint8_t> mask{0, 1, 1, 1};
    expect_ok(ropewalk_positions_from_mask(positions.data(), mask.data(), 4));
    EXPECT_EQ(positions, (std::vector<int64_t>{-1, 0, 1, 2}));
    const std::vector<int64_t> tokens{1, 9, 9, 1};
    expect_ok(ropewalk_positions_from_tokens(positions.data(), tokens.data(), 4, 1, 10));
    EXPECT_EQ(positions, (std::vector<int64_t>{1, 12, 13, 1}));
    ropewalk_xlnet_positions_rule rule = ropewalk_xlnet_positions_rule_init();
    rule.query_tokens = 1;
    rule.key_tokens = 3;
    expect_ok(ropewalk_xlnet_positions(positions.data(), 4, &rule));
    EXPECT_EQ(positions, (std::vector<int64_t>{3, 2, 1, 0}));
}

TEST(c_absolute, query_temperature) {
    ropewalk_query_temperature t = ropewalk_query_temperature_init();
    t.floor_length = 4;
    t.offset = 1;
    const ropewalk::query_temperature cpp{0.1, 4, 1};
    double factor = 0.0;
    expect_ok(ropewalk_query_temperature_at(&t, 11, &factor));
    EXPECT_EQ(factor, cpp.at(11));
    expect_refused(ropewalk_query_temperature_at(&t, -1, &factor), ROPEWALK_OUT_OF_RANGE, "position is -1");
    std::vector<float> q{1.0f, 2.0f}, expected = q;
    const int64_t position = 11;
    const ropewalk_tensor view = ropewalk_tensor_dense(q.data(), ROPEWALK_FP32, 1, 1, 2);
    expect_ok(ropewalk_scale_queries(&view, &position, 1, &t, nullptr));
    ASSERT_TRUE(scale_queries(dense_view(static_cast<void*>(expected.data()), dtype::fp32, 1, 1, 2), {&position, 1}, cpp).ok());
    EXPECT_EQ(q, expected);
}

TEST(c_relative, buckets_and_indices) {
    std::vector<int32_t> a(400), b(400);
    ropewalk_t5_bucket_rule t5 = ropewalk_t5_bucket_rule_init();
    t5.num_buckets = 24;
    t5.max_distance = 60;
    expect_ok(ropewalk_t5_buckets(a.data(), 400, -200, &t5));
    ASSERT_TRUE(t5_buckets(b, -200, {24, 60, true}).ok());
    EXPECT_EQ(a, b);
    ropewalk_deberta_bucket_rule deberta = ropewalk_deberta_bucket_rule_init();
    deberta.position_buckets = 32;
    deberta.max_relative_positions = 100;
    expect_ok(ropewalk_deberta_buckets(a.data(), 400, -200, &deberta));
    ASSERT_TRUE(deberta_buckets(b, -200, {32, 100}).ok());
    EXPECT_EQ(a, b);

    const auto expect_index = [](const result<relative_index>& cpp, auto create) {
        const c_index index = make<c_index>(create);
        int64_t first = 0;
        const int32_t* rows = nullptr;
        std::size_t count = 0;
        expect_ok(ropewalk_relative_index_rows(index.get(), &first, &rows, &count));
        EXPECT_EQ(first, cpp->first_delta);
        EXPECT_EQ(std::vector<int32_t>(rows, rows + count), cpp->rows);
    };
    expect_index(relative_index::deberta(9), [](auto** i) { return ropewalk_relative_index_deberta(9, i); });
    expect_index(relative_index::deberta_buckets(32, 100), [](auto** i) { return ropewalk_relative_index_deberta_buckets(32, 100, i); });
    expect_index(relative_index::shaw(3, 5), [](auto** i) { return ropewalk_relative_index_shaw(3, 5, i); });
    expect_index(relative_index::bert(12), [](auto** i) { return ropewalk_relative_index_bert(12, i); });
    expect_index(relative_index::xlnet(3, 8, false), [](auto** i) { return ropewalk_relative_index_xlnet(3, 8, 0, i); });
    expect_index(relative_index{-1, {4, -1, 2}}, [](auto** i) {
        const int32_t rows[3] = {4, -1, 2};
        return ropewalk_relative_index_create(-1, rows, 3, i);
    });
}

c_config config_of(std::string_view json) {
    return make<c_config>([&](auto** out) { return ropewalk_position_config_read_hf(json.data(), json.size(), out); });
}

TEST(c_config_test, llama_of_hugging_face) {
    const std::string_view json = R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})";
    const c_config config = config_of(json);
    const position_config cpp = read_hf_config(json).value();
    ropewalk_position_config_info info = ropewalk_position_config_info_init();
    expect_ok(ropewalk_position_config_get_info(config.get(), &info));
    EXPECT_EQ(info.layers, 3);
    EXPECT_EQ(info.encoder_layers, 0);
    EXPECT_EQ(info.cross_attention, 0);
    EXPECT_EQ(info.max_positions, 131072);
    EXPECT_STREQ(info.model_type, "llama");
    ropewalk_position_layer layer = ropewalk_position_layer_init();
    expect_ok(ropewalk_position_config_layer(config.get(), ROPEWALK_STACK_DECODER, 2, &layer));
    EXPECT_EQ(layer.encoding, ROPEWALK_POSITIONS_ROPE);
    EXPECT_EQ(layer.heads, 4);
    EXPECT_EQ(layer.kv_heads, 2);
    EXPECT_EQ(layer.k_dim, 16);
    EXPECT_EQ(layer.scale, 0.25);
    EXPECT_EQ(layer.span_left, ROPEWALK_UNLIMITED);
    EXPECT_EQ(layer.span_right, 0);
    EXPECT_EQ(layer.has_temperature, 0);
    ropewalk_rope_parameters rope = ropewalk_rope_parameters_init();
    expect_ok(ropewalk_position_config_rope(config.get(), ROPEWALK_STACK_DECODER, 0, &rope));
    EXPECT_EQ(rope.family, ROPEWALK_ROPE_LLAMA3);
    EXPECT_EQ(rope.rotary_dim, 16);
    EXPECT_EQ(rope.theta, 500000.0);
    EXPECT_EQ(rope.factor, 8.0);
    EXPECT_EQ(rope.high_freq_factor, 4.0);
    EXPECT_EQ(rope.original_max_position, 8192.0);
    EXPECT_EQ(rope.pairing, ROPEWALK_PAIRING_HALF);
    EXPECT_EQ(rope.axes, 1);
    expect_spec(cpp.layers.layer(0).rope.spec,
                [&](auto** s) { return ropewalk_position_config_rope_spec(config.get(), ROPEWALK_STACK_DECODER, 0, 0, ROPEWALK_PHASES_EXACT, s); });
    const auto schedule = make<c_schedule>(
        [&](auto** s) { return ropewalk_position_config_rope_schedule(config.get(), ROPEWALK_STACK_DECODER, 0, ROPEWALK_PHASES_EXACT, s); });
    expect_spec(cpp.layers.layer(0).rope.spec, [&](auto** s) { return ropewalk_rope_schedule_spec_at(schedule.get(), 1 << 20, s); });

    expect_refused(ropewalk_position_config_layer(config.get(), ROPEWALK_STACK_DECODER, 3, &layer), ROPEWALK_OUT_OF_RANGE,
                   "layer is 3; stack 0 has 3");
    expect_refused(ropewalk_position_config_layer(config.get(), ROPEWALK_STACK_CROSS, 0, &layer), ROPEWALK_OUT_OF_RANGE, "stack 2 has 0");
    expect_refused(ropewalk_position_config_layer(config.get(), 3, 0, &layer), ROPEWALK_INVALID_ARGUMENT, "stack is 3");
}

TEST(c_config_test, encodings_of_other_models) {
    const c_config t5 = config_of(R"({"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 3,
        "relative_attention_num_buckets": 16, "relative_attention_max_distance": 64})");
    ropewalk_position_config_info info = ropewalk_position_config_info_init();
    expect_ok(ropewalk_position_config_get_info(t5.get(), &info));
    EXPECT_EQ(info.layers, 3);
    EXPECT_EQ(info.encoder_layers, 2);
    EXPECT_EQ(info.cross_attention, 1);
    ropewalk_position_layer layer = ropewalk_position_layer_init();
    expect_ok(ropewalk_position_config_layer(t5.get(), ROPEWALK_STACK_ENCODER, 1, &layer));
    EXPECT_EQ(layer.encoding, ROPEWALK_POSITIONS_T5_BUCKETS);
    EXPECT_EQ(layer.t5_num_buckets, 16);
    EXPECT_EQ(layer.t5_max_distance, 64);
    EXPECT_EQ(layer.t5_bidirectional, 1);
    EXPECT_EQ(layer.t5_shared, 1);
    expect_ok(ropewalk_position_config_layer(t5.get(), ROPEWALK_STACK_CROSS, 0, &layer));
    EXPECT_EQ(layer.encoding, ROPEWALK_POSITIONS_NONE);
    ropewalk_rope_parameters rope = ropewalk_rope_parameters_init();
    expect_refused(ropewalk_position_config_rope(t5.get(), ROPEWALK_STACK_DECODER, 0, &rope), ROPEWALK_NOT_FOUND, "has no rope");

    const c_config gpt2 = config_of(R"({"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128})");
    ropewalk_absolute_positions absolute = ropewalk_absolute_positions_init();
    expect_ok(ropewalk_position_config_absolute(gpt2.get(), ROPEWALK_STACK_DECODER, &absolute, nullptr));
    EXPECT_EQ(absolute.kind, ROPEWALK_POSITIONS_LEARNED);
    EXPECT_EQ(absolute.rows, 128);
    EXPECT_EQ(absolute.dim, 32);
}

TEST(c_config_test, refusals_name_the_key) {
    ropewalk_position_config* config = nullptr;
    const std::string_view unknown = R"({"model_type": "no_such_model"})", broken = "{";
    expect_refused(ropewalk_position_config_read_hf(unknown.data(), unknown.size(), &config), ROPEWALK_UNSUPPORTED, "no_such_model");
    expect_refused(ropewalk_position_config_read_hf(broken.data(), broken.size(), &config), ROPEWALK_CORRUPT_DATA, "");
    expect_refused(ropewalk_position_config_read_gguf("GGUX", 4, &config), ROPEWALK_CORRUPT_DATA, "");
    EXPECT_EQ(config, nullptr);
}

// A GGUF head: key-value pairs, no tensors.
class gguf_head {
public:
    void text(std::string_view key, std::string_view value) { pair(key, 8), string(value); }
    void number(std::string_view key, uint32_t value) { pair(key, 4), put(value); }
    [[nodiscard]] std::string bytes() const {
        gguf_head head;
        head.out_ = "GGUF";
        head.put(uint32_t{3}), head.put(uint64_t{0}), head.put(pairs_);
        return head.out_ + out_;
    }

private:
    template <class T>
    void put(T value) {
        out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    void string(std::string_view s) { put(uint64_t{s.size()}), out_ += s; }
    void pair(std::string_view key, uint32_t type) { string(key), put(type), ++pairs_; }

    std::string out_;
    uint64_t pairs_ = 0;
};

TEST(c_config_test, gguf) {
    gguf_head head;
    head.text("general.architecture", "llama");
    for (const auto& [key, value] : std::initializer_list<std::pair<const char*, uint32_t>>{{"llama.block_count", 2},
                                                                                            {"llama.context_length", 4096},
                                                                                            {"llama.embedding_length", 64},
                                                                                            {"llama.attention.head_count", 4},
                                                                                            {"llama.attention.head_count_kv", 2}}) {
        head.number(key, value);
    }
    const std::string bytes = head.bytes();
    const c_config config = make<c_config>([&](auto** out) { return ropewalk_position_config_read_gguf(bytes.data(), bytes.size(), out); });
    ropewalk_position_layer layer = ropewalk_position_layer_init();
    expect_ok(ropewalk_position_config_layer(config.get(), ROPEWALK_STACK_DECODER, 1, &layer));
    EXPECT_EQ(layer.kv_heads, 2);
    EXPECT_EQ(layer.k_dim, 16);
    ropewalk_rope_parameters rope = ropewalk_rope_parameters_init();
    expect_ok(ropewalk_position_config_rope(config.get(), ROPEWALK_STACK_DECODER, 1, &rope));
    EXPECT_EQ(rope.pairing, ROPEWALK_PAIRING_INTERLEAVED);
}

}  // namespace
}  // namespace ropewalk::test
