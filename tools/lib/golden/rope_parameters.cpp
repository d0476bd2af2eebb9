#include "tools/lib/golden/rope_parameters.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

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
    double operator()(const char* key, std::optional<double> otherwise = std::nullopt) {
        const json& value = member(parameters_, key);
        if (value.is_number()) return value.get<double>();
        if (value.is_null() && otherwise.has_value()) return *otherwise;
        fail(key, value, "a number");
        return 0.0;
    }
    int64_t integer(const char* key) {
        const json& value = member(parameters_, key);
        if (value.is_number_integer()) return value.get<int64_t>();
        fail(key, value, "an integer");
        return 0;
    }
    std::vector<double> list(const char* key) {
        const json& value = member(parameters_, key);
        if (value.is_array() && std::all_of(value.begin(), value.end(), [](const json& entry) { return entry.is_number(); })) {
            return value.get<std::vector<double>>();
        }
        fail(key, value, "a list of numbers");
        return {};
    }
    bool flag(const char* key, bool otherwise) {
        const json& value = member(parameters_, key);
        if (value.is_boolean()) return value.get<bool>();
        if (!value.is_null()) fail(key, value, "true or false");
        return otherwise;
    }
    // The spec, unless something that it was made from is missing.
    template <class Make>
    result<rope_spec> made(Make make) const {
        return state_.ok() ? make() : state_;
    }

private:
    void fail(const char* key, const json& value, const char* rule) {
        if (state_.ok()) state_ = refusal(status_code::corrupt_data, "params.{} is {}; must be {}", key, value.dump(), rule);
    }

    const json& parameters_;
    status state_;
};

double yarn_attention_factor(number_source& number, double factor) {
    const double mscale = number("mscale", 0.0), all_dim = number("mscale_all_dim", 0.0);
    const double by_rule = mscale != 0.0 && all_dim != 0.0 ? yarn_amplitude_ratio(factor, mscale, all_dim) : yarn_amplitude(factor);
    return number("attention_factor", by_rule);
}

}  // namespace

result<rope_spec> rope_spec_of(const json& parameters, int32_t rotary_dim, phase_mode phases) {
    if (!parameters.is_object()) return status(status_code::corrupt_data, "rope parameters are no JSON object");
    if (!member(parameters, "mrope").is_null()) return status(status_code::unsupported, "mrope: several position axes");
    const json& given = member(parameters, "rope_type");
    const std::string type = given.is_string() ? given.get<std::string>() : "default";
    number_source number(parameters);
    const double theta = number("rope_theta");
    if (type == "default") return number.made([&] { return rope_spec::standard(rotary_dim, theta, phases); });
    if (type == "proportional") {
        const double share = number("partial_rotary_factor", 1.0), factor = number("factor", 1.0);
        return number.made([&] { return rope_spec::proportional(rotary_dim, theta, share, factor, phases); });
    }
    if (type == "longrope") {
        const std::vector<double> near = number.list("short_factor"), far = number.list("long_factor");
        const double original = number("original_max_position_embeddings");
        const double factor = number("factor", number("max_position_embeddings") / original), attention = number("attention_factor", 0.0);
        const int64_t length = number.integer("seq_len");
        return number.made([&] { return rope_spec::longrope({rotary_dim, theta, near, far, factor, original, attention}, length, phases); });
    }
    const double factor = number("factor");
    if (type == "linear") return number.made([&] { return rope_spec::linear(rotary_dim, theta, factor, phases); });
    if (type == "dynamic") {
        const double longest = number("max_position_embeddings");
        const int64_t length = number.integer("seq_len");
        return number.made([&] { return rope_spec::dynamic_ntk(rotary_dim, theta, factor, longest, length, phases); });
    }
    const double original = number("original_max_position_embeddings");
    if (type == "llama3") {
        const double low = number("low_freq_factor"), high = number("high_freq_factor");
        return number.made([&] { return rope_spec::llama3({rotary_dim, theta, factor, low, high, original}, phases); });
    }
    if (type == "yarn") {
        const double attention = yarn_attention_factor(number, factor), fast = number("beta_fast", 32.0), slow = number("beta_slow", 1.0);
        const bool truncate = number.flag("truncate", true);
        return number.made([&] { return rope_spec::yarn({rotary_dim, theta, factor, original, attention, fast, slow, truncate}, phases); });
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
