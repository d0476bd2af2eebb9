#include "bind.hpp"
#include "tools/lib/config_report.hpp"

namespace ropewalk::python {
namespace {

template <class Class>
void bind_layer(Class& layer) {
    static constexpr const char* orders[] = {"none", "before_rope", "after_rope"};
    layer.def_prop_ro("encoding", [](const position_spec& s) { return name(s.encoding); })
        .def_prop_ro(
            "rope", [](const position_spec& s) { return s.encoding == position_encoding::rope ? &s.rope : nullptr; },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "alibi", [](const position_spec& s) { return s.encoding == position_encoding::alibi ? &s.alibi : nullptr; },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "t5", [](const position_spec& s) { return s.encoding == position_encoding::t5_buckets ? &s.t5 : nullptr; },
            nb::rv_policy::reference_internal)
        .def_prop_ro(
            "deberta", [](const position_spec& s) { return s.encoding == position_encoding::deberta ? &s.deberta : nullptr; },
            nb::rv_policy::reference_internal)
        .def_ro("relative_rows", &position_spec::relative_rows)
        .def_ro("heads", &position_spec::heads)
        .def_ro("kv_heads", &position_spec::kv_heads)
        .def_ro("k_dim", &position_spec::k_dim)
        .def_ro("v_dim", &position_spec::v_dim)
        .def_ro("kv_lora_rank", &position_spec::kv_lora_rank)
        .def_ro("scale", &position_spec::scale)
        .def_ro("softcap", &position_spec::softcap)
        .def_ro("span", &position_spec::span)
        .def_ro("sinks", &position_spec::sinks)
        .def_ro("prefix_lm", &position_spec::prefix_lm)
        .def_prop_ro(
            "temperature",
            [](const position_spec& s) {
                return s.temperature ? nb::cast(std::tuple(s.temperature->beta, s.temperature->floor_length, s.temperature->offset)) : nb::none();
            },
            "(beta, floor_length, offset) of scale_queries, or None.")
        .def_prop_ro("qk_norm", [](const position_spec& s) { return orders[static_cast<int>(s.qk_norm)]; });
}

void bind_encodings(nb::module_& m) {
    nb::class_<rope_rotation>(m, "RopeRotation")
        .def_ro("spec", &rope_rotation::spec)
        .def_prop_ro("family", [](const rope_rotation& r) { return name(r.parameters.family); })
        .def_prop_ro("pairing", [](const rope_rotation& r) { return pairing_names[static_cast<int>(r.pairing)]; })
        .def_ro("first_dim", &rope_rotation::first_dim)
        .def_prop_ro("depends_on_length", [](const rope_rotation& r) { return r.parameters.depends_on_length(); })
        .def(
            "at", [](const rope_rotation& r, int64_t length) { return take(r.parameters.at(length)); }, "length"_a,
            "The spec of sequences of `length` tokens.")
        .def(
            "schedule", [](const rope_rotation& r) { return take(r.parameters.schedule()); }, "The specs of all lengths.");
    nb::class_<alibi_bias>(m, "AlibiBias")
        .def_prop_ro("rule", [](const alibi_bias& a) { return alibi_names[static_cast<int>(a.rule)]; })
        .def_ro("max_exponent", &alibi_bias::max_exponent)
        .def_prop_ro("place", [](const alibi_bias& a) { return place_names[static_cast<int>(a.place)]; })
        .def_ro("symmetric", &alibi_bias::symmetric);
    nb::class_<t5_terms>(m, "T5Terms")
        .def_prop_ro("num_buckets", [](const t5_terms& t) { return t.rule.num_buckets; })
        .def_prop_ro("max_distance", [](const t5_terms& t) { return t.rule.max_distance; })
        .def_prop_ro("bidirectional", [](const t5_terms& t) { return t.rule.bidirectional; })
        .def_ro("shared", &t5_terms::shared);
    nb::class_<deberta_terms>(m, "DebertaTerms")
        .def_ro("version", &deberta_terms::version)
        .def_ro("c2p", &deberta_terms::c2p)
        .def_ro("p2c", &deberta_terms::p2c)
        .def_ro("buckets", &deberta_terms::buckets)
        .def_ro("max_distance", &deberta_terms::max_distance)
        .def_ro("share_keys", &deberta_terms::share_keys)
        .def_prop_ro("span", &deberta_terms::span);
}

}  // namespace

void bind_config(nb::module_& m) {
    bind_encodings(m);
    nb::class_<position_spec> layer(m, "PositionSpec", "Attention of one layer, as its configuration says.");
    bind_layer(layer);
    nb::class_<position_stack>(m, "PositionStack", "Layers that share a residual stream.")
        .def("__len__", &position_stack::layers)
        .def(
            "__getitem__",
            [](const position_stack& s, int64_t i) -> const position_spec& {
                if (i < 0) i += s.layers();
                if (i < 0 || i >= s.layers()) throw nb::index_error("no such layer");
                return s.layer(static_cast<int32_t>(i));
            },
            nb::rv_policy::reference_internal, "layer"_a)
        .def_prop_ro(
            "absolute", [](const position_stack& s) { return name(s.absolute.kind); }, "'none', 'learned' or 'sinusoidal'.");
    nb::class_<position_config>(m, "PositionConfig", "What a model does with positions.")
        .def_ro("model_type", &position_config::model_type)
        .def_ro("max_positions", &position_config::max_positions)
        .def_ro("layers", &position_config::layers, "The decoder, or the only stack.")
        .def_ro("encoder", &position_config::encoder)
        .def_prop_ro(
            "cross_attention", [](const position_config& c) { return c.cross_attention ? &*c.cross_attention : nullptr; },
            nb::rv_policy::reference_internal)
        .def("__str__", &toolkit::config_text);
    m.def(
        "read_hf_config", [](std::string_view text) { return take(read_hf_config(text)); }, "json_text"_a,
        "From the text of a config.json. What would change numbers and is not known is refused by its key's name.");
    m.def(
        "read_config_file", [](const std::string& path) { return take(toolkit::read_config_file(path)); }, "path"_a,
        "From a config.json or a GGUF file.");
}

}  // namespace ropewalk::python
