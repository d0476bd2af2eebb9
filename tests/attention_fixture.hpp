// Runs attention through the public API on sequences that live in plain vectors: packs them into pages or hands them over as they are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include <ropewalk/ropewalk.hpp>
#include "runtime/pages_memory.hpp"
#include "simd/core/element.hpp"
#include "tests/attention_reference.hpp"

namespace ropewalk::test {

// Values of one tensor in the type they are stored in; `value` is what the reference sees.
struct tensor {
    dtype type = dtype::fp32;
    std::vector<std::byte> bytes;
    std::vector<float> value;

    static tensor of(dtype type, std::vector<float> values) {
        tensor t;
        t.type = type;
        t.bytes.resize(values.size() * static_cast<std::size_t>(element_bytes(type)));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (type == dtype::fp32) {
                std::memcpy(t.bytes.data() + i * 4, &values[i], 4);
            } else if (type == dtype::bf16) {
                const uint16_t bits = float_to_bf16(values[i]);
                std::memcpy(t.bytes.data() + i * 2, &bits, 2);
                values[i] = bf16_to_float(bits);
            } else {
                const uint16_t bits = simd::scalar::float_to_fp16(values[i]);
                std::memcpy(t.bytes.data() + i * 2, &bits, 2);
                values[i] = simd::scalar::fp16_to_float(bits);
            }
        }
        t.value = std::move(values);
        return t;
    }
    static tensor random(dtype type, int64_t count, std::mt19937& generator, float deviation = 1.0f) {
        std::normal_distribution<float> normal(0.0f, deviation);
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& x : values) x = normal(generator);
        return of(type, std::move(values));
    }
    static tensor filled(dtype type, int64_t count, float x) { return of(type, std::vector<float>(static_cast<std::size_t>(count), x)); }
};

struct sequence_input {
    int64_t q_len = 0, kv_len = 0;
    std::optional<int64_t> q_start;  // end-aligned if not given
    tensor q, k, v;
    std::vector<uint64_t> tree = {};  // attention_batch::tree_masks
    std::vector<uint64_t> mask = {};  // attention_batch::key_masks
    std::vector<int64_t> key_first = {}, key_last = {};
    bias_function bias = {};                                // what attention_problem::bias is to give
    std::vector<uint8_t> q_segments = {}, k_segments = {};  // [q_len], [kv_len] where relative terms have segments

    static sequence_input random(const attention_problem& p, dtype k_type, dtype v_type, int64_t q_len, int64_t kv_len, std::mt19937& generator) {
        sequence_input s{q_len, kv_len, {}, {}, {}, {}, {}};
        s.q = tensor::random(p.q_type, q_len * p.heads * p.k_dim, generator);
        s.k = tensor::random(k_type, kv_len * p.kv_heads * p.k_dim, generator);
        s.v = tensor::random(v_type, kv_len * p.kv_heads * p.v_dim, generator);
        return s;
    }
};

struct output {
    std::vector<float> out;  // [tokens][heads][v_dim], whatever the type
    std::vector<float> lse;  // [tokens][heads]
    bool operator==(const output& other) const {
        const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
            return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
        };
        return same(out, other.out) && same(lse, other.lse);
    }
};

struct run_options {
    int32_t page_tokens = 64;   // 0: plain K and V
    uint32_t page_shuffle = 1;  // seed of the page order
    int32_t concurrency = 1;
    executor* on = nullptr;                     // null: serial, whatever the concurrency of the plan
    bool poison = true;                         // pages full of NaN before they are written
    std::optional<dtype> k_pages{}, v_pages{};  // types of the pages; those of the tensors if not given
    bool hadamard = false;
    attention_layer layer{};
    bool v_in_k = false;                            // the V of the sequences is not stored
    std::vector<sequence_input>* stored = nullptr;  // receives the sequences with K and V as the pages hold them
};

// The part of a problem that pages need.
inline kv_layout layout_of(const attention_problem& p, dtype k_type, dtype v_type, int32_t page_tokens) {
    kv_layout layout;
    layout.k_type = k_type;
    layout.v_type = v_type;
    layout.kv_heads = p.kv_heads;
    layout.k_dim = p.k_dim;
    layout.v_dim = p.v_dim;
    layout.page_tokens = page_tokens;
    return layout;
}

struct batch_tables {
    std::vector<int64_t> q_indptr{0}, kv_lens, q_starts, page_indptr{0}, kv_indptr{0}, tree_indptr{0}, key_mask_indptr{0}, key_first, key_last;
    std::vector<uint64_t> tree_masks, key_masks;
    std::vector<int32_t> page_ids;
    std::vector<uint8_t> q_segments, k_segments;
};

inline std::vector<float> to_floats(dtype type, const std::vector<std::byte>& bytes) {
    std::vector<float> values(bytes.size() / static_cast<std::size_t>(element_bytes(type)));
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (type == dtype::fp32) {
            std::memcpy(&values[i], bytes.data() + i * 4, 4);
        } else {
            uint16_t bits;
            std::memcpy(&bits, bytes.data() + i * 2, 2);
            values[i] = bf16_to_float(bits);
        }
    }
    return values;
}

// The sequences with K and V read back from their pages.
inline std::vector<sequence_input> stored_sequences(const attention_problem& p, const std::vector<sequence_input>& sequences, const kv_pages& pages,
                                                    const std::vector<int64_t>& slots) {
    std::vector<sequence_input> result = sequences;
    std::size_t first = 0;
    for (sequence_input& s : result) {
        const auto count = static_cast<std::size_t>(s.kv_len);
        s.k.value.resize(count * static_cast<std::size_t>(p.kv_heads * p.k_dim));
        s.v.value.resize(count * static_cast<std::size_t>(p.kv_heads * p.v_dim));
        const status read = kv_gather(pages, std::span(slots).subspan(first, count),
                                      dense_view(static_cast<void*>(s.k.value.data()), dtype::fp32, s.kv_len, p.kv_heads, p.k_dim),
                                      dense_view(static_cast<void*>(s.v.value.data()), dtype::fp32, s.kv_len, p.kv_heads, p.v_dim));
        EXPECT_TRUE(read.ok()) << read.text();
        first += count;
    }
    return result;
}

inline output run_attention(const attention_problem& p, const std::vector<sequence_input>& sequences, const run_options& options = {}) {
    batch_tables t;
    std::vector<std::byte> q, k, v;
    for (const sequence_input& s : sequences) {
        t.q_indptr.push_back(t.q_indptr.back() + s.q_len);
        t.kv_lens.push_back(s.kv_len);
        t.q_starts.push_back(s.q_start.value_or(s.kv_len - s.q_len));
        t.kv_indptr.push_back(t.kv_indptr.back() + s.kv_len);
        t.tree_masks.insert(t.tree_masks.end(), s.tree.begin(), s.tree.end());
        t.tree_indptr.push_back(static_cast<int64_t>(t.tree_masks.size()));
        t.key_masks.insert(t.key_masks.end(), s.mask.begin(), s.mask.end());
        t.key_mask_indptr.push_back(static_cast<int64_t>(t.key_masks.size()));
        for (std::size_t i = 0; i < static_cast<std::size_t>(s.q_len); ++i) {
            t.key_first.push_back(s.key_first.empty() ? 0 : s.key_first[i]);
            t.key_last.push_back(s.key_last.empty() ? s.kv_len : s.key_last[i]);
        }
        t.q_segments.insert(t.q_segments.end(), s.q_segments.begin(), s.q_segments.end());
        q.insert(q.end(), s.q.bytes.begin(), s.q.bytes.end());
        k.insert(k.end(), s.k.bytes.begin(), s.k.bytes.end());
        v.insert(v.end(), s.v.bytes.begin(), s.v.bytes.end());
    }
    const int64_t tokens = t.q_indptr.back(), kv_tokens = t.kv_indptr.back();
    const dtype k_type = sequences.empty() ? dtype::fp32 : sequences[0].k.type, v_type = sequences.empty() ? dtype::fp32 : sequences[0].v.type;
    const const_head_view k_view = dense_view(static_cast<const void*>(k.data()), k_type, kv_tokens, p.kv_heads, p.k_dim);
    const const_head_view v_view = dense_view(static_cast<const void*>(v.data()), v_type, kv_tokens, p.kv_heads, p.v_dim);

    attention_plan plan;
    attention_batch batch;
    batch.q_indptr = t.q_indptr;
    batch.kv_lens = t.kv_lens;
    batch.q_starts = t.q_starts;
    batch.tree_masks = t.tree_masks;
    if (!t.tree_masks.empty()) batch.tree_indptr = t.tree_indptr;
    batch.key_masks = t.key_masks;
    if (!t.key_masks.empty()) batch.key_mask_indptr = t.key_mask_indptr;
    if (std::ranges::any_of(sequences, [](const sequence_input& s) { return !s.key_first.empty(); })) batch.key_first = t.key_first;
    if (std::ranges::any_of(sequences, [](const sequence_input& s) { return !s.key_last.empty(); })) batch.key_last = t.key_last;
    batch.q_segments = t.q_segments;
    const auto place_segments = [&](std::size_t s, std::size_t first, std::size_t most) {  // most: of all sequences
        if (sequences[s].k_segments.empty()) return;
        t.k_segments.resize(most, 0xff);
        std::ranges::copy(sequences[s].k_segments, t.k_segments.begin() + static_cast<std::ptrdiff_t>(first));
        batch.k_segments = t.k_segments;
    };
    kv_layout layout =
        layout_of(p, options.k_pages.value_or(k_type), options.v_pages.value_or(v_type), options.page_tokens == 0 ? 64 : options.page_tokens);
    layout.hadamard = options.hadamard;
    layout.v_in_k = options.v_in_k;
    runtime::mapped_memory memory;
    kv_pages pages;
    if (options.page_tokens == 0) {
        batch.kv_indptr = t.kv_indptr;
        for (std::size_t s = 0; s < sequences.size(); ++s)
            place_segments(s, static_cast<std::size_t>(t.kv_indptr[s]), static_cast<std::size_t>(kv_tokens));
        const status built = plan.build(p, batch, k_type, v_type, options.concurrency);
        EXPECT_TRUE(built.ok()) << built.text();
    } else {
        for (const sequence_input& s : sequences) {
            const int64_t count = (s.kv_len + options.page_tokens - 1) / options.page_tokens;
            t.page_indptr.push_back(t.page_indptr.back() + count);
        }
        t.page_ids.resize(static_cast<std::size_t>(t.page_indptr.back()));
        std::iota(t.page_ids.begin(), t.page_ids.end(), 0);
        std::mt19937 order(options.page_shuffle);
        std::shuffle(t.page_ids.begin(), t.page_ids.end(), order);
        const auto count = static_cast<int32_t>(t.page_ids.size());
        memory = std::move(runtime::mapped_memory::create(int64_t{count} * layout.page_stride_bytes())).value();
        if (options.poison) std::ranges::fill(memory.bytes(), std::byte{0xff});
        pages = {memory.data(), layout, count};
        std::vector<int64_t> slots;
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            for (int64_t i = 0; i < sequences[s].kv_len; ++i) {
                const int32_t page = t.page_ids[static_cast<std::size_t>(t.page_indptr[s] + i / options.page_tokens)];
                slots.push_back(int64_t{page} * options.page_tokens + i % options.page_tokens);
            }
        }
        serial_executor serial;
        const status appended = kv_append(pages, slots, k_view, options.v_in_k ? const_head_view{} : v_view, {}, serial);
        EXPECT_TRUE(appended.ok()) << appended.text();
        if (options.stored != nullptr) *options.stored = stored_sequences(p, sequences, pages, slots);
        const auto page_tokens = static_cast<std::size_t>(options.page_tokens);
        for (std::size_t s = 0; s < sequences.size(); ++s) {
            place_segments(s, static_cast<std::size_t>(t.page_indptr[s]) * page_tokens, t.page_ids.size() * page_tokens);
        }
        batch.page_indptr = t.page_indptr;
        batch.page_ids = t.page_ids;
        const status built = plan.build(p, batch, layout, count, options.concurrency);
        EXPECT_TRUE(built.ok()) << built.text();
    }

    std::vector<std::byte> out(static_cast<std::size_t>(tokens * p.heads * p.v_dim * element_bytes(p.out_type)));
    output result;
    result.lse.assign(static_cast<std::size_t>(tokens * p.heads), 12345.0f);
    auto workspace = std::move(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()))).value();
    if (options.poison) std::ranges::fill(workspace.bytes(), std::byte{0xff});
    serial_executor serial;
    executor& on = options.on != nullptr ? *options.on : serial;
    const const_head_view q_view = dense_view(static_cast<const void*>(q.data()), p.q_type, tokens, p.heads, p.k_dim);
    const head_view out_view = dense_view(static_cast<void*>(out.data()), p.out_type, tokens, p.heads, p.v_dim);
    const status ran = options.page_tokens == 0 ? run(plan, q_view, k_view, v_view, out_view, result.lse, workspace.bytes(), options.layer, on)
                                                : run(plan, q_view, pages, out_view, result.lse, workspace.bytes(), options.layer, on);
    EXPECT_TRUE(ran.ok()) << ran.text();
    result.out = to_floats(p.out_type, out);
    return result;
}

inline reference_result reference_of(const attention_problem& p, const sequence_input& s,
                                     std::function<double(int64_t i, int32_t h, int64_t j)> term = nullptr) {
    reference_problem r;
    r.term = std::move(term);
    r.heads = p.heads;
    r.kv_heads = p.kv_heads;
    r.k_dim = p.k_dim;
    r.v_dim = p.v_dim;
    r.q_len = s.q_len;
    r.kv_len = s.kv_len;
    r.q_start = s.q_start.value_or(s.kv_len - s.q_len);
    r.scale = p.scale != 0.0f ? double{p.scale} : 1.0 / std::sqrt(double(p.k_dim));
    r.softcap = p.softcap;
    r.left = p.span.left;
    r.right = p.span.right;
    r.chunk = p.span.chunk;
    r.tree = s.tree;
    r.mask = s.mask;
    r.key_first = s.key_first;
    r.key_last = s.key_last;
    r.bias = s.bias;
    r.place = static_cast<int>(p.place);
    if (p.alibi_slopes != nullptr) r.slopes.assign(p.alibi_slopes, p.alibi_slopes + p.heads);
    if (p.sinks != nullptr) r.sinks.assign(p.sinks, p.sinks + p.heads);
    return reference_attention(r, s.q.value, s.k.value, s.v.value);
}

// Largest error against the reference, out relative to max |v| and lse relative to max(1, |lse|), with where it was.
struct error {
    double out = 0.0, lse = 0.0;
    std::size_t out_at = 0, lse_at = 0;
};
inline error compare(const output& got, const std::vector<reference_result>& expected, double max_v) {
    error e;
    std::size_t out_at = 0, lse_at = 0;
    const auto worst = [](double difference, double& most, std::size_t at, std::size_t& where) {
        if (!(difference <= most)) {  // NaN counts as worst
            most = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
            where = at;
        }
    };
    for (const reference_result& r : expected) {
        for (const double x : r.out) {
            worst(std::fabs(got.out[out_at] - x) / max_v, e.out, out_at, e.out_at);
            ++out_at;
        }
        for (const double x : r.lse) {
            const double y = got.lse[lse_at];
            worst(x == y ? 0.0 : std::fabs(y - x) / std::max(1.0, std::fabs(x)), e.lse, lse_at, e.lse_at);
            ++lse_at;
        }
    }
    return e;
}
// Against what the definition gives for the sequences.
inline error compare(const attention_problem& p, const std::vector<sequence_input>& sequences, const output& got) {
    std::vector<reference_result> expected;
    double max_v = 1.0;
    for (const sequence_input& s : sequences) {
        expected.push_back(reference_of(p, s));
        for (const float x : s.v.value) max_v = std::max(max_v, std::fabs(double{x}));
    }
    return compare(got, expected, max_v);
}

// fp32 arithmetic: a score is a chain of k_dim FMAs on unit-variance data, so its error is about eps * sqrt(k_dim), the weights inherit it, and the
// sum over keys averages it. 16-bit dots round q and p to 2^-9 relative.
inline double tolerance(const attention_problem& p, dtype k_type, dtype v_type) {
    constexpr double eps = 1.1920929e-7;
    const bool vector_dot = active_target().value() == target::avx512_bf16 || active_target().value() == target::neon_bf16;
    double t = 16.0 * eps * std::sqrt(double(p.k_dim));
    if (p.out_type != dtype::fp32) t += 0x1p-8;
    // q is exact in bf16 here, p is rounded: half an ulp of bf16 a weight.
    const bool fast = p.precision == attention_precision::fast;
    if (vector_dot && (p.q_type == dtype::bf16 || fast) && (k_type == dtype::bf16 || v_type == dtype::bf16)) t += fast ? 0x1p-8 : 0x1p-9;
    // Integers: q and p move by up to half a step of largest / most, evenly spread; six standard deviations of a score of unit-variance keys. N(0, 1)
    // rows have a largest magnitude of 4.5 or less. What that does to the result is less by the spread of the weights: a quarter at two equal keys.
    const auto step = [](double most) { return 6.0 * 4.5 / most / std::sqrt(12.0) / 4.0; };
    const auto has = [&](dtype type) { return k_type == type || v_type == type; };
    if (has(dtype::int8) && (p.q_type != dtype::fp32 || fast)) t += step(32512.0);
    if (has(dtype::int4) && fast) t += step(127.0);
    return t;
}

}  // namespace ropewalk::test
