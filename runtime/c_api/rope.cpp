// Rotary position embedding: frequencies, schedules, tables, rotation.
#include "runtime/c_api/handles.hpp"

namespace ropewalk::c_api {

rope_options options_of(call& c, const ropewalk_rope_options* options) noexcept {
    if (options == nullptr) return {};
    c.sized("options", options);
    if (!c.ok()) return {};
    return {static_cast<rope_pairing>(options->pairing), options->inverse != 0, options->first_dim, options->pair_distance, options->conjugate != 0};
}

namespace {

phase_mode phases_of(ropewalk_phase_mode phases) noexcept { return static_cast<phase_mode>(phases); }

rope_spec::llama3_parameters parameters_of(const ropewalk_llama3_parameters& p) noexcept {
    return {p.rotary_dim, p.theta, p.factor, p.low_freq_factor, p.high_freq_factor, p.original_max_position};
}

rope_spec::yarn_parameters parameters_of(const ropewalk_yarn_parameters& p) noexcept {
    return {p.rotary_dim, p.theta, p.factor, p.original_max_position, p.attention_factor, p.beta_fast, p.beta_slow, p.truncate != 0};
}

rope_spec::longrope_parameters parameters_of(call& c, const ropewalk_longrope_parameters* p) noexcept {
    c.sized("parameters", p);
    if (!c.ok()) return {};
    return {p->rotary_dim,
            p->theta,
            c.array("parameters.short_factor", p->short_factor, p->pairs),
            c.array("parameters.long_factor", p->long_factor, p->pairs),
            p->factor,
            p->original_max_position,
            p->attention_factor};
}

// Copies of the caller's arrays: may throw.
rope_spec spec_of(const ropewalk_rope_frequencies& f) {
    rope_spec spec;
    spec.inv_freq.assign(f.inv_freq, f.inv_freq + f.pairs);
    spec.amplitude = f.amplitude;
    spec.phases = phases_of(f.phases);
    if (f.axis_of_pair != nullptr) spec.axis_of_pair.assign(f.axis_of_pair, f.axis_of_pair + f.pairs);
    spec.xpos = {f.xpos_base, f.xpos_center};
    spec.fope.heads = f.fope_heads;
    spec.fope.frequencies = f.fope_frequencies;
    return spec;
}

// Elements of each of FoPE's arrays; 0 where the counts are none that validate() would take.
std::size_t mix_elements(const ropewalk_rope_frequencies& f) noexcept {
    if (f.fope_heads <= 0 || f.fope_frequencies <= 0 || static_cast<std::size_t>(f.fope_frequencies) > f.pairs) return 0;
    return static_cast<std::size_t>(f.fope_heads) * static_cast<std::size_t>(f.fope_frequencies) * static_cast<std::size_t>(f.fope_frequencies);
}

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

// ---- frequencies ----------------------------------------------------------------------------------------------------------------------

ropewalk_status ropewalk_rope_spec_create(const ropewalk_rope_frequencies* frequencies, ropewalk_rope_spec** spec) {
    call c;
    c.sized("frequencies", frequencies);
    if (c.ok()) {
        c.array("frequencies.inv_freq", frequencies->inv_freq, frequencies->pairs);
        c.array("frequencies.fope_cos_mix", frequencies->fope_cos_mix, mix_elements(*frequencies));
        c.array("frequencies.fope_sin_mix", frequencies->fope_sin_mix, mix_elements(*frequencies));
    }
    return c.create("spec", spec, [&]() -> result<rope_spec> {
        rope_spec made = spec_of(*frequencies);
        const std::size_t mixed = mix_elements(*frequencies);
        made.fope.cos_mix.assign(frequencies->fope_cos_mix, frequencies->fope_cos_mix + mixed);
        made.fope.sin_mix.assign(frequencies->fope_sin_mix, frequencies->fope_sin_mix + mixed);
        if (const status valid = made.validate(); !valid.ok()) return valid;
        return made;
    });
}

ropewalk_status ropewalk_rope_spec_destroy(ropewalk_rope_spec* spec) { return destroy("spec", spec); }

ropewalk_status ropewalk_rope_spec_get(const ropewalk_rope_spec* spec, ropewalk_rope_frequencies* out) {
    call c;
    c.handle("spec", spec);
    c.sized("frequencies", out);
    return c.run([&] {
        const rope_spec& s = spec->value;
        out->phases = static_cast<ropewalk_phase_mode>(s.phases);
        out->inv_freq = s.inv_freq.data();
        out->pairs = s.inv_freq.size();
        out->axis_of_pair = s.axis_of_pair.empty() ? nullptr : s.axis_of_pair.data();
        out->amplitude = s.amplitude;
        out->xpos_base = s.xpos.base;
        out->xpos_center = s.xpos.center;
        out->fope_heads = s.fope.heads;
        out->fope_frequencies = s.fope.frequencies;
        out->fope_cos_mix = s.fope.cos_mix.data();
        out->fope_sin_mix = s.fope.sin_mix.data();
        return status();
    });
}

ropewalk_status ropewalk_rope_spec_equal(const ropewalk_rope_spec* a, const ropewalk_rope_spec* b, int32_t* equal) {
    call c;
    c.handle("a", a);
    c.handle("b", b);
    return c.get("equal", equal, [&]() -> result<bool> { return a->value == b->value; });
}

ropewalk_status ropewalk_rope_spec_standard(int32_t rotary_dim, double theta, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::standard(rotary_dim, theta, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_linear(int32_t rotary_dim, double theta, double factor, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::linear(rotary_dim, theta, factor, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_llama3(const ropewalk_llama3_parameters* parameters, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    call c;
    c.sized("parameters", parameters);
    return c.create("spec", spec, [&] { return rope_spec::llama3(parameters_of(*parameters), phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_ntk(int32_t rotary_dim, double theta, double factor, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::ntk(rotary_dim, theta, factor, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_ntk_mixed(int32_t rotary_dim, double theta, double factor, double mixed_b, ropewalk_phase_mode phases,
                                             ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::ntk_mixed(rotary_dim, theta, factor, mixed_b, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_ntk_alpha(int32_t rotary_dim, double theta, double alpha, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::ntk_alpha(rotary_dim, theta, alpha, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, int64_t length,
                                               ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::dynamic_ntk(rotary_dim, theta, factor, max_position, length, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_yarn(const ropewalk_yarn_parameters* parameters, ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    call c;
    c.sized("parameters", parameters);
    return c.create("spec", spec, [&] {
        const auto form = parameters->logarithmic != 0 ? rope_spec::yarn_log : rope_spec::yarn;
        return form(parameters_of(*parameters), phases_of(phases));
    });
}

ropewalk_status ropewalk_rope_spec_theta_scale(int32_t rotary_dim, double theta, double factor, double original_max_position,
                                               ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::theta_scale(rotary_dim, theta, factor, original_max_position, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_longrope(const ropewalk_longrope_parameters* parameters, int64_t length, ropewalk_phase_mode phases,
                                            ropewalk_rope_spec** spec) {
    call c;
    const rope_spec::longrope_parameters p = parameters_of(c, parameters);
    return c.create("spec", spec, [&] { return rope_spec::longrope(p, length, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_proportional(int32_t head_dim, double theta, double partial_rotary_factor, double factor,
                                                ropewalk_phase_mode phases, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return rope_spec::proportional(head_dim, theta, partial_rotary_factor, factor, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_spec_divided(const ropewalk_rope_spec* spec, const double* factors, size_t count, ropewalk_rope_spec** divided) {
    call c;
    c.handle("spec", spec);
    const auto by = c.array("factors", factors, count);
    return c.create("divided", divided, [&] { return spec->value.divided(by); });
}

ropewalk_status ropewalk_rope_spec_with_axes(const ropewalk_rope_spec* spec, ropewalk_axis_order order, const int32_t* sections, size_t count,
                                             ropewalk_rope_spec** made) {
    call c;
    c.handle("spec", spec);
    const auto pairs = c.array("sections", sections, count);
    return c.create("with_axes", made, [&] { return with_axes(spec->value, static_cast<axis_order>(order), pairs); });
}

ropewalk_status ropewalk_rope_spec_vision_2d(int32_t rotary_dim, double theta, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return vision_2d(rotary_dim, theta); });
}

ropewalk_status ropewalk_rope_spec_pixtral_2d(int32_t rotary_dim, double theta, ropewalk_rope_spec** spec) {
    return call().create("spec", spec, [&] { return pixtral_2d(rotary_dim, theta); });
}

double ropewalk_yarn_amplitude(double factor, double slope) { return yarn_amplitude(factor, slope); }
double ropewalk_yarn_amplitude_ratio(double factor, double mscale, double mscale_all_dim) {
    return yarn_amplitude_ratio(factor, mscale, mscale_all_dim);
}
double ropewalk_longrope_amplitude(double factor, double original_max_position) { return longrope_amplitude(factor, original_max_position); }

// ---- schedules ------------------------------------------------------------------------------------------------------------------------

ropewalk_status ropewalk_rope_schedule_constant(const ropewalk_rope_spec* spec, ropewalk_rope_schedule** schedule) {
    call c;
    c.handle("spec", spec);
    return c.create("schedule", schedule, [&] { return result<rope_schedule>(rope_schedule(spec->value)); });
}

ropewalk_status ropewalk_rope_schedule_longrope(const ropewalk_longrope_parameters* parameters, ropewalk_phase_mode phases,
                                                ropewalk_rope_schedule** schedule) {
    call c;
    const rope_spec::longrope_parameters p = parameters_of(c, parameters);
    return c.create("schedule", schedule, [&] { return rope_schedule::longrope(p, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_schedule_dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, ropewalk_phase_mode phases,
                                                   ropewalk_rope_schedule** schedule) {
    return call().create("schedule", schedule,
                         [&] { return rope_schedule::dynamic_ntk(rotary_dim, theta, factor, max_position, phases_of(phases)); });
}

ropewalk_status ropewalk_rope_schedule_destroy(ropewalk_rope_schedule* schedule) { return destroy("schedule", schedule); }

ropewalk_status ropewalk_rope_schedule_spec_at(const ropewalk_rope_schedule* schedule, int64_t length, ropewalk_rope_spec** spec) {
    call c;
    c.handle("schedule", schedule);
    return c.create("spec", spec, [&] { return schedule->value.spec_at(length); });
}

ropewalk_status ropewalk_rope_schedule_check_growth(const ropewalk_rope_schedule* schedule, int64_t from, int64_t to) {
    call c;
    c.handle("schedule", schedule);
    return c.run([&] { return schedule->value.check_growth(from, to); });
}

// ---- tables and rotation --------------------------------------------------------------------------------------------------------------

ropewalk_status ropewalk_rope_table_growing(const ropewalk_rope_spec* spec, int64_t initial_positions, int64_t max_cached_positions,
                                            ropewalk_rope_table** table) {
    call c;
    c.handle("spec", spec);
    return c.create("table", table, [&] { return rope_table::growing(spec->value, initial_positions, max_cached_positions); });
}

ropewalk_status ropewalk_rope_table_fixed(const ropewalk_rope_spec* spec, int64_t max_position, ropewalk_rope_table** table) {
    call c;
    c.handle("spec", spec);
    return c.create("table", table, [&] { return rope_table::fixed(spec->value, max_position); });
}

ropewalk_status ropewalk_rope_table_destroy(ropewalk_rope_table* table) { return destroy("table", table); }

ropewalk_status ropewalk_rope_table_get_info(const ropewalk_rope_table* table, ropewalk_rope_table_info* info) {
    call c;
    c.handle("table", table);
    c.sized("info", info);
    return c.run([&] {
        const rope_table& t = table->value;
        info->pairs = t.pairs();
        info->axes = t.axes();
        info->pure_rotation = t.spec().pure_rotation();
        info->cached_bytes = t.cached_bytes();
        info->max_position = t.max_position();
        return status();
    });
}

ropewalk_status ropewalk_rope_table_spec(const ropewalk_rope_table* table, ropewalk_rope_spec** spec) {
    call c;
    c.handle("table", table);
    return c.create("spec", spec, [&] { return result<rope_spec>(rope_spec(table->value.spec())); });
}

ropewalk_status ropewalk_rope_table_row(const ropewalk_rope_table* table, int64_t position, float* cos, float* sin, size_t pairs) {
    call c;
    c.handle("table", table);
    const auto cosines = c.array("cos", cos, pairs), sines = c.array("sin", sin, pairs);
    return c.run([&] { return table->value.row(position, cosines, sines); });
}

ropewalk_status ropewalk_rope_apply(const ropewalk_rope_table* table, const int64_t* positions, size_t positions_count, const ropewalk_tensor* q,
                                    const ropewalk_tensor* k, const ropewalk_rope_options* options, ropewalk_executor* on) {
    call c;
    c.handle("table", table);
    const auto at = c.array("positions", positions, positions_count);
    const head_view q_view = c.view("q", q), k_view = c.view("k", k);
    const rope_options how = options_of(c, options);
    executor& who = executor_of(c, on);
    return c.run([&] { return rope_apply(table->value, at, q_view, k_view, how, who); });
}

ropewalk_status ropewalk_rope_shift(const ropewalk_rope_table* table, const int64_t* deltas, size_t deltas_count, const ropewalk_tensor* k,
                                    const ropewalk_rope_options* options, ropewalk_executor* on) {
    call c;
    c.handle("table", table);
    const auto by = c.array("deltas", deltas, deltas_count);
    const head_view k_view = c.view("k", k);
    const rope_options how = options_of(c, options);
    executor& who = executor_of(c, on);
    return c.run([&] { return rope_shift(table->value, by, k_view, how, who); });
}
