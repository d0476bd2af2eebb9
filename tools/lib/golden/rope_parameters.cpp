#include "tools/lib/golden/rope_parameters.hpp"

#include <string>

#include "tools/lib/refusal.hpp"

namespace ropewalk::toolkit {
namespace {

using nlohmann::json;

const json& member(const json& parameters, const char* key) {
    static const json nothing;
    const auto found = parameters.find(key);
    return found != parameters.end() ? *found : nothing;
}

// Collects numbers and remembers the first one that is missing.
class number_source {
public:
    explicit number_source(const json& parameters) : parameters_(parameters) {}
    double operator()(const char* key) {
        const json& value = member(parameters_, key);
        if (value.is_number()) return value.get<double>();
        if (state_.ok()) state_ = refusal(status_code::corrupt_data, "params.{} is {}; must be a number", key, value.dump());
        return 0.0;
    }
    [[nodiscard]] const status& state() const { return state_; }

private:
    const json& parameters_;
    status state_;
};

}  // namespace

result<rope_spec> rope_spec_of(const json& parameters, int32_t rotary_dim) {
    if (!parameters.is_object()) return status(status_code::corrupt_data, "rope parameters are no JSON object");
    if (!member(parameters, "mrope").is_null()) return status(status_code::unsupported, "mrope: several position axes");
    const json& given = member(parameters, "rope_type");
    const std::string type = given.is_string() ? given.get<std::string>() : "default";
    number_source number(parameters);
    const double theta = number("rope_theta");
    if (type == "default") return number.state().ok() ? rope_spec::standard(rotary_dim, theta) : number.state();
    if (type == "linear") {
        const double factor = number("factor");
        return number.state().ok() ? rope_spec::linear(rotary_dim, theta, factor) : number.state();
    }
    if (type == "llama3") {
        const rope_spec::llama3_parameters llama3{
            rotary_dim, theta, number("factor"), number("low_freq_factor"), number("high_freq_factor"), number("original_max_position_embeddings")};
        return number.state().ok() ? rope_spec::llama3(llama3) : number.state();
    }
    return refusal(status_code::unsupported, "rope_type {}", type);
}

result<rope_pairing> pairing_of(const json& parameters) {
    const json& style = member(parameters, "pair_style");
    if (style == "half") return rope_pairing::half;
    if (style == "interleaved") return rope_pairing::interleaved;
    return refusal(status_code::unsupported, "pair_style {}", style.dump());
}

}  // namespace ropewalk::toolkit
