// read_gguf_metadata: the keys of llama.cpp, by the rules of its loader.
#include <algorithm>
#include <cmath>
#include <map>
#include <new>
#include <set>
#include <string>

#include "runtime/config/gguf_types.hpp"
#include "runtime/config/stack.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk {
namespace runtime {
namespace {

// Keys "<architecture>.<name>". As config_object: the first fault is kept, and what is read after it has its default.
class gguf_keys {
public:
    gguf_keys(const gguf_metadata& metadata, std::string architecture) : metadata_(metadata), architecture_(std::move(architecture)) {
        for (const gguf_pair& pair : metadata.pairs) pair_of_key_.emplace(pair.key, &pair);
    }

    [[nodiscard]] const status& fault() const { return fault_; }
    void fail(const status& fault) {
        if (fault_.ok()) fault_ = fault;
    }
    void refuse_key(const char* name, const std::string& value, const char* rule, status_code code = status_code::invalid_argument) {
        fail(refuse(code, "%s.%s is %s; %s", architecture_.c_str(), name, value.c_str(), rule));
    }
    void know(std::initializer_list<const char*> names) { known_.insert(names.begin(), names.end()); }

    const gguf_pair* find(const char* name) {
        know({name});
        const auto found = pair_of_key_.find(architecture_ + "." + name);
        return found != pair_of_key_.end() ? found->second : nullptr;
    }
    [[nodiscard]] bool has(const char* name) { return find(name) != nullptr; }

    double number(const char* name, double fallback) {
        const gguf_pair* pair = find(name);
        if (pair == nullptr) return fallback;
        if (const double* real = std::get_if<double>(&pair->value); real != nullptr && std::isfinite(*real)) return *real;
        if (const int64_t* whole = std::get_if<int64_t>(&pair->value)) return static_cast<double>(*whole);
        refuse_key(name, "something else", "must be a finite number");
        return fallback;
    }
    int64_t integer(const char* name, int64_t fallback, int64_t least, int64_t most) {
        const gguf_pair* pair = find(name);
        if (pair == nullptr) return fallback;
        const int64_t* whole = std::get_if<int64_t>(&pair->value);
        if (whole != nullptr && *whole >= least && *whole <= most) return *whole;
        const std::string rule = "must be an integer, " + std::to_string(least) + " .. " + std::to_string(most);
        refuse_key(name, whole != nullptr ? std::to_string(*whole) : "something else", rule.c_str());
        return fallback;
    }
    int32_t small(const char* name, int64_t fallback, int64_t least = 1, int64_t most = 65536) {
        return static_cast<int32_t>(integer(name, fallback, least, most));
    }
    // One value for all layers, or one for each; empty where the key is missing.
    std::vector<int64_t> per_layer(const char* name, int32_t layers, int64_t least) {
        const gguf_pair* pair = find(name);
        if (pair == nullptr) return {};
        std::vector<int64_t> values;
        if (const int64_t* whole = std::get_if<int64_t>(&pair->value)) values.assign(static_cast<std::size_t>(layers), *whole);
        if (const auto* list = std::get_if<std::vector<int64_t>>(&pair->value)) values = *list;
        const bool right = values.size() == static_cast<std::size_t>(layers) &&
                           std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= least && v <= 65536; });
        if (right) return values;
        refuse_key(name, "a list of " + std::to_string(values.size()), "must be one integer, or one for each layer, up to 65536");
        return {};
    }
    std::string text(const char* name, const char* fallback) {
        const gguf_pair* pair = find(name);
        if (pair == nullptr) return fallback;
        if (const std::string* value = std::get_if<std::string>(&pair->value)) return *value;
        refuse_key(name, "something else", "must be a string");
        return fallback;
    }

    // Keys of rope and attention that nobody has read.
    void refuse_unread() {
        for (const gguf_pair& pair : metadata_.pairs) {
            for (const char* part : {".rope.", ".attention."}) {
                if (pair.key.rfind(architecture_ + part, 0) != 0) continue;
                const std::string name = pair.key.substr(architecture_.size() + 1);
                if (known_.contains(name)) continue;
                fail(refuse(status_code::unsupported, "%s is not known for architecture %s", pair.key.c_str(), architecture_.c_str()));
            }
        }
    }

private:
    const gguf_metadata& metadata_;
    std::string architecture_;
    std::map<std::string_view, const gguf_pair*> pair_of_key_;
    std::set<std::string, std::less<>> known_;
    status fault_;
};

// What all layers have in common.
struct gguf_model {
    const gguf_type* type = nullptr;
    const gguf_metadata* metadata = nullptr;
    int32_t layers = 0, hidden = 0;
    int64_t context = 0;
    std::vector<int64_t> heads, kv_heads;  // [layers]
    std::vector<bool> window;              // [layers]
    int64_t window_length = 0;             // chunk length in Llama 4
};

void read_geometry(gguf_keys& keys, gguf_model& model) {
    for (const char* name : {"block_count", "embedding_length", "attention.head_count", "context_length"}) {
        if (!keys.has(name)) keys.refuse_key(name, "missing", "must be given");
    }
    model.layers = keys.small("block_count", 1, 1, max_config_layers);
    model.hidden = keys.small("embedding_length", 1, 1, 1 << 20);
    model.context = keys.integer("context_length", 1, 1, (int64_t{1} << 31) - 1);
    model.heads = keys.per_layer("attention.head_count", model.layers, 1);
    model.heads.resize(static_cast<std::size_t>(model.layers), 1);
    model.kv_heads = keys.per_layer("attention.head_count_kv", model.layers, 1);
    if (model.kv_heads.empty()) model.kv_heads = model.heads;
    for (std::size_t i = 0; i < model.heads.size(); ++i) {
        if (model.heads[i] % model.kv_heads[i] == 0) continue;
        keys.refuse_key("attention.head_count_kv", std::to_string(model.kv_heads[i]), "must divide attention.head_count");
    }
}

void read_windows(gguf_keys& keys, gguf_model& model) {
    const bool llama4 = model.type->name == "llama4";
    const auto layers = static_cast<std::size_t>(model.layers);
    model.window_length = keys.integer("attention.sliding_window", llama4 ? 8192 : 0, 0, (int64_t{1} << 31) - 1);
    model.window.assign(layers, model.window_length != 0);
    std::vector<int64_t> pattern;
    const gguf_pair* given = keys.find("attention.sliding_window_pattern");
    if (given != nullptr && std::holds_alternative<std::vector<int64_t>>(given->value)) {
        pattern = keys.per_layer("attention.sliding_window_pattern", model.layers, 0);
    } else if (const int32_t period = keys.small("attention.sliding_window_pattern", model.type->pattern, 0); period != 0) {
        for (std::size_t i = 0; i < layers; ++i) pattern.push_back((i + 1) % static_cast<std::size_t>(period) != 0);
    }
    for (std::size_t i = 0; i < pattern.size() && i < layers; ++i) model.window[i] = model.window[i] && pattern[i] != 0;
    if (given != nullptr && model.window_length == 0) keys.refuse_key("attention.sliding_window", "missing", "must be given with a pattern");
}

// YaRN's amplitude as llama.cpp arrives at it: its factor 1 / (1 + 0.1 ln s) is undone inside the kernel. Returns mscale_all_dim, or 0.
double read_yarn(gguf_keys& keys, const gguf_type& type, rope_parameters& p) {
    p.family = rope_family::yarn;
    p.truncate = type.truncate;
    if (!keys.has("rope.scaling.original_context_length")) {
        keys.refuse_key("rope.scaling.original_context_length", "missing", "must be given for scaling type yarn");
    }
    p.original_max_position = keys.number("rope.scaling.original_context_length", 1.0);
    p.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0);
    p.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0);
    if (const double ext = keys.number("rope.scaling.yarn_ext_factor", -1.0); ext != 1.0 && ext != -1.0) {
        keys.refuse_key("rope.scaling.yarn_ext_factor", std::to_string(ext), "must be 1", status_code::unsupported);
    }
    if (const double attn = keys.number("rope.scaling.yarn_attn_factor", 1.0); attn != 1.0) {
        keys.refuse_key("rope.scaling.yarn_attn_factor", std::to_string(attn), "must be 1", status_code::unsupported);
    }
    double all_dims = 0.0;
    if (const double multiplier = keys.number("rope.scaling.yarn_log_multiplier", 0.0); multiplier != 0.0) {
        if (type.log_multiplier == 0.0)
            keys.refuse_key("rope.scaling.yarn_log_multiplier", std::to_string(multiplier), "is not known for this architecture");
        // In fp32 as it was written, so that 0.1 gives 1.
        all_dims = static_cast<float>(multiplier) / static_cast<float>(type.log_multiplier == 0.0 ? 1.0 : type.log_multiplier);
    }
    // DeepSeek has mscale == mscale_all_dim; the key of the first is not written. Elsewhere mscale is 1.
    const double mscale = type.name == "deepseek2" && all_dims != 0.0 ? all_dims : 1.0;
    const double amplitude = all_dims != 0.0 ? yarn_amplitude_ratio(p.factor, mscale, all_dims) : yarn_amplitude(p.factor);
    p.attention_factor = amplitude * keys.number("rope.scaling.attn_factor", 1.0);
    return all_dims;
}

void read_longrope(gguf_keys& keys, const gguf_metadata& metadata, rope_parameters& p) {
    p.family = rope_family::longrope;
    p.short_factor = metadata.rope_factors_short;
    p.long_factor = metadata.rope_factors_long;
    p.attention_factor = keys.number("rope.scaling.attn_factor", 1.0);
    if (!keys.has("rope.scaling.original_context_length")) {
        keys.refuse_key("rope.scaling.original_context_length", "missing", "must be given where there are long and short factors");
    }
    p.original_max_position = keys.number("rope.scaling.original_context_length", 1.0);
    if (p.factor != 1.0) keys.refuse_key("rope.scaling.factor", std::to_string(p.factor), "must be 1 where there are long and short factors");
}

void read_axes(gguf_keys& keys, const gguf_type& type, rope_rotation& rotation) {
    const gguf_pair* given = keys.find("rope.dimension_sections");
    const auto* sections = given != nullptr ? std::get_if<std::vector<int64_t>>(&given->value) : nullptr;
    if (given != nullptr && sections == nullptr) return keys.refuse_key("rope.dimension_sections", "something else", "must be a list of integers");
    const bool axes = type.axes != axes_rule::one;
    if (sections == nullptr || std::all_of(sections->begin(), sections->end(), [](int64_t s) { return s == 0; })) {
        if (axes) keys.refuse_key("rope.dimension_sections", "missing", "must be given for this architecture");
        return;
    }
    if (!axes && type.name != "glm4") return keys.refuse_key("rope.dimension_sections", "given", "is not known for this architecture");
    if (!axes) rotation.pairing = rope_pairing::half;  // converters of GLM-4V permute its weights
    int64_t sum = 0;
    bool counts = sections->size() == 3 || sections->size() == 4;
    for (const int64_t s : *sections) {
        counts = counts && s >= 0 && s <= 1024;
        sum += counts ? s : 0;
    }
    if (!counts || sum != rotation.parameters.rotary_dim / 2) {
        const std::string rule = "must be 3 or 4 counts that sum to " + std::to_string(rotation.parameters.rotary_dim / 2) + ", one for each pair";
        return keys.refuse_key("rope.dimension_sections", "a list with sum " + std::to_string(sum), rule.c_str());
    }
    const auto dealt = axes_of_sections(*sections, type.axes == axes_rule::interleaved ? axis_order::interleaved : axis_order::contiguous);
    if (!dealt.ok()) return keys.refuse_key("rope.dimension_sections", "a list", dealt.state().text());
    rotation.parameters.axis_of_pair = *dealt;
}

// Rope of layers with (`local`) or without a window. `all_dims` receives mscale_all_dim.
rope_rotation read_rotation(gguf_keys& keys, const gguf_model& model, bool local, int32_t head_dim, double& all_dims) {
    const gguf_type& type = *model.type;
    rope_rotation rotation;
    rotation.pairing = type.pairing;
    rope_parameters& p = rotation.parameters;
    p.rotary_dim = keys.small("rope.dimension_count", head_dim, 0, 2048);
    const int32_t local_dim = keys.small("rope.dimension_count_swa", p.rotary_dim, 0, 2048);
    p.theta = keys.number("rope.freq_base", 10000.0);
    const double local_theta = keys.number("rope.freq_base_swa", type.local == local_rope::own_base ? 10000.0 : p.theta);
    if (local) {
        p.rotary_dim = local_dim;
        p.theta = local_theta;
    }
    const std::string scaling = keys.text("rope.scaling.type", "linear");
    p.factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0));
    if (p.factor == 0.0) p.factor = 1.0;
    keys.know({"rope.scaling.finetuned", "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
               "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor"});
    const bool unscaled = local && type.local != local_rope::same;
    const bool long_factors = !model.metadata->rope_factors_long.empty() || !model.metadata->rope_factors_short.empty();
    if (!unscaled && (scaling == "longrope" || long_factors)) {
        read_longrope(keys, *model.metadata, p);
    } else if (!unscaled && scaling == "yarn") {
        all_dims = read_yarn(keys, type, p);
    } else if (!unscaled && scaling == "linear") {
        if (p.factor != 1.0) p.family = rope_family::linear;
    } else if (!unscaled && scaling != "none") {
        keys.refuse_key("rope.scaling.type", scaling, "must be none, linear, yarn or longrope", status_code::unsupported);
    }
    if (p.family == rope_family::standard) p.factor = 1.0;
    if (!unscaled) p.divisors = model.metadata->rope_freqs;
    read_axes(keys, type, rotation);
    return rotation;
}

double scale_of(gguf_keys& keys, const gguf_model& model, const position_spec& layer) {
    const double given = keys.number("attention.scale", 0.0);
    if (given != 0.0) return given;
    const std::string_view name = model.type->name;
    if (name == "gemma4" || layer.encoding == position_encoding::t5_buckets) return 1.0;
    // The 27B of both Gemmas has query_pre_attn_scalar = hidden / heads, which no key tells; its count of layers does.
    const bool gemma_27b = (name == "gemma2" && model.layers == 46) || (name == "gemma3" && model.layers == 62);
    return 1.0 / std::sqrt(gemma_27b ? model.hidden / layer.heads : layer.k_dim);
}

std::optional<query_temperature> temperature_of(gguf_keys& keys, const gguf_model& model) {
    const bool llama4 = model.type->name == "llama4";
    const double beta = keys.number("attention.temperature_scale", llama4 ? 0.1 : 0.0);
    const int64_t length = llama4 ? 8192 : keys.integer("rope.scaling.original_context_length", model.context, 1, INT32_MAX);
    const query_temperature temperature{beta, keys.integer("attention.temperature_length", length, 1, INT32_MAX), llama4 ? 1 : 0};
    return beta != 0.0 ? std::optional(temperature) : std::nullopt;
}

void read_mla(gguf_keys& keys, position_spec& layer, double all_dims) {
    layer.kv_lora_rank = keys.small("attention.kv_lora_rank", 512);
    layer.k_dim = keys.small("attention.key_length_mla", layer.k_dim);
    layer.v_dim = keys.small("attention.value_length_mla", layer.v_dim);
    layer.kv_heads = layer.heads;  // head_count_kv 1 is the absorbed form
    layer.rope.first_dim = layer.k_dim - layer.rope.parameters.rotary_dim;
    const double mscale = yarn_amplitude(layer.rope.parameters.factor, 0.1 * all_dims);
    layer.scale = mscale * mscale / std::sqrt(layer.k_dim);
}

// Everything of a layer but its rope.
position_spec layer_of(gguf_keys& keys, const gguf_model& model, std::size_t i) {
    const gguf_type& type = *model.type;
    const bool local = model.window[i];
    position_spec layer;
    layer.encoding = type.encoding;
    layer.heads = static_cast<int32_t>(model.heads[i]);
    layer.kv_heads = static_cast<int32_t>(model.kv_heads[i]);
    layer.k_dim = keys.small("attention.key_length", model.hidden / layer.heads);
    layer.v_dim = keys.small("attention.value_length", model.hidden / layer.heads);
    const int32_t local_k = keys.small("attention.key_length_swa", layer.k_dim), local_v = keys.small("attention.value_length_swa", layer.v_dim);
    if (local) {
        layer.k_dim = local_k;
        layer.v_dim = local_v;
    }
    layer.scale = scale_of(keys, model, layer);
    layer.softcap = keys.number("attn_logit_softcapping", type.softcap);
    layer.sinks = type.sinks;
    layer.qk_norm = type.norm;
    const bool causal = keys.integer("attention.causal", !type.bidirectional, 0, 1) != 0;
    layer.span = causal ? attention_span::causal() : attention_span::full();
    if (local && type.name == "llama4") {
        layer.span = attention_span::chunked(model.window_length);
    } else if (local) {
        layer.span = causal ? attention_span::sliding_window(model.window_length) : attention_span::symmetric(model.window_length / 2);
    }
    return layer;
}

bool turns(const gguf_model& model, std::size_t i) {
    if (model.type->nope_each_fourth) return (i + 1) % 4 != 0;
    return !model.type->nope_without_window || model.window[i];
}

void read_rope_layers(gguf_keys& keys, const gguf_model& model, position_config& out) {
    const std::optional<query_temperature> temperature = temperature_of(keys, model);
    for (std::size_t i = 0; i < model.window.size() && keys.fault().ok(); ++i) {
        position_spec layer = layer_of(keys, model, i);
        const bool mla = model.type->name == "deepseek2" && keys.has("attention.key_length_mla");
        if (turns(model, i)) {
            double all_dims = 0.0;
            layer.rope = read_rotation(keys, model, model.window[i], mla ? 64 : layer.k_dim, all_dims);
            if (mla) {
                read_mla(keys, layer, all_dims);
            } else if (model.type->name == "deepseek2") {  // expanded K, as converters wrote it before MLA was kept
                layer.rope.first_dim = layer.k_dim - layer.rope.parameters.rotary_dim;
                const double mscale = yarn_amplitude(layer.rope.parameters.factor, 0.1 * all_dims);
                layer.scale *= mscale * mscale;
            }
            if (keys.fault().ok()) keys.fail(finish_rotation(layer.rope, layer.k_dim));
        } else {
            layer.encoding = position_encoding::none;
        }
        if (model.type->name == "llama4") {
            const bool nope = layer.encoding == position_encoding::none;
            if (nope) layer.temperature = temperature;
            if (nope || keys.integer("expert_count", 16, 0, 65536) == 128) layer.qk_norm = qk_norm_order::none;  // Maverick has no norm
        } else {
            layer.temperature = temperature;
        }
        append_layer(out.layers, layer);
    }
    out.max_positions = model.context;
}

void read_alibi(gguf_keys& keys, const gguf_model& model, position_config& out) {
    alibi_bias alibi;
    if (model.type->name == "mpt") alibi.rule = alibi_rule::mpt;
    alibi.max_exponent = keys.number("attention.max_alibi_bias", 8.0);
    alibi.symmetric = model.type->bidirectional;
    position_spec layer = layer_of(keys, model, 0);
    if (alibi.max_exponent == 0.0) {  // MPT without ALiBi: a learned table
        layer.encoding = position_encoding::learned;
        out.layers.absolute = learned_table(model.context, 0, model.hidden);
        out.max_positions = model.context;
    } else if (alibi.max_exponent < 0.0) {
        keys.refuse_key("attention.max_alibi_bias", std::to_string(alibi.max_exponent), "must be positive, or 0 for none");
    } else {
        layer.encoding = position_encoding::alibi;
        layer.alibi = alibi;
    }
    append_layers(out.layers, layer, model.layers);
}

void read_t5(gguf_keys& keys, const gguf_model& model, position_config& out) {
    position_spec layer = layer_of(keys, model, 0);
    t5_bucket_rule& rule = layer.t5.rule;
    rule.num_buckets = keys.small("attention.relative_buckets_count", 32, 4);
    if (rule.num_buckets % 2 != 0) keys.refuse_key("attention.relative_buckets_count", std::to_string(rule.num_buckets), "must be even");
    position_spec encoder = layer;
    encoder.span = attention_span::full();
    if (model.type->name == "t5encoder") return append_layers(out.layers, encoder, model.layers);
    append_layers(out.encoder, encoder, model.layers);
    rule.bidirectional = false;
    append_layers(out.layers, layer, keys.small("decoder_block_count", model.layers, 1, max_config_layers));
    out.cross_attention = layer;
    out.cross_attention->encoding = position_encoding::none;
    out.cross_attention->t5 = {};
    out.cross_attention->span = attention_span::full();
}

void read_learned(gguf_keys& keys, const gguf_model& model, position_config& out) {
    out.layers.absolute = learned_table(model.context, 0, model.hidden);
    out.max_positions = model.context;
    append_layers(out.layers, layer_of(keys, model, 0), model.layers);
}

result<position_config> read(const gguf_metadata& metadata) {
    const auto named = std::find_if(metadata.pairs.begin(), metadata.pairs.end(), [](const gguf_pair& p) { return p.key == "general.architecture"; });
    const std::string* name = named != metadata.pairs.end() ? std::get_if<std::string>(&named->value) : nullptr;
    if (name == nullptr) return refuse(status_code::invalid_argument, "general.architecture is missing; must be a string");
    gguf_model model;
    model.metadata = &metadata;
    model.type = find_gguf_type(*name);
    if (model.type == nullptr) {
        return refuse(status_code::unsupported, "general.architecture is %s; must be one in the table: which elements make a pair is in no key",
                      name->c_str());
    }
    position_config out;
    out.model_type = *name;
    gguf_keys keys(metadata, *name);
    read_geometry(keys, model);
    read_windows(keys, model);
    // Baichuan 13B has the architecture of the 7B, and ALiBi.
    gguf_type alibi = *model.type;
    if (*name == "baichuan" && model.layers == 40) {
        alibi.encoding = position_encoding::alibi;
        model.type = &alibi;
        keys.know({"rope.dimension_count", "rope.freq_base"});
    }
    if (keys.fault().ok()) {
        switch (model.type->encoding) {
            case position_encoding::alibi: read_alibi(keys, model, out); break;
            case position_encoding::t5_buckets: read_t5(keys, model, out); break;
            case position_encoding::learned: read_learned(keys, model, out); break;
            default: read_rope_layers(keys, model, out); break;
        }
    }
    keys.know({"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.group_norm_epsilon", "attention.group_norm_groups",
               "attention.clamp_kqv", "attention.q_lora_rank", "attention.kv_lora_rank", "attention.shared_kv_layers"});
    keys.refuse_unread();
    if (!keys.fault().ok()) return keys.fault();
    return out;
}

}  // namespace
}  // namespace runtime

result<position_config> read_gguf_metadata(const gguf_metadata& metadata) noexcept {
    try {
        return runtime::read(metadata);
    } catch (const std::bad_alloc&) {
        return runtime::refuse(status_code::out_of_memory, "no memory for a configuration");
    }
}

result<position_config> read_gguf_metadata(std::span<const std::byte> bytes) noexcept {
    const result<gguf_metadata> metadata = parse_gguf(bytes);
    if (!metadata.ok()) return metadata.state();
    return read_gguf_metadata(*metadata);
}

}  // namespace ropewalk
