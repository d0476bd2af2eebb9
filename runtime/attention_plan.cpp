// Building a plan: validation, cutting the batch into blocks of rows, pricing them, splitting long ones over their keys.
#include "runtime/attention_plan.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "runtime/pages.hpp"
#include "runtime/refuse.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {
namespace {

using runtime::refuse;
using runtime::round_up;
using plan_state = attention_plan::state;

constexpr double log2e = 1.4426950408889634;
constexpr int64_t max_tokens = int64_t{1} << 31;

// Rows that share a pass over K and V: 96 is a multiple of every strip height, and enough that 16-bit panels are widened for 1 % of the work.
constexpr int32_t most_rows = 96;
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
    shape.qk_arithmetic = simd::choose_arithmetic(plan.kernels->attention, shape.k_type, shape.q_type, fast);
    shape.pv_arithmetic = simd::choose_arithmetic(plan.kernels->attention, shape.v_type, shape.q_type, fast);
    const double scale = problem.scale != 0.0f ? double{problem.scale} : 1.0 / std::sqrt(double(problem.k_dim));
    shape.scale = static_cast<float>(scale * log2e);
    shape.softcap = static_cast<float>(double{problem.softcap} * log2e);
    shape.left = problem.span.left;
    shape.right = problem.span.right;
    shape.alibi = problem.alibi_slopes != nullptr;
    shape.sinks = problem.sinks != nullptr;
    plan.slopes.clear();
    for (int32_t h = 0; shape.alibi && h < problem.heads; ++h) plan.slopes.push_back(static_cast<float>(double{problem.alibi_slopes[h]} * log2e));
    plan.sinks.clear();
    if (shape.sinks) plan.sinks.assign(problem.sinks, problem.sinks + problem.heads);
}

// Work of one block: pairs of query token and key that it scores.
struct work {
    int64_t chunk_first = 0, chunk_last = 0;
    int64_t keys = 0;  // read by the block
    double pairs = 0.0;
};

work measure(const simd::attend_shape& shape, int64_t position, int32_t tokens, int32_t kv_len) {
    work w;
    const simd::key_range seen = simd::visible_keys(shape, position, tokens, kv_len);
    if (seen.first >= seen.last) return w;
    w.chunk_first = seen.first / simd::chunk_tokens;
    w.chunk_last = round_up(seen.last, simd::chunk_tokens) / simd::chunk_tokens;
    w.keys = seen.last - seen.first;
    for (int32_t t = 0; t < tokens; ++t) {
        const simd::key_range row = simd::visible_keys(shape, position + t, 1, kv_len);
        w.pairs += static_cast<double>(std::max<int64_t>(0, row.last - row.first));
    }
    return w;
}

// Bytes of K and V of one token and one KV head, with their scales.
int64_t token_bytes(const simd::attend_shape& shape) {
    const int64_t panel = simd::panel_bytes(shape.k_type, shape.k_pad) + simd::v_bytes(shape.v_type, shape.v_pad, simd::panel) +
                          simd::k_scale_bytes(shape.k_type, simd::panel) + simd::v_scale_bytes(shape.v_type, shape.v_pad, simd::panel);
    return panel / simd::panel;
}

struct builder {
    plan_state& plan;
    const attention_batch& batch;
    int32_t concurrency;

    void add_blocks();
    void add_sequence(std::size_t s, int32_t block_tokens);
    void add_items();
    void lay_out_workspace();
};

void builder::add_blocks() {
    const simd::attend_shape& shape = plan.shape;
    const int32_t fit = most_floats / (shape.k_pad + 2 * shape.v_pad + simd::tile_tokens);
    const int32_t block_tokens = std::max(1, std::clamp(fit, 12, most_rows) / shape.group);
    plan.max_rows = 0;
    plan.kv_bytes = 0;
    plan.flops = 0.0;
    for (std::size_t s = 0; s < batch.kv_lens.size(); ++s) add_sequence(s, block_tokens);
}

// Blocks of a sequence, KV head by KV head, so that neighbouring items read the same keys; the last tokens first, since under a causal mask they
// have the most to do and the small blocks then even out the end.
void builder::add_sequence(std::size_t s, int32_t block_tokens) {
    const simd::attend_shape& shape = plan.shape;
    const int64_t q_tokens = batch.q_indptr[s + 1] - batch.q_indptr[s];
    const auto kv_len = static_cast<int32_t>(batch.kv_lens[s]);
    const int64_t start = batch.q_starts.empty() ? kv_len - q_tokens : batch.q_starts[s];
    const int64_t blocks = round_up(q_tokens, block_tokens) / block_tokens;
    const std::size_t begin = plan.blocks.size();
    for (int64_t b = blocks - 1; b >= 0; --b) {
        const int64_t first = b * block_tokens;
        const auto tokens = static_cast<int32_t>(std::min<int64_t>(block_tokens, q_tokens - first));
        const work w = measure(shape, start + first, tokens, kv_len);
        plan_state::block block;
        block.rows = {batch.q_indptr[s] + first, tokens, 0, start + first, kv_len, nullptr, plan.shape.page_tokens == 0 ? batch.kv_indptr[s] : 0};
        block.page_first = plan.shape.page_tokens == 0 ? 0 : batch.page_indptr[s];
        block.chunk_first = w.chunk_first;
        block.chunk_last = w.chunk_last;
        plan.blocks.push_back(block);
        const double flops = 2.0 * w.pairs * shape.group * (shape.k_dim + shape.v_dim);
        plan.costs.push_back(std::max(static_cast<double>(w.keys * token_bytes(shape)) * ns_per_byte, flops * ns_per_flop));
        plan.flops += flops * shape.kv_heads;
        plan.max_rows = std::max(plan.max_rows, tokens * shape.group);
    }
    if (q_tokens > 0) {
        const simd::key_range seen = simd::visible_keys(shape, start, static_cast<int32_t>(std::min(q_tokens, max_tokens - 1)), kv_len);
        plan.kv_bytes += std::max<int64_t>(0, seen.last - seen.first) * token_bytes(shape) * shape.kv_heads;
    }
    for (int32_t head = 1; head < shape.kv_heads; ++head) {
        for (int64_t b = 0; b < blocks; ++b) {
            plan.blocks.push_back(plan.blocks[begin + static_cast<std::size_t>(b)]);
            plan.blocks.back().rows.kv_head = head;
            plan.costs.push_back(plan.costs[begin + static_cast<std::size_t>(b)]);
        }
    }
}

// Splits what is longer than a quarter of a worker's share, at chunk borders: where it is cut never shows in the bits.
void builder::add_items() {
    double total = 0.0;
    for (const double cost : plan.costs) total += cost;
    plan.workers = total < inline_ns ? 1 : concurrency;
    const double target = plan.workers == 1 ? total : total / (plan.workers * items_per_worker);
    const int64_t least_chunks =
        round_up(least_item_bytes, simd::chunk_tokens * token_bytes(plan.shape)) / (simd::chunk_tokens * token_bytes(plan.shape));
    int64_t partials = 0;
    plan.counters = 0;
    for (std::size_t b = 0; b < plan.blocks.size(); ++b) {
        plan_state::block& block = plan.blocks[b];
        const int64_t chunks = block.chunk_last - block.chunk_first;
        const int64_t most = std::max<int64_t>(1, chunks / least_chunks);
        block.items = target <= 0.0 ? 1 : static_cast<int32_t>(std::clamp<int64_t>(std::llround(plan.costs[b] / target), 1, most));
        for (int32_t i = 0; i < block.items; ++i) {
            plan.items.push_back(
                {static_cast<int32_t>(b), block.chunk_first + chunks * i / block.items, block.chunk_first + chunks * (i + 1) / block.items});
        }
        if (block.items > 1) {
            block.counter = plan.counters++;
            block.partial = partials;
            partials += round_up(chunks * simd::partial_floats(int64_t{block.rows.tokens} * plan.shape.group, plan.shape.v_pad), 16);
        }
    }
    plan.workers = std::max(1, std::min<int32_t>(plan.workers, static_cast<int32_t>(plan.items.size())));
    plan.partials_offset = partials;  // in floats until lay_out_workspace
}

void builder::lay_out_workspace() {
    constexpr int64_t line = 64;
    const int64_t partials = plan.partials_offset;
    plan.counters_offset = line;
    plan.partials_offset = plan.counters_offset + round_up(int64_t{plan.counters} * 4, line);
    plan.scratch_offset = plan.partials_offset + round_up(partials * 4, line);
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

    // A plan that is kept reuses its vectors; if memory runs out half-way it is left empty, not half-built.
    std::unique_ptr<plan_state> plan = std::move(slot);
    if (plan == nullptr) plan = std::make_unique<plan_state>();
    plan->kernels = kernels;
    set_shape(*plan, problem, k_type, v_type);
    plan->blocks.clear();
    plan->items.clear();
    plan->costs.clear();
    plan->page_ids.clear();
    plan->q_tokens = batch.q_indptr.back();
    plan->kv_rows = layout == nullptr ? batch.kv_indptr.back() : 0;
    plan->page_count = page_count;
    if (layout != nullptr) {
        plan->layout = *layout;
        plan->shape.page_tokens = layout->page_tokens;
        plan->shape.page_stride = layout->page_stride_bytes();
        plan->shape.head_stride = layout->head_stride_bytes();
        plan->shape.hadamard = layout->hadamard;
        plan->shape.v_offset = layout->k_part_bytes();
        plan->shape.k_scale_offset = plan->shape.v_offset + layout->v_part_bytes();
        plan->shape.v_scale_offset = plan->shape.k_scale_offset + layout->k_scale_bytes();
        plan->page_ids.assign(batch.page_ids.begin(), batch.page_ids.end());
    }
    builder build{*plan, batch, concurrency};
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
