#include "tools/lib/golden/rope_parameters.hpp"

#include <string>
#include <vector>

#include <ropewalk/rope_axes.hpp>
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

// The spec with the axes of params.mrope and params.mrope_section; as it is if there are none.
result<rope_spec> with_axes_of(const json& parameters, const rope_spec& spec) {
    const json &order = member(parameters, "mrope"), &given = member(parameters, "mrope_section");
    if (order.is_null()) return spec;
    std::vector<int32_t> sections;
    for (const json& section : given.is_array() ? given : json::array()) {
        if (!section.is_number_integer()) return refusal(status_code::corrupt_data, "params.mrope_section is {}; must be numbers", given.dump());
        sections.push_back(section.get<int32_t>());
    }
    if (order == "contiguous") return with_axes(spec, axis_order::contiguous, sections);
    if (order == "interleaved") return with_axes(spec, axis_order::interleaved, sections);
    return refusal(status_code::unsupported, "mrope {}", order.dump());
}

result<rope_spec> one_axis_spec_of(const json& parameters, int32_t rotary_dim) {
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

}  // namespace

result<rope_spec> rope_spec_of(const json& parameters, int32_t rotary_dim) {
    if (!parameters.is_object()) return status(status_code::corrupt_data, "rope parameters are no JSON object");
    const result<rope_spec> spec = one_axis_spec_of(parameters, rotary_dim);
    return spec.ok() ? with_axes_of(parameters, *spec) : spec;
}

result<rope_pairing> pairing_of(const json& parameters) {
    const json& style = member(parameters, "pair_style");
    if (style == "half") return rope_pairing::half;
    if (style == "interleaved") return rope_pairing::interleaved;
    if (style == "interleaved_in_half_out") return rope_pairing::interleaved_in_half_out;
    return refusal(status_code::unsupported, "pair_style {}", style.dump());
}

}  // namespace ropewalk::toolkit
