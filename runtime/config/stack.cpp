#include "runtime/config/stack.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "runtime/refuse.hpp"

namespace ropewalk {

using runtime::refuse;

std::string_view name(position_encoding encoding) noexcept {
    switch (encoding) {
        case position_encoding::none: return "none";
        case position_encoding::rope: return "rope";
        case position_encoding::alibi: return "alibi";
        case position_encoding::t5_buckets: return "t5_buckets";
        case position_encoding::xlnet: return "xlnet";
        case position_encoding::deberta: return "deberta";
        case position_encoding::relative_key: return "relative_key";
        case position_encoding::relative_key_query: return "relative_key_query";
        case position_encoding::learned: return "learned";
        case position_encoding::sinusoidal: return "sinusoidal";
    }
    return "unknown";
}

std::string_view name(rope_family family) noexcept {
    switch (family) {
        case rope_family::standard: return "default";
        case rope_family::linear: return "linear";
        case rope_family::ntk: return "ntk";
        case rope_family::ntk_mixed: return "ntk_mixed";
        case rope_family::ntk_alpha: return "ntk_alpha";
        case rope_family::dynamic_ntk: return "dynamic";
        case rope_family::yarn: return "yarn";
        case rope_family::longrope: return "longrope";
        case rope_family::llama3: return "llama3";
        case rope_family::proportional: return "proportional";
    }
    return "unknown";
}

namespace {

result<rope_spec> of_family(const rope_parameters& p, int64_t length, phase_mode phases) noexcept {
    switch (p.family) {
        case rope_family::standard: return rope_spec::standard(p.rotary_dim, p.theta, phases);
        case rope_family::linear: return rope_spec::linear(p.rotary_dim, p.theta, p.factor, phases);
        case rope_family::ntk: return rope_spec::ntk(p.rotary_dim, p.theta, p.factor, phases);
        case rope_family::ntk_mixed: return rope_spec::ntk_mixed(p.rotary_dim, p.theta, p.factor, p.mixed_b, phases);
        case rope_family::ntk_alpha: return rope_spec::ntk_alpha(p.rotary_dim, p.theta, p.alpha, phases);
        case rope_family::dynamic_ntk: return rope_spec::dynamic_ntk(p.rotary_dim, p.theta, p.factor, p.original_max_position, length, phases);
        case rope_family::yarn:
            return rope_spec::yarn(
                {p.rotary_dim, p.theta, p.factor, p.original_max_position, p.attention_factor, p.beta_fast, p.beta_slow, p.truncate}, phases);
        case rope_family::longrope:
            return rope_spec::longrope({p.rotary_dim, p.theta, p.short_factor, p.long_factor, p.factor, p.original_max_position, p.attention_factor},
                                       length, phases);
        case rope_family::llama3:
            return rope_spec::llama3({p.rotary_dim, p.theta, p.factor, p.low_freq_factor, p.high_freq_factor, p.original_max_position}, phases);
        case rope_family::proportional: return rope_spec::proportional(p.rotary_dim, p.theta, p.partial_rotary_factor, p.factor, phases);
    }
    return refuse(status_code::invalid_argument, "family is %d; must be a rope_family", static_cast<int>(p.family));
}

}  // namespace

bool rope_parameters::depends_on_length() const noexcept { return family == rope_family::dynamic_ntk || family == rope_family::longrope; }

result<rope_spec> rope_parameters::at(int64_t length, phase_mode phases) const noexcept {
    result<rope_spec> spec = of_family(*this, length, phases);
    if (spec.ok() && !divisors.empty()) spec = spec->divided(divisors);
    if (!spec.ok()) return spec;
    try {
        spec->axis_of_pair = axis_of_pair;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu axes", axis_of_pair.size());
    }
    if (const status s = spec->validate(); !s.ok()) return s;
    return spec;
}

result<rope_schedule> rope_parameters::schedule(phase_mode phases) const noexcept {
    result<rope_spec> within = at(0, phases);
    if (!within.ok()) return within.state();
    rope_schedule schedule(*std::move(within));
    if (!depends_on_length()) return schedule;
    schedule.limit_ = original_max_position;
    if (family == rope_family::longrope) {
        result<rope_spec> beyond = at(std::numeric_limits<int64_t>::max(), phases);
        if (!beyond.ok()) return beyond.state();
        schedule.long_ = *std::move(beyond);
        return schedule;
    }
    schedule.theta_ = theta;
    schedule.factor_ = factor;
    try {
        schedule.divisors_ = divisors;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu divisors", divisors.size());
    }
    return schedule;
}

namespace runtime {

void append_layers(position_stack& stack, const position_spec& layer, int32_t count) {
    if (count <= 0) return;
    const auto found = std::find(stack.kinds.begin(), stack.kinds.end(), layer);
    const auto kind = static_cast<int32_t>(found - stack.kinds.begin());
    if (found == stack.kinds.end()) stack.kinds.push_back(layer);
    stack.kind_of_layer.insert(stack.kind_of_layer.end(), static_cast<std::size_t>(count), kind);
}

void append_layer(position_stack& stack, const position_spec& layer) { append_layers(stack, layer, 1); }

absolute_positions learned_table(int64_t rows, int64_t offset, int32_t dim) {
    absolute_positions absolute;
    absolute.kind = position_encoding::learned;
    absolute.rows = rows;
    absolute.offset = offset;
    absolute.dim = dim;
    return absolute;
}

result<std::vector<uint8_t>> axes_of_sections(std::span<const int64_t> sections, axis_order order) {
    std::vector<int32_t> counts(sections.begin(), sections.end());
    while (counts.size() > 3 && counts.back() == 0) counts.pop_back();
    rope_spec pairs;
    pairs.inv_freq.resize(static_cast<std::size_t>(std::accumulate(counts.begin(), counts.end(), 0)));
    result<rope_spec> spec = with_axes(pairs, order, counts);
    if (!spec.ok()) return spec.state();
    return std::move(spec->axis_of_pair);
}

status finish_rotation(rope_rotation& rotation, int32_t k_dim) noexcept {
    result<rope_spec> spec = rotation.parameters.at(0);
    if (!spec.ok()) return prefixed("rope: ", spec.state());
    rotation.spec = std::move(*spec);
    const int32_t end = rotation.first_dim + rotation.spec.rotary_dim();
    if (rotation.first_dim >= 0 && end <= k_dim) return {};
    return refuse(status_code::invalid_argument, "rope: rotary_dim is %d; must fit the head, dims %d .. %d", rotation.spec.rotary_dim(),
                  rotation.first_dim, k_dim);
}

status prefixed(const char* prefix, const status& failure) noexcept { return refuse(failure.code(), "%s%s", prefix, failure.text()); }

}  // namespace runtime
}  // namespace ropewalk
