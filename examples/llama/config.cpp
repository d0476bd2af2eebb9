#include "config.hpp"

#include <stdexcept>

#include <nlohmann/json.hpp>

#include "errors.hpp"

namespace llama {

namespace {

void require(const nlohmann::json& json, const char* key, const nlohmann::json& only, const nlohmann::json& when_absent) {
    const nlohmann::json got = json.value(key, when_absent);
    if (got != only) throw std::runtime_error(std::string(key) + " is " + got.dump() + "; this example computes " + only.dump());
}

std::vector<int32_t> one_or_many(const nlohmann::json& json, const char* key) {
    const nlohmann::json got = json.value(key, nlohmann::json());
    if (got.is_null()) return {};
    return got.is_array() ? got.get<std::vector<int32_t>>() : std::vector{got.get<int32_t>()};
}

}  // namespace

config read_config(const std::string& json_text) {
    config result;
    // Which positions, masks and scales a layer has is ropewalk's to read: it refuses what it does not know.
    result.positions = value(ropewalk::read_hf_config(json_text));
    const nlohmann::json json = nlohmann::json::parse(json_text);
    if (result.positions.model_type != "mistral") require(json, "model_type", "llama", nullptr);
    require(json, "hidden_act", "silu", "silu");
    require(json, "attention_bias", false, false);
    require(json, "mlp_bias", false, false);
    result.hidden = json.at("hidden_size");
    result.intermediate = json.at("intermediate_size");
    result.vocabulary = json.at("vocab_size");
    result.norm_epsilon = json.at("rms_norm_eps");
    result.tied = json.value("tie_word_embeddings", false);
    result.endings = one_or_many(json, "eos_token_id");
    return result;
}

}  // namespace llama
