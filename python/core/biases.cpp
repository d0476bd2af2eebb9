#include "bind.hpp"

namespace ropewalk::python {
namespace {

// table [rows, columns] float32.
std::span<const float> matrix(const numbers<float>& table, const char* name, int64_t& rows, int64_t& columns) {
    if (table.shape().size() != 2) wrong_value(name, std::to_string(table.shape().size()) + " axes", "two");
    rows = table.shape()[0];
    columns = table.shape()[1];
    return table;
}

bias_object over_distance(array table, int64_t first_delta) {
    int64_t heads = 0, count = 0;
    const numbers<float> values(table, "table");
    const auto span = matrix(values, "table", heads, count);
    return {take(attention_bias::over_distance(span, static_cast<int32_t>(heads), first_delta)), {}};
}

bias_object over_grid(array table, int32_t height, int32_t width, bool class_token) {
    int64_t entries = 0, heads = 0;
    const numbers<float> values(table, "table");
    const auto span = matrix(values, "table", entries, heads);
    return {take(attention_bias::over_grid(span, static_cast<int32_t>(heads), height, width, class_token)), {}};
}

bias_object of_rows(array values) {
    const array_view view(values, "values", access::read);
    if (view.type() != nb::dtype<float>()) wrong_type("values", view.type_name(), "float32");
    if (view.ndim() != 3) wrong_value("values", view.shape_text(), "three axes [tokens, heads, keys]");
    if (view.extent(2) > 1 && view.stride(2) != 1) wrong_value("values", "an innermost stride of " + std::to_string(view.stride(2)), "1");
    return {take(attention_bias::of_rows(static_cast<const float*>(view.data()), view.extent(0), static_cast<int32_t>(view.extent(1)), view.extent(2),
                                         view.stride(0), view.stride(1))),
            nb::borrow(values.object)};
}

bias_object t5(array weight, int32_t max_distance, bool bidirectional) {
    int64_t buckets = 0, heads = 0;
    const numbers<float> values(weight, "weight");
    const auto span = matrix(values, "weight", buckets, heads);
    return {take(t5_bias(span, static_cast<int32_t>(heads), {static_cast<int32_t>(buckets), max_distance, bidirectional})), {}};
}

void bind_relative(nb::module_& m) {
    nb::class_<relative_index>(m, "RelativeIndex", "Which row of a table of relative positions belongs to a distance.")
        .def_static(
            "deberta", [](int32_t span) { return take(relative_index::deberta(span)); }, "span"_a)
        .def_static(
            "deberta_buckets", [](int32_t buckets, int32_t positions) { return take(relative_index::deberta_buckets(buckets, positions)); },
            "position_buckets"_a, "max_relative_positions"_a, "DeBERTa v2 and v3.")
        .def_static(
            "shaw", [](int32_t left, int32_t right) { return take(relative_index::shaw(left, right)); }, "left"_a, "right"_a)
        .def_static(
            "bert", [](int32_t positions) { return take(relative_index::bert(positions)); }, "max_position_embeddings"_a)
        .def_static(
            "xlnet", [](int64_t q_len, int64_t k_len, bool bidirectional) { return take(relative_index::xlnet(q_len, k_len, bidirectional)); },
            "q_len"_a, "k_len"_a, "bidirectional"_a = true)
        .def_ro("first_delta", &relative_index::first_delta)
        .def_ro("rows", &relative_index::rows);
    nb::class_<relative_terms>(m, "RelativeTerms", "Which vector terms a plan adds to q.k: q.R (rows), k.C (columns), segments.")
        .def(
            "__init__",
            [](relative_terms* self, bool rows, bool columns, bool segments, const std::optional<relative_index>& index) {
                new (self) relative_terms{rows, columns, segments, index.value_or(relative_index{})};
            },
            nb::kw_only(), "rows"_a = false, "columns"_a = false, "segments"_a = false, "index"_a.none() = nb::none())
        .def_ro("rows", &relative_terms::rows)
        .def_ro("columns", &relative_terms::columns)
        .def_ro("segments", &relative_terms::segments);
}

}  // namespace

void bind_biases(nb::module_& m) {
    nb::class_<bias_object>(m, "AttentionBias",
                            "What attention adds to scores by where query and key stand; acts on score tiles, no mask tensor is formed.")
        .def_static("over_distance", &over_distance, "table"_a, "first_delta"_a,
                    "table [heads, count] float32: head h adds table[h, delta - first_delta], delta = key position - query position; copied.")
        .def_static("over_grid", &over_grid, "table"_a, "height"_a, "width"_a, "class_token"_a = false,
                    "table [(2 height - 1) (2 width - 1) (+ 3), heads] float32, as Swin and BEiT store it; copied.")
        .def_static("of_rows", &of_rows, "values"_a,
                    "values [tokens, heads, keys] float32, read at every run (strides of 0 where rows share values); -inf hides a key.")
        .def_static("t5", &t5, "weight"_a, nb::kw_only(), "max_distance"_a = 128, "bidirectional"_a = true,
                    "weight [num_buckets, heads] float32: relative_attention_bias.weight of T5, mT5, UMT5; copied.")
        .def_static(
            "kerple",
            [](array r1, array r2, int64_t max_distance) {
                const numbers<float> first(r1, "r1"), second(r2, "r2");
                return bias_object{take(kerple_bias(first, second, max_distance)), {}};
            },
            "r1"_a, "r2"_a, "max_distance"_a, "-r1 ln(1 + r2 |delta|); r1 and r2 [heads] float32.")
        .def_prop_ro("heads", [](const bias_object& b) { return b.bias.heads(); });
    m.def(
        "alibi_slopes",
        [](int32_t heads, std::string_view rule, double max_exponent) {
            if (heads < 1) wrong_value("heads", std::to_string(heads), "at least 1");
            std::span<float> slopes;
            nb::object made = new_array<float>({static_cast<std::size_t>(heads)}, slopes);
            check(alibi_slopes(slopes, parse_enum<alibi_rule>(rule, "rule", alibi_names), max_exponent));
            return made;
        },
        "heads"_a, "rule"_a = "press", "max_exponent"_a = 8.0, "Slopes [heads] float32; rule: 'press' (the paper, BLOOM), 'mpt' or 'falcon'.");
    bind_relative(m);
}

}  // namespace ropewalk::python
