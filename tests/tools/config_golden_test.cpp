// The reader of configurations against what transformers computed from the same configurations: the golden files of rope carry both.
#include <cmath>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <ropewalk/position_spec.hpp>
#include "tools/lib/safetensors.hpp"

namespace ropewalk::test {
namespace {

using nlohmann::json;

// "transformers.models.<type>.modeling_..."
std::string model_type_of(const std::string& source) {
    const std::string before = "transformers.models.";
    const std::size_t from = source.find(before) + before.size();
    return source.substr(from, source.find('.', from) - from);
}

// The layer that the file is about: of its layer type, or any.
const position_spec& layer_of(const position_config& config, const json& params) {
    const bool sliding = params.at("layer_type") == "sliding_attention";
    for (const position_spec& kind : config.layers.kinds) {
        if (params.at("layer_type").is_null() || sliding == (kind.span.left != attention_span::unlimited)) return kind;
    }
    return config.layers.kinds.front();
}

TEST(config_golden, rope_of_every_configuration) {
    int checked = 0;
    for (const auto& entry : std::filesystem::directory_iterator(ROPEWALK_SOURCE_DIR "/tests/golden/rope")) {
        SCOPED_TRACE(entry.path().filename().string());
        const result<toolkit::safetensors_file> file = toolkit::safetensors_file::open(entry.path().string());
        ASSERT_TRUE(file.ok()) << file.state().text();
        const json params = json::parse(file->metadata().find("params")->second);
        if (!params.contains("hf_config")) continue;  // files that are made from parameters alone
        json hf = params.at("hf_config");
        hf["model_type"] = model_type_of(file->metadata().find("source")->second);
        const std::string style = params.at("pair_style");
        if (hf["model_type"] == "deepseek_v3") hf["rope_interleave"] = style != "half";
        const result<position_config> config = read_hf_config(hf.dump());
        ASSERT_TRUE(config.ok()) << config.state().text();
        const position_spec& layer = layer_of(*config, params);
        ASSERT_EQ(layer.encoding, position_encoding::rope);
        const rope_pairing neighbours = style == "interleaved" ? rope_pairing::interleaved : rope_pairing::interleaved_in_half_out;
        EXPECT_EQ(layer.rope.pairing, style == "half" ? rope_pairing::half : neighbours);
        const result<rope_spec> spec = layer.rope.parameters.at(params.value("seq_len", int64_t{0}));
        ASSERT_TRUE(spec.ok()) << spec.state().text();
        const result<std::vector<double>> inv_freq = file->doubles("inv_freq_f64"), amplitude = file->doubles("attention_factor_f64");
        ASSERT_TRUE(inv_freq.ok() && amplitude.ok());
        ASSERT_EQ(spec->inv_freq.size(), inv_freq->size());
        // Both sides are the closed form in double: a few roundings, and pow with a relative error of eps times its exponent, under 20.
        for (std::size_t i = 0; i < inv_freq->size(); ++i) EXPECT_NEAR(spec->inv_freq[i], (*inv_freq)[i], 1e-14 * (*inv_freq)[i]) << i;
        EXPECT_NEAR(spec->amplitude, (*amplitude)[0], 1e-15 * (*amplitude)[0]);
        EXPECT_EQ(spec->axes(), params.at("mrope").is_null() ? 1 : 3);
        ++checked;
    }
    EXPECT_GE(checked, 32);
}

}  // namespace
}  // namespace ropewalk::test
