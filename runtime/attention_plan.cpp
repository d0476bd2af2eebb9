// Building a plan: validation, cutting the batch into blocks of rows, pricing them, splitting long ones over their keys.
#include "runtime/attention_plan.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "runtime/pages.hpp"
#include "runtime/refuse.hpp"
#include "runtime/relative_attention.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {
namespace {

using runtime::refuse;
using runtime::round_up;
using simd::tree_words;
using plan_state = attention_plan::state;

constexpr double log2e = 1.4426950408889634;
constexpr int64_t max_tokens = int64_t{1} << 31;

// Floats of Q, scores, O and running O that a block may keep in a worker's L2 (half of 512 KiB).
constexpr int32_t most_floats = 65536;

// A core's share of a common server, to compare memory with arithmetic: 12 GB/s and 50 GFLOP/s. Only the order of the items and the choice to stay on
// one thread depend on it, never a result.
constexpr double ns_per_byte = 1.0 / 12.0;
constexpr double ns_per_flop = 1.0 / 50.0;
// Waking a sleeping worker costs 25 to 40 us (design.md section 6): less work than that is done sooner alone.
constexpr double inline_ns = 40e3;
// Pieces smaller than this are not worth the 1 us that an item costs.
constexpr int64_t least_item_bytes = 128 * 1024;
constexpr int32_t items_per_worker = 4;

status check_problem(const attention_problem& problem) {
    const auto positive = [](const char* argument, int32_t value, int32_t most) {
        return value >= 1 && value <= most ? status()
                                           : refuse(status_code::invalid_argument, "problem.%s is %d; must be 1 to %d", argument, value, most);
    };
    constexpr int32_t most_heads = 1 << 16;
    if (auto s = positive("heads", problem.heads, most_heads); !s) return s;
    if (auto s = positive("kv_heads", problem.kv_heads, most_heads); !s) return s;
    if (auto s = positive("k_dim", problem.k_dim, simd::max_head_dim); !s) return s;
    if (auto s = positive("v_dim", problem.v_dim, simd::max_head_dim); !s) return s;
    if (problem.heads % problem.kv_heads != 0) {
        return refuse(status_code::invalid_argument, "problem.heads is %d; must be a multiple of kv_heads = %d", problem.heads, problem.kv_heads);
    }
    if (auto s = runtime::check_type("problem.q_type", problem.q_type); !s) return s;
    if (auto s = runtime::check_type("problem.out_type", problem.out_type); !s) return s;
    const auto not_negative = [](const char* argument, float value) {
        return std::isfinite(value) && value >= 0.0f
                   ? status()
                   : refuse(status_code::invalid_argument, "problem.%s is %g; must be finite and not negative", argument, double{value});
    };
    if (auto s = not_negative("scale", problem.scale); !s) return s;
    if (auto s = not_negative("softcap", problem.softcap); !s) return s;
    if (problem.precision != attention_precision::standard && problem.precision != attention_precision::fast) {
        return refuse(status_code::invalid_argument, "problem.precision is %d; must be 0 (standard) or 1 (fast)",
                      static_cast<int>(problem.precision));
    }
    if (problem.span.left < 0 || problem.span.right < 0) {
        return refuse(status_code::invalid_argument, "problem.span is {left %lld, right %lld}; both must be >= 0",
                      static_cast<long long>(problem.span.left), static_cast<long long>(problem.span.right));
    }
    if (problem.span.chunk < 0) {
        return refuse(status_code::invalid_argument, "problem.span.chunk is %lld; must be >= 1, or 0 (off)",
                      static_cast<long long>(problem.span.chunk));
    }
    if (problem.place < bias_place::after_softcap || problem.place > bias_place::before_scale) {
        return refuse(status_code::invalid_argument, "problem.place is %d; must be 0 (after softcap), 1 (before softcap) or 2 (before scale)",
                      static_cast<int>(problem.place));
    }
    if (problem.bias != nullptr && !problem.bias->empty()) {
        if (problem.alibi_slopes != nullptr)
            return refuse(status_code::invalid_argument, "problem.bias is given beside alibi_slopes; one must be null");
        if (problem.bias->heads() != problem.heads) {
            return refuse(status_code::invalid_argument, "problem.bias has %d heads; must have problem.heads = %d", problem.bias->heads(),
                          problem.heads);
        }
    }
    for (int32_t h = 0; problem.alibi_slopes != nullptr && h < problem.heads; ++h) {
        if (!std::isfinite(problem.alibi_slopes[h])) {
            return refuse(status_code::invalid_argument, "problem.alibi_slopes[%d] is %g; must be finite", h, double{problem.alibi_slopes[h]});
        }
    }
    for (int32_t h = 0; problem.sinks != nullptr && h < problem.heads; ++h) {
        if (!std::isfinite(problem.sinks[h])) {
            return refuse(status_code::invalid_argument, "problem.sinks[%d] is %g; must be finite", h, double{problem.sinks[h]});
        }
    }
    return {};
}

// An index of a CSR structure: `sequences` + 1 entries, ascending from 0, up to `limit`.
status check_indptr(const char* name, std::span<const int64_t> indptr, std::size_t sequences, int64_t limit) {
    if (indptr.size() != sequences + 1) {
        return refuse(status_code::invalid_argument, "batch.%s has %zu entries; must have sequences + 1 = %zu", name, indptr.size(), sequences + 1);
    }
    if (indptr[0] != 0) return refuse(status_code::invalid_argument, "batch.%s[0] is %lld; must be 0", name, static_cast<long long>(indptr[0]));
    for (std::size_t s = 0; s < sequences; ++s) {
        if (indptr[s + 1] < indptr[s] || indptr[s + 1] > limit) {
            return refuse(status_code::invalid_argument, "batch.%s[%zu] is %lld; must be from %lld (the entry before) to %lld", name, s + 1,
                          static_cast<long long>(indptr[s + 1]), static_cast<long long>(indptr[s]), static_cast<long long>(limit));
        }
    }
    return {};
}

status check_batch(const attention_batch& batch, bool paged) {
    const std::size_t sequences = batch.kv_lens.size();
    if (auto s = check_indptr("q_indptr", batch.q_indptr, sequences, max_tokens); !s) return s;
    if (!batch.q_starts.empty() && batch.q_starts.size() != sequences) {
        return refuse(status_code::invalid_argument, "batch.q_starts has %zu entries; must be empty or have %zu", batch.q_starts.size(), sequences);
    }
    for (std::size_t s = 0; s < sequences; ++s) {
        if (batch.kv_lens[s] < 0 || batch.kv_lens[s] >= max_tokens) {
            return refuse(status_code::invalid_argument, "batch.kv_lens[%zu] is %lld; must be 0 to 2^31 - 1", s,
                          static_cast<long long>(batch.kv_lens[s]));
        }
        if (!batch.q_starts.empty() && (batch.q_starts[s] < -max_tokens || batch.q_starts[s] > max_tokens)) {
            return refuse(status_code::invalid_argument, "batch.q_starts[%zu] is %lld; must be within 2^31 of 0", s,
                          static_cast<long long>(batch.q_starts[s]));
        }
    }
    if (paged != batch.kv_indptr.empty() || paged == batch.page_indptr.empty()) {
        return refuse(status_code::invalid_argument, "batch.%s; this plan reads keys from %s",
                      paged ? "page_indptr must be given and kv_indptr empty" : "kv_indptr must be given and page_indptr empty",
                      paged ? "pages" : "plain K and V");
    }
    return {};
}

status check_page_table(const attention_batch& batch, const kv_layout& layout, int32_t page_count) {
    const std::size_t sequences = batch.kv_lens.size();
    if (page_count < 0) return refuse(status_code::invalid_argument, "page_count is %d; must be >= 0", page_count);
    if (auto s = check_indptr("page_indptr", batch.page_indptr, sequences, static_cast<int64_t>(batch.page_ids.size())); !s) return s;
    for (std::size_t s = 0; s < sequences; ++s) {
        const int64_t pages = batch.page_indptr[s + 1] - batch.page_indptr[s];
        const int64_t needed = round_up(batch.kv_lens[s], layout.page_tokens) / layout.page_tokens;
        if (pages < needed) {
            return refuse(status_code::invalid_argument, "sequence %zu has %lld pages; kv_len %lld needs %lld of %d tokens", s,
                          static_cast<long long>(pages), static_cast<long long>(batch.kv_lens[s]), static_cast<long long>(needed),
                          layout.page_tokens);
        }
    }
    for (std::size_t i = 0; i < batch.page_ids.size(); ++i) {
        if (batch.page_ids[i] < 0 || batch.page_ids[i] >= page_count) {
            return refuse(status_code::out_of_range, "batch.page_ids[%zu] is %d; must be 0 to page_count - 1 = %d", i, batch.page_ids[i],
                          page_count - 1);
        }
    }
    return {};
}

status check_plain_rows(const attention_batch& batch) {
    const std::size_t sequences = batch.kv_lens.size();
    if (auto s = check_indptr("kv_indptr", batch.kv_indptr, sequences, int64_t{1} << 40); !s) return s;
    for (std::size_t s = 0; s < sequences; ++s) {
        if (batch.kv_indptr[s + 1] - batch.kv_indptr[s] < batch.kv_lens[s]) {
            return refuse(status_code::invalid_argument, "sequence %zu has %lld rows in kv_indptr; kv_len is %lld", s,
                          static_cast<long long>(batch.kv_indptr[s + 1] - batch.kv_indptr[s]), static_cast<long long>(batch.kv_lens[s]));
        }
    }
    return {};
}

// Row i of a tree: bit i and none above.
status check_tree_row(const attention_batch& batch, std::size_t s, int64_t i, int64_t words) {
    const int64_t first = batch.tree_indptr[s] + i * words;
    for (int64_t w = words - 1; w >= i / 64; --w) {
        const uint64_t word = batch.tree_masks[static_cast<std::size_t>(first + w)];
        const int64_t highest = w * 64 + std::bit_width(word) - 1;
        if (word != 0 && highest > i) {
            return refuse(
                status_code::invalid_argument, "batch.tree_masks[%lld] shows token %lld of sequence %zu drafted key %lld; must be at most %lld",
                static_cast<long long>(first + w), static_cast<long long>(i), s, static_cast<long long>(highest), static_cast<long long>(i));
        }
        if (w == i / 64 && highest != i) {
            return refuse(status_code::invalid_argument, "batch.tree_masks[%lld] hides token %lld of sequence %zu from itself; bit %lld must be set",
                          static_cast<long long>(first + w), static_cast<long long>(i), s, static_cast<long long>(i % 64));
        }
    }
    return {};
}

status check_trees(const attention_batch& batch) {
    if (batch.tree_indptr.empty() && batch.tree_masks.empty()) return {};
    const std::size_t sequences = batch.kv_lens.size();
    if (auto s = check_indptr("tree_indptr", batch.tree_indptr, sequences, static_cast<int64_t>(batch.tree_masks.size())); !s) return s;
    for (std::size_t s = 0; s < sequences; ++s) {
        const int64_t given = batch.tree_indptr[s + 1] - batch.tree_indptr[s];
        if (given == 0) continue;
        const int64_t q_len = batch.q_indptr[s + 1] - batch.q_indptr[s], start = batch.kv_lens[s] - q_len, words = tree_words(q_len);
        if (given != q_len * words) {
            return refuse(status_code::invalid_argument, "batch.tree_indptr gives sequence %zu %lld words; must be q_len * ceil(q_len / 64) = %lld",
                          s, static_cast<long long>(given), static_cast<long long>(q_len * words));
        }
        if (start < 0) {
            return refuse(status_code::invalid_argument, "batch.kv_lens[%zu] is %lld; must be at least the %lld query tokens of its tree", s,
                          static_cast<long long>(batch.kv_lens[s]), static_cast<long long>(q_len));
        }
        if (!batch.q_starts.empty() && batch.q_starts[s] != start) {
            return refuse(status_code::invalid_argument, "batch.q_starts[%zu] is %lld; must be kv_len - q_len = %lld, as the sequence has a tree", s,
                          static_cast<long long>(batch.q_starts[s]), static_cast<long long>(start));
        }
        for (int64_t i = 0; i < q_len; ++i) {
            if (auto row = check_tree_row(batch, s, i, words); !row) return row;
        }
    }
    return {};
}

status check_ranges(const attention_batch& batch) {
    const auto tokens = static_cast<std::size_t>(batch.q_indptr.back());
    for (const auto& [name, indices] : {std::pair{"key_first", batch.key_first}, {"key_last", batch.key_last}}) {
        if (indices.empty()) continue;
        if (indices.size() != tokens) {
            return refuse(status_code::invalid_argument, "batch.%s has %zu entries; must be empty or have one for each of %zu query tokens", name,
                          indices.size(), tokens);
        }
        for (std::size_t s = 0; s < batch.kv_lens.size(); ++s) {
            for (auto i = static_cast<std::size_t>(batch.q_indptr[s]); i < static_cast<std::size_t>(batch.q_indptr[s + 1]); ++i) {
                if (indices[i] >= 0 && indices[i] <= batch.kv_lens[s]) continue;
                return refuse(status_code::out_of_range, "batch.%s[%zu] is %lld; must be 0 to kv_len = %lld of sequence %zu", name, i,
                              static_cast<long long>(indices[i]), static_cast<long long>(batch.kv_lens[s]), s);
            }
        }
    }
    return {};
}

bool has_words(std::span<const int64_t> indptr, std::size_t s) { return !indptr.empty() && indptr[s] < indptr[s + 1]; }

status check_masks(const attention_batch& batch) {
    if (batch.key_mask_indptr.empty() && batch.key_masks.empty()) return {};
    const std::size_t sequences = batch.kv_lens.size();
    if (auto s = check_indptr("key_mask_indptr", batch.key_mask_indptr, sequences, static_cast<int64_t>(batch.key_masks.size())); !s) return s;
    for (std::size_t s = 0; s < sequences; ++s) {
        if (!has_words(batch.key_mask_indptr, s)) continue;
        const int64_t given = batch.key_mask_indptr[s + 1] - batch.key_mask_indptr[s];
        const int64_t needed = (batch.q_indptr[s + 1] - batch.q_indptr[s]) * tree_words(batch.kv_lens[s]);
        if (given != needed) {
            return refuse(status_code::invalid_argument,
                          "batch.key_mask_indptr gives sequence %zu %lld words; must be q_len * ceil(kv_len / 64) = %lld", s,
                          static_cast<long long>(given), static_cast<long long>(needed));
        }
        if (has_words(batch.tree_indptr, s)) {
            return refuse(status_code::invalid_argument, "batch.key_mask_indptr gives sequence %zu a mask; it has a tree", s);
        }
    }
    return {};
}

int64_t first_position_of(const attention_batch& batch, std::size_t s) {
    return batch.q_starts.empty() ? batch.kv_lens[s] - (batch.q_indptr[s + 1] - batch.q_indptr[s]) : batch.q_starts[s];
}

// What the bias must hold for the batch.
status check_bias(const attention_problem& problem, const attention_batch& batch) {
    if (problem.bias == nullptr || problem.bias->empty()) return {};
    const attention_bias::state& bias = *problem.bias->internals();
    const int64_t positions = int64_t{bias.values.height} * bias.values.width + (bias.values.class_token ? 1 : 0);
    if (bias.kind == simd::bias_kind::rows && bias.tokens < batch.q_indptr.back()) {
        return refuse(status_code::out_of_range, "problem.bias has rows of %lld tokens; q_indptr ends at %lld", static_cast<long long>(bias.tokens),
                      static_cast<long long>(batch.q_indptr.back()));
    }
    for (std::size_t s = 0; s < batch.kv_lens.size(); ++s) {
        const int64_t q_len = batch.q_indptr[s + 1] - batch.q_indptr[s], kv_len = batch.kv_lens[s], first = first_position_of(batch, s);
        if (bias.kind == simd::bias_kind::rows && bias.values.keys < kv_len) {
            return refuse(status_code::out_of_range, "problem.bias has rows of %lld keys; kv_lens[%zu] is %lld",
                          static_cast<long long>(bias.values.keys), s, static_cast<long long>(kv_len));
        }
        if (bias.kind != simd::bias_kind::grid || q_len == 0) continue;
        if (kv_len > positions || first < 0 || first + q_len > positions) {
            return refuse(status_code::out_of_range, "problem.bias is over %lld positions; sequence %zu has %lld keys and queries at %lld to %lld",
                          static_cast<long long>(positions), s, static_cast<long long>(kv_len), static_cast<long long>(first),
                          static_cast<long long>(first + q_len - 1));
        }
        if (has_words(batch.tree_indptr, s)) {
            return refuse(status_code::unsupported, "problem.bias is over a grid; sequence %zu must have no tree", s);
        }
    }
    return {};
}

void set_shape(plan_state& plan, const attention_problem& problem, dtype k_type, dtype v_type) {
    simd::attend_shape& shape = plan.shape;
    shape = {};
    shape.heads = problem.heads;
    shape.kv_heads = problem.kv_heads;
    shape.group = problem.heads / problem.kv_heads;
    shape.k_dim = problem.k_dim;
    shape.v_dim = problem.v_dim;
    shape.k_pad = simd::stored_k_dim(static_cast<int>(k_type), problem.k_dim);
    shape.v_pad = simd::stored_v_dim(static_cast<int>(v_type), problem.v_dim);
    shape.q_type = static_cast<int>(problem.q_type);
    shape.k_type = static_cast<int>(k_type);
    shape.v_type = static_cast<int>(v_type);
    shape.out_type = static_cast<int>(problem.out_type);
    const bool fast = problem.precision == attention_precision::fast;
    // With relative terms q meets fp32 tables besides the keys, and keys meet rows of tables: one arithmetic for all of it.
    const bool relative = problem.relative != nullptr;
    shape.qk_arithmetic = relative ? simd::fma_fp32 : simd::choose_arithmetic(plan.kernels->attention, shape.k_type, shape.q_type, fast);
    shape.pv_arithmetic = simd::choose_arithmetic(plan.kernels->attention, shape.v_type, shape.q_type, fast);
    const double scale = problem.scale != 0.0f ? double{problem.scale} : 1.0 / std::sqrt(double(problem.k_dim));
    shape.scale = static_cast<float>(scale * log2e);
    shape.softcap = static_cast<float>(double{problem.softcap} * log2e);
    shape.left = problem.span.left;
    shape.right = problem.span.right;
    shape.chunk = problem.span.chunk;
    plan.bias = problem.bias != nullptr ? *problem.bias : attention_bias();
    shape.bias = plan.bias.empty() ? simd::bias_kind::none : plan.bias.internals()->kind;
    const double unit = problem.place == bias_place::before_scale ? scale * log2e : log2e;
    shape.bias_factor = static_cast<float>(unit);
    shape.bias_before_softcap = problem.place != bias_place::after_softcap;
    shape.alibi = problem.alibi_slopes != nullptr;
    shape.sinks = problem.sinks != nullptr;
    plan.slopes.clear();
    for (int32_t h = 0; shape.alibi && h < problem.heads; ++h) plan.slopes.push_back(static_cast<float>(double{problem.alibi_slopes[h]} * unit));
    plan.sinks.clear();
    if (shape.sinks) plan.sinks.assign(problem.sinks, problem.sinks + problem.heads);
}

// Keys that a block sees among those of chunks [chunk_first, chunk_last).
simd::key_range seen_keys(const simd::attend_shape& shape, const simd::attend_block& rows, int64_t chunk_first, int64_t chunk_last) {
    const simd::key_range seen = simd::visible_keys(shape, rows);
    return {std::max(seen.first, chunk_first * simd::chunk_tokens), std::min(seen.last, chunk_last * simd::chunk_tokens)};
}

// Set bits [from, to) of a row of words.
int64_t count_bits(const uint64_t* row, int64_t from, int64_t to) {
    int64_t count = 0;
    for (int64_t at = from, next; at < to; at = next) {
        next = std::min(to, (at / 64 + 1) * 64);
        count += std::popcount(row[at / 64] << (64 - (next - at) - at % 64) >> (64 - (next - at)));
    }
    return count;
}

// Pairs of a query token of the block and a key of these chunks that it sees.
double count_pairs(const simd::attend_shape& shape, const simd::attend_block& rows, int64_t chunk_first, int64_t chunk_last) {
    const int64_t drafted = simd::first_drafted(rows);
    double pairs = 0.0;
    for (int32_t t = 0; t < rows.tokens; ++t) {
        const simd::key_range row = simd::visible_keys(shape, rows, t);
        const int64_t first = std::max(row.first, chunk_first * simd::chunk_tokens), last = std::min(row.last, chunk_last * simd::chunk_tokens);
        pairs += static_cast<double>(std::max<int64_t>(0, std::min(last, drafted) - first));
        if (last > drafted) {
            const uint64_t* bits = rows.tree_masks + t * tree_words(rows.drafted);
            pairs += static_cast<double>(count_bits(bits, std::max<int64_t>(0, first - drafted), last - drafted));
        }
    }
    return pairs;
}

// Bytes of K and V of one token and one KV head, with their scales.
int64_t token_bytes(const simd::attend_shape& shape) {
    int64_t panel = simd::panel_bytes(shape.k_type, shape.k_pad) + simd::k_scale_bytes(shape.k_type, simd::panel);
    if (!shape.v_in_k) panel += simd::v_bytes(shape.v_type, shape.v_pad, simd::panel) + simd::v_scale_bytes(shape.v_type, shape.v_pad, simd::panel);
    return panel / simd::panel;
}

struct builder {
    plan_state& plan;
    const attention_batch& batch;
    int32_t concurrency;
    std::size_t family_block = 0;  // where the blocks of the family begin that is being added
    int32_t block_rows = 0;        // limit, but one query token's group may be more
    int64_t first_mask = 0;        // where masks over keys begin in plan.tree_masks

    void add_trees();
    void add_ranges();
    void add_blocks();
    void add_sequence(std::size_t s);
    [[nodiscard]] plan_state::block block_of(std::size_t s, int64_t first, int32_t tokens) const;
    void add_block(std::size_t s, int64_t first, int32_t tokens);
    int64_t add_run(std::size_t block, std::size_t count, int64_t chunk_first, int64_t chunk_last);
    void end_family();
    void find_shared();
    void order_candidates(std::size_t first, std::size_t last);
    void add_group(std::size_t first, std::size_t last);
    void share(std::size_t first, std::size_t last, int64_t chunk, std::size_t block);
    void add_items();
    void cut_run(const plan_state::item& run, int32_t first_block, int64_t items);
    void lay_out_workspace();

    [[nodiscard]] int32_t chunk_pages() const { return simd::chunk_tokens / plan.shape.page_tokens; }
    [[nodiscard]] const int32_t* pages(const plan_state::candidate& c, int64_t chunk) const {
        return batch.page_ids.data() + batch.page_indptr[static_cast<std::size_t>(c.sequence)] + chunk * chunk_pages();
    }
    [[nodiscard]] bool same_pages(const plan_state::candidate& a, const plan_state::candidate& b, int64_t chunk) const {
        return std::memcmp(pages(a, chunk), pages(b, chunk), static_cast<std::size_t>(chunk_pages()) * 4) == 0;
    }
};

// Copies the words and counts the depths, of a row before the window takes its far bits.
void builder::add_trees() {
    plan.tree_masks.assign(batch.tree_masks.begin(), batch.tree_masks.end());
    plan.tree_depths.assign(batch.tree_masks.empty() ? 0 : static_cast<std::size_t>(plan.q_tokens), 0);
    for (std::size_t s = 0; s + 1 < batch.tree_indptr.size(); ++s) {
        if (batch.tree_indptr[s] == batch.tree_indptr[s + 1]) continue;
        const int64_t tokens = batch.q_indptr[s + 1] - batch.q_indptr[s], words = tree_words(tokens);
        int32_t* depth = plan.tree_depths.data() + batch.q_indptr[s];
        uint64_t* row = plan.tree_masks.data() + batch.tree_indptr[s];
        for (int64_t i = 0; i < tokens; ++i, row += words) {
            for (int64_t w = 0; w < words; ++w) depth[i] += std::popcount(row[w]);
            --depth[i];
            const int64_t start = batch.kv_lens[s] - tokens, least = simd::first_position(plan.shape, start + depth[i]) - start;
            for (int64_t w = 0; least > 0 && w < words; ++w) {
                for (uint64_t left = row[w]; left != 0; left &= left - 1) {
                    const int64_t j = w * 64 + std::countr_zero(left);
                    if (depth[j] < least) row[w] &= ~(left & -left);
                }
            }
        }
    }
}

// Copies the masks, and narrows the ranges to what they show.
void builder::add_ranges() {
    plan.key_ranges.clear();
    if (batch.key_first.empty() && batch.key_last.empty() && batch.key_mask_indptr.empty()) return;
    first_mask = static_cast<int64_t>(plan.tree_masks.size());
    plan.tree_masks.insert(plan.tree_masks.end(), batch.key_masks.begin(), batch.key_masks.end());
    plan.key_ranges.reserve(2 * static_cast<std::size_t>(plan.q_tokens));
    for (std::size_t s = 0; s < batch.kv_lens.size(); ++s) {
        const int64_t words = has_words(batch.key_mask_indptr, s) ? tree_words(batch.kv_lens[s]) : 0;
        const uint64_t* row = words > 0 ? batch.key_masks.data() + batch.key_mask_indptr[s] : nullptr;
        for (auto i = static_cast<std::size_t>(batch.q_indptr[s]); i < static_cast<std::size_t>(batch.q_indptr[s + 1]); ++i, row += words) {
            int64_t first = batch.key_first.empty() ? 0 : batch.key_first[i];
            int64_t last = batch.key_last.empty() ? batch.kv_lens[s] : batch.key_last[i];
            const auto hidden = [&](int64_t j) { return words > 0 && (row[j / 64] >> (j % 64) & 1) == 0; };
            while (first < last && hidden(first)) ++first;
            while (first < last && hidden(last - 1)) --last;
            plan.key_ranges.push_back(static_cast<int32_t>(first));
            plan.key_ranges.push_back(static_cast<int32_t>(last));
        }
    }
}

void builder::add_blocks() {
    const simd::attend_shape& shape = plan.shape;
    block_rows = std::clamp(most_floats / (shape.k_pad + 2 * shape.v_pad + simd::tile_tokens), 12, plan_state::most_rows);
    plan.max_rows = 0;
    plan.kv_bytes = 0;
    plan.flops = 0.0;
    find_shared();
    const auto& candidates = plan.candidates;
    for (std::size_t first = 0, last; first < candidates.size(); first = last) {
        last = first + 1;
        while (candidates[last - 1].common > 0) ++last;
        add_group(first, last);
    }
    for (std::size_t s = 0; s < batch.kv_lens.size(); ++s) {
        if (plan.grouped.empty() || plan.grouped[s] == 0) add_sequence(s);
    }
}

// Query tokens first .. + tokens of a sequence, KV head 0.
plan_state::block builder::block_of(std::size_t s, int64_t first, int32_t tokens) const {
    const bool paged = plan.shape.page_tokens != 0;
    const int64_t at = first_position_of(batch, s) + first;
    const auto kv_len = static_cast<int32_t>(batch.kv_lens[s]);
    plan_state::block block;
    block.rows = {batch.q_indptr[s] + first,
                  tokens,
                  0,
                  at,
                  kv_len,
                  nullptr,
                  paged ? batch.page_indptr[s] * plan.shape.page_tokens : batch.kv_indptr[s],
                  nullptr};
    block.page_first = paged ? batch.page_indptr[s] : 0;
    if (has_words(batch.key_mask_indptr, s)) {
        block.rows.drafted = kv_len;
        block.tree_first = first_mask + batch.key_mask_indptr[s] + first * tree_words(kv_len);
        block.tree_tokens = -1;
    } else if (has_words(batch.tree_indptr, s)) {
        block.rows.drafted = static_cast<int32_t>(batch.q_indptr[s + 1] - batch.q_indptr[s]);
        block.tree_first = batch.tree_indptr[s] + first * tree_words(block.rows.drafted);
        block.tree_tokens = batch.q_indptr[s];
    }
    return block;
}

void builder::add_block(std::size_t s, int64_t first, int32_t tokens) {
    plan_state::block block = block_of(s, first, tokens);
    const simd::key_range seen = simd::visible_keys(plan.shape, plan.rows_of(block));
    if (seen.first < seen.last) {
        block.chunk_first = seen.first / simd::chunk_tokens;
        block.chunk_last = round_up(seen.last, simd::chunk_tokens) / simd::chunk_tokens;
    }
    plan.blocks.push_back(block);
}

// Chunks of blocks that lie together. Returns how many keys they see.
int64_t builder::add_run(std::size_t block, std::size_t count, int64_t chunk_first, int64_t chunk_last) {
    const simd::attend_shape& shape = plan.shape;
    simd::key_range keys{std::numeric_limits<int64_t>::max(), 0};
    double pairs = 0.0;
    int32_t rows = 0;
    for (std::size_t b = block; b < block + count; ++b) {
        const simd::attend_block part = plan.rows_of(plan.blocks[b]);
        const simd::key_range seen = seen_keys(shape, part, chunk_first, chunk_last);
        keys = {std::min(keys.first, seen.first), std::max(keys.last, seen.last)};
        pairs += count_pairs(shape, part, chunk_first, chunk_last);
        rows += part.tokens * shape.group;
    }
    const int64_t read = std::max<int64_t>(0, keys.last - keys.first);
    const double flops = 2.0 * pairs * shape.group * (shape.k_dim + shape.v_dim);
    plan.runs.push_back({static_cast<int32_t>(block - family_block), static_cast<int32_t>(count), chunk_first, chunk_last});
    plan.costs.push_back(std::max(static_cast<double>(read * token_bytes(shape)) * ns_per_byte, flops * ns_per_flop));
    plan.flops += flops * shape.kv_heads;
    plan.max_rows = std::max(plan.max_rows, rows);
    return read;
}

// The blocks and runs added since are those of KV head 0; all heads have the same.
void builder::end_family() {
    const std::size_t blocks = plan.blocks.size() - family_block;
    plan.families.push_back({plan.runs.size(), static_cast<int32_t>(blocks)});
    plan.blocks.resize(family_block + blocks * static_cast<std::size_t>(plan.shape.kv_heads));
    plan_state::block* next = plan.blocks.data() + family_block + blocks;  // no blocks: no query tokens
    for (int32_t head = 1; head < plan.shape.kv_heads; ++head) {
        for (std::size_t b = 0; b < blocks; ++b, ++next) {
            *next = plan.blocks[family_block + b];
            next->rows.kv_head = head;
        }
    }
}

// Blocks of a sequence, KV head by KV head, so that neighbouring items read the same keys; the last tokens first, since under a causal mask they
// have the most to do and the small blocks then even out the end.
void builder::add_sequence(std::size_t s) {
    const simd::attend_shape& shape = plan.shape;
    const int32_t block_tokens = std::max(1, block_rows / shape.group);
    const int64_t q_tokens = batch.q_indptr[s + 1] - batch.q_indptr[s];
    family_block = plan.blocks.size();
    for (int64_t b = round_up(q_tokens, block_tokens) / block_tokens - 1; b >= 0; --b) {
        const int64_t first = b * block_tokens;
        add_block(s, first, static_cast<int32_t>(std::min<int64_t>(block_tokens, q_tokens - first)));
        add_run(plan.blocks.size() - 1, 1, plan.blocks.back().chunk_first, plan.blocks.back().chunk_last);
    }
    if (q_tokens > 0) {
        const plan_state::block whole = block_of(s, 0, static_cast<int32_t>(std::min(q_tokens, max_tokens - 1)));
        const simd::key_range seen = simd::visible_keys(shape, plan.rows_of(whole));
        plan.kv_bytes += std::max<int64_t>(0, seen.last - seen.first) * token_bytes(shape) * shape.kv_heads;
    }
    end_family();
}

// ---- shared pages ------------------------------------------------------------------------------------------------------------------------------
//
// Sequences of few rows whose page tables agree in the first chunks they see read those once. In the order of their page tables, what has a prefix
// in common lies together: a trie, whose nodes become runs of several blocks. Full chunks without drafted keys only; sequences that begin in
// different chunks of a window are not compared. Even the smallest chunk (16 KiB) costs more to read again than the item that saves it.

// Fills plan.candidates with the sequences that share something, group by group, and marks them.
void builder::find_shared() {
    const simd::attend_shape& shape = plan.shape;
    plan.candidates.clear();
    plan.grouped.clear();
    const std::size_t sequences = batch.kv_lens.size();
    if (shape.page_tokens == 0 || sequences < 2 || shape.relative.given) return;
    for (std::size_t s = 0; s < sequences; ++s) {
        const int64_t tokens = batch.q_indptr[s + 1] - batch.q_indptr[s];
        const int64_t kv_len = batch.kv_lens[s];
        if (tokens == 0 || kv_len < simd::chunk_tokens || 2 * tokens * shape.group > block_rows) continue;
        const simd::attend_block rows = plan.rows_of(block_of(s, 0, static_cast<int32_t>(tokens)));
        const simd::key_range seen = simd::visible_keys(shape, rows);
        const int64_t first = seen.first / simd::chunk_tokens;
        const int64_t last = std::min(simd::first_drafted(rows) / simd::chunk_tokens, round_up(seen.last, simd::chunk_tokens) / simd::chunk_tokens);
        if (seen.first >= seen.last || first >= last) continue;
        plan_state::candidate c{0, static_cast<int32_t>(s), static_cast<int32_t>(first), static_cast<int32_t>(last), 0};
        c.key = first << 32 | *pages(c, first);
        plan.candidates.push_back(c);
    }
    auto& all = plan.candidates;
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    std::size_t kept = 0;
    for (std::size_t first = 0, last; first < all.size(); first = last) {
        last = first + 1;
        while (last < all.size() && all[last].key == all[first].key) ++last;
        if (last - first < 2) continue;
        order_candidates(first, last);
        for (std::size_t i = first; i < last; ++i) {
            const bool joins = i > first && all[i - 1].common > 0;
            if (all[i].common > 0 || joins) all[kept++] = all[i];
        }
    }
    all.resize(kept);
    if (kept > 0) plan.grouped.resize(sequences);
    for (const auto& c : all) plan.grouped[static_cast<std::size_t>(c.sequence)] = 1;
}

// Sorts candidates of one key by their pages and finds what neighbours have in common.
void builder::order_candidates(std::size_t first, std::size_t last) {
    auto& all = plan.candidates;
    const auto before = [&](const plan_state::candidate& a, const plan_state::candidate& b) {
        const int32_t chunks = std::min(a.chunk_last, b.chunk_last) - a.chunk_first;
        const int order = std::memcmp(pages(a, a.chunk_first), pages(b, b.chunk_first), static_cast<std::size_t>(chunks) * chunk_pages() * 4);
        return order != 0 ? order < 0 : a.chunk_last < b.chunk_last;
    };
    std::sort(all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last), before);
    for (std::size_t i = first; i + 1 < last; ++i) {
        int32_t chunk = all[i].chunk_first;
        while (chunk < std::min(all[i].chunk_last, all[i + 1].chunk_last) && same_pages(all[i], all[i + 1], chunk)) ++chunk;
        all[i].common = chunk > all[i].chunk_first ? chunk : 0;
    }
}

// Candidates [first, last), which share at least their first chunk.
void builder::add_group(std::size_t first, std::size_t last) {
    family_block = plan.blocks.size();
    for (std::size_t i = first; i < last; ++i) {
        const auto s = static_cast<std::size_t>(plan.candidates[i].sequence);
        add_block(s, 0, static_cast<int32_t>(batch.q_indptr[s + 1] - batch.q_indptr[s]));
    }
    share(first, last, plan.candidates[first].chunk_first, family_block);
    end_family();
}

// Runs of candidates [first, last) from `chunk` on; their blocks lie at `block`. What all share is cut by rows, evenly; then each branch by itself.
void builder::share(std::size_t first, std::size_t last, int64_t chunk, std::size_t block) {
    const auto& all = plan.candidates;
    int64_t keys = 0;
    if (last - first == 1) {
        const int64_t end = plan.blocks[block].chunk_last;
        if (chunk < end) keys = add_run(block, 1, chunk, end);
        plan.kv_bytes += keys * token_bytes(plan.shape) * plan.shape.kv_heads;
        return;
    }
    int64_t common = all[first].common, rows = 0;
    for (std::size_t i = first; i + 1 < last; ++i) common = std::min<int64_t>(common, all[i].common);
    const auto rows_of = [&](std::size_t b) { return plan.blocks[b].rows.tokens * plan.shape.group; };
    const std::size_t block_end = block + last - first;
    for (std::size_t b = block; b < block_end; ++b) rows += rows_of(b);
    const int64_t passes = round_up(rows, block_rows) / block_rows, fair = round_up(rows, passes) / passes;
    for (std::size_t b = block, next; common > chunk && b < block_end; b = next) {
        int64_t taken = rows_of(b);
        for (next = b + 1; next < block_end && taken < fair && taken + rows_of(next) <= block_rows; ++next) taken += rows_of(next);
        keys = std::max(keys, add_run(b, next - b, chunk, common));
    }
    plan.kv_bytes += keys * token_bytes(plan.shape) * plan.shape.kv_heads;
    for (std::size_t i = first, next; i < last; i = next) {
        next = i + 1;
        while (next < last && all[next - 1].common > common) ++next;
        share(i, next, common, block + i - first);
    }
}

// Splits what is longer than a quarter of a worker's share, at chunk borders: where it is cut never shows in the bits.
void builder::add_items() {
    double total = 0.0;
    for (const double cost : plan.costs) total += cost * plan.shape.kv_heads;
    plan.workers = total < inline_ns ? 1 : concurrency;
    const double target = plan.workers == 1 ? total : total / (plan.workers * items_per_worker);
    const int64_t least_chunks =
        round_up(least_item_bytes, simd::chunk_tokens * token_bytes(plan.shape)) / (simd::chunk_tokens * token_bytes(plan.shape));
    for (std::size_t r = 0; r < plan.runs.size(); ++r) {
        const int64_t most = std::max<int64_t>(1, (plan.runs[r].chunk_last - plan.runs[r].chunk_first) / least_chunks);
        plan.cuts.push_back(target <= 0.0 ? 1 : std::clamp<int64_t>(std::llround(plan.costs[r] / target), 1, most));
    }
    plan.counters = 0;
    plan.partials = 0;
    std::size_t first_run = 0;
    int32_t first_block = 0;
    for (const plan_state::family& family : plan.families) {
        for (int32_t head = 0; head < plan.shape.kv_heads; ++head, first_block += family.blocks) {
            for (std::size_t r = first_run; r < family.run_end; ++r) cut_run(plan.runs[r], first_block, plan.cuts[r]);
        }
        first_run = family.run_end;
    }
    plan.workers = std::max(1, std::min<int32_t>(plan.workers, static_cast<int32_t>(plan.items.size())));
}

// A run of the family whose blocks of one KV head begin at `first_block`, in `items` items. A run that begins with a block's first chunk comes
// before the block's others.
void builder::cut_run(const plan_state::item& run, int32_t first_block, int64_t items) {
    const int64_t chunks = run.chunk_last - run.chunk_first;
    const int32_t first = first_block + run.block;
    for (int64_t i = 0; i < items; ++i) {
        plan.items.push_back({first, run.count, run.chunk_first + chunks * i / items, run.chunk_first + chunks * (i + 1) / items});
    }
    for (int32_t b = first; b < first + run.count; ++b) {
        plan_state::block& block = plan.blocks[static_cast<std::size_t>(b)];
        const bool begins = run.chunk_first == block.chunk_first;
        if (run.count == 1 && items == 1 && begins && run.chunk_last == block.chunk_last) return;  // its one item finishes it
        block.parts += static_cast<int32_t>(items);
        if (!begins) continue;
        block.fold_end = run.chunk_first + chunks / items;
        block.counter = plan.counters++;
        block.partial = plan.partials;
        const int64_t one = simd::partial_floats(int64_t{block.rows.tokens} * plan.shape.group, plan.shape.v_pad);
        plan.partials += round_up(block.partial_index(block.chunk_last) * one, 16);
    }
}

void builder::lay_out_workspace() {
    constexpr int64_t line = 64;
    plan.counters_offset = line;
    plan.partials_offset = plan.counters_offset + round_up(int64_t{plan.counters} * 4, line);
    plan.scratch_offset = plan.partials_offset + round_up(plan.partials * 4, line);
    plan.scratch_bytes = simd::attend_scratch_bytes(plan.shape, plan.max_rows);
    plan.workspace_bytes = plan.items.empty() ? 0 : plan.scratch_offset + plan.scratch_bytes * plan.workers;
}

// Everything is checked before the plan is touched, so that a refused build leaves the old one.
status build_plan(std::unique_ptr<plan_state>& slot, const attention_problem& problem, const attention_batch& batch, const kv_layout* layout,
                  int32_t page_count, dtype k_type, dtype v_type, int32_t concurrency) noexcept try {
    status why;
    const simd::kernel_table* kernels = simd::active_kernels(&why);
    if (kernels == nullptr) return why;
    if (auto s = check_problem(problem); !s) return s;
    if (concurrency < 1) return refuse(status_code::invalid_argument, "concurrency is %d; must be >= 1", concurrency);
    if (auto s = check_batch(batch, layout != nullptr); !s) return s;
    if (auto s = check_trees(batch); !s) return s;
    if (auto s = check_ranges(batch); !s) return s;
    if (auto s = check_masks(batch); !s) return s;
    if (auto s = check_bias(problem, batch); !s) return s;
    if (layout != nullptr) {
        if (auto s = layout->validate(); !s) return s;
        if (layout->kv_heads != problem.kv_heads || layout->k_dim != problem.k_dim || layout->v_dim != problem.v_dim) {
            return refuse(status_code::invalid_argument, "layout has kv_heads %d, k_dim %d, v_dim %d; the problem has %d, %d, %d", layout->kv_heads,
                          layout->k_dim, layout->v_dim, problem.kv_heads, problem.k_dim, problem.v_dim);
        }
        if (auto s = check_page_table(batch, *layout, page_count); !s) return s;
    } else {
        if (auto s = runtime::check_type("k_type", k_type); !s) return s;
        if (auto s = runtime::check_type("v_type", v_type); !s) return s;
        if (auto s = check_plain_rows(batch); !s) return s;
    }
    if (auto s = runtime::check_relative(problem, batch, layout != nullptr ? layout->page_tokens : 0); !s) return s;

    // A plan that is kept reuses its vectors; if memory runs out half-way it is left empty, not half-built.
    std::unique_ptr<plan_state> plan = std::move(slot);
    if (plan == nullptr) plan = std::make_unique<plan_state>();
    plan->kernels = kernels;
    set_shape(*plan, problem, k_type, v_type);
    runtime::set_relative(*plan, problem, batch);
    plan->blocks.clear();
    plan->items.clear();
    plan->runs.clear();
    plan->costs.clear();
    plan->cuts.clear();
    plan->families.clear();
    plan->page_ids.clear();
    plan->q_tokens = batch.q_indptr.back();
    plan->most_keys = batch.kv_lens.empty() ? 0 : *std::ranges::max_element(batch.kv_lens);
    plan->kv_rows = layout == nullptr ? batch.kv_indptr.back() : 0;
    plan->page_count = page_count;
    if (layout != nullptr) {
        plan->layout = *layout;
        plan->shape.page_tokens = layout->page_tokens;
        plan->shape.page_stride = layout->page_stride_bytes();
        plan->shape.head_stride = layout->head_stride_bytes();
        plan->shape.hadamard = layout->hadamard;
        plan->shape.v_in_k = layout->v_in_k;
        plan->shape.v_offset = layout->k_part_bytes();
        plan->shape.k_scale_offset = plan->shape.v_offset + layout->v_part_bytes();
        plan->shape.v_scale_offset = plan->shape.k_scale_offset + layout->k_scale_bytes();
        plan->page_ids.assign(batch.page_ids.begin(), batch.page_ids.end());
    }
    builder build{*plan, batch, concurrency};
    build.add_trees();
    build.add_ranges();
    build.add_blocks();
    build.add_items();
    build.lay_out_workspace();
    slot = std::move(plan);
    return {};
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "no memory for the plan");
}

}  // namespace

attention_plan::attention_plan() noexcept = default;
attention_plan::~attention_plan() = default;
attention_plan::attention_plan(attention_plan&&) noexcept = default;
attention_plan& attention_plan::operator=(attention_plan&&) noexcept = default;

status attention_plan::build(const attention_problem& problem, const attention_batch& batch, const kv_layout& layout, int32_t page_count,
                             int32_t concurrency) noexcept {
    return build_plan(state_, problem, batch, &layout, page_count, layout.k_type, layout.v_type, concurrency);
}

status attention_plan::build(const attention_problem& problem, const attention_batch& batch, dtype k_type, dtype v_type,
                             int32_t concurrency) noexcept {
    return build_plan(state_, problem, batch, nullptr, 0, k_type, v_type, concurrency);
}

std::size_t attention_plan::workspace_bytes() const noexcept { return state_ ? static_cast<std::size_t>(state_->workspace_bytes) : 0; }
int64_t attention_plan::q_tokens() const noexcept { return state_ ? state_->q_tokens : 0; }
int64_t attention_plan::kv_bytes() const noexcept { return state_ ? state_->kv_bytes : 0; }
double attention_plan::flops() const noexcept { return state_ ? state_->flops : 0.0; }

}  // namespace ropewalk
