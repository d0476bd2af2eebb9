#include <cmath>
#include <limits>

#include <ropewalk/kv_pages.hpp>
#include <ropewalk/rope.hpp>
#include "runtime/pages_memory.hpp"
#include "tools/lib/golden/check.hpp"
#include "tools/lib/golden/rope_parameters.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr double unit_roundoff = 0x1p-24;  // fp32, to nearest

// A tensor [1, heads, tokens, dim] of the file as the strided view [tokens, heads, dim] it already is.
head_view heads_first_view(std::vector<float>& values, int64_t tokens, int32_t heads, int32_t dim) {
    return {values.data(), dtype::fp32, tokens, heads, dim, dim, tokens * dim};
}

// What rounding may do to a rotated element: cos and sin are rounded once, each product once, the sum once, so that
// |error| <= 3u (|x0| + |x1|) amplitude; elements outside the slice must not change at all.
std::vector<double> rotation_bounds(const std::vector<float>& x, int32_t dim, int32_t rotary_dim, rope_pairing pairing, double amplitude) {
    std::vector<double> bounds(x.size(), 0.0);
    const int32_t pairs = rotary_dim / 2;
    for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(dim)) {
        for (int32_t i = 0; i < pairs; ++i) {
            const std::size_t first = row + static_cast<std::size_t>(pairing == rope_pairing::half ? i : 2 * i);
            const std::size_t second = pairing == rope_pairing::half ? first + static_cast<std::size_t>(pairs) : first + 1;
            const double size = std::fabs(double{x[first]}) + std::fabs(double{x[second]});
            bounds[first] = bounds[second] = 3.0 * unit_roundoff * amplitude * size;
        }
    }
    return bounds;
}

// cos and sin [positions, pairs].
status read_rows(const rope_table& table, const std::vector<int64_t>& positions, std::vector<float>& cos, std::vector<float>& sin) {
    const auto pairs = static_cast<std::size_t>(table.pairs());
    for (std::size_t t = 0; t < positions.size(); ++t) {
        const status row = table.row(positions[t], std::span(cos).subspan(t * pairs, pairs), std::span(sin).subspan(t * pairs, pairs));
        if (!row.ok()) return row;
    }
    return {};
}

// Rows of the table against fp64. Correct rounding errs by u/2 at most; the phase itself, formed in double, adds 1e-9 at position 10^6.
status check_rows(golden_reader& golden, const rope_table& table, const std::vector<int64_t>& positions, comparison& checks) {
    const auto tokens = static_cast<int64_t>(positions.size());
    const tensor<double> cos = golden.doubles("cos_f64", {1, tokens, table.pairs()});
    const tensor<double> sin = golden.doubles("sin_f64", {1, tokens, table.pairs()});
    if (!golden.state().ok()) return {};
    std::vector<float> cos_rows(cos.values.size()), sin_rows(sin.values.size());
    if (const status s = read_rows(table, positions, cos_rows, sin_rows); !s.ok()) return s;
    const double tolerance = unit_roundoff * table.spec().amplitude;
    checks.absolute("cos", cos_rows, cos.values, tolerance);
    checks.absolute("sin", sin_rows, sin.values, tolerance);
    return {};
}

// Every expected value with the tolerance of so many units in the last place of its fp32 form.
void check_ulps(const char* quantity, const std::vector<float>& got, const std::vector<float>& expected, double ulps, comparison& checks) {
    const std::vector<double> wanted(expected.begin(), expected.end());
    std::vector<double> tolerance(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        const float size = std::fabs(expected[i]);
        tolerance[i] = ulps * (double{std::nextafter(size, std::numeric_limits<float>::infinity())} - double{size});
    }
    checks.bounded(quantity, got, wanted, tolerance);
}

// The columns [tokens, pairs] of a table of transformers, which has each once, or twice: as halves or as neighbours.
std::vector<float> single_columns(const tensor<float>& doubled, int32_t pairs) {
    const int64_t width = doubled.shape[2];
    if (width == pairs) return doubled.values;
    const auto at = [&](int64_t token, int64_t column) { return doubled.values[static_cast<std::size_t>(token * width + column)]; };
    bool neighbours = true;
    for (int64_t t = 0; t < doubled.shape[1]; ++t) {
        for (int64_t i = 0; i < pairs; ++i) neighbours = neighbours && at(t, 2 * i) == at(t, 2 * i + 1);
    }
    std::vector<float> columns;
    for (int64_t t = 0; t < doubled.shape[1]; ++t) {
        for (int64_t i = 0; i < pairs; ++i) columns.push_back(at(t, neighbours ? 2 * i : i));
    }
    return columns;
}

// phase_mode::hf_f32 against what transformers computed in fp32: frequencies from the parameters; cos and sin from its own frequencies.
status check_hf_f32(golden_reader& golden, int32_t rotary_dim, const std::vector<int64_t>& positions, comparison& checks) {
    const auto tokens = static_cast<int64_t>(positions.size());
    const int32_t pairs = rotary_dim / 2;
    const result<rope_spec> made = rope_spec_of(golden.parameters(), rotary_dim, phase_mode::hf_f32);
    if (!made.ok()) return made.state();
    const std::vector<float> inv_freq = golden.floats("inv_freq", {pairs}).values, amplitude = golden.floats("attention_factor", {1}).values;
    const tensor<float> cos = golden.floats("cos", {1, tokens, any_extent}), sin = golden.floats("sin", cos.shape);
    if (!golden.state().ok()) return {};
    golden.require(cos.shape[2] == pairs || cos.shape[2] == rotary_dim, "cos must have rotary_dim columns or half of them");
    if (!golden.state().ok()) return {};
    check_ulps("fp32 inv_freq", {made->inv_freq.begin(), made->inv_freq.end()}, inv_freq, 1.0, checks);
    rope_spec given;
    given.inv_freq.assign(inv_freq.begin(), inv_freq.end());
    given.amplitude = double{amplitude[0]};
    given.phases = phase_mode::hf_f32;
    const result<rope_table> table = rope_table::growing(given);
    if (!table.ok()) return table.state();
    const std::vector<float> cos_columns = single_columns(cos, pairs), sin_columns = single_columns(sin, pairs);
    std::vector<float> cos_rows(cos_columns.size()), sin_rows(sin_columns.size());
    if (const status s = read_rows(*table, positions, cos_rows, sin_rows); !s.ok()) return s;
    // torch's cos and sin are within an ulp of the rounded ones; a product with the amplitude makes that up to two.
    const double ulps = amplitude[0] == 1.0f ? 1.0 : 2.0;
    check_ulps("fp32 cos", cos_rows, cos_columns, ulps, checks);
    check_ulps("fp32 sin", sin_rows, sin_columns, ulps, checks);
    return {};
}

// K through kv_append with the rotation fused in, read back: the bits of rotating in place.
status check_fused_append(const rope_table& table, const std::vector<int64_t>& positions, const head_view& k, const std::vector<float>& rotated,
                          const rope_options& options, comparison& checks, executor& on) {
    kv_layout layout;
    layout.k_type = layout.v_type = dtype::fp32;
    layout.kv_heads = k.heads;
    layout.k_dim = layout.v_dim = k.dim;
    const auto count = static_cast<int32_t>(k.tokens / layout.page_tokens + 1);
    const result<runtime::mapped_memory> memory = runtime::mapped_memory::create(count * layout.page_stride_bytes());
    if (!memory.ok()) return memory.state();
    const kv_pages pages{memory->data(), layout, count};
    std::vector<int64_t> slots(positions.size());
    for (std::size_t t = 0; t < slots.size(); ++t) slots[t] = static_cast<int64_t>(t);
    const status appended = kv_append(pages, slots, k, k, {&table, positions, options}, on);
    if (!appended.ok()) return appended;
    std::vector<float> k_back(rotated.size()), v_back(rotated.size());
    const status gathered =
        kv_gather(pages, slots, heads_first_view(k_back, k.tokens, k.heads, k.dim), heads_first_view(v_back, k.tokens, k.heads, k.dim), on);
    if (!gathered.ok()) return gathered;
    checks.same_bits("k through kv_append", k_back, rotated);
    return {};
}

}  // namespace

status check_rope(golden_reader& golden, comparison& checks, executor& on) {
    const int32_t head_dim = golden.size("head_dim"), rotary_dim = golden.size("rotary_dim");
    golden.require(rotary_dim <= head_dim, "params.rotary_dim must not exceed head_dim");
    if (!golden.state().ok()) return {};
    const result<rope_spec> spec = rope_spec_of(golden.parameters(), rotary_dim);
    if (!spec.ok()) return spec.state();
    const result<rope_pairing> pairing = pairing_of(golden.parameters());
    if (!pairing.ok()) return pairing.state();

    const tensor<double> inv_freq = golden.doubles("inv_freq_f64", {rotary_dim / 2}), amplitude = golden.doubles("attention_factor_f64", {1});
    const std::vector<int64_t> positions = golden.integers("position_ids", {1, any_extent}).values;
    const auto tokens = static_cast<int64_t>(positions.size());
    tensor<float> q = golden.floats("q", {1, any_extent, tokens, head_dim}), k = golden.floats("k", {1, any_extent, tokens, head_dim});
    const tensor<double> q_out = golden.doubles("q_out_f64", q.shape), k_out = golden.doubles("k_out_f64", k.shape);
    if (!golden.state().ok()) return {};

    // Both are formed in double by a power and a few products: 16 units in the last place of a double.
    checks.relative("inv_freq", spec->inv_freq, inv_freq.values, 16 * 0x1p-52);
    checks.relative("amplitude", {&spec->amplitude, 1}, amplitude.values, 16 * 0x1p-52);
    const result<rope_table> table = rope_table::growing(*spec);
    if (!table.ok()) return table.state();
    const status rows = check_rows(golden, *table, positions, checks);
    if (!rows.ok()) return rows;
    if (const status s = check_hf_f32(golden, rotary_dim, positions, checks); !s.ok()) return s;

    const std::vector<float> k_before = k.values;
    const std::vector<double> q_bounds = rotation_bounds(q.values, head_dim, rotary_dim, *pairing, spec->amplitude);
    const std::vector<double> k_bounds = rotation_bounds(k.values, head_dim, rotary_dim, *pairing, spec->amplitude);
    const rope_options options{*pairing, false, 0};
    const head_view k_rows = heads_first_view(k.values, tokens, static_cast<int32_t>(k.shape[1]), head_dim);
    const status rotated =
        rope_apply(*table, positions, heads_first_view(q.values, tokens, static_cast<int32_t>(q.shape[1]), head_dim), k_rows, options, on);
    if (!rotated.ok()) return rotated;
    checks.bounded("q_out", q.values, q_out.values, q_bounds);
    checks.bounded("k_out", k.values, k_out.values, k_bounds);
    std::vector<float> k_again = k_before;
    return check_fused_append(*table, positions, heads_first_view(k_again, tokens, k_rows.heads, head_dim), k.values, options, checks, on);
}

}  // namespace ropewalk::toolkit
