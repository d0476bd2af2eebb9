#include <string>

#include <fmt/format.h>
#include <ropewalk/alibi.hpp>
#include "tools/lib/golden/attention_case.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr double rounded_once = 0x1p-24;  // relative, of a double rounded to fp32
constexpr double fp32_power = 0x1p-22;    // relative, against a slope that was itself computed in fp32: 4 units in the last place

// The slopes of 1 to 128 heads against a tensor [128, 128] whose row h - 1 holds the h slopes for h heads.
status check_family(golden_reader& golden, const std::string& name, alibi_rule rule, double max_exponent, double tolerance, comparison& checks) {
    const tensor<double> expected = golden.doubles(name, {any_extent, any_extent});
    if (!golden.state().ok()) return {};
    golden.require(expected.shape[0] <= expected.shape[1], "a row of slopes is shorter than its number of heads");
    if (!golden.state().ok()) return {};
    const auto columns = static_cast<std::size_t>(expected.shape[1]);
    for (std::size_t heads = 1; heads <= static_cast<std::size_t>(expected.shape[0]); ++heads) {
        std::vector<float> slopes(heads);
        const status formed = alibi_slopes(slopes, rule, max_exponent);
        if (!formed.ok()) return formed;
        const std::vector<double> wide(slopes.begin(), slopes.end());
        checks.relative(fmt::format("{} of {} heads", name, heads), wide, std::span(expected.values).subspan((heads - 1) * columns, heads),
                        tolerance);
    }
    return {};
}

status check_falcon(golden_reader& golden, comparison& checks) {
    const tensor<float> expected = golden.floats("slopes_falcon", {128, 128});
    if (!golden.state().ok()) return {};
    for (std::size_t heads = 1; heads <= 128; ++heads) {
        std::vector<float> slopes(heads);
        const status formed = alibi_slopes(slopes, alibi_rule::falcon);
        if (!formed.ok()) return formed;
        checks.same_bits("slopes_falcon", slopes, std::span(expected.values).subspan((heads - 1) * 128, heads));
    }
    return {};
}

// One query row over the keys up to it, as in decoding.
attention_case decode_case(const attention_case& whole, int64_t tokens, int64_t row) {
    attention_case step = whole;
    step.q_lens = {1};
    step.kv_lens = {row + 1};
    const auto q_row = whole.q.size() / static_cast<std::size_t>(tokens), kv_row = whole.k.size() / static_cast<std::size_t>(tokens);
    const auto first = static_cast<std::ptrdiff_t>(q_row) * row;
    step.q.assign(whole.q.begin() + first, whole.q.begin() + first + static_cast<std::ptrdiff_t>(q_row));
    step.k.resize(kv_row * static_cast<std::size_t>(row + 1));
    step.v.resize(step.k.size());
    return step;
}

}  // namespace

status check_alibi_slopes(golden_reader& golden, comparison& checks, executor&) {
    status done = check_family(golden, "slopes_bloom_f64", alibi_rule::press, 8.0, rounded_once, checks);
    if (done.ok()) done = check_family(golden, "slopes_mpt8_f64", alibi_rule::mpt, 8.0, rounded_once, checks);
    if (done.ok()) done = check_family(golden, "slopes_mpt16", alibi_rule::mpt, 16.0, fp32_power, checks);
    if (done.ok()) done = check_falcon(golden, checks);
    return done;
}

status check_alibi_attention(golden_reader& golden, comparison& checks, executor& on) {
    const int32_t heads = golden.size("H"), dim = golden.size("D"), tokens = golden.size("S");
    const std::string family = golden.text("slope_family");
    golden.require(family == "paper" || family == "mpt", "params.slope_family must be paper or mpt");
    golden.require(golden.flag("causal"), "params.causal must be true");
    const double max_exponent = golden.number("alibi_bias_max"), scale = golden.number("scale");
    const std::vector<int64_t> shape{1, heads, tokens, dim};
    const tensor<float> q = golden.floats("q", shape), k = golden.floats("k", shape), v = golden.floats("v", shape);
    const tensor<double> out = golden.doubles("out_f64", shape), lse = golden.doubles("lse_f64", {1, heads, tokens});
    const tensor<double> slopes_f64 = golden.doubles("slopes_f64", {heads});
    const std::vector<int64_t> decode_rows = golden.integers("decode_rows", {any_extent}).values;
    if (!golden.state().ok()) return {};

    std::vector<float> slopes(static_cast<std::size_t>(heads));
    const status formed = alibi_slopes(slopes, family == "mpt" ? alibi_rule::mpt : alibi_rule::press, max_exponent);
    if (!formed.ok()) return formed;
    checks.relative("slopes", std::vector<double>(slopes.begin(), slopes.end()), slopes_f64.values, rounded_once);

    attention_case c;
    c.problem.heads = c.problem.kv_heads = heads;
    c.problem.k_dim = c.problem.v_dim = dim;
    c.problem.scale = static_cast<float>(scale);
    c.problem.alibi_slopes = slopes.data();
    c.q_lens = c.kv_lens = {tokens};
    c.q = tokens_first<float>(q.values, 1, heads, tokens, dim);
    c.k = tokens_first<float>(k.values, 1, heads, tokens, dim);
    c.v = tokens_first<float>(v.values, 1, heads, tokens, dim);
    const result<attention_output> whole = run_all_ways(c, checks, on);
    if (!whole.ok()) return whole.state();
    checks.absolute("out", whole->out, tokens_first<double>(out.values, 1, heads, tokens, dim), attention_tolerance::plain);
    checks.absolute("lse", whole->lse, tokens_first<double>(lse.values, 1, heads, tokens, 1), attention_tolerance::plain);

    for (const int64_t row : decode_rows) {
        const std::string name = fmt::format("decode_out_f64_row{}", row);
        golden.require(row >= 0 && row < tokens, "decode_rows must be rows of q");
        const tensor<double> expected = golden.doubles(name, {1, heads, 1, dim});
        if (!golden.state().ok()) return {};
        const result<attention_output> step = run_all_ways(decode_case(c, tokens, row), checks, on);
        if (!step.ok()) return step.state();
        checks.absolute(name, step->out, expected.values, attention_tolerance::plain);
    }
    return {};
}

}  // namespace ropewalk::toolkit
