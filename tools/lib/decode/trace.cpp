#include "tools/lib/decode/trace.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include "tools/lib/golden/rope_parameters.hpp"

namespace ropewalk::toolkit {
namespace {

// params.attn_out_err_vs_f64: {"<layer>": largest error}; 0 where the file does not say.
double recorded_error_of(golden_reader& golden, int64_t layer) {
    const nlohmann::json& errors = golden.raw("attn_out_err_vs_f64");
    if (!errors.is_object()) return 0.0;
    const auto found = errors.find(std::to_string(layer));
    if (found == errors.end()) return 0.0;
    golden.require(found->is_number() && std::isfinite(found->get<double>()), "params.attn_out_err_vs_f64 must hold finite numbers");
    return golden.state().ok() ? found->get<double>() : 0.0;
}

}  // namespace

status load_trace(golden_reader& golden, trace& loaded) {
    model_shape& model = loaded.model;
    model.name = golden.text("model", "trace");
    model.name.resize(std::min(model.name.size(), model.name.find(" (")));  // where the weights came from is not its name
    model.heads = golden.size("num_attention_heads");
    model.kv_heads = golden.size("num_key_value_heads");
    model.head_dim = golden.size("head_dim");
    model.scale = static_cast<float>(golden.number("scale"));
    loaded.tokens = golden.size("n_tokens");
    loaded.prompt_tokens = golden.integer("n_prompt", loaded.tokens / 2);
    const std::vector<int64_t> numbers = golden.integers_of("layers");
    golden.require(golden.flag("causal"), "params.causal must be true");
    golden.require(!numbers.empty(), "params.layers must name at least one layer");
    const int32_t rotary_dim = golden.size("rotary_dim");
    if (!golden.state().ok()) return {};

    model.layers = static_cast<int32_t>(numbers.size());
    model.encoding = model_shape::position::rope;
    const result<rope_spec> spec = rope_spec_of(golden.raw("rope_parameters"), rotary_dim);
    const result<rope_pairing> pairing = pairing_of(golden.parameters());
    if (!spec.ok()) return spec.state();
    if (!pairing.ok()) return pairing.state();
    model.rope = *spec;
    model.pairing = *pairing;

    const std::vector<int64_t> q_shape{model.heads, loaded.tokens, model.head_dim}, kv_shape{model.kv_heads, loaded.tokens, model.head_dim};
    for (const int64_t number : numbers) {
        const auto name = [&](std::string_view part) { return fmt::format("layer{}.{}", number, part); };
        trace_layer layer;
        layer.number = number;
        layer.q = golden.floats(name("q_pre"), q_shape).values;
        layer.k = golden.floats(name("k_pre"), kv_shape).values;
        layer.v = golden.floats(name("v"), kv_shape).values;
        layer.out = golden.doubles(name("attn_out"), q_shape).values;
        layer.lse = golden.doubles(name("lse_f64"), {model.heads, loaded.tokens}).values;
        layer.recorded_error = recorded_error_of(golden, number);
        loaded.layers.push_back(std::move(layer));
    }
    return {};
}

}  // namespace ropewalk::toolkit
