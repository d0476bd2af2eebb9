#include <cmath>

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
    const bool half_in = pairing == rope_pairing::half, half_out = pairing != rope_pairing::interleaved;
    for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(dim)) {
        const auto place = [&](bool half, int32_t pair, int32_t side) {
            return row + static_cast<std::size_t>(half ? pair + side * pairs : 2 * pair + side);
        };
        for (int32_t i = 0; i < pairs; ++i) {
            const double size = std::fabs(double{x[place(half_in, i, 0)]}) + std::fabs(double{x[place(half_in, i, 1)]});
            for (int32_t side = 0; side < 2; ++side) bounds[place(half_out, i, side)] = 3.0 * unit_roundoff * amplitude * size;
        }
    }
    return bounds;
}

// Rows of the table against fp64, each pair of the row of its axis. Correct rounding errs by u/2 at most; the phase itself, formed in double, adds
// 1e-9 at position 10^6.
status check_rows(golden_reader& golden, const rope_table& table, const std::vector<int64_t>& positions, comparison& checks) {
    const rope_spec& spec = table.spec();
    const auto tokens = static_cast<int64_t>(positions.size()) / spec.axes();
    const tensor<double> cos = golden.doubles("cos_f64", {1, tokens, table.pairs()});
    const tensor<double> sin = golden.doubles("sin_f64", {1, tokens, table.pairs()});
    if (!golden.state().ok()) return {};
    const auto pairs = static_cast<std::size_t>(table.pairs());
    std::vector<float> cos_rows(cos.values.size()), sin_rows(sin.values.size()), cos_row(pairs), sin_row(pairs);
    for (std::size_t t = 0; t < positions.size(); ++t) {
        const status row = table.row(positions[t], cos_row, sin_row);
        if (!row.ok()) return row;
        const std::size_t axis = t / static_cast<std::size_t>(tokens), token = t % static_cast<std::size_t>(tokens);
        for (std::size_t i = 0; i < pairs; ++i) {
            if (!spec.axis_of_pair.empty() && spec.axis_of_pair[i] != axis) continue;
            cos_rows[token * pairs + i] = cos_row[i];
            sin_rows[token * pairs + i] = sin_row[i];
        }
    }
    const double tolerance = unit_roundoff * spec.amplitude;
    checks.absolute("cos", cos_rows, cos.values, tolerance);
    checks.absolute("sin", sin_rows, sin.values, tolerance);
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
    std::vector<int64_t> slots(static_cast<std::size_t>(k.tokens));
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
    const int64_t axes = spec->axes();
    const tensor<int64_t> streams =
        axes == 1 ? golden.integers("position_ids", {1, any_extent}) : golden.integers("position_ids", {axes, 1, any_extent});
    const std::vector<int64_t>& positions = streams.values;
    const auto tokens = static_cast<int64_t>(positions.size()) / axes;
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
