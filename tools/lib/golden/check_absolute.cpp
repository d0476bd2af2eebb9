#include <string>

#include <fmt/format.h>
#include <ropewalk/absolute.hpp>
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

// Against fp64. Rows are rounded once, 2^-25 below 1, of phases that err by 1e-9 at position 10^6. A shift rounds two factors, two products and a sum
// on top of that: 3 u (|sin| + |cos|).
constexpr double row_tolerance = 0x1p-24;
constexpr double shift_tolerance = 6 * 0x1p-24;

head_view rows_view(std::vector<float>& values, std::size_t rows, int32_t dim) {
    values.resize(rows * static_cast<std::size_t>(dim));
    return dense_view(values.data(), dtype::fp32, static_cast<int64_t>(rows), 1, dim);
}

learned_positions learned_of(const tensor<float>& table, int64_t offset) {
    return {dense_view(static_cast<const void*>(table.values.data()), dtype::fp32, table.shape[0], 1, static_cast<int32_t>(table.shape[1])), offset};
}

status check_sinusoid_rows(const std::string& name, const sinusoid_spec& spec, const std::vector<int64_t>& positions,
                           const std::vector<double>& expected, comparison& checks, executor& on) {
    std::vector<float> rows;
    const status formed = sinusoid_rows(spec, positions, rows_view(rows, positions.size(), spec.dim), on);
    if (formed.ok()) checks.absolute(name, rows, expected, row_tolerance);
    return formed;
}

std::vector<int64_t> counting(int64_t rows) {
    std::vector<int64_t> positions;
    for (int64_t p = 0; p < rows; ++p) positions.push_back(p);
    return positions;
}

sinusoid_spec sinusoid_of(golden_reader& golden) {
    const std::string layout = golden.text("layout");
    golden.require(layout == "interleaved" || layout == "concat", "params.layout must be interleaved or concat");
    sinusoid_spec spec = layout == "concat" ? sinusoid_spec::marian(golden.size("d")) : sinusoid_spec::vaswani(golden.size("d"));
    spec.base = golden.number("base");
    spec.denominator = golden.number("denom", spec.denominator);
    if (golden.has("padding_idx")) spec.zero_row = golden.integer("padding_idx");
    return spec;
}

// Positions [batch, tokens] from ids with padding, and the rows of the file's own table at them.
status check_padded(golden_reader& golden, comparison& checks, executor& on) {
    const tensor<int64_t> ids = golden.integers("input_ids", {any_extent, any_extent});
    const tensor<int64_t> expected = golden.integers("position_ids", ids.shape);
    const tensor<float> table = golden.floats("weights", {any_extent, golden.size("d")});
    const tensor<float> out = golden.floats("out", {ids.shape[0], ids.shape[1], golden.size("d")});
    const int64_t padding_idx = golden.integer("padding_idx"), past = golden.integer("past_key_values_length");
    if (!golden.state().ok()) return {};
    std::vector<int64_t> positions(ids.values.size());
    const auto tokens = static_cast<std::size_t>(ids.shape[1]);
    for (std::size_t first = 0; first < positions.size(); first += tokens) {
        const std::span<const int64_t> sequence = std::span(ids.values).subspan(first, tokens);
        const status made = positions_from_tokens(std::span(positions).subspan(first, tokens), sequence, padding_idx, past);
        if (!made.ok()) return made;
    }
    golden.require(positions == expected.values, "position_ids must count the ids that are not padding_idx");
    std::vector<float> rows;
    const status gathered = learned_rows(learned_of(table, 0), positions, rows_view(rows, positions.size(), golden.size("d")), on);
    if (gathered.ok()) checks.same_bits("out", rows, out.values);
    return gathered;
}

// x + row, and the row alone where the file has it.
status check_added(golden_reader& golden, const learned_positions& learned, const std::vector<int64_t>& positions, std::vector<float> x,
                   comparison& checks, executor& on) {
    const tensor<float> out = golden.floats("out", {any_extent, any_extent, learned.table.dim});
    if (!golden.state().ok()) return {};
    const status added = learned_add(learned, positions, rows_view(x, positions.size(), learned.table.dim), on);
    if (!added.ok()) return added;
    checks.same_bits("out", x, out.values);
    if (!golden.has_tensor("pe")) return {};
    const tensor<float> pe = golden.floats("pe", out.shape);
    std::vector<float> rows;
    const status gathered = learned_rows(learned, positions, rows_view(rows, positions.size(), learned.table.dim), on);
    if (gathered.ok()) checks.same_bits("pe", rows, pe.values);
    return gathered;
}

// OPT: the file's position_ids [batch, tokens] are those of its mask.
status check_mask_positions(golden_reader& golden, const tensor<int64_t>& expected) {
    const tensor<int64_t> attended = golden.integers("attention_mask", expected.shape);
    if (!golden.state().ok()) return {};
    const auto tokens = static_cast<std::size_t>(attended.shape[1]);
    const std::vector<uint8_t> mask(attended.values.begin(), attended.values.end());
    std::vector<int64_t> positions(mask.size());
    for (std::size_t first = 0; first < positions.size(); first += tokens) {
        const status made = positions_from_mask(std::span(positions).subspan(first, tokens), std::span(mask).subspan(first, tokens));
        if (!made.ok()) return made;
    }
    return positions == expected.values ? status() : status(status_code::corrupt_data, "position_ids are not those of attention_mask");
}

// BERT adds the embedding of the token's type first.
void add_token_types(golden_reader& golden, const std::vector<int64_t>& shape, std::vector<float>& x) {
    const tensor<int64_t> types = golden.integers("token_type_ids", {shape[0], shape[1]});
    const tensor<float> table = golden.floats("token_type_table", {any_extent, shape[2]});
    if (!golden.state().ok()) return;
    const auto dim = static_cast<std::size_t>(shape[2]);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const int64_t type = types.values[i / dim];
        golden.require(type >= 0 && type < table.shape[0], "token_type_ids must be rows of token_type_table");
        if (!golden.state().ok()) return;
        x[i] += table.values[static_cast<std::size_t>(type) * dim + i % dim];
    }
}

// The encodings `pe` moved by each of ks, and M itself: its columns are what becomes of the unit vectors.
status check_shift(golden_reader& golden, const std::string& layout, const sinusoid_spec& spec, comparison& checks, executor& on) {
    const std::vector<int64_t> ks = golden.integers("ks", {any_extent}).values;
    const auto d = static_cast<std::size_t>(spec.dim);
    const auto shifts = static_cast<int64_t>(ks.size());
    const tensor<double> matrices = golden.doubles("M_" + layout + "_f64", {shifts, spec.dim, spec.dim});
    const tensor<double> encoded = golden.doubles("pe_" + layout + "_f64", {any_extent, spec.dim});
    const tensor<double> shifted = golden.doubles("pe_shifted_" + layout + "_f64", {shifts, encoded.shape[0], spec.dim});
    if (!golden.state().ok()) return {};
    const auto rows = static_cast<std::size_t>(encoded.shape[0]);
    for (std::size_t n = 0; n < ks.size(); ++n) {
        std::vector<float> moved(encoded.values.begin(), encoded.values.end()), columns(d * d, 0.0f), matrix(d * d);
        for (std::size_t j = 0; j < d; ++j) columns[j * d + j] = 1.0f;
        status done = sinusoid_shift(spec, ks[n], rows_view(moved, rows, spec.dim), on);
        if (done.ok()) done = sinusoid_shift(spec, ks[n], rows_view(columns, d, spec.dim), on);
        if (!done.ok()) return done;
        for (std::size_t i = 0; i < d * d; ++i) matrix[i] = columns[i % d * d + i / d];
        checks.absolute(fmt::format("{} moved by {}", layout, ks[n]), moved, std::span(shifted.values).subspan(n * rows * d, rows * d),
                        shift_tolerance);
        checks.absolute(fmt::format("M_{} of {}", layout, ks[n]), matrix, std::span(matrices.values).subspan(n * d * d, d * d), shift_tolerance);
    }
    return {};
}

// A case's encodings [rows, 2, d_model]: with bi_data the second half of the batch looks the other way.
status check_xlnet_case(golden_reader& golden, const nlohmann::json& parameters, comparison& checks, executor& on) {
    for (const char* integer : {"qlen", "klen", "clamp_len"}) {
        golden.require(parameters.contains(integer) && parameters[integer].is_number_integer(), "a case's qlen, klen and clamp_len must be integers");
    }
    for (const char* text : {"key", "attn_type"}) {
        golden.require(parameters.contains(text) && parameters[text].is_string(), "a case's key and attn_type must be texts");
    }
    golden.require(parameters.contains("bi_data") && parameters["bi_data"].is_boolean(), "a case's bi_data must be true or false");
    if (!golden.state().ok()) return {};
    const std::string key = parameters["key"], type = parameters["attn_type"];
    golden.require(type == "bi" || type == "uni", "attn_type must be bi or uni");
    xlnet_positions_rule rule{parameters["qlen"], parameters["klen"], type == "bi", parameters["clamp_len"], false};
    const tensor<double> expected = golden.doubles(key + "_f64", {any_extent, 2, golden.size("d_model")});
    if (!golden.state().ok()) return {};
    const auto rows = static_cast<std::size_t>(expected.shape[0]), dim = static_cast<std::size_t>(expected.shape[2]);
    for (std::size_t half = 0; half < 2; ++half) {
        rule.negated = half == 1 && parameters["bi_data"].get<bool>();
        std::vector<int64_t> positions(rows);
        status done = xlnet_positions(positions, rule);
        if (!done.ok()) return done;
        std::vector<double> column;
        for (std::size_t i = 0; i < rows * dim; ++i) column.push_back(expected.values[(i / dim * 2 + half) * dim + i % dim]);
        done = check_sinusoid_rows(key, sinusoid_spec::marian(static_cast<int32_t>(dim)), positions, column, checks, on);
        if (!done.ok()) return done;
    }
    return {};
}

}  // namespace

status check_sinusoidal(golden_reader& golden, comparison& checks, executor& on) {
    const sinusoid_spec spec = sinusoid_of(golden);
    const bool has_positions = golden.has_tensor("positions");
    const tensor<double> rows = golden.doubles(has_positions ? "pe_f64" : "weights_f64", {any_extent, golden.size("d")});
    const std::vector<int64_t> positions = has_positions ? golden.integers("positions", {rows.shape[0]}).values : counting(rows.shape[0]);
    if (!golden.state().ok()) return {};
    status done = check_sinusoid_rows("rows", spec, positions, rows.values, checks, on);
    if (done.ok() && golden.has_tensor("far_positions")) {
        const std::vector<int64_t> far = golden.integers("far_positions", {any_extent}).values;
        const tensor<double> expected = golden.doubles("far_pe_f64", {static_cast<int64_t>(far.size()), spec.dim});
        if (golden.state().ok()) done = check_sinusoid_rows("far rows", spec, far, expected.values, checks, on);
    }
    if (done.ok() && golden.has_tensor("input_ids")) done = check_padded(golden, checks, on);
    return done;
}

status check_sinusoidal_shift(golden_reader& golden, comparison& checks, executor& on) {
    sinusoid_spec interleaved = sinusoid_spec::vaswani(golden.size("d")), concatenated = sinusoid_spec::marian(golden.size("d"));
    interleaved.base = concatenated.base = golden.number("base");
    if (!golden.state().ok()) return {};
    const status done = check_shift(golden, "interleaved", interleaved, checks, on);
    return done.ok() ? check_shift(golden, "concat", concatenated, checks, on) : done;
}

status check_xlnet_pos_enc(golden_reader& golden, comparison& checks, executor& on) {
    const nlohmann::json& cases = golden.raw("cases");
    golden.require(cases.is_array() && !cases.empty(), "params.cases must list the cases");
    for (const nlohmann::json& parameters : cases) {
        golden.require(parameters.is_object(), "params.cases must hold objects");
        if (!golden.state().ok()) return {};
        const status done = check_xlnet_case(golden, parameters, checks, on);
        if (!done.ok()) return done;
    }
    return {};
}

status check_learned(golden_reader& golden, comparison& checks, executor& on) {
    tensor<float> x = golden.floats("x", {any_extent, any_extent, any_extent});
    const tensor<float> table = golden.floats("table", {any_extent, x.shape[2]});
    const tensor<int64_t> ids = golden.integers("position_ids", {any_extent, x.shape[1]});
    const int64_t offset = golden.integer("offset");
    golden.require(ids.shape[0] == 1 || ids.shape[0] == x.shape[0], "position_ids must be of one sequence or of all");
    if (golden.has_tensor("token_type_ids")) add_token_types(golden, x.shape, x.values);
    if (!golden.state().ok()) return {};
    if (golden.has_tensor("attention_mask")) {
        if (const status s = check_mask_positions(golden, ids); !s.ok()) return s;
    }
    std::vector<int64_t> positions;
    while (positions.size() < static_cast<std::size_t>(x.shape[0] * x.shape[1]))
        positions.insert(positions.end(), ids.values.begin(), ids.values.end());
    return check_added(golden, learned_of(table, offset), positions, x.values, checks, on);
}

}  // namespace ropewalk::toolkit
