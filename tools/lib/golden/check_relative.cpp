// Vector relative terms: XLNet's relative attention and DeBERTa's disentangled attention.
#include <algorithm>
#include <functional>
#include <span>

#include <ropewalk/relative_attention.hpp>
#include "tools/lib/golden/attention_case.hpp"
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

// Keys that one entry of a batch sees: all its queries the same ones, or those up to themselves, or what a mask says.
struct seen_keys {
    int64_t first = 0, last = 0;
    attention_span span = attention_span::full();
    std::vector<uint64_t> mask;  // attention_batch::key_masks
};

using seen_function = std::function<bool(int64_t query, int64_t key)>;  // query i stands at key `start` + i

seen_keys keys_of(int64_t queries, int64_t keys, int64_t start, const seen_function& seen) {
    seen_keys range{keys, 0, {}, {}};
    for (int64_t j = 0; j < keys; ++j) {
        if (!seen(queries - 1, j)) continue;
        range.first = std::min(range.first, j);
        range.last = j + 1;
    }
    range.first = std::min(range.first, range.last);  // nothing is seen
    for (const attention_span span : {attention_span::full(), attention_span::causal()}) {
        bool same = true;
        for (int64_t i = 0; i < queries; ++i) {
            for (int64_t j = 0; j < keys; ++j) {
                same = same && seen(i, j) == (j >= range.first && j < range.last && (span.right > 0 || j <= start + i));
            }
        }
        range.span = span;
        if (same) return range;
    }
    const int64_t words = (keys + 63) / 64;
    range = {0, keys, attention_span::full(), std::vector<uint64_t>(static_cast<std::size_t>(queries * words))};
    for (int64_t i = 0; i < queries; ++i) {
        for (int64_t j = 0; j < keys; ++j) range.mask[static_cast<std::size_t>(i * words + j / 64)] |= uint64_t{seen(i, j)} << j % 64;
    }
    return range;
}

attention_case case_of(int32_t heads, int32_t dim, double scale, int64_t queries, int64_t start, const seen_keys& seen, const relative_terms& terms) {
    attention_case c;
    c.problem.heads = c.problem.kv_heads = heads;
    c.problem.k_dim = c.problem.v_dim = dim;
    c.problem.scale = static_cast<float>(scale);
    c.problem.span = seen.span;
    c.problem.relative = &terms;
    c.q_lens = {queries};
    c.kv_lens = {seen.last - seen.first};
    c.q_starts = {start - seen.first};
    c.key_masks = seen.mask;
    if (!seen.mask.empty()) c.key_mask_indptr = {0, static_cast<int64_t>(seen.mask.size())};
    return c;
}

template <class T>
std::vector<T> slice(const std::vector<T>& values, int64_t first, int64_t count) {
    return {values.begin() + static_cast<std::ptrdiff_t>(first), values.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

// Entry b of [tokens, batch, heads, dim].
template <class T>
std::vector<T> entry_of(const std::vector<T>& values, int64_t tokens, int64_t batch, int64_t b, int64_t row) {
    std::vector<T> entry;
    for (int64_t t = 0; t < tokens; ++t) {
        const auto from = values.begin() + static_cast<std::ptrdiff_t>((t * batch + b) * row);
        entry.insert(entry.end(), from, from + static_cast<std::ptrdiff_t>(row));
    }
    return entry;
}

struct xlnet_inputs {
    int32_t heads = 0, dim = 0;
    int64_t batch = 0, queries = 0, keys = 0, memory = 0, masks = 0;
    double scale = 0.0;
    bool bidirectional = false;
    relative_terms terms;
    tensor<float> q, k, v, r, u, position_bias, mask, segment_bias, segment_table, segments;
    tensor<double> out, lse;
};

xlnet_inputs xlnet_inputs_of(golden_reader& golden) {
    xlnet_inputs in;
    in.heads = golden.size("H");
    in.dim = golden.size("D");
    in.batch = golden.size("B");
    in.queries = golden.size("qlen");
    in.keys = golden.size("klen");
    in.memory = golden.integer("mlen");
    in.scale = golden.number("scale");
    const std::string type = golden.text("attn_type");
    golden.require(type == "bi" || type == "uni", "params.attn_type must be bi or uni");
    golden.require(in.memory == in.keys - in.queries, "params.mlen must be klen - qlen");
    in.bidirectional = type == "bi";
    const bool segments = golden.flag("seg");
    const int64_t rows = in.bidirectional ? in.keys + in.queries : in.keys + 1;
    in.q = golden.floats("q_head", {in.queries, in.batch, in.heads, in.dim});
    in.k = golden.floats("k_head_h", {in.keys, in.batch, in.heads, in.dim});
    in.v = golden.floats("v_head_h", {in.keys, in.batch, in.heads, in.dim});
    in.r = golden.floats("k_head_r", {rows, in.batch, in.heads, in.dim});
    in.u = golden.floats("r_w_bias", {in.heads, in.dim});
    in.position_bias = golden.floats("r_r_bias", {in.heads, in.dim});
    in.mask = golden.floats("attn_mask", {in.queries, in.keys, any_extent, 1});
    if (segments) {
        in.segment_bias = golden.floats("r_s_bias", {in.heads, in.dim});
        in.segment_table = golden.floats("seg_embed", {2, in.heads, in.dim});
        in.segments = golden.floats("seg_mat", {in.queries, in.keys, in.batch, 2});
    }
    in.out = golden.doubles("attn_vec_f64", {in.queries, in.batch, in.heads, in.dim});
    in.lse = golden.doubles("lse_f64", {in.batch, in.heads, in.queries});
    if (!golden.state().ok()) return in;
    in.masks = in.mask.shape[2];
    golden.require(in.masks == 1 || in.masks == in.batch, "attn_mask must have 1 or B masks");
    in.terms = {true, false, segments, {}};
    return in;
}

// Two segments, as the one-hot matrix of entry b tells them apart from query 0's.
void add_segments(golden_reader& golden, const xlnet_inputs& in, int64_t b, const seen_keys& seen, attention_case& c) {
    const auto other = [&](int64_t i, int64_t j) {
        return in.segments.values[static_cast<std::size_t>(((i * in.keys + j) * in.batch + b) * 2 + 1)] != 0.0f;
    };
    std::vector<uint8_t> keys;
    for (int64_t j = 0; j < in.keys; ++j) keys.push_back(other(0, j) ? 1 : 0);
    bool same = true;
    for (int64_t i = 0; i < in.queries; ++i) {
        c.q_segments.push_back(other(i, 0) != (keys[0] != 0) ? 1 : 0);
        for (int64_t j = 0; j < in.keys; ++j) same = same && other(i, j) == (c.q_segments.back() != keys[static_cast<std::size_t>(j)]);
    }
    golden.require(same, "seg_mat must tell two segments apart");
    c.k_segments = slice(keys, seen.first, seen.last - seen.first);
}

status check_xlnet_entry(golden_reader& golden, const xlnet_inputs& in, int64_t b, comparison& checks, executor& on) {
    const int64_t row = int64_t{in.heads} * in.dim;
    const seen_keys seen = keys_of(in.queries, in.keys, in.memory, [&](int64_t i, int64_t j) {
        return in.mask.values[static_cast<std::size_t>((i * in.keys + j) * in.masks + (in.masks == 1 ? 0 : b))] == 0.0f;
    });
    attention_case c = case_of(in.heads, in.dim, in.scale, in.queries, in.memory, seen, in.terms);
    c.q = entry_of(in.q.values, in.queries, in.batch, b, row);
    c.k = slice(entry_of(in.k.values, in.keys, in.batch, b, row), seen.first * row, c.kv_lens[0] * row);
    c.v = slice(entry_of(in.v.values, in.keys, in.batch, b, row), seen.first * row, c.kv_lens[0] * row);
    if (in.terms.segments) add_segments(golden, in, b, seen, c);
    if (!golden.state().ok()) return {};
    const auto bias = [&](const tensor<float>& t, int64_t rows) {
        return t.values.empty() ? const_head_view() : dense_view(static_cast<const void*>(t.values.data()), dtype::fp32, rows, in.heads, in.dim);
    };
    c.relative.rows = {in.r.values.data() + b * row, dtype::fp32, in.r.shape[0], in.heads, in.dim, in.batch * row, in.dim};
    c.relative.content_bias = bias(in.u, 1);
    c.relative.position_bias = bias(in.position_bias, 1);
    c.relative.segment_bias = bias(in.segment_bias, 1);
    c.relative.segments = bias(in.segment_table, 2);
    const result<attention_output> got = run_all_ways(c, checks, on);
    if (!got.ok()) return got.state();
    checks.absolute("out", got->out, entry_of(in.out.values, in.queries, in.batch, b, row), attention_tolerance::plain);
    const std::vector<double> lse = slice(in.lse.values, b * in.heads * in.queries, in.heads * in.queries);
    checks.absolute("lse", got->lse, tokens_first<double>(lse, 1, in.heads, in.queries, 1), attention_tolerance::plain);
    return {};
}

struct deberta_inputs {
    int32_t heads = 0, dim = 0;
    int64_t batch = 0, tokens = 0;
    double scale = 0.0;
    relative_terms terms;
    relative_tensors tables;
    tensor<float> q, k, v, key, query, valid;
    tensor<double> out, lse;
};

status read_deberta(golden_reader& golden, deberta_inputs& in) {
    in.heads = golden.size("H");
    in.dim = golden.size("D");
    in.batch = golden.size("B");
    in.tokens = golden.size("S");
    in.scale = golden.number("scale");
    const int32_t span = golden.size("att_span");
    const int64_t buckets = golden.integer("position_buckets");
    golden.require(buckets <= 0 || buckets == span, "params.att_span must be position_buckets, where there are buckets");
    for (tensor<float>* t : {&in.q, &in.k, &in.v}) {
        *t = golden.floats(t == &in.q ? "q" : t == &in.k ? "k" : "v", {in.batch, in.heads, in.tokens, in.dim});
    }
    in.terms.rows = golden.has_tensor("pos_key");
    in.terms.columns = golden.has_tensor("pos_query");
    if (in.terms.rows) in.key = golden.floats("pos_key", {in.heads, 2 * int64_t{span}, in.dim});
    if (in.terms.columns) in.query = golden.floats("pos_query", {in.heads, 2 * int64_t{span}, in.dim});
    in.valid = golden.floats("kv_valid", {in.batch, in.tokens});
    in.out = golden.doubles("out_f64", {in.batch, in.heads, in.tokens, in.dim});
    in.lse = golden.doubles("lse_f64", {in.batch, in.heads, in.tokens});
    if (!golden.state().ok()) return {};
    const auto table = [&](const tensor<float>& t) {
        return t.values.empty() ? const_head_view()
                                : const_head_view(t.values.data(), dtype::fp32, 2 * span, in.heads, in.dim, in.dim, 2 * int64_t{span} * in.dim);
    };
    in.tables.rows = table(in.key);
    in.tables.columns = table(in.query);
    result<relative_index> index =
        buckets > 0 ? relative_index::deberta_buckets(span, golden.size("max_relative_positions")) : relative_index::deberta(span);
    if (index.ok()) in.terms.index = std::move(index).value();
    return index.state();
}

status check_deberta_entry(const deberta_inputs& in, int64_t b, comparison& checks, executor& on) {
    const seen_keys seen =
        keys_of(in.tokens, in.tokens, 0, [&](int64_t, int64_t j) { return in.valid.values[static_cast<std::size_t>(b * in.tokens + j)] != 0.0f; });
    const int64_t row = int64_t{in.heads} * in.dim;
    const auto rows = [&](const auto& t, int64_t dim) {
        return tokens_first(std::span(t.values).subspan(static_cast<std::size_t>(b * in.tokens * in.heads * dim),
                                                        static_cast<std::size_t>(in.tokens * in.heads * dim)),
                            1, in.heads, in.tokens, dim);
    };
    attention_case c = case_of(in.heads, in.dim, in.scale, in.tokens, 0, seen, in.terms);
    c.relative = in.tables;
    c.q = rows(in.q, in.dim);
    c.k = slice(rows(in.k, in.dim), seen.first * row, c.kv_lens[0] * row);
    c.v = slice(rows(in.v, in.dim), seen.first * row, c.kv_lens[0] * row);
    const result<attention_output> got = run_all_ways(c, checks, on);
    if (!got.ok()) return got.state();
    checks.absolute("out", got->out, rows(in.out, in.dim), attention_tolerance::disentangled);
    checks.absolute("lse", got->lse, rows(in.lse, 1), attention_tolerance::disentangled);
    return {};
}

}  // namespace

status check_xlnet_attention(golden_reader& golden, comparison& checks, executor& on) {
    xlnet_inputs in = xlnet_inputs_of(golden);
    if (!golden.state().ok()) return {};
    result<relative_index> index = relative_index::xlnet(in.queries, in.keys, in.bidirectional);
    if (!index.ok()) return index.state();
    in.terms.index = std::move(index).value();
    for (int64_t b = 0; b < in.batch; ++b) {
        if (auto s = check_xlnet_entry(golden, in, b, checks, on); !s || !golden.state().ok()) return s;
    }
    return {};
}

status check_deberta_attention(golden_reader& golden, comparison& checks, executor& on) {
    deberta_inputs in;
    if (auto s = read_deberta(golden, in); !s || !golden.state().ok()) return s;
    for (int64_t b = 0; b < in.batch; ++b) {
        if (auto s = check_deberta_entry(in, b, checks, on); !s) return s;
    }
    return {};
}

}  // namespace ropewalk::toolkit
