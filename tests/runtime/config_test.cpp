// The reader of config.json. Configurations hold published values, shortened to what positions depend on; expected values come from them by the rules
// of transformers' configuration and model classes (5.24.0), as constants. Frequencies are compared with golden files in tests/tools.
#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include <ropewalk/position_spec.hpp>
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

constexpr auto half = rope_pairing::half;
constexpr auto neighbours = rope_pairing::interleaved;
constexpr int64_t causal = 0, full = -1;  // windows of the table below

// 1 / sqrt(n)
double root(double n) { return 1.0 / std::sqrt(n); }

position_config read(std::string_view json) {
    result<position_config> config = read_hf_config(json);
    EXPECT_TRUE(config.ok()) << config.state().text() << "\n" << json;
    if (!config.ok()) return {};
    return *std::move(config);
}

attention_span span_of(int64_t window) {
    if (window == full) return attention_span::full();
    return window == causal ? attention_span::causal() : attention_span::sliding_window(window);
}

struct rope_model {
    const char* json;
    int32_t layers, layer;
    double theta;
    int32_t rotary_dim;
    rope_pairing pairing;
    int32_t heads, kv_heads, head_dim;
    double scale;
    int64_t window;
};

const rope_model rope_models[] = {
    // Llama 2 7B, Llama 3 8B (v5), SmolLM2 135M
    {R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "max_position_embeddings": 4096,
         "num_key_value_heads": 32, "rope_scaling": null, "pretraining_tp": 1})",
     32, 0, 1e4, 128, half, 32, 32, 128, root(128), causal},
    {R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
         "max_position_embeddings": 8192, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}})",
     32, 31, 5e5, 128, half, 32, 8, 128, root(128), causal},
    {R"({"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30,
         "max_position_embeddings": 8192, "rope_theta": 100000, "rope_interleaved": false, "is_llama_config": true})",
     30, 0, 1e5, 64, half, 9, 3, 64, root(64), causal},
    // Mistral 7B v0.1: a window in every layer; v0.2: none
    {R"({"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
         "max_position_embeddings": 32768, "rope_theta": 10000.0, "sliding_window": 4096})",
     32, 5, 1e4, 128, half, 32, 8, 128, root(128), 4096},
    {R"({"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32,
         "max_position_embeddings": 32768, "rope_theta": 1000000.0, "sliding_window": null})",
     32, 5, 1e6, 128, half, 32, 8, 128, root(128), causal},
    // Qwen2 7B: its window is switched off
    {R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
         "max_position_embeddings": 131072, "max_window_layers": 28, "rope_theta": 1000000.0, "sliding_window": 131072,
         "use_sliding_window": false})",
     28, 27, 1e6, 128, half, 28, 4, 128, root(128), causal},
    // the same switched on: layers from max_window_layers on
    {R"({"model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 28,
         "max_window_layers": 20, "rope_theta": 1000000.0, "sliding_window": 4096, "use_sliding_window": true})",
     28, 20, 1e6, 128, half, 28, 4, 128, root(128), 4096},
    {R"({"model_type": "qwen3", "head_dim": 128, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 28,
         "max_position_embeddings": 40960, "max_window_layers": 28, "rope_theta": 1000000, "rope_scaling": null, "sliding_window": null})",
     28, 0, 1e6, 128, half, 16, 8, 128, root(128), causal},
    {R"({"model_type": "gemma", "head_dim": 256, "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 18})",
     18, 0, 1e4, 256, half, 8, 1, 256, root(256), causal},
    // Gemma 2 27B: query_pre_attn_scalar is not the head dim; even layers have the window
    {R"({"model_type": "gemma2", "head_dim": 128, "hidden_size": 4608, "num_attention_heads": 32, "num_key_value_heads": 16,
         "num_hidden_layers": 46, "query_pre_attn_scalar": 144, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
         "sliding_window": 4096, "sliding_window_size": null})",
     46, 2, 1e4, 128, half, 32, 16, 128, root(144), 4096},
    // Phi-2: 0.4 * 80 = 32; GPT-NeoX 20B: 0.25 * 96
    {R"({"model_type": "phi", "hidden_size": 2560, "num_attention_heads": 32, "num_hidden_layers": 32, "partial_rotary_factor": 0.4,
         "qk_layernorm": false, "rope_theta": 10000.0})",
     32, 0, 1e4, 32, half, 32, 32, 80, root(80), causal},
    {R"({"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000,
         "rotary_pct": 0.25, "max_position_embeddings": 2048})",
     44, 0, 1e4, 24, half, 64, 64, 96, root(96), causal},
    {R"({"model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048, "n_ctx": 2048, "rotary": true, "rotary_dim": 64})",
     28, 0, 1e4, 64, neighbours, 16, 16, 256, root(256), causal},
    // Falcon 7B (one KV head, whatever num_kv_heads says), Falcon 40B
    {R"({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "multi_query": true,
         "new_decoder_architecture": false, "alibi": false})",
     32, 0, 1e4, 64, half, 71, 1, 64, root(64), causal},
    {R"({"model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_layer": 60, "n_head_kv": 8, "alibi": false, "parallel_attn": true})", 60,
     59, 1e4, 64, half, 128, 8, 64, root(64), causal},
    // StableLM 2 1.6B, StableLM 3B
    {R"({"model_type": "stablelm", "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 24,
         "partial_rotary_factor": 0.25, "rope_theta": 10000, "max_position_embeddings": 4096})",
     24, 0, 1e4, 16, half, 32, 32, 64, root(64), causal},
    {R"({"model_type": "stablelm", "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32,
         "rope_pct": 0.25, "rotary_scaling_factor": 1.0, "rope_theta": 10000})",
     32, 0, 1e4, 20, half, 32, 32, 80, root(80), causal},
    // Command R, GLM-4 9B
    {R"({"model_type": "cohere", "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 64, "num_hidden_layers": 40,
         "rope_theta": 8000000.0, "max_position_embeddings": 131072, "use_qk_norm": false})",
     40, 0, 8e6, 128, neighbours, 64, 64, 128, root(128), causal},
    {R"({"model_type": "glm4", "head_dim": 128, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2, "num_hidden_layers": 40,
         "partial_rotary_factor": 0.5, "rope_theta": 10000.0})",
     40, 0, 1e4, 64, neighbours, 32, 2, 128, root(128), causal},
    // Granite 3.1 8B: attention_multiplier in place of 1 / sqrt(d); OLMo 2 7B
    {R"({"model_type": "granite", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 40,
         "attention_multiplier": 0.0078125, "rope_theta": 10000000.0, "max_position_embeddings": 131072})",
     40, 0, 1e7, 128, half, 32, 8, 128, 0.0078125, causal},
    {R"({"model_type": "olmo2", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": 32,
         "rope_theta": 500000, "max_position_embeddings": 4096})",
     32, 0, 5e5, 128, half, 32, 32, 128, root(128), causal},
    // Baichuan 7B
    {R"({"model_type": "baichuan", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "max_position_embeddings": 4096})", 32, 0,
     1e4, 128, half, 32, 32, 128, root(128), causal},
    // MPT with llm-foundry's rope
    {R"({"model_type": "mpt", "d_model": 2048, "n_heads": 16, "n_layers": 24, "max_seq_len": 2048, "learned_pos_emb": false,
         "attn_config": {"attn_impl": "flash", "rope": true, "rope_theta": 50000, "rope_impl": "hf",
                         "rope_hf_config": {"type": "no_scaling", "factor": 1.0},
                         "attn_type": "grouped_query_attention", "kv_n_heads": 4}})",
     24, 0, 5e4, 128, half, 16, 4, 128, root(128), causal},
};

TEST(hf_config, rope_of_published_models) {
    for (const rope_model& expected : rope_models) {
        SCOPED_TRACE(expected.json);
        const position_config config = read(expected.json);
        ASSERT_EQ(config.layers.layers(), expected.layers);
        const position_spec& layer = config.layers.layer(expected.layer);
        EXPECT_EQ(layer.encoding, position_encoding::rope);
        EXPECT_EQ(layer.rope.parameters.family, rope_family::standard);
        EXPECT_EQ(layer.rope.parameters.theta, expected.theta);
        EXPECT_EQ(layer.rope.spec.rotary_dim(), expected.rotary_dim);
        EXPECT_EQ(layer.rope.spec.amplitude, 1.0);
        EXPECT_EQ(layer.rope.pairing, expected.pairing);
        EXPECT_EQ(layer.rope.first_dim, 0);
        EXPECT_EQ(layer.heads, expected.heads);
        EXPECT_EQ(layer.kv_heads, expected.kv_heads);
        EXPECT_EQ(layer.k_dim, expected.head_dim);
        EXPECT_EQ(layer.v_dim, expected.head_dim);
        EXPECT_DOUBLE_EQ(layer.scale, expected.scale);
        EXPECT_EQ(layer.span, span_of(expected.window));
        // The slowest pair: theta^(-(d - 2) / d).
        const double d = expected.rotary_dim;
        EXPECT_NEAR(layer.rope.spec.inv_freq.back() * std::pow(expected.theta, (d - 2.0) / d), 1.0, 1e-12);
    }
}

TEST(hf_config, defaults_are_those_of_the_configuration_classes) {
    const struct {
        const char* type;
        int32_t layers, heads, kv_heads, head_dim;
        double theta;
        int64_t positions;
    } classes[] = {{"llama", 32, 32, 32, 128, 1e4, 2048},      {"mistral", 32, 32, 8, 128, 1e4, 131072}, {"mixtral", 32, 32, 8, 128, 1e6, 131072},
                   {"qwen2", 32, 32, 32, 128, 1e4, 32768},     {"qwen3", 32, 32, 32, 128, 1e4, 32768},   {"gemma2", 26, 8, 4, 256, 1e4, 8192},
                   {"phi", 24, 32, 32, 64, 1e4, 2048},         {"phi3", 32, 32, 32, 96, 1e4, 4096},      {"gpt_neox", 44, 64, 64, 96, 1e4, 2048},
                   {"stablelm", 32, 32, 32, 80, 1e4, 4096},    {"cohere", 40, 64, 64, 128, 5e5, 8192},   {"glm4", 40, 32, 2, 128, 1e4, 131072},
                   {"smollm3", 36, 16, 4, 128, 2e6, 32768},    {"granite", 32, 32, 32, 128, 1e4, 2048},  {"olmo2", 32, 32, 32, 128, 1e4, 2048},
                   {"gpt_oss", 36, 64, 8, 64, 150000, 131072}, {"falcon", 32, 71, 1, 64, 1e4, 2048},     {"gptj", 28, 16, 16, 256, 1e4, 2048}};
    for (const auto& expected : classes) {
        SCOPED_TRACE(expected.type);
        const position_config config = read(std::string(R"({"model_type": ")") + expected.type + "\"}");
        ASSERT_EQ(config.layers.layers(), expected.layers);
        const position_spec& layer = config.layers.layer(0);
        EXPECT_EQ(layer.heads, expected.heads);
        EXPECT_EQ(layer.kv_heads, expected.kv_heads);
        EXPECT_EQ(layer.k_dim, expected.head_dim);
        EXPECT_EQ(layer.rope.parameters.theta, expected.theta);
        EXPECT_EQ(config.max_positions, expected.positions);
    }
}

TEST(hf_config, scaling_has_the_same_meaning_in_old_and_new_keys) {
    const position_config old_keys = read(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
    const position_config new_keys = read(R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rope_parameters": {"rope_theta": 500000.0, "factor": 8.0, "high_freq_factor": 4.0,
        "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
    EXPECT_EQ(old_keys.layers.layer(0), new_keys.layers.layer(0));
    const rope_parameters& p = old_keys.layers.layer(0).rope.parameters;
    EXPECT_EQ(p.family, rope_family::llama3);
    EXPECT_EQ(p.original_max_position, 8192.0);
    // Wavelength of the slowest pair, 2 pi 500000^(126/128) = 2.6e6, is beyond 8192 / 1: divided by 8.
    EXPECT_NEAR(old_keys.layers.layer(0).rope.spec.inv_freq.back(), std::pow(5e5, -126.0 / 128.0) / 8.0, 1e-20);
    const position_config named_type = read(R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}})");
    EXPECT_EQ(named_type.layers.layer(0).rope.spec.inv_freq[0], 0.5);
}

TEST(hf_config, yarn_amplitude_and_limits) {
    const auto yarn = [](const std::string& more, const char* type = "qwen2") {
        return read(std::string(R"({"model_type": ")") + type +
                    R"(", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131072,
            "rope_theta": 1000000.0, "rope_scaling": {"original_max_position_embeddings": 32768, "type": "yarn")" +
                    more + "}}");
    };
    const auto amplitude = [](const position_config& config) { return config.layers.layer(0).rope.spec.amplitude; };
    EXPECT_DOUBLE_EQ(amplitude(yarn(R"(, "factor": 4.0)")), 1.138629436111989);   // 0.1 ln 4 + 1
    EXPECT_DOUBLE_EQ(amplitude(yarn(R"(, "factor": null)")), 1.138629436111989);  // 131072 / 32768
    EXPECT_EQ(amplitude(yarn(R"(, "factor": 4.0, "attention_factor": 1.5)")), 1.5);
    EXPECT_EQ(amplitude(yarn(R"(, "factor": 4.0, "mscale": 0.707, "mscale_all_dim": 0.707)")), 1.0);
    EXPECT_DOUBLE_EQ(amplitude(yarn(R"(, "factor": 4.0, "mscale": 1.5)")), 1.138629436111989);  // without mscale_all_dim it is not read
    EXPECT_DOUBLE_EQ(amplitude(yarn(R"(, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707)")), 1.0857263992561355);
    const rope_parameters zero = yarn(R"(, "factor": 4.0, "beta_fast": 0, "beta_slow": null)").layers.layer(0).rope.parameters;
    EXPECT_EQ(zero.beta_fast, 32.0);  // `x or 32`
    EXPECT_EQ(zero.beta_slow, 1.0);
    EXPECT_EQ(yarn(R"(, "factor": 4.0, "rope_type": "linear", "type": "yarn", "original_max_position_embeddings": 32768)")
                  .layers.layer(0)
                  .rope.parameters.family,
              rope_family::linear);  // rope_type wins over type
}

TEST(hf_config, gpt_oss) {
    const position_config config = read(R"({"model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "num_attention_heads": 64,
        "num_key_value_heads": 8, "num_hidden_layers": 24, "initial_context_length": 4096, "max_position_embeddings": 131072, "rope_theta": 150000,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
        "truncate": false}, "sliding_window": 128, "layer_types": [)" +
                                        [] {
                                            std::string list;
                                            for (int i = 0; i < 12; ++i)
                                                list += std::string(i ? "," : "") + R"("sliding_attention","full_attention")";
                                            return list;
                                        }() +
                                        "]}");
    ASSERT_EQ(config.layers.layers(), 24);
    EXPECT_EQ(config.layers.kinds.size(), 2u);
    EXPECT_EQ(config.layers.layer(0).span, attention_span::sliding_window(128));
    EXPECT_EQ(config.layers.layer(1).span, attention_span::causal());
    for (const position_spec& kind : config.layers.kinds) {
        EXPECT_TRUE(kind.sinks);
        EXPECT_FALSE(kind.rope.parameters.truncate);
        EXPECT_DOUBLE_EQ(kind.rope.spec.amplitude, 1.3465735902799727);  // 0.1 ln 32 + 1
        EXPECT_DOUBLE_EQ(kind.scale, 0.125);
    }
    // The default of the class is the same yarn.
    EXPECT_EQ(read(R"({"model_type": "gpt_oss"})").layers.layer(0).rope, config.layers.layer(0).rope);
}

TEST(hf_config, truncate_is_read_from_the_outer_dictionary) {
    const std::string inner = R"({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0})";
    const auto nested = [&](const std::string& outer) {
        return read(R"({"model_type": "gpt_oss", "rope_parameters": {"full_attention": )" + inner + R"(, "sliding_attention": )" + inner + outer +
                    "}}");
    };
    EXPECT_TRUE(nested("").layers.layer(0).rope.parameters.truncate);
    EXPECT_FALSE(nested(R"(, "truncate": false)").layers.layer(0).rope.parameters.truncate);
}

TEST(hf_config, deepseek) {
    // DeepSeek V3; V2 Lite
    const position_config v3 = read(R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
        "num_hidden_layers": 61, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}})");
    const position_spec& layer = v3.layers.layer(60);
    EXPECT_EQ(layer.k_dim, 192);
    EXPECT_EQ(layer.v_dim, 128);
    EXPECT_EQ(layer.kv_lora_rank, 512);
    EXPECT_EQ(layer.rope.first_dim, 128);
    EXPECT_EQ(layer.rope.spec.rotary_dim(), 64);
    EXPECT_EQ(layer.rope.pairing, rope_pairing::interleaved_in_half_out);
    EXPECT_EQ(layer.rope.spec.amplitude, 1.0);
    EXPECT_DOUBLE_EQ(layer.scale, 0.1352337788608801);  // (1 + 0.1 ln 40)^2 / sqrt(192)
    const position_config v2 = read(R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 27, "kv_lora_rank": 512, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
        "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}})");
    EXPECT_EQ(v2.layers.layer(0).rope.pairing, neighbours);
    EXPECT_EQ(v2.layers.layer(0).rope.spec.amplitude, 1.0);
    EXPECT_DOUBLE_EQ(v2.layers.layer(0).scale, 0.11472138679292611);
}

TEST(hf_config, phi3_takes_the_original_length_from_the_top) {
    std::string ones = "[1.0", twos = "[2.0";
    for (int i = 1; i < 48; ++i) ones += ", 1.0", twos += ", 2.0";
    const std::string lists = R"("short_factor": )" + ones + R"(], "long_factor": )" + twos + "]";
    const auto phi3 = [&](const std::string& type, const std::string& top) {
        return read(R"({"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 32,
            "max_position_embeddings": 131072, "rope_theta": 10000.0, "sliding_window": 262144, )" +
                    top + R"("rope_scaling": {"type": ")" + type + "\", " + lists + R"(, "original_max_position_embeddings": 2048}})");
    };
    const rope_rotation rope = phi3("longrope", R"("original_max_position_embeddings": 4096, )").layers.layer(0).rope;
    EXPECT_EQ(rope.parameters.original_max_position, 4096.0);
    EXPECT_TRUE(rope.parameters.depends_on_length());
    EXPECT_DOUBLE_EQ(rope.spec.amplitude, 1.1902380714238083);  // sqrt(1 + ln 32 / ln 4096)
    EXPECT_EQ(rope.parameters.at(4096)->inv_freq[0], 1.0);
    EXPECT_EQ(rope.parameters.at(4097)->inv_freq[0], 0.5);
    // Old names of the type, and the default of the class for the length.
    EXPECT_EQ(phi3("su", "").layers.layer(0).rope, rope);
    EXPECT_EQ(phi3("yarn", "").layers.layer(0).rope, rope);
    EXPECT_EQ(phi3("yarn", "").layers.layer(0).span, attention_span::sliding_window(262144));
}

TEST(hf_config, llama4_layers) {
    const position_config config = read(R"({"model_type": "llama4", "text_config": {"model_type": "llama4_text", "hidden_size": 5120,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 48, "attention_chunk_size": 8192,
        "attn_scale": 0.1, "attn_temperature_tuning": true, "floor_scale": 8192, "max_position_embeddings": 10485760, "no_rope_layers": [],
        "rope_theta": 500000.0, "use_qk_norm": true, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}}, "vision_config": {"rope_theta": 10000}})");
    ASSERT_EQ(config.layers.layers(), 48);
    EXPECT_EQ(config.max_positions, 10485760);
    for (int32_t i = 0; i < 48; ++i) {
        const position_spec& layer = config.layers.layer(i);
        const bool nope = i % 4 == 3;
        EXPECT_EQ(layer.encoding, nope ? position_encoding::none : position_encoding::rope);
        EXPECT_EQ(layer.span, nope ? attention_span::causal() : attention_span::chunked(8192));
        EXPECT_EQ(layer.temperature, nope ? std::optional(query_temperature{0.1, 8192, 1}) : std::nullopt);
        EXPECT_EQ(layer.qk_norm, nope ? qk_norm_order::none : qk_norm_order::after_rope);
    }
    // low == high: every frequency is kept or divided by 16; 8192 / wavelength of pair 0 is 1304.
    EXPECT_EQ(config.layers.layer(0).rope.spec.inv_freq[0], 1.0);
    EXPECT_EQ(config.layers.layer(0).rope.pairing, neighbours);
}

TEST(hf_config, layers_without_rope) {
    const position_config smollm3 = read(R"({"model_type": "smollm3", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
        "num_hidden_layers": 8, "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0], "rope_theta": 5000000.0,
        "sliding_window": null, "use_sliding_window": false, "max_window_layers": 28})");
    EXPECT_EQ(smollm3.layers.kind_of_layer, (std::vector<int32_t>{0, 0, 0, 1, 0, 0, 0, 1}));
    EXPECT_EQ(smollm3.layers.layer(3).encoding, position_encoding::none);
    // Command R7B: windows with rope, full layers without
    const position_config cohere2 = read(R"({"model_type": "cohere2", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32, "rope_theta": 50000, "rotary_pct": 1.0, "position_embedding_type": "rope_gptj", "sliding_window": 4096,
        "sliding_window_pattern": 4, "head_dim": 128})");
    EXPECT_EQ(cohere2.layers.layer(0).span, attention_span::sliding_window(4096));
    EXPECT_EQ(cohere2.layers.layer(0).encoding, position_encoding::rope);
    EXPECT_EQ(cohere2.layers.layer(3).span, attention_span::causal());
    EXPECT_EQ(cohere2.layers.layer(3).encoding, position_encoding::none);
    // transformers 5 says the same with null
    const position_config null = read(R"({"model_type": "olmo3", "num_hidden_layers": 4, "rope_parameters": {"full_attention": null,
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000}}})");
    EXPECT_EQ(null.layers.layer(3).encoding, position_encoding::none);
    EXPECT_EQ(null.layers.layer(0).encoding, position_encoding::rope);
}

TEST(hf_config, scaling_of_gemma3_stays_out_of_local_layers) {
    const std::string common =
        R"({"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "num_hidden_layers": 34, "query_pre_attn_scalar": 256, "sliding_window": 1024, "max_position_embeddings": 131072, )";
    const position_config old_keys = read(common + R"("rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})");
    const position_config new_keys = read(common + R"("rope_parameters": {"full_attention": {"factor": 8.0, "rope_type": "linear",
        "rope_theta": 1000000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}})");
    for (const position_config* config : {&old_keys, &new_keys}) {
        const position_spec &local = config->layers.layer(4), &global = config->layers.layer(5);
        EXPECT_EQ(local.span, attention_span::sliding_window(1024));
        EXPECT_EQ(local.rope.parameters.theta, 1e4);
        EXPECT_EQ(local.rope.spec.inv_freq[0], 1.0);
        EXPECT_EQ(global.span, attention_span::causal());
        EXPECT_EQ(global.rope.parameters.theta, 1e6);
        EXPECT_EQ(global.rope.spec.inv_freq[0], 0.125);
        EXPECT_EQ(global.qk_norm, qk_norm_order::before_rope);
    }
    EXPECT_EQ(read(common + R"("use_bidirectional_attention": true})").layers.layer(0).span, attention_span::symmetric(512));
}

TEST(hf_config, gemma4_has_two_head_dims) {
    const position_config config = read(R"({"model_type": "gemma4_text", "hidden_size": 2304, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": true, "num_hidden_layers": 12,
        "sliding_window": 512})");
    const position_spec &local = config.layers.layer(0), &global = config.layers.layer(11);
    EXPECT_EQ(local.k_dim, 256);
    EXPECT_EQ(local.kv_heads, 4);
    EXPECT_EQ(global.k_dim, 512);
    EXPECT_EQ(global.kv_heads, 2);
    EXPECT_EQ(global.scale, 1.0);
    EXPECT_EQ(global.rope.spec.rotary_dim(), 512);  // halves are (i, i + 256)
    EXPECT_GT(global.rope.spec.inv_freq[63], 0.0);
    EXPECT_EQ(global.rope.spec.inv_freq[64], 0.0);
    const position_config listed = read(R"({"model_type": "gemma4_text", "num_hidden_layers": 6, "per_layer_config": {"05": {"head_dim": 512}}})");
    EXPECT_EQ(listed.layers.layer(4).k_dim, 256);
    EXPECT_EQ(listed.layers.layer(5).k_dim, 512);
}

TEST(hf_config, ministral3_temperature) {
    const position_config config = read(R"({"model_type": "mistral3", "text_config": {"model_type": "ministral3", "head_dim": 128,
        "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 26, "max_position_embeddings": 262144,
        "sliding_window": null, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"}}})");
    EXPECT_EQ(config.layers.kinds.size(), 1u);
    EXPECT_EQ(config.layers.layer(25).temperature, std::optional(query_temperature{0.1, 16384, 0}));
    EXPECT_EQ(config.layers.layer(25).rope.spec.amplitude, 1.0);
    EXPECT_DOUBLE_EQ(config.layers.layer(25).scale, root(128));  // no mscale^2, unlike DeepSeek
}

TEST(hf_config, axes_of_multimodal_models) {
    const position_config qwen2 = read(R"({"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2,
        "num_hidden_layers": 28, "max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": false, "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vision_config": {"depth": 32}})");
    const std::vector<uint8_t>& contiguous = qwen2.layers.layer(0).rope.spec.axis_of_pair;
    ASSERT_EQ(contiguous.size(), 64u);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(contiguous[i], i < 16 ? 0 : i < 40 ? 1 : 2) << i;
    const position_config qwen3 = read(R"({"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text", "head_dim": 128,
        "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36, "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}}})");
    const std::vector<uint8_t>& interleaved = qwen3.layers.layer(0).rope.spec.axis_of_pair;
    ASSERT_EQ(interleaved.size(), 64u);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(interleaved[i], i < 60 ? i % 3 : 0) << i;
}

TEST(hf_config, alibi_models) {
    // BLOOM 560M, MPT 7B, Baichuan 13B, Falcon RW 1B
    const position_config bloom = read(R"({"model_type": "bloom", "n_head": 16, "n_layer": 24, "n_embed": 1024, "seq_length": 2048})");
    EXPECT_EQ(bloom.layers.layers(), 24);
    EXPECT_EQ(bloom.layers.layer(0).encoding, position_encoding::alibi);
    EXPECT_EQ(bloom.layers.layer(0).alibi, alibi_bias{});
    EXPECT_DOUBLE_EQ(bloom.layers.layer(0).scale, 0.125);
    const position_config mpt = read(R"({"model_type": "mpt", "d_model": 7168, "n_heads": 64, "n_layers": 48, "max_seq_len": 8192, "attn_config":
        {"alibi": true, "alibi_bias_max": 16, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention", "clip_qkv": 6,
         "prefix_lm": false, "qk_ln": false, "softmax_scale": null, "attn_uses_sequence_id": false}})");
    EXPECT_EQ(mpt.layers.layer(0).alibi, (alibi_bias{alibi_rule::mpt, 16.0}));
    EXPECT_DOUBLE_EQ(mpt.layers.layer(0).scale, root(112));
    const position_config baichuan = read(R"({"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40,
        "model_max_length": 4096})");
    EXPECT_EQ(baichuan.layers.layer(39).encoding, position_encoding::alibi);
    const position_config falcon = read(R"({"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
        "alibi": true, "multi_query": false, "new_decoder_architecture": false})");
    EXPECT_EQ(falcon.layers.layer(0).alibi, (alibi_bias{alibi_rule::falcon, 8.0, bias_place::before_scale}));
    EXPECT_EQ(falcon.layers.layer(0).kv_heads, 32);
}

TEST(hf_config, t5_has_two_stacks_and_no_scale) {
    const std::string keys = R"("d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6, "num_decoder_layers": 4,
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "n_positions": 512, "is_encoder_decoder": true})";
    const position_config t5 = read(R"({"model_type": "t5", )" + keys), umt5 = read(R"({"model_type": "umt5", )" + keys);
    ASSERT_EQ(t5.encoder.layers(), 6);
    ASSERT_EQ(t5.layers.layers(), 4);
    EXPECT_EQ(t5.encoder.layer(0).t5, (t5_terms{{32, 128, true}, true}));
    EXPECT_EQ(t5.encoder.layer(0).span, attention_span::full());
    EXPECT_EQ(t5.layers.layer(0).t5, (t5_terms{{32, 128, false}, true}));
    EXPECT_EQ(t5.layers.layer(0).span, attention_span::causal());
    EXPECT_EQ(t5.layers.layer(0).scale, 1.0);
    ASSERT_TRUE(t5.cross_attention.has_value());
    EXPECT_EQ(t5.cross_attention->encoding, position_encoding::none);
    EXPECT_EQ(t5.cross_attention->scale, 1.0);
    EXPECT_FALSE(umt5.layers.layer(0).t5.shared);
    EXPECT_EQ(read(R"({"model_type": "mt5"})").layers.layers(), 8);
}

TEST(hf_config, xlnet_and_deberta) {
    const position_config xlnet = read(R"({"model_type": "xlnet", "d_model": 768, "d_head": 64, "n_head": 12, "n_layer": 12, "attn_type": "bi",
        "bi_data": false, "clamp_len": -1, "mem_len": null, "reuse_len": null, "same_length": false, "untie_r": true})");
    EXPECT_EQ(xlnet.layers.layer(0).xlnet, xlnet_terms{});
    EXPECT_EQ(xlnet.layers.layer(0).span, attention_span::full());
    EXPECT_DOUBLE_EQ(xlnet.layers.layer(0).scale, 0.125);
    const position_config uni = read(R"({"model_type": "xlnet", "attn_type": "uni", "clamp_len": 100})");
    EXPECT_FALSE(uni.layers.layer(0).xlnet.bidirectional);
    EXPECT_EQ(uni.layers.layer(0).xlnet.mem_len, 512);  // the default of the class
    EXPECT_EQ(uni.layers.layer(0).xlnet.clamp_len, 100);
    EXPECT_EQ(uni.layers.layer(0).span, attention_span::causal());
    // DeBERTa v3 base
    const position_config v3 = read(R"({"model_type": "deberta-v2", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
        "max_position_embeddings": 512, "max_relative_positions": -1, "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p",
        "position_biased_input": false, "position_buckets": 256, "relative_attention": true, "share_att_key": true})");
    EXPECT_EQ(v3.layers.layer(0).deberta, (deberta_terms{2, true, true, 256, 512, true, true}));
    EXPECT_EQ(v3.layers.layer(0).deberta.span(), 256);
    EXPECT_DOUBLE_EQ(v3.layers.layer(0).scale, root(64 * 3));
    EXPECT_EQ(v3.layers.absolute.kind, position_encoding::none);
    const position_config v1 = read(R"({"model_type": "deberta", "max_position_embeddings": 512, "max_relative_positions": -1,
        "pos_att_type": ["c2p"], "position_biased_input": true, "relative_attention": true})");
    EXPECT_EQ(v1.layers.layer(0).deberta, (deberta_terms{1, true, false, 0, 512, false, false}));
    EXPECT_DOUBLE_EQ(v1.layers.layer(0).scale, root(64 * 2));
    EXPECT_EQ(v1.layers.absolute.rows, 512);
}

TEST(hf_config, absolute_positions) {
    const auto absolute = [](const char* json) { return read(json).layers.absolute; };
    constexpr auto learned = position_encoding::learned, sinusoidal = position_encoding::sinusoidal;
    EXPECT_EQ(absolute(R"({"model_type": "bert", "position_embedding_type": "absolute"})"), (absolute_positions{learned, {}, 512, 0, 768, false}));
    EXPECT_EQ(absolute(R"({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1})"),
              (absolute_positions{learned, {}, 514, 2, 768, true}));
    EXPECT_EQ(absolute(R"({"model_type": "gpt2", "n_positions": 1024, "n_ctx": 1024, "n_embd": 768})"),
              (absolute_positions{learned, {}, 1024, 0, 768, false}));
    EXPECT_EQ(absolute(R"({"model_type": "opt", "max_position_embeddings": 2048, "word_embed_proj_dim": 768})"),
              (absolute_positions{learned, {}, 2050, 2, 768, true}));
    // fairseq: rows count from padding_idx + 1, and row padding_idx is zero.
    sinusoid_spec fairseq{.dim = 1024, .columns = sinusoid_columns::concatenated, .denominator = 511.0, .zero_odd_column = true, .offset = 2};
    fairseq.zero_row = 1;
    EXPECT_EQ(absolute(R"({"model_type": "m2m_100", "max_position_embeddings": 1024})"),
              (absolute_positions{sinusoidal, fairseq, 1026, 2, 1024, true}));
    const position_config whisper = read(R"({"model_type": "whisper", "d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6,
        "decoder_layers": 4, "decoder_attention_heads": 6, "max_source_positions": 1500, "max_target_positions": 448, "num_hidden_layers": 4})");
    EXPECT_EQ(whisper.encoder.absolute, (absolute_positions{sinusoidal, sinusoid_spec::whisper(384), 1500, 0, 384, false}));
    EXPECT_EQ(whisper.layers.absolute, (absolute_positions{learned, {}, 448, 0, 384, false}));
    EXPECT_DOUBLE_EQ(whisper.layers.layer(0).scale, 0.125);
    EXPECT_EQ(whisper.cross_attention->span, attention_span::full());
    const position_config relative = read(R"({"model_type": "bert", "position_embedding_type": "relative_key_query"})");
    EXPECT_EQ(relative.layers.layer(0).encoding, position_encoding::relative_key_query);
    EXPECT_EQ(relative.layers.layer(0).relative_rows, 1023);
    EXPECT_EQ(relative.layers.absolute.kind, position_encoding::none);
    const position_config by_layer = read(R"({"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true})");
    EXPECT_DOUBLE_EQ(by_layer.layers.layer(3).scale, 0.125 / 4.0);
}

TEST(hf_config, refusals_name_key_value_and_rule) {
    const struct {
        const char* json;
        const char* text;
    } cases[] = {
        {"[1, 2]", "no JSON object"},
        {"{", "no JSON object"},
        {"{}", "model_type is missing"},
        {R"({"model_type": "mamba"})", "model_type is \"mamba\"; must be a type in the table"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "cubic"}})", "rope_scaling.type is \"cubic\"; must be default, linear"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "mrope"}})", "rope_scaling.type is \"mrope\""},
        {R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 0.5}})", "factor is 0.5; must be"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "linear"}})", "rope_scaling.factor is missing; must be given"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4}})",
         "rope_scaling.original_max_position_embeddings is missing; must be given"},
        {R"({"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1,
             "original_max_position_embeddings": 8192}})",
         "high_freq_factor is 1; must be"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2, "strength": 3}})",
         "rope_scaling.strength is 3; rope type linear does not take it"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "default", "factor": 8}})", "rope_scaling.factor is 8; rope type default does not"},
        {R"({"model_type": "llama", "rope_theta": "big"})", "rope_theta is \"big\"; must be a number"},
        {R"({"model_type": "llama", "rope_theta": 0})", "theta is 0; must be finite and positive"},
        {R"({"model_type": "llama", "head_dim": 33})", "rotary_dim is 33; must be even"},
        {R"({"model_type": "llama", "sliding_window": 4096})", "sliding_window is 4096; is not known for model type llama"},
        {R"({"model_type": "llama", "use_fancy_rope": true})", "use_fancy_rope is true; is not known for model type llama"},
        {R"({"model_type": "llama", "num_attention_heads": 32, "num_key_value_heads": 5})", "num_key_value_heads is 5; must divide"},
        {R"({"model_type": "llama", "num_attention_heads": 32, "n_head": 16})", "n_head is 16; must agree with num_attention_heads, which is 32"},
        {R"({"model_type": "llama", "num_hidden_layers": 2.5})", "num_hidden_layers is 2.5; must be an integer"},
        {R"({"model_type": "llama", "num_hidden_layers": 1e300})", "num_hidden_layers is 1e+300; must be an integer"},
        {R"({"model_type": "phi", "partial_rotary_factor": 1.5})", "partial_rotary_factor is 1.5; must be"},
        {R"({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}})", "short_factor has 1 entries"},
        {R"({"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1]}})", "rope_scaling.long_factor is missing"},
        {R"({"model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 25]}})",
         "rope_scaling.mrope_section is [16,24,25]; must be 3 counts that sum to 64"},
        {R"({"model_type": "qwen3_vl", "rope_scaling": {"mrope_interleaved": false, "mrope_section": [24, 20, 20]}})", "mrope_interleaved is false"},
        {R"({"model_type": "gemma3_text", "rope_parameters": {"rope_type": "linear", "factor": 8}})", "must hold full_attention"},
        {R"({"model_type": "gemma2", "layer_types": ["full_attention"]})", "layer_types is [\"full_attention\"]; must have an entry for each"},
        {R"({"model_type": "gemma2", "num_hidden_layers": 1, "layer_types": ["linear_attention"]})", "layer_types is [\"linear_attention\"]"},
        {R"({"model_type": "gpt_oss", "rope_parameters": {"full_attention": {"rope_type": "default"}}})",
         "rope_parameters.sliding_attention is missing; must be given"},
        {R"({"model_type": "mpt", "attn_config": {"alibi": true, "alibi_shape": 3}})", "attn_config.alibi_shape is 3; is not known"},
        {R"({"model_type": "mpt", "attn_config": {"rope": true, "rope_dail_config": {"type": "xpos"}}})", "rope_dail_config.type is \"xpos\""},
        {R"({"model_type": "t5", "relative_attention_num_buckets": 0})", "relative_attention_num_buckets is 0; must be"},
        {R"({"model_type": "deberta-v2", "relative_attention": true, "position_buckets": 0})", "position_buckets is 0; must be"},
        {R"({"model_type": "deberta-v2", "pos_att_type": ["p2p"]})", "pos_att_type is [\"p2p\"]; must be of c2p and p2c"},
        {R"({"model_type": "xlnet", "attn_type": "tri"})", "attn_type is \"tri\"; must be bi or uni"},
        {R"({"model_type": "baichuan", "hidden_size": 64, "num_attention_heads": 2})", "hidden_size is 64; must be 4096"},
    };
    for (const auto& c : cases) {
        const result<position_config> config = read_hf_config(c.json);
        ASSERT_FALSE(config.ok()) << c.json;
        EXPECT_NE(std::string(config.state().text()).find(c.text), std::string::npos) << c.json << "\n" << config.state().text();
    }
}

class hf_config_damage : public seeded {};

// Bytes cut, changed, doubled and taken out: any answer, no crash. Numbers, words and braces are likely replacements, so that much stays JSON.
TEST_F(hf_config_damage, never_crashes) {
    const std::string sources[] = {
        R"({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4, "rope_scaling": {"type": "yarn",
            "factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32, "truncate": true}, "rope_theta": 1e6})",
        R"({"model_type": "phi3", "rope_scaling": {"type": "su", "short_factor": [1, 2], "long_factor": [1, 2]}, "num_hidden_layers": 4})",
        R"({"model_type": "gemma4_text", "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "rope_parameters":
            {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25}, "sliding_attention": null}})",
        R"({"model_type": "mpt", "n_layers": 3, "attn_config": {"rope": true, "rope_impl": "hf",
            "rope_hf_config": {"type": "linear", "factor": 2}}})",
        R"({"model_type": "deberta-v2", "relative_attention": true, "pos_att_type": "p2c|c2p", "position_buckets": 256, "num_hidden_layers": 3})"};
    const std::string pieces[] = {"0", "-1", "1e308", "null", "true", "[", "]", "{", "}", "\"", ",", "\xff", "99999999999999999999", "0.0001"};
    int read = 0;
    for (int i = 0; i < 4000; ++i) {
        std::string text = sources[static_cast<std::size_t>(between(0, 4))];
        for (int64_t edits = between(1, 3); edits > 0; --edits) {
            const auto at = static_cast<std::size_t>(between(0, static_cast<int64_t>(text.size())));
            const auto length = static_cast<std::size_t>(between(0, 3));
            text.replace(at, length, pieces[static_cast<std::size_t>(between(0, 13))]);
        }
        if (between(0, 9) == 0) text.resize(static_cast<std::size_t>(between(0, static_cast<int64_t>(text.size()))));
        const result<position_config> config = read_hf_config(text);
        if (config.ok()) {
            ++read;
            for (int32_t layer = 0; layer < config->layers.layers(); ++layer) EXPECT_GT(config->layers.layer(layer).k_dim, 0) << text;
        } else {
            EXPECT_NE(config.state().text()[0], '\0') << text;
        }
    }
    EXPECT_GT(read, 40);  // some edits are harmless: the mutations reach past the parser
    const std::string deep(100000, '[');
    EXPECT_FALSE(read_hf_config(deep).ok());
    EXPECT_FALSE(read_hf_config(R"({"model_type": )" + deep + "1" + std::string(100000, ']') + "}").ok());
}

}  // namespace
}  // namespace ropewalk::test
