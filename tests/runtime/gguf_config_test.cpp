// The reader of GGUF files, on files written here by the specification of the format (ggml's docs/gguf.md) with the keys of llama.cpp.
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ropewalk/position_spec.hpp>
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

double root(double n) { return 1.0 / std::sqrt(n); }

class gguf_writer {
public:
    explicit gguf_writer(const std::string& architecture, uint32_t version = 3) : prefix_(architecture + "."), version_(version) {
        key("general.architecture", 8);
        text(architecture);
    }
    gguf_writer& integer(const std::string& name, uint32_t value) { return key(prefix_ + name, 4).put(value); }
    gguf_writer& real(const std::string& name, float value) { return key(prefix_ + name, 6).put(value); }
    gguf_writer& boolean(const std::string& name, bool value) { return key(prefix_ + name, 7).put(static_cast<uint8_t>(value)); }
    gguf_writer& word(const std::string& name, const std::string& value) {
        key(prefix_ + name, 8);
        return text(value);
    }
    gguf_writer& integers(const std::string& name, const std::vector<int32_t>& values) {
        key(prefix_ + name, 9).put(uint32_t{5}).put(static_cast<uint64_t>(values.size()));
        for (const int32_t value : values) put(value);
        return *this;
    }
    gguf_writer& vocabulary(int words) {
        key("tokenizer.ggml.tokens", 9).put(uint32_t{8}).put(static_cast<uint64_t>(words));
        for (int i = 0; i < words; ++i) text("word" + std::to_string(i));
        return *this;
    }
    // block_count, embedding_length, head_count, head_count_kv, context_length
    gguf_writer& shape(uint32_t layers, uint32_t hidden, uint32_t heads, uint32_t kv_heads, uint32_t context) {
        integer("block_count", layers).integer("embedding_length", hidden).integer("attention.head_count", heads);
        return integer("attention.head_count_kv", kv_heads).integer("context_length", context).real("attention.layer_norm_rms_epsilon", 1e-5f);
    }
    gguf_writer& tensor(const std::string& name, const std::vector<float>& values) {
        tensors_.emplace_back(name, values);
        return *this;
    }
    [[nodiscard]] std::string bytes() const {
        std::string out = "GGUF";
        append(out, version_);
        append(out, static_cast<uint64_t>(tensors_.size()));
        append(out, pairs_);
        out += body_;
        std::string data;
        for (const auto& [name, values] : tensors_) {
            append(out, static_cast<uint64_t>(name.size()));
            out += name;
            append(out, uint32_t{1});
            append(out, static_cast<uint64_t>(values.size()));
            append(out, uint32_t{0});
            append(out, static_cast<uint64_t>(data.size()));
            for (const float value : values) append(data, value);
            data.resize((data.size() + 31) / 32 * 32, '\0');
        }
        out.resize((out.size() + 31) / 32 * 32, '\0');
        return out + data;
    }

private:
    template <class T>
    static void append(std::string& out, T value) {
        char raw[sizeof value];
        std::memcpy(raw, &value, sizeof value);
        out.append(raw, sizeof value);
    }
    template <class T>
    gguf_writer& put(T value) {
        append(body_, value);
        return *this;
    }
    gguf_writer& text(const std::string& value) {
        put(static_cast<uint64_t>(value.size()));
        body_ += value;
        return *this;
    }
    gguf_writer& key(const std::string& name, uint32_t type) {
        ++pairs_;
        return text(name).put(type);
    }

    std::string prefix_, body_;
    uint32_t version_;
    uint64_t pairs_ = 0;
    std::vector<std::pair<std::string, std::vector<float>>> tensors_;
};

result<position_config> read_bytes(const std::string& bytes) { return read_gguf_metadata(std::as_bytes(std::span(bytes.data(), bytes.size()))); }

position_config read(const gguf_writer& file) {
    result<position_config> config = read_bytes(file.bytes());
    EXPECT_TRUE(config.ok()) << config.state().text();
    if (!config.ok()) return {};
    return *std::move(config);
}

gguf_writer llama31() {
    return gguf_writer("llama")
        .shape(32, 4096, 32, 8, 131072)
        .integer("rope.dimension_count", 128)
        .real("rope.freq_base", 500000.0f)
        .vocabulary(300)
        .tensor("token_embd.weight", std::vector<float>(100, 1.0f))
        .tensor("rope_freqs.weight", [] {
            std::vector<float> divisors(64, 1.0f);
            divisors[63] = 8.0f;
            return divisors;
        }());
}

TEST(gguf_config, llama31_has_its_scaling_in_a_tensor) {
    for (const uint32_t version : {2u, 3u}) {
        const position_config config = read(version == 3 ? llama31() : gguf_writer("llama", 2).shape(32, 4096, 32, 8, 131072));
        ASSERT_EQ(config.layers.layers(), 32);
        const position_spec& layer = config.layers.layer(31);
        EXPECT_EQ(layer.encoding, position_encoding::rope);
        EXPECT_EQ(layer.rope.pairing, rope_pairing::interleaved);  // llama.cpp permutes the weights back to Meta's order
        EXPECT_EQ(layer.k_dim, 128);
        EXPECT_DOUBLE_EQ(layer.scale, root(128));
        EXPECT_EQ(config.max_positions, 131072);
        if (version == 2) continue;
        EXPECT_EQ(layer.rope.spec.inv_freq[0], 1.0);
        EXPECT_NEAR(layer.rope.spec.inv_freq[63], std::pow(5e5, -126.0 / 128.0) / 8.0, 1e-20);
    }
}

TEST(gguf_config, linear_scaling_under_both_names) {
    for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
        EXPECT_EQ(read(gguf_writer("qwen2").shape(2, 256, 4, 4, 4096).real(name, 4.0f)).layers.layer(0).rope.spec.inv_freq[0], 0.25);
    }
    const position_config none =
        read(gguf_writer("qwen2").shape(2, 256, 4, 4, 4096).real("rope.scaling.factor", 4.0f).word("rope.scaling.type", "none"));
    EXPECT_EQ(none.layers.layer(0).rope.spec.inv_freq[0], 1.0);
}

TEST(gguf_config, yarn_amplitude_is_that_of_hugging_face) {
    const auto yarn = [](const char* architecture) {
        return gguf_writer(architecture)
            .shape(28, 3584, 28, 4, 131072)
            .real("rope.freq_base", 1e6f)
            .word("rope.scaling.type", "yarn")
            .real("rope.scaling.factor", 4.0f)
            .integer("rope.scaling.original_context_length", 32768);
    };
    EXPECT_DOUBLE_EQ(read(yarn("qwen2")).layers.layer(0).rope.spec.amplitude, 1.138629436111989);  // 0.1 ln 4 + 1
    EXPECT_DOUBLE_EQ(read(yarn("qwen2").real("rope.scaling.attn_factor", 0.5f)).layers.layer(0).rope.spec.amplitude, 1.138629436111989 / 2.0);
    // Ministral 3 writes the multiplier itself, and its amplitude becomes 1.
    const position_config ministral = read(yarn("mistral3").real("rope.scaling.yarn_log_multiplier", 1.0f).real("attention.temperature_scale", 0.1f));
    EXPECT_EQ(ministral.layers.layer(0).rope.spec.amplitude, 1.0);
    EXPECT_EQ(ministral.layers.layer(0).temperature, std::optional(query_temperature{double{0.1f}, 32768, 0}));
}

TEST(gguf_config, deepseek_multiplier_is_written_times_a_tenth) {
    const position_config config = read(gguf_writer("deepseek2")
                                            .shape(61, 7168, 128, 1, 163840)
                                            .integer("attention.key_length", 576)
                                            .integer("attention.value_length", 512)
                                            .integer("attention.key_length_mla", 192)
                                            .integer("attention.value_length_mla", 128)
                                            .integer("attention.kv_lora_rank", 512)
                                            .integer("attention.q_lora_rank", 1536)
                                            .integer("rope.dimension_count", 64)
                                            .word("rope.scaling.type", "yarn")
                                            .real("rope.scaling.factor", 40.0f)
                                            .integer("rope.scaling.original_context_length", 4096)
                                            .real("rope.scaling.yarn_log_multiplier", 0.1f));
    const position_spec& layer = config.layers.layer(0);
    EXPECT_EQ(layer.k_dim, 192);
    EXPECT_EQ(layer.v_dim, 128);
    EXPECT_EQ(layer.kv_heads, 128);
    EXPECT_EQ(layer.kv_lora_rank, 512);
    EXPECT_EQ(layer.rope.first_dim, 128);
    EXPECT_EQ(layer.rope.spec.amplitude, 1.0);
    EXPECT_DOUBLE_EQ(layer.scale, 0.1352337788608801);  // (1 + 0.1 ln 40)^2 / sqrt(192)
}

TEST(gguf_config, windows_and_local_bases) {
    const position_config gemma3 = read(gguf_writer("gemma3")
                                            .shape(34, 2560, 8, 4, 131072)
                                            .integer("attention.key_length", 256)
                                            .integer("attention.value_length", 256)
                                            .integer("attention.sliding_window", 1024)
                                            .real("rope.freq_base", 1e6f)
                                            .word("rope.scaling.type", "linear")
                                            .real("rope.scaling.factor", 8.0f));
    const position_spec &local = gemma3.layers.layer(0), &global = gemma3.layers.layer(5);
    EXPECT_EQ(local.span, attention_span::sliding_window(1024));
    EXPECT_EQ(local.rope.parameters.theta, 1e4);
    EXPECT_EQ(local.rope.spec.inv_freq[0], 1.0);
    EXPECT_EQ(global.span, attention_span::causal());
    EXPECT_EQ(global.rope.parameters.theta, 1e6);
    EXPECT_EQ(global.rope.spec.inv_freq[0], 0.125);
    const position_config oss = read(gguf_writer("gpt-oss")
                                         .shape(24, 2880, 64, 8, 131072)
                                         .integer("attention.key_length", 64)
                                         .integer("attention.value_length", 64)
                                         .integer("attention.sliding_window", 128)
                                         .real("rope.freq_base", 150000.0f)
                                         .word("rope.scaling.type", "yarn")
                                         .real("rope.scaling.factor", 32.0f)
                                         .integer("rope.scaling.original_context_length", 4096));
    EXPECT_EQ(oss.layers.layer(0).span, attention_span::sliding_window(128));
    EXPECT_EQ(oss.layers.layer(1).span, attention_span::causal());
    EXPECT_EQ(oss.layers.layer(0).rope, oss.layers.layer(1).rope);
    EXPECT_FALSE(oss.layers.layer(0).rope.parameters.truncate);
    EXPECT_TRUE(oss.layers.layer(0).sinks);
    const position_config cohere2 = read(gguf_writer("cohere2").shape(8, 4096, 32, 8, 8192).integer("attention.sliding_window", 4096));
    EXPECT_EQ(cohere2.layers.layer(3).encoding, position_encoding::none);
    EXPECT_EQ(cohere2.layers.layer(4).encoding, position_encoding::rope);
    const position_config listed = read(gguf_writer("gemma4")
                                            .shape(3, 2304, 8, 4, 131072)
                                            .integer("attention.key_length", 512)
                                            .integer("attention.value_length", 512)
                                            .integer("attention.key_length_swa", 256)
                                            .integer("attention.value_length_swa", 256)
                                            .integer("rope.dimension_count", 512)
                                            .integer("rope.dimension_count_swa", 256)
                                            .integer("attention.sliding_window", 512)
                                            .integers("attention.sliding_window_pattern", {1, 0, 1}));
    EXPECT_EQ(listed.layers.layer(0).k_dim, 256);
    EXPECT_EQ(listed.layers.layer(1).k_dim, 512);
    EXPECT_EQ(listed.layers.layer(1).scale, 1.0);
}

TEST(gguf_config, llama4_layers) {
    const position_config config = read(gguf_writer("llama4").shape(8, 5120, 40, 8, 10485760).real("rope.freq_base", 5e5f));
    EXPECT_EQ(config.layers.layer(0).span, attention_span::chunked(8192));
    EXPECT_EQ(config.layers.layer(3).span, attention_span::causal());
    EXPECT_EQ(config.layers.layer(3).encoding, position_encoding::none);
    EXPECT_EQ(config.layers.layer(3).temperature, std::optional(query_temperature{0.1, 8192, 1}));
    EXPECT_EQ(config.layers.layer(0).temperature, std::nullopt);
}

TEST(gguf_config, longrope_has_its_factors_in_tensors) {
    const position_config config = read(gguf_writer("phi3")
                                            .shape(32, 3072, 32, 32, 131072)
                                            .integer("rope.dimension_count", 96)
                                            .integer("rope.scaling.original_context_length", 4096)
                                            .real("rope.scaling.attn_factor", 1.25f)
                                            .tensor("rope_factors_long.weight", std::vector<float>(48, 4.0f))
                                            .tensor("rope_factors_short.weight", std::vector<float>(48, 2.0f)));
    const rope_rotation& rope = config.layers.layer(0).rope;
    EXPECT_EQ(rope.parameters.family, rope_family::longrope);
    EXPECT_EQ(rope.spec.amplitude, 1.25);
    EXPECT_EQ(rope.parameters.at(4096)->inv_freq[0], 0.5);
    EXPECT_EQ(rope.parameters.at(4097)->inv_freq[0], 0.25);
}

TEST(gguf_config, leftover_pairs_of_interleaved_axes_belong_to_the_first) {
    const position_config config = read(gguf_writer("qwen3vl")
                                            .shape(36, 2560, 32, 8, 262144)
                                            .integer("attention.key_length", 128)
                                            .integer("attention.value_length", 128)
                                            .integers("rope.dimension_sections", {24, 20, 20, 0}));
    const std::vector<uint8_t>& axes = config.layers.layer(0).rope.spec.axis_of_pair;
    ASSERT_EQ(axes.size(), 64u);
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(axes[i], i < 60 ? i % 3 : 0) << i;  // as transformers; ggml gives 61 and 62 to a fourth position
}

TEST(gguf_config, other_encodings) {
    EXPECT_EQ(read(gguf_writer("bloom").shape(24, 1024, 16, 16, 2048)).layers.layer(0).alibi, alibi_bias{});
    const position_config mpt =
        read(gguf_writer("mpt").shape(48, 7168, 64, 64, 8192).real("attention.max_alibi_bias", 16.0f).real("attention.clamp_kqv", 6.0f));
    EXPECT_EQ(mpt.layers.layer(0).alibi, (alibi_bias{alibi_rule::mpt, 16.0}));
    const position_config jina =
        read(gguf_writer("jina-bert-v2").shape(12, 768, 12, 12, 8192).real("attention.max_alibi_bias", 8.0f).boolean("attention.causal", false));
    EXPECT_TRUE(jina.layers.layer(0).alibi.symmetric);
    EXPECT_EQ(jina.layers.layer(0).span, attention_span::full());
    const position_config t5 =
        read(gguf_writer("t5").shape(6, 512, 8, 8, 512).integer("attention.relative_buckets_count", 32).integer("decoder_block_count", 4));
    EXPECT_EQ(t5.encoder.layers(), 6);
    EXPECT_EQ(t5.layers.layers(), 4);
    EXPECT_EQ(t5.layers.layer(0).scale, 1.0);
    EXPECT_EQ(read(gguf_writer("gpt2").shape(12, 768, 12, 12, 1024)).layers.absolute.rows, 1024);
    EXPECT_EQ(read(gguf_writer("granite").shape(40, 4096, 32, 8, 131072).real("attention.scale", 0.0078125f)).layers.layer(0).scale, 0.0078125);
}

TEST(gguf_config, refusals_name_key_value_and_rule) {
    const auto qwen2 = [] { return gguf_writer("qwen2").shape(2, 256, 4, 4, 4096); };
    const std::pair<gguf_writer, const char*> cases[] = {
        {gguf_writer("mamba"), "general.architecture is mamba; must be"},
        {gguf_writer("qwen2"), "qwen2.block_count is missing; must be given"},
        {gguf_writer("qwen2").shape(2, 256, 4, 3, 4096), "qwen2.attention.head_count_kv is 3; must divide"},
        {qwen2().real("rope.scaling.factor", 0.5f), "factor is 0.5; must be"},
        {qwen2().word("rope.scaling.type", "cubic"), "qwen2.rope.scaling.type is cubic; must be"},
        {qwen2().word("rope.scaling.type", "yarn").real("rope.scaling.factor", 2.0f), "qwen2.rope.scaling.original_context_length is missing"},
        {qwen2().integer("rope.dimension_count", 63), "rotary_dim is 63; must be even"},
        {qwen2().integer("rope.dimension_count", 128), "rotary_dim is 128; must fit the head"},
        {qwen2().real("rope.spin", 1.0f), "qwen2.rope.spin is not known"},
        {qwen2().real("rope.freq_base", std::nanf("")), "qwen2.rope.freq_base is something else; must be a finite number"},
        {qwen2().integers("rope.dimension_sections", {16, 8, 8, 0}), "qwen2.rope.dimension_sections is given; is not known"},
        {gguf_writer("qwen2vl").shape(2, 256, 4, 4, 4096).integers("rope.dimension_sections", {16, 8, 9, 0}), "must be 3 or 4 counts that sum to 32"},
        {gguf_writer("t5").shape(2, 256, 4, 4, 512).integer("attention.relative_buckets_count", 0), "relative_buckets_count is 0; must be"},
        {llama31().tensor("rope_factors_long.weight", {1.0f}).tensor("rope_factors_short.weight", {1.0f}), "original_context_length is missing"},
        {qwen2().tensor("rope_freqs.weight", {1.0f, 2.0f}), "factors has 2 entries"},
    };
    for (const auto& [file, text] : cases) {
        const result<position_config> config = read_bytes(file.bytes());
        ASSERT_FALSE(config.ok()) << text;
        EXPECT_NE(std::string(config.state().text()).find(text), std::string::npos) << config.state().text() << "\nexpected: " << text;
    }
    EXPECT_EQ(read_bytes("GGUX").state().code(), status_code::corrupt_data);
    EXPECT_EQ(read_bytes(std::string("GGUF\x01\0\0\0", 8)).state().code(), status_code::unsupported);
}

TEST(gguf_config, every_truncation_is_noticed) {
    const std::string whole = llama31().bytes();
    const result<gguf_metadata> metadata = parse_gguf(std::as_bytes(std::span(whole.data(), whole.size())));
    ASSERT_TRUE(metadata.ok());
    EXPECT_EQ(metadata->rope_freqs.size(), 64u);
    EXPECT_EQ(metadata->rope_freqs[63], 8.0);
    EXPECT_EQ(metadata->header_bytes % 32, 0);
    // The last tensor is the one that is read: every byte of the file counts.
    for (std::size_t length = 0; length < whole.size(); ++length) {
        // A copy of its own, so that a read past the end is one past an allocation.
        const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
        const result<gguf_metadata> parsed = parse_gguf(std::as_bytes(std::span(cut)));
        ASSERT_FALSE(parsed.ok()) << length;
        ASSERT_EQ(parsed.state().code(), status_code::corrupt_data) << length;
    }
}

class gguf_config_damage : public seeded {};

TEST_F(gguf_config_damage, never_crashes) {
    const std::string whole = llama31().integer("attention.sliding_window_pattern", 2).integer("attention.sliding_window", 64).bytes();
    int read = 0;
    for (int i = 0; i < 4000; ++i) {
        std::string bytes = whole;
        for (int64_t edits = between(1, 4); edits > 0; --edits) {
            // Half of the edits hit the first 400 bytes, where counts, types and lengths are.
            const int64_t end = between(0, 1) == 0 ? 400 : static_cast<int64_t>(bytes.size());
            bytes[static_cast<std::size_t>(between(0, end - 1))] = static_cast<char>(between(0, 255));
        }
        const result<position_config> config = read_bytes(bytes);
        EXPECT_EQ(config.ok(), config.state().text()[0] == '\0');
        read += config.ok();
    }
    EXPECT_GT(read, 40);  // damage in the vocabulary and in data is none to the reader: mutations reach past the parser
    const uint64_t huge[] = {UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 40};
    for (const uint64_t count : huge) {
        for (std::size_t at : {8u, 16u}) {  // the counts of tensors and of pairs
            std::string bytes = whole;
            std::memcpy(bytes.data() + at, &count, sizeof count);
            EXPECT_EQ(read_bytes(bytes).state().code(), status_code::corrupt_data);
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
