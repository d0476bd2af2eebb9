// Multi-head latent attention (DeepSeek): one shared K/V head of latent + rope dims whose first part is V as well.
#include <ropewalk/rope.hpp>
#include "tools/lib/golden/attention_case.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

// The sizes and inputs of a file, tokens first.
struct latent_inputs {
    int32_t heads = 0, nope = 0, rope = 0, latent = 0, value = 0;
    int64_t tokens = 0;
    float scale = 0.0f;
    std::vector<float> q_nope, q_pe;  // [tokens, heads, *]
    std::vector<float> ckv, k_pe;     // [tokens, *]
    std::vector<float> w_uk, w_uv;    // [heads, nope or value, latent]
};

// `suffix` chooses q_pe and k_pe: "_rot" as the model rotated them, "" before.
latent_inputs inputs_of(golden_reader& golden, const std::string& suffix) {
    latent_inputs in;
    in.heads = golden.size("H");
    in.nope = golden.size("qk_nope_head_dim");
    in.rope = golden.size("qk_rope_head_dim");
    in.latent = golden.size("kv_lora_rank");
    in.value = golden.size("v_head_dim");
    in.scale = static_cast<float>(golden.number("scale"));
    golden.require(golden.flag("causal"), "params.causal must be true");
    const tensor<float> q_nope = golden.floats("q_nope", {1, in.heads, any_extent, in.nope});
    in.tokens = q_nope.shape[2];
    in.q_nope = tokens_first<float>(q_nope.values, 1, in.heads, in.tokens, in.nope);
    in.q_pe = tokens_first<float>(golden.floats("q_pe" + suffix, {1, in.heads, in.tokens, in.rope}).values, 1, in.heads, in.tokens, in.rope);
    in.ckv = golden.floats("ckv", {1, in.tokens, in.latent}).values;
    in.k_pe = golden.floats("k_pe" + suffix, {1, 1, in.tokens, in.rope}).values;
    in.w_uk = golden.floats("w_uk", {in.heads, in.nope, in.latent}).values;
    in.w_uv = golden.floats("w_uv", {in.heads, in.value, in.latent}).values;
    return in;
}

// Appends sum_i x[i] w[i][:] (or w[:][i] x[i] if `transposed`) to `row`, summed in double and rounded once: products with weights are not what is
// checked here.
void append_product(std::vector<float>& row, const float* w, int64_t outputs, int64_t inputs, const float* x, bool transposed) {
    for (int64_t o = 0; o < outputs; ++o) {
        double sum = 0.0;
        for (int64_t i = 0; i < inputs; ++i) sum += double{w[transposed ? i * outputs + o : o * inputs + i]} * double{x[i]};
        row.push_back(static_cast<float>(sum));
    }
}

void append_row(std::vector<float>& row, const float* from, int64_t count) { row.insert(row.end(), from, from + count); }

attention_case case_of(const latent_inputs& in, int32_t kv_heads, int32_t k_dim, int32_t v_dim) {
    attention_case c;
    c.problem.heads = in.heads;
    c.problem.kv_heads = kv_heads;
    c.problem.k_dim = k_dim;
    c.problem.v_dim = v_dim;
    c.problem.scale = in.scale;
    c.q_lens = c.kv_lens = {in.tokens};
    return c;
}

// q = [w_uk^T q_nope, q_pe], k = [ckv, k_pe] for all heads, v = the ckv part of k.
attention_case absorbed_case(const latent_inputs& in) {
    attention_case c = case_of(in, 1, in.latent + in.rope, in.latent);
    for (int64_t t = 0; t < in.tokens; ++t) {
        for (int64_t h = 0; h < in.heads; ++h) {
            const int64_t row = t * in.heads + h;
            append_product(c.q, in.w_uk.data() + h * in.nope * in.latent, in.latent, in.nope, in.q_nope.data() + row * in.nope, true);
            append_row(c.q, in.q_pe.data() + row * in.rope, in.rope);
        }
        append_row(c.k, in.ckv.data() + t * in.latent, in.latent);
        append_row(c.k, in.k_pe.data() + t * in.rope, in.rope);
    }
    return c;
}

// q = [q_nope, q_pe], k = [w_uk ckv, k_pe], v = w_uv ckv, a head each.
attention_case expanded_case(const latent_inputs& in) {
    attention_case c = case_of(in, in.heads, in.nope + in.rope, in.value);
    for (int64_t t = 0; t < in.tokens; ++t) {
        const float* latent = in.ckv.data() + t * in.latent;
        for (int64_t h = 0; h < in.heads; ++h) {
            const int64_t row = t * in.heads + h;
            append_row(c.q, in.q_nope.data() + row * in.nope, in.nope);
            append_row(c.q, in.q_pe.data() + row * in.rope, in.rope);
            append_product(c.k, in.w_uk.data() + h * in.nope * in.latent, in.nope, in.latent, latent, false);
            append_row(c.k, in.k_pe.data() + t * in.rope, in.rope);
            append_product(c.v, in.w_uv.data() + h * in.value * in.latent, in.value, in.latent, latent, false);
        }
    }
    return c;
}

// Rotates the last dims of q and k. The model moves the pairs apart as well, in both alike, which no score shows.
status rotate(attention_case& c, const latent_inputs& in, golden_reader& golden, executor& on) {
    rope_spec spec;
    const std::vector<float> inv_freq = golden.floats("inv_freq", {in.rope / 2}).values;
    spec.inv_freq.assign(inv_freq.begin(), inv_freq.end());
    spec.amplitude = golden.number("attention_factor");
    golden.require(golden.flag("rope_interleave"), "params.rope_interleave must be true");
    const std::vector<int64_t> positions = golden.integers("position_ids", {1, in.tokens}).values;
    if (!golden.state().ok()) return golden.state();
    const result<rope_table> table = rope_table::growing(spec);
    if (!table.ok()) return table.state();
    const attention_problem& p = c.problem;
    return rope_apply(*table, positions, dense_view(static_cast<void*>(c.q.data()), dtype::fp32, in.tokens, p.heads, p.k_dim),
                      dense_view(static_cast<void*>(c.k.data()), dtype::fp32, in.tokens, p.kv_heads, p.k_dim),
                      {.pairing = rope_pairing::interleaved, .first_dim = p.k_dim - in.rope}, on);
}

}  // namespace

status check_attention_mla(golden_reader& golden, comparison& checks, executor& on) {
    const latent_inputs in = inputs_of(golden, "_rot"), unrotated = inputs_of(golden, "");
    const tensor<double> latent = golden.doubles("latent_f64", {1, in.heads, in.tokens, in.latent});
    const tensor<double> out = golden.doubles("out_f64", {1, in.heads, in.tokens, in.value});
    const tensor<double> lse = golden.doubles("lse_f64", {1, in.heads, in.tokens});
    if (!golden.state().ok()) return {};
    const std::vector<double> lse_rows = tokens_first<double>(lse.values, 1, in.heads, in.tokens, 1);
    const auto check = [&](const attention_case& c, const char* out_name, const char* lse_name, const std::vector<double>& expected) -> status {
        const result<attention_output> got = run_all_ways(c, checks, on);
        if (!got.ok()) return got.state();
        checks.absolute(out_name, got->out, expected, attention_tolerance::plain);
        checks.absolute(lse_name, got->lse, lse_rows, attention_tolerance::plain);
        return {};
    };

    const std::vector<double> latent_rows = tokens_first<double>(latent.values, 1, in.heads, in.tokens, in.latent);
    const std::vector<double> out_rows = tokens_first<double>(out.values, 1, in.heads, in.tokens, in.value);
    if (const status s = check(absorbed_case(in), "latent out", "lse, absorbed", latent_rows); !s.ok()) return s;
    if (const status s = check(expanded_case(in), "out", "lse", out_rows); !s.ok()) return s;
    attention_case absorbed = absorbed_case(unrotated), expanded = expanded_case(unrotated);
    if (const status s = rotate(absorbed, in, golden, on); !s.ok()) return s;
    if (const status s = rotate(expanded, in, golden, on); !s.ok()) return s;
    if (const status s = check(absorbed, "latent out, rotated here", "lse, absorbed, rotated here", latent_rows); !s.ok()) return s;
    return check(expanded, "out, rotated here", "lse, rotated here", out_rows);
}

}  // namespace ropewalk::toolkit
