#include "runtime/config/rope_keys.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/refuse.hpp"

namespace ropewalk::runtime {
namespace {

struct family_name {
    std::string_view name;
    rope_family family;
};
constexpr family_name families[] = {
    {"default", rope_family::standard},
    {"mrope", rope_family::standard},
    {"linear", rope_family::linear},
    {"dynamic", rope_family::dynamic_ntk},
    {"ntk", rope_family::ntk},
    {"yarn", rope_family::yarn},
    {"deepseek_yarn", rope_family::yarn},
    {"longrope", rope_family::longrope},
    {"su", rope_family::longrope},
    {"llama3", rope_family::llama3},
    {"proportional", rope_family::proportional},
};

// rope_type wins over its old name `type`, as in transformers.
rope_family family_of(config_object& keys, const rope_context& context) {
    const char* key = keys.has({"rope_type"}) ? "rope_type" : "type";
    keys.know({"type"});
    std::string type = keys.text({key}, "default");
    // Phi-3 called its LongRoPE "yarn" before it had a name.
    if (context.type->original_max_position != 0 && type == "yarn") type = "longrope";
    const auto* found = std::find_if(std::begin(families), std::end(families), [&](const family_name& f) { return f.name == type; });
    if (found == std::end(families) || (type == "mrope" && context.type->axes == axes_rule::one)) {
        keys.refuse(key, "must be default, linear, dynamic, ntk, yarn, longrope, llama3 or proportional, or mrope where tokens have three positions",
                    status_code::unsupported);
        return rope_family::standard;
    }
    return found->family;
}

double original_length(config_object& keys, const rope_context& context) {
    keys.know({"original_max_position_embeddings"});
    if (context.original != 0) return static_cast<double>(context.original);
    const double length = keys.required("original_max_position_embeddings", "must be given for this rope type");
    if (length < 1.0) keys.refuse("original_max_position_embeddings", "must be at least 1");
    return length;
}

// factor, or where it is null or may be left out: how much longer the context is than the original one.
double factor_or_ratio(config_object& keys, const rope_context& context, double original, bool optional) {
    if (!optional && !keys.mentions("factor")) keys.refuse("factor", "must be given for this rope type");
    return keys.number({"factor"}, static_cast<double>(context.max_positions) / original);
}

// 0 and null mean the default, as `x or default` in Python.
double or_default(double value, double fallback) { return value == 0.0 ? fallback : value; }

void read_yarn(config_object& keys, const rope_context& context, rope_parameters& p) {
    p.original_max_position = original_length(keys, context);
    p.factor = factor_or_ratio(keys, context, p.original_max_position, false);
    p.beta_fast = or_default(keys.number({"beta_fast"}, 0.0), 32.0);
    p.beta_slow = or_default(keys.number({"beta_slow"}, 0.0), 1.0);
    const double mscale = keys.number({"mscale"}, 0.0), mscale_all_dim = keys.number({"mscale_all_dim"}, 0.0);
    const bool ratio = mscale != 0.0 && mscale_all_dim != 0.0;
    p.attention_factor = keys.number({"attention_factor"}, ratio ? yarn_amplitude_ratio(p.factor, mscale, mscale_all_dim) : yarn_amplitude(p.factor));
    p.truncate = context.truncate;
    if (keys.flag({"truncate"}, p.truncate) != p.truncate) {
        keys.refuse("truncate", "must agree with the dictionary around it, where transformers looks it up");
    }
}

void read_longrope(config_object& keys, const rope_context& context, rope_parameters& p) {
    p.short_factor = keys.numbers("short_factor");
    p.long_factor = keys.numbers("long_factor");
    for (const char* key : {"short_factor", "long_factor"}) {
        if (!keys.has({key})) keys.refuse(key, "must be given for this rope type");
    }
    p.original_max_position = original_length(keys, context);
    p.factor = std::max(1.0, factor_or_ratio(keys, context, p.original_max_position, true));
    if (keys.has({"factor"})) p.factor = keys.number({"factor"}, 1.0);
    p.attention_factor = keys.number({"attention_factor"}, longrope_amplitude(p.factor, p.original_max_position));
}

void read_dynamic(config_object& keys, const rope_context& context, rope_parameters& p) {
    if (keys.has({"alpha"})) {  // Hunyuan: fixed, whatever the type is called
        p.family = rope_family::ntk_alpha;
        p.alpha = keys.number({"alpha"}, 1.0);
        keys.know({"factor"});  // not read where alpha is given
        return;
    }
    p.factor = keys.required("factor", "must be given for this rope type");
    p.original_max_position = static_cast<double>(context.max_positions);
    // transformers takes max_position_embeddings whatever this says, other stacks take this.
    if (keys.number({"original_max_position_embeddings"}, p.original_max_position) != p.original_max_position) {
        keys.refuse("original_max_position_embeddings", "must be max_position_embeddings for rope type dynamic");
    }
}

void read_family(config_object& keys, const rope_context& context, rope_parameters& p) {
    switch (p.family) {
        case rope_family::linear: p.factor = keys.required("factor", "must be given for this rope type"); break;
        case rope_family::ntk:
            p.factor = keys.required("factor", "must be given for this rope type");
            if (keys.has({"mixed_b"})) p.family = rope_family::ntk_mixed;
            p.mixed_b = keys.number({"mixed_b"}, 0.0);
            break;
        case rope_family::dynamic_ntk: read_dynamic(keys, context, p); break;
        case rope_family::yarn: read_yarn(keys, context, p); break;
        case rope_family::longrope: read_longrope(keys, context, p); break;
        case rope_family::llama3:
            p.factor = keys.required("factor", "must be given for this rope type");
            p.low_freq_factor = keys.required("low_freq_factor", "must be given for this rope type");
            p.high_freq_factor = keys.required("high_freq_factor", "must be given for this rope type");
            p.original_max_position = original_length(keys, context);
            break;
        case rope_family::proportional: p.factor = keys.number({"factor"}, 1.0); break;
        default: break;
    }
}

void read_axes(config_object& keys, const rope_context& context, rope_parameters& p) {
    const axes_rule rule = context.type->axes;
    if (rule == axes_rule::one) return;
    const bool interleaved = rule == axes_rule::interleaved;
    if (keys.flag({"mrope_interleaved"}, interleaved) != interleaved) {
        keys.refuse("mrope_interleaved", interleaved ? "must be true for this model type" : "must be false for this model type");
    }
    std::vector<int64_t> sections(std::begin(context.type->sections), std::end(context.type->sections));
    if (keys.has({"mrope_section"})) sections.clear();
    for (const double value : keys.numbers("mrope_section")) {
        if (!(value >= 0.0 && value <= 1024.0 && value == std::floor(value))) return keys.refuse("mrope_section", "must be a list of counts");
        sections.push_back(static_cast<int64_t>(value));
    }
    int64_t sum = 0;
    for (const int64_t section : sections) sum += section;
    if (sections.size() != 3 || sum != p.rotary_dim / 2) {
        return keys.refuse("mrope_section", "must be 3 counts that sum to " + std::to_string(p.rotary_dim / 2) + ", one for each pair");
    }
    const auto axes = axes_of_sections(sections, interleaved ? axis_order::interleaved : axis_order::contiguous);
    if (!axes.ok()) return keys.refuse("mrope_section", axes.state().text());
    p.axis_of_pair = *axes;
}

}  // namespace

rope_parameters read_rope_keys(config_object& keys, const rope_context& context) {
    rope_parameters p;
    p.family = family_of(keys, context);
    p.theta = keys.number({"rope_theta"}, context.theta);
    const double partial = keys.number({"partial_rotary_factor"}, context.partial);
    if (!(partial > 0.0 && partial <= 1.0)) {
        keys.fail(refuse(status_code::invalid_argument, "partial_rotary_factor is %g; must be greater than 0 and at most 1", partial));
        return p;
    }
    // The product is cut, not rounded: int(100 * 0.29) is 28.
    const bool proportional = p.family == rope_family::proportional;
    p.rotary_dim = proportional ? context.head_dim : static_cast<int32_t>(context.head_dim * partial);
    if (proportional) p.partial_rotary_factor = partial;
    read_family(keys, context, p);
    read_axes(keys, context, p);
    // In a dictionary of a type that does not scale these say what was, and change nothing.
    keys.know({"original_max_position_embeddings", "max_position_embeddings"});
    keys.refuse_unread({}, "rope type " + std::string(name(p.family)) + " does not take it");
    return p;
}

double deepseek_scale(config_object& keys, const rope_parameters& rope) {
    if (rope.family == rope_family::standard) return 1.0;
    const double mscale = yarn_amplitude(rope.factor, 0.1 * keys.number({"mscale_all_dim"}, 0.0));
    return mscale * mscale;
}

}  // namespace ropewalk::runtime
