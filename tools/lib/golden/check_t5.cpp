#include <cstdint>
#include <vector>

#include <ropewalk/relative_bias.hpp>
#include "tools/lib/golden/attention_case.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {

// q are the S rows that follow `past` keys.
status check_t5_attention(golden_reader& golden, comparison& checks, executor& on) {
    const int32_t heads = golden.size("H"), dim = golden.size("D"), tokens = golden.size("S"), buckets = golden.size("num_buckets");
    const t5_bucket_rule rule{buckets, golden.size("max_distance"), golden.flag("bidirectional")};
    const int64_t past = golden.integer("past"), keys = past + tokens;
    golden.require(past >= 0 && past <= 1 << 20, "past must be 0 to 1048576");
    if (!golden.state().ok()) return {};
    attention_case c;
    c.problem.heads = c.problem.kv_heads = heads;
    c.problem.k_dim = c.problem.v_dim = dim;
    c.problem.scale = static_cast<float>(golden.number("scale"));
    c.problem.span = golden.flag("causal") ? attention_span::causal() : attention_span::full();
    c.q_lens = {tokens};
    c.kv_lens = {keys};
    c.q = tokens_first<float>(golden.floats("q", {1, heads, tokens, dim}).values, 1, heads, tokens, dim);
    c.k = tokens_first<float>(golden.floats("k", {1, heads, keys, dim}).values, 1, heads, keys, dim);
    c.v = tokens_first<float>(golden.floats("v", {1, heads, keys, dim}).values, 1, heads, keys, dim);
    const std::vector<float> weight = golden.floats("bias_table", {buckets, heads}).values;
    const std::vector<double> out = golden.doubles("out_f64", {1, heads, tokens, dim}).values;
    const std::vector<double> lse = golden.doubles("lse_f64", {1, heads, tokens}).values;
    const std::vector<int64_t> keep = golden.integers("keep", {tokens, keys}).values;
    if (!golden.state().ok()) return {};
    if (!is_span(keep, c.problem.span, tokens, keys)) return {status_code::unsupported, "a mask that is no span of positions"};

    const result<attention_bias> bias = t5_bias(weight, heads, rule);
    if (!bias.ok()) return bias.state();
    c.problem.bias = &*bias;
    const result<attention_output> ran = run_all_ways(c, checks, on);
    if (!ran.ok()) return ran.state();
    checks.absolute("out", ran->out, tokens_first<double>(out, 1, heads, tokens, dim), attention_tolerance::plain);
    checks.absolute("lse", ran->lse, tokens_first<double>(lse, 1, heads, tokens, 1), attention_tolerance::plain);
    return {};
}

}  // namespace ropewalk::toolkit
