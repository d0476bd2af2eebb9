// ropewalk-info --config as its users run it.
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/process.hpp"

namespace ropewalk::test {
namespace {

using nlohmann::json;

std::optional<finished_process> show(const std::string& text, const std::vector<std::string>& more = {}) {
    const temporary_file file(text);
    std::vector<std::string> arguments{"--config", file.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tool("ropewalk-info", arguments);
}

const std::string gemma3 = R"({"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 1024, "rope_scaling":
    {"rope_type": "linear", "factor": 8.0}, "max_position_embeddings": 131072})";

TEST(config_cli, equal_layers_are_one_entry) {
    const auto p = show(gemma3);
    if (!p) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
    ASSERT_EQ(p->code, 0) << p->err;
    EXPECT_NE(p->out.find("layers 0-4, 6-10: rope\n"), std::string::npos) << p->out;
    EXPECT_NE(p->out.find("layers 5, 11: rope\n"), std::string::npos) << p->out;
    EXPECT_NE(p->out.find("sees window of 1024"), std::string::npos) << p->out;
    EXPECT_NE(p->out.find("theta 1e+06"), std::string::npos) << p->out;
}

TEST(config_cli, json_has_every_number) {
    const auto p = show(gemma3, {"--json"});
    if (!p) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
    ASSERT_EQ(p->code, 0) << p->err;
    const json config = json::parse(p->out);
    const json& layers = config.at("stack").at("layers");
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[1].at("layers"), "5, 11");
    EXPECT_EQ(layers[1].at("rope").at("inv_freq").size(), 128u);
    EXPECT_EQ(layers[1].at("rope").at("inv_freq")[0], 0.125);
    EXPECT_EQ(layers[0].at("rope").at("theta"), 10000.0);
    EXPECT_EQ(config.at("max_positions"), 131072);
}

// Theta 10000 over 64 dims: log10 wavelength climbs from log10(2 pi) = 0.8 to 0.8 + 4 * 31/32 = 4.67, one step of a pair 0.125; a row is at least as
// tall, so no row lies above a later one. The context of 10^5 is the top row.
TEST(config_cli, chart_climbs_from_left_to_right) {
    const auto p = show(R"({"model_type": "llama", "head_dim": 64, "num_hidden_layers": 1, "max_position_embeddings": 100000})");
    if (!p) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
    ASSERT_EQ(p->code, 0) << p->err;
    std::vector<std::string> rows;
    for (std::size_t at = 0, end; (end = p->out.find('\n', at)) != std::string::npos; at = end + 1) {
        const std::string line = p->out.substr(at, end - at);
        if (line.size() > 9 && line[9] == '|' && line.find("amplitude") == std::string::npos) rows.push_back(line.substr(10));
    }
    ASSERT_EQ(rows.size(), 12u) << p->out;
    EXPECT_EQ(rows[0], std::string(32, '-')) << p->out;
    std::size_t above = 0;
    for (std::size_t pair = 0; pair < 32; ++pair) {
        std::size_t row = 0;
        while (row < rows.size() && (rows[row].size() <= pair || rows[row][pair] != '*')) ++row;
        ASSERT_LT(row, rows.size()) << "pair " << pair << "\n" << p->out;
        EXPECT_TRUE(pair == 0 || row <= above) << "pair " << pair << "\n" << p->out;
        above = row;
    }
    EXPECT_NE(p->out.find("amplitude 1.000000 |===================="), std::string::npos) << p->out;
}

TEST(config_cli, every_form_is_shown) {
    for (const char* text :
         {R"({"model_type": "t5"})", R"({"model_type": "whisper"})", R"({"model_type": "xlnet"})", R"({"model_type": "bloom"})",
          R"({"model_type": "deberta-v2", "relative_attention": true, "pos_att_type": "c2p"})", R"({"model_type": "gpt2", "n_layer": 2})",
          R"({"model_type": "bert", "position_embedding_type": "relative_key"})", R"({"model_type": "gemma4_text"})",
          R"({"model_type": "ministral3"})", R"({"model_type": "llama4_text"})", R"({"model_type": "deepseek_v3"})",
          R"({"model_type": "llama", "max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2.0}})"}) {
        for (const bool as_json : {false, true}) {
            const auto p = show(text, as_json ? std::vector<std::string>{"--json"} : std::vector<std::string>{});
            if (!p) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
            EXPECT_EQ(p->code, 0) << text << p->err;
            EXPECT_FALSE(p->out.empty());
        }
    }
}

TEST(config_cli, bad_input_is_one_line) {
    const std::pair<const char*, const char*> cases[] = {
        {R"({"model_type": "llama", "rope_scaling": {"type": "cubic"}})", "rope_scaling.type is \"cubic\"; must be"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 0.5}})", "factor is 0.5; must be"},
        {R"({"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4}})", "original_max_position_embeddings is missing; must be"},
        {R"({"model_type": "qwen2_vl", "rope_scaling": {"mrope_section": [16, 24, 25]}})", "mrope_section is [16,24,25]; must be"},
        {R"({"model_type": "llama", "head_dim": 33})", "rotary_dim is 33; must be even"},
        {R"({"model_type": "t5", "relative_attention_num_buckets": 0})", "relative_attention_num_buckets is 0; must be"},
        {R"({"model_type": "two\nlines"})", "model_type is \"two\\nlines\"; must be"},
        {"no json", "no JSON object"},
        {"GGUF", "GGUF at byte 4 of 4: the file ends"},
        {"", "not a regular file with content"},
    };
    for (const auto& [text, expected] : cases) {
        const auto p = show(text);
        if (!p) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
        EXPECT_EQ(p->code, 2) << text;
        EXPECT_TRUE(p->out.empty()) << p->out;
        EXPECT_EQ(p->error_lines(), 1) << p->err;
        EXPECT_NE(p->err.find(expected), std::string::npos) << p->err;
    }
    const auto missing = run_tool("ropewalk-info", {"--config", "/nonexistent.json"});
    if (!missing) GTEST_SKIP() << "the tool is not built, or cannot be run from here";
    EXPECT_EQ(missing->code, 2);
}

}  // namespace
}  // namespace ropewalk::test
