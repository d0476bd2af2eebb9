#include "bind.hpp"

namespace ropewalk::python {
namespace {

phase_mode phases_of(std::string_view text) { return parse_enum<phase_mode>(text, "phases", phase_names); }

// axis_of_pair as a list of integers: a vector<uint8_t> would be one too, but reads as bytes.
std::vector<int> axes_of(const rope_spec& spec) { return {spec.axis_of_pair.begin(), spec.axis_of_pair.end()}; }

rope_spec with_xpos(const rope_spec& spec, double base, double center) {
    rope_spec made = spec;
    made.xpos = {base, center};
    check(made.validate());
    return made;
}

rope_spec with_fope(const rope_spec& spec, array cos_mix, array sin_mix) {
    const numbers<float> cos(cos_mix, "cos_mix"), sin(sin_mix, "sin_mix");
    if (cos.shape().size() != 3 || cos.shape()[1] != cos.shape()[2]) {
        wrong_value("cos_mix", std::to_string(cos.shape().size()) + " axes", "three [heads, frequencies, frequencies]");
    }
    rope_spec made = spec;
    made.fope = {static_cast<int32_t>(cos.shape()[0]), static_cast<int32_t>(cos.shape()[1]), cos.copy(), sin.copy()};
    check(made.validate());
    return made;
}

rope_spec::yarn_parameters yarn_of(int32_t dim, double theta, double factor, double original, double attention_factor, double fast, double slow,
                                   bool truncate) {
    return {dim, theta, factor, original, attention_factor, fast, slow, truncate};
}

// What rope_spec has besides the families that bind_spec() begins with.
void bind_rare_families(nb::class_<rope_spec>& spec) {
    spec.def_static(
            "ntk_mixed",
            [](int32_t dim, double theta, double factor, double mixed_b, std::string_view phases) {
                return take(rope_spec::ntk_mixed(dim, theta, factor, mixed_b, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "mixed_b"_a, "phases"_a = "exact", "vLLM's mixed_b: inv_freq[i] / exp(a (i + 1)^mixed_b).")
        .def_static(
            "ntk_alpha",
            [](int32_t dim, double theta, double alpha, std::string_view phases) {
                return take(rope_spec::ntk_alpha(dim, theta, alpha, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "alpha"_a, "phases"_a = "exact", "Hunyuan's `alpha`.")
        .def_static(
            "yarn_log",
            [](int32_t dim, double theta, double factor, double original, double attention_factor, double fast, double slow, bool truncate,
               std::string_view phases) {
                return take(rope_spec::yarn_log(yarn_of(dim, theta, factor, original, attention_factor, fast, slow, truncate), phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "original_max_position"_a, "attention_factor"_a = 1.0, "beta_fast"_a = 32.0, "beta_slow"_a = 1.0,
            "truncate"_a = true, "phases"_a = "exact", "Grok 1: YaRN whose ramp blends logarithms.")
        .def_static(
            "theta_scale",
            [](int32_t dim, double theta, double factor, double original, std::string_view phases) {
                return take(rope_spec::theta_scale(dim, theta, factor, original, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "original_max_position"_a, "phases"_a = "exact", "Grok 1's other form: a larger theta.")
        .def("with_xpos", &with_xpos, "base"_a = 512.0, "center"_a = 0.0,
             "xPos: pair i of q grows by zeta_i^((position - center) / base), of k it shrinks; zeta_i = (2i + 0.4 d) / (1.4 d), d = rotary_dim.")
        .def("with_fope", &with_fope, "cos_mix"_a, "sin_mix"_a,
             "FoPE: every channel mixes all frequencies by tables [KV heads or 1, frequencies, frequencies] float32.");
}

void bind_spec(nb::module_& m) {
    nb::class_<rope_spec> spec(m, "RopeSpec",
                               "Frequencies [rotary_dim / 2] in radians per position, and one amplitude: all that tells RoPE families apart.");
    spec.def(
            "__init__",
            [](rope_spec* self, array inv_freq, double amplitude, std::string_view phases) {
                new (self) rope_spec{numbers<double>(inv_freq, "inv_freq").copy(), amplitude, phases_of(phases), {}, {}, {}};
                check(self->validate());
            },
            "inv_freq"_a, "amplitude"_a = 1.0, "phases"_a = "exact",
            "inv_freq [rotary_dim / 2] float64. phases: 'exact' (formed in double) or 'hf_f32' (as transformers does, bit for bit).")
        .def_static(
            "standard", [](int32_t dim, double theta, std::string_view phases) { return take(rope_spec::standard(dim, theta, phases_of(phases))); },
            "rotary_dim"_a, "theta"_a = 10000.0, "phases"_a = "exact", "inv_freq[i] = theta^(-2i / rotary_dim).")
        .def_static(
            "linear",
            [](int32_t dim, double theta, double factor, std::string_view phases) {
                return take(rope_spec::linear(dim, theta, factor, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "phases"_a = "exact", "Position interpolation.")
        .def_static(
            "llama3",
            [](int32_t dim, double theta, double factor, double low, double high, double original, std::string_view phases) {
                return take(rope_spec::llama3({dim, theta, factor, low, high, original}, phases_of(phases)));
            },
            "rotary_dim"_a = 128, "theta"_a = 500000.0, "factor"_a = 8.0, "low_freq_factor"_a = 1.0, "high_freq_factor"_a = 4.0,
            "original_max_position"_a = 8192.0, "phases"_a = "exact", "Llama 3.1.")
        .def_static(
            "ntk",
            [](int32_t dim, double theta, double factor, std::string_view phases) {
                return take(rope_spec::ntk(dim, theta, factor, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "phases"_a = "exact", "NTK-aware scaling by a fixed factor.")
        .def_static(
            "dynamic_ntk",
            [](int32_t dim, double theta, double factor, double max_position, int64_t length, std::string_view phases) {
                return take(rope_spec::dynamic_ntk(dim, theta, factor, max_position, length, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "max_position"_a, "length"_a, "phases"_a = "exact",
            "Dynamic NTK of a sequence of `length` tokens.")
        .def_static(
            "yarn",
            [](int32_t dim, double theta, double factor, double original, double attention_factor, double fast, double slow, bool truncate,
               std::string_view phases) {
                return take(rope_spec::yarn(yarn_of(dim, theta, factor, original, attention_factor, fast, slow, truncate), phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "original_max_position"_a, "attention_factor"_a = 1.0, "beta_fast"_a = 32.0, "beta_slow"_a = 1.0,
            "truncate"_a = true, "phases"_a = "exact", "YaRN; attention_factor is the amplitude, e.g. of yarn_amplitude(factor).")
        .def_static(
            "longrope",
            [](int32_t dim, double theta, array short_factor, array long_factor, double factor, double original, int64_t length,
               double attention_factor, std::string_view phases) {
                const numbers<double> shorts(short_factor, "short_factor"), longs(long_factor, "long_factor");
                return take(rope_spec::longrope({dim, theta, shorts, longs, factor, original, attention_factor}, length, phases_of(phases)));
            },
            "rotary_dim"_a, "theta"_a, "short_factor"_a, "long_factor"_a, "factor"_a, "original_max_position"_a, "length"_a,
            "attention_factor"_a = 0.0, "phases"_a = "exact",
            "LongRoPE of a sequence of `length` tokens; factors [rotary_dim / 2] float64 or lists. attention_factor 0: by the published rule.")
        .def_static(
            "proportional",
            [](int32_t head_dim, double theta, double share, double factor, std::string_view phases) {
                return take(rope_spec::proportional(head_dim, theta, share, factor, phases_of(phases)));
            },
            "head_dim"_a, "theta"_a, "partial_rotary_factor"_a, "factor"_a = 1.0, "phases"_a = "exact", "Gemma 4.")
        .def(
            "divided", [](const rope_spec& s, array factors) { return take(s.divided(numbers<double>(factors, "factors"))); }, "factors"_a,
            "inv_freq[i] / factors[i]; factors [rotary_dim / 2] float64.")
        .def(
            "with_axes",
            [](const rope_spec& s, std::string_view order, const std::vector<int32_t>& sections) {
                static constexpr const char* names[] = {"contiguous", "interleaved", "cyclic", "alternating"};
                return take(with_axes(s, parse_enum<axis_order>(order, "order", names), sections));
            },
            "order"_a, "sections"_a, "Several positions a token (M-RoPE): how many pairs each axis turns, and how they are dealt.")
        .def_ro("inv_freq", &rope_spec::inv_freq)
        .def_ro("amplitude", &rope_spec::amplitude)
        .def_prop_ro("axis_of_pair", &axes_of)
        .def_prop_ro("axes", &rope_spec::axes)
        .def_prop_ro("rotary_dim", &rope_spec::rotary_dim)
        .def(
            "__eq__", [](const rope_spec& a, const rope_spec& b) { return a == b; }, nb::is_operator());
    bind_rare_families(spec);
    m.def(
        "vision_2d", [](int32_t dim, double theta) { return take(vision_2d(dim, theta)); }, "rotary_dim"_a, "theta"_a,
        "The rotary spec of a vision tower with two axes (Qwen2-VL, Llama 4).");
    m.def(
        "pixtral_2d", [](int32_t dim, double theta) { return take(pixtral_2d(dim, theta)); }, "rotary_dim"_a, "theta"_a, "Pixtral's.");
    m.def("yarn_amplitude", &yarn_amplitude, "factor"_a, "slope"_a = 0.1, "slope ln(factor) + 1.");
    m.def("yarn_amplitude_ratio", &yarn_amplitude_ratio, "factor"_a, "mscale"_a, "mscale_all_dim"_a, "DeepSeek's rule.");
    m.def("longrope_amplitude", &longrope_amplitude, "factor"_a, "original_max_position"_a);
}

void bind_table(nb::module_& m) {
    nb::class_<rope_table>(m, "RopeTable", "cos and sin of a spec in fp32; may be used from any number of threads.")
        .def(
            "__init__",
            [](rope_table* self, const rope_spec& spec, int64_t initial, std::optional<int64_t> fixed) {
                new (self) rope_table(take(fixed ? rope_table::fixed(spec, *fixed) : rope_table::growing(spec, initial)));
            },
            "spec"_a, "initial_positions"_a = 0, "max_position"_a = nb::none(),
            "Grows with the positions asked for; with max_position it holds exactly 0 .. max_position - 1 and refuses others.")
        .def_prop_ro("spec", &rope_table::spec)
        .def_prop_ro("max_position", &rope_table::max_position)
        .def(
            "row",
            [](const rope_table& table, int64_t position) {
                std::span<float> cos, sin;
                const auto pairs = static_cast<std::size_t>(table.pairs());
                nb::object cos_array = new_array<float>({pairs}, cos), sin_array = new_array<float>({pairs}, sin);
                check(table.row(position, cos, sin));
                return nb::make_tuple(cos_array, sin_array);
            },
            "position"_a, "cos [pairs] and sin [pairs] of one position, amplitude included.");
}

}  // namespace

void bind_rope(nb::module_& m) {
    bind_spec(m);
    bind_table(m);
    m.def(
        "rope_apply",
        [](const rope_table& table, array positions, array q, array k, std::string_view pairing, bool inverse, int32_t first_dim,
           int32_t pair_distance, bool conjugate, executor* on) {
            const numbers<int64_t> p(positions, "positions");
            const tensor q_view(q, "q", access::write), k_view(k, "k", access::write);
            const rope_options options = options_of(pairing, inverse, first_dim, pair_distance, conjugate);
            perform(on, [&](executor& e) { return rope_apply(table, p, q_view, k_view, options, e); });
        },
        "table"_a, "positions"_a, "q"_a.none(), "k"_a.none() = nb::none(), nb::kw_only(), "pairing"_a = "half", "inverse"_a = false,
        "first_dim"_a = 0, "pair_distance"_a = 0, "conjugate"_a = false, "executor"_a.none() = nb::none(),
        "Rotates q [tokens, heads, head_dim] and k [tokens, kv_heads, head_dim] in place; positions [tokens] or [axes, tokens] int64.\n"
        "pairing: 'half' (NeoX, Hugging Face), 'interleaved' (GPT-J), 'interleaved_in_half_out'. fp32, bf16, fp16.");
    m.def(
        "rope_shift",
        [](const rope_table& table, array deltas, array k, std::string_view pairing, int32_t first_dim, int32_t pair_distance, executor* on) {
            const numbers<int64_t> d(deltas, "deltas");
            const tensor k_view(k, "k", access::write);
            const rope_options options = options_of(pairing, false, first_dim, pair_distance, false);
            perform(on, [&](executor& e) { return rope_shift(table, d, k_view, options, e); });
        },
        "table"_a, "deltas"_a, "k"_a, nb::kw_only(), "pairing"_a = "half", "first_dim"_a = 0, "pair_distance"_a = 0, "executor"_a.none() = nb::none(),
        "Moves rotated k [tokens, kv_heads, head_dim] by deltas [tokens] or [axes, tokens] int64, in place.");
    m.def(
        "scale_queries",
        [](array q, array positions, double beta, int64_t floor_length, int64_t offset, executor* on) {
            const tensor q_view(q, "q", access::write);
            const numbers<int64_t> p(positions, "positions");
            const query_temperature temperature{beta, floor_length, offset};
            perform(on, [&](executor& e) { return scale_queries(q_view, p, temperature, e); });
        },
        "q"_a, "positions"_a, nb::kw_only(), "beta"_a, "floor_length"_a, "offset"_a = 0, "executor"_a.none() = nb::none(),
        "Query temperature: multiplies q [tokens, heads, head_dim] by 1 + beta ln(1 + floor((position + offset) / floor_length)), in place.");
}

}  // namespace ropewalk::python
