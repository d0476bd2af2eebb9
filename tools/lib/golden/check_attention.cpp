#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include "tools/lib/golden/attention_case.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

// What every attention file says about its problem.
attention_problem problem_of(golden_reader& golden) {
    attention_problem problem;
    problem.heads = golden.size("H");
    problem.kv_heads = golden.size("Hkv");
    problem.k_dim = problem.v_dim = golden.size("D");
    problem.scale = static_cast<float>(golden.number("scale"));
    problem.softcap = static_cast<float>(golden.number("softcap", 0.0));
    problem.span = golden.flag("causal") ? attention_span::causal() : attention_span::full();
    if (golden.has("sliding_window")) problem.span = attention_span::sliding_window(golden.size("sliding_window"));
    if (golden.has("attention_chunk_size")) problem.span = attention_span::chunked(golden.size("attention_chunk_size"));
    return problem;
}

// [batch, heads, tokens, dim] of the file, as one packed sequence a batch entry.
struct golden_rows {
    int64_t batch = 0, q_tokens = 0, kv_tokens = 0;
    attention_case c;
};

golden_rows rows_of(golden_reader& golden) {
    golden_rows rows;
    attention_problem& problem = rows.c.problem;
    problem = problem_of(golden);
    const tensor<float> q = golden.floats("q", {any_extent, problem.heads, any_extent, problem.k_dim});
    const tensor<float> k = golden.floats("k", {q.shape[0], problem.kv_heads, any_extent, problem.k_dim});
    const tensor<float> v = golden.floats("v", {q.shape[0], problem.kv_heads, k.shape[2], any_extent});
    golden.require(v.shape[3] <= 1 << 20, "v is wider than 1048576");
    if (!golden.state().ok()) return rows;
    problem.v_dim = static_cast<int32_t>(v.shape[3]);
    rows.batch = q.shape[0];
    rows.q_tokens = q.shape[2];
    rows.kv_tokens = k.shape[2];
    rows.c.q_lens.assign(static_cast<std::size_t>(rows.batch), rows.q_tokens);
    rows.c.kv_lens.assign(static_cast<std::size_t>(rows.batch), rows.kv_tokens);
    rows.c.q = tokens_first<float>(q.values, rows.batch, problem.heads, rows.q_tokens, problem.k_dim);
    rows.c.k = tokens_first<float>(k.values, rows.batch, problem.kv_heads, rows.kv_tokens, problem.k_dim);
    rows.c.v = tokens_first<float>(v.values, rows.batch, problem.kv_heads, rows.kv_tokens, problem.v_dim);
    return rows;
}

std::vector<double> expected_rows(golden_reader& golden, std::string_view name, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
    const std::vector<int64_t> shape = dim > 0 ? std::vector<int64_t>{batch, heads, tokens, dim} : std::vector<int64_t>{batch, heads, tokens};
    return tokens_first<double>(golden.doubles(name, shape).values, batch, heads, tokens, std::max<int64_t>(dim, 1));
}

double tolerance_for(const attention_problem& problem, const std::vector<double>& lse) {
    if (problem.softcap > 0.0f) return attention_tolerance::softcap;
    const bool large = std::any_of(lse.begin(), lse.end(), [](double value) { return std::fabs(value) > attention_tolerance::large_lse; });
    return large ? attention_tolerance::large_logits : attention_tolerance::plain;
}

void compare_output(comparison& checks, std::string_view what, const attention_output& got, const std::vector<double>& out,
                    const std::vector<double>& lse, double tolerance) {
    checks.absolute(fmt::format("out{}", what), got.out, out, tolerance);
    checks.absolute(fmt::format("lse{}", what), got.lse, lse, tolerance);
}

// Rows [first, first + q_tokens) of the only sequence over keys [kv_first, kv_first + kv_tokens), with another span.
attention_case part_of(const attention_case& whole, int64_t first, int64_t q_tokens, int64_t kv_first, int64_t kv_tokens, attention_span span) {
    const auto slice = [](const std::vector<float>& rows, int64_t row, int64_t from, int64_t count) {
        return std::vector<float>(rows.begin() + from * row, rows.begin() + (from + count) * row);
    };
    const attention_problem& problem = whole.problem;
    attention_case part;
    part.problem = problem;
    part.problem.span = span;
    part.q_lens = {q_tokens};
    part.kv_lens = {kv_tokens};
    part.q = slice(whole.q, int64_t{problem.heads} * problem.k_dim, first, q_tokens);
    part.k = slice(whole.k, int64_t{problem.kv_heads} * problem.k_dim, kv_first, kv_tokens);
    part.v = slice(whole.v, int64_t{problem.kv_heads} * problem.v_dim, kv_first, kv_tokens);
    return part;
}

// The rows chunk by chunk, each over all keys so far: the bits of the whole.
status check_chunks(const golden_rows& rows, const std::vector<int64_t>& chunks, const attention_output& whole, comparison& checks, executor& on) {
    attention_output joined;
    int64_t first = 0;
    for (const int64_t chunk : chunks) {
        const result<attention_output> part = run_all_ways(part_of(rows.c, first, chunk, 0, first + chunk, rows.c.problem.span), checks, on);
        if (!part.ok()) return part.state();
        joined.out.insert(joined.out.end(), part->out.begin(), part->out.end());
        joined.lse.insert(joined.lse.end(), part->lse.begin(), part->lse.end());
        first += chunk;
    }
    checks.same_bits("out in chunks", joined.out, whole.out);
    checks.same_bits("lse in chunks", joined.lse, whole.lse);
    return {};
}

// Two runs over disjoint keys against the file's parts, and their merge against the whole.
status check_merge(golden_reader& golden, const golden_rows& rows, int64_t split, const std::vector<double>& out, const std::vector<double>& lse,
                   comparison& checks, executor& on) {
    const attention_problem& problem = rows.c.problem;
    const int64_t after = rows.q_tokens - split;
    const auto part = [&](std::string_view name, int64_t kv_first, int64_t kv_tokens, attention_span span) -> result<attention_output> {
        const std::vector<double> part_out = expected_rows(golden, fmt::format("{}_out_f64", name), 1, problem.heads, after, problem.v_dim);
        const std::vector<double> part_lse = expected_rows(golden, fmt::format("{}_lse_f64", name), 1, problem.heads, after, 0);
        result<attention_output> ran = run_all_ways(part_of(rows.c, split, after, kv_first, kv_tokens, span), checks, on);
        if (ran.ok()) compare_output(checks, fmt::format(", {}", name), *ran, part_out, part_lse, attention_tolerance::plain);
        return ran;
    };
    const result<attention_output> a = part("part_a", 0, split, attention_span::full());
    const result<attention_output> b = part("part_b", split, after, attention_span::causal());
    if (!golden.state().ok()) return {};
    if (!a.ok()) return a.state();
    if (!b.ok()) return b.state();
    attention_output merged{std::vector<float>(a->out.size()), std::vector<float>(a->lse.size())};
    const auto view = [&](auto& values) { return dense_view(values.data(), dtype::fp32, after, problem.heads, problem.v_dim); };
    const status ran = merge(view(a->out), a->lse, view(b->out), b->lse, view(merged.out), merged.lse);
    if (!ran.ok()) return ran;
    const auto tail = [](const std::vector<double>& all, std::size_t count) {
        return std::vector<double>(all.end() - static_cast<std::ptrdiff_t>(count), all.end());
    };
    compare_output(checks, ", merged", merged, tail(out, merged.out.size()), tail(lse, merged.lse.size()), attention_tolerance::plain);
    return {};
}

}  // namespace

status check_attention(golden_reader& golden, comparison& checks, executor& on) {
    golden_rows rows = rows_of(golden);
    attention_problem& problem = rows.c.problem;
    const bool has_sinks = golden.flag("has_sinks", false);
    const std::vector<double> out = expected_rows(golden, "out_f64", rows.batch, problem.heads, rows.q_tokens, problem.v_dim);
    const std::vector<double> lse = expected_rows(golden, has_sinks ? "lse_with_sink_f64" : "lse_f64", rows.batch, problem.heads, rows.q_tokens, 0);
    const std::vector<int64_t> keep = golden.integers("keep", {rows.q_tokens, rows.kv_tokens}).values;
    const std::vector<float> sinks = has_sinks ? golden.floats("sinks", {problem.heads}).values : std::vector<float>();
    if (!golden.state().ok()) return {};
    if (!is_span(keep, problem.span, rows.q_tokens, rows.kv_tokens)) return {status_code::unsupported, "a mask that is no span of positions"};
    if (has_sinks) problem.sinks = sinks.data();

    const result<attention_output> ran = run_all_ways(rows.c, checks, on);
    if (!ran.ok()) return ran.state();
    compare_output(checks, "", *ran, out, lse, tolerance_for(problem, lse));
    return {};
}

// bias [1 or batch, heads, q_tokens, kv_tokens] is any: rows in the caller's memory.
status check_attention_bias(golden_reader& golden, comparison& checks, executor& on) {
    golden_rows rows = rows_of(golden);
    attention_problem& problem = rows.c.problem;
    const std::vector<double> out = expected_rows(golden, "out_f64", rows.batch, problem.heads, rows.q_tokens, problem.v_dim);
    const std::vector<double> lse = expected_rows(golden, "lse_f64", rows.batch, problem.heads, rows.q_tokens, 0);
    const tensor<float> values = golden.floats("bias", {any_extent, problem.heads, rows.q_tokens, rows.kv_tokens});
    golden.require(values.shape[0] == rows.batch, "bias must have the batch of q");
    if (!golden.state().ok()) return {};
    const std::vector<float> packed = tokens_first<float>(values.values, rows.batch, problem.heads, rows.q_tokens, rows.kv_tokens);
    const result<attention_bias> bias = attention_bias::of_rows(packed.data(), rows.batch * rows.q_tokens, problem.heads, rows.kv_tokens,
                                                                problem.heads * rows.kv_tokens, rows.kv_tokens);
    if (!bias.ok()) return bias.state();
    problem.bias = &*bias;
    const result<attention_output> ran = run_all_ways(rows.c, checks, on);
    if (!ran.ok()) return ran.state();
    compare_output(checks, "", *ran, out, lse, tolerance_for(problem, lse));
    return {};
}

// keep is a tree over the last q_tokens keys, as bits.
status check_attention_mask(golden_reader& golden, comparison& checks, executor& on) {
    golden_rows rows = rows_of(golden);
    const int64_t heads = rows.c.problem.heads, past = golden.integer("past"), words = (rows.q_tokens + 63) / 64;
    const std::vector<double> out = expected_rows(golden, "out_f64", rows.batch, heads, rows.q_tokens, rows.c.problem.v_dim);
    const std::vector<double> lse = expected_rows(golden, "lse_f64", rows.batch, heads, rows.q_tokens, 0);
    const std::vector<int64_t> keep = golden.integers("keep", {rows.q_tokens, rows.kv_tokens}).values;
    golden.require(past == rows.kv_tokens - rows.q_tokens, "past must be the keys before the query tokens");
    if (!golden.state().ok()) return {};
    std::vector<uint64_t> tree(static_cast<std::size_t>(rows.q_tokens * words));
    for (int64_t i = 0; i < rows.q_tokens; ++i) {
        for (int64_t j = 0; j < rows.kv_tokens; ++j) {
            const bool seen = keep[static_cast<std::size_t>(i * rows.kv_tokens + j)] != 0;
            if (j < past && !seen) return {status_code::unsupported, "a mask that hides keys before the tree"};
            if (j >= past && seen) tree[static_cast<std::size_t>(i * words + (j - past) / 64)] |= uint64_t{1} << ((j - past) % 64);
        }
    }
    rows.c.tree_indptr = {0};
    for (int64_t b = 0; b < rows.batch; ++b) {
        rows.c.tree_masks.insert(rows.c.tree_masks.end(), tree.begin(), tree.end());
        rows.c.tree_indptr.push_back(static_cast<int64_t>(rows.c.tree_masks.size()));
    }
    const result<attention_output> ran = run_all_ways(rows.c, checks, on);
    if (!ran.ok()) return ran.state();
    compare_output(checks, "", *ran, out, lse, tolerance_for(rows.c.problem, lse));
    return {};
}

status check_attention_chunked(golden_reader& golden, comparison& checks, executor& on) {
    const golden_rows rows = rows_of(golden);
    const attention_problem& problem = rows.c.problem;
    const std::vector<double> out = expected_rows(golden, "out_f64", 1, problem.heads, rows.q_tokens, problem.v_dim);
    const std::vector<double> lse = expected_rows(golden, "lse_f64", 1, problem.heads, rows.q_tokens, 0);
    const std::vector<int64_t> chunks = golden.integers("chunk_sizes", {any_extent}).values;
    const int64_t split = golden.size("kv_split");
    int64_t sum = 0;
    for (const int64_t chunk : chunks) {
        golden.require(chunk > 0 && chunk <= rows.q_tokens - sum, "chunk_sizes must add up to the rows of q");
        sum += golden.state().ok() ? chunk : 0;
    }
    golden.require(sum == rows.q_tokens && rows.q_tokens == rows.kv_tokens, "chunk_sizes must add up to the rows of q and k");
    golden.require(split < rows.q_tokens, "params.kv_split must be less than the rows of q");
    if (!golden.state().ok()) return {};

    const result<attention_output> whole = run_all_ways(rows.c, checks, on);
    if (!whole.ok()) return whole.state();
    compare_output(checks, "", *whole, out, lse, tolerance_for(problem, lse));
    const status chunked = check_chunks(rows, chunks, *whole, checks, on);
    if (!chunked.ok() || !golden.has_tensor("part_a_out_f64")) return chunked;
    return check_merge(golden, rows, split, out, lse, checks, on);
}

status check_attention_ragged(golden_reader& golden, comparison& checks, executor& on) {
    attention_case c;
    c.problem = problem_of(golden);
    const attention_problem& problem = c.problem;
    const tensor<float> q = golden.floats("q_packed", {any_extent, problem.heads, problem.k_dim});
    c.q = q.values;
    c.k = golden.floats("k_packed", {any_extent, problem.kv_heads, problem.k_dim}).values;
    c.v = golden.floats("v_packed", {any_extent, problem.kv_heads, problem.v_dim}).values;
    c.q_lens = golden.integers("q_lens", {any_extent}).values;
    c.kv_lens = golden.integers("kv_lens", {any_extent}).values;
    const std::vector<double> out = golden.doubles("out_packed_f64", {q.shape[0], problem.heads, problem.v_dim}).values;
    const std::vector<double> lse = golden.doubles("lse_packed_f64", {q.shape[0], problem.heads}).values;
    const auto total = [&](const std::vector<int64_t>& lengths) {
        int64_t sum = 0;
        for (const int64_t length : lengths) {
            golden.require(length >= 0 && length <= 1 << 20, "q_lens and kv_lens must be 0 to 1048576");
            sum += std::clamp<int64_t>(length, 0, 1 << 20);
        }
        return sum;
    };
    golden.require(total(c.q_lens) == q.shape[0], "q_lens must add up to the rows of q_packed");
    golden.require(c.q_lens.size() == c.kv_lens.size(), "q_lens and kv_lens must have the same size");
    golden.require(total(c.kv_lens) * problem.kv_heads * problem.k_dim == static_cast<int64_t>(c.k.size()), "kv_lens must add up to the rows of k");
    golden.require(c.k.size() == c.v.size(), "k_packed and v_packed must have the same rows");
    if (!golden.state().ok()) return {};

    const result<attention_output> ran = run_all_ways(c, checks, on);
    if (!ran.ok()) return ran.state();
    compare_output(checks, "", *ran, out, lse, tolerance_for(problem, lse));
    return {};
}

}  // namespace ropewalk::toolkit
