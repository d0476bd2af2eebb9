#include "tools/lib/golden/attention_case.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <ropewalk/kv_pages.hpp>
#include "runtime/pages_memory.hpp"

namespace ropewalk::toolkit {
namespace {

using runtime::mapped_memory;

// [0, a, a + b, ...]
std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> offsets(lengths.size() + 1, 0);
    std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
    return offsets;
}

attention_output output_for(const attention_case& c, int64_t rows) {
    const auto heads = static_cast<std::size_t>(rows * c.problem.heads);
    return {std::vector<float>(heads * static_cast<std::size_t>(c.problem.v_dim)), std::vector<float>(heads)};
}

const_head_view k_view(const attention_case& c) {
    const int64_t row = int64_t{c.problem.kv_heads} * c.problem.k_dim;
    return dense_view(c.k.data(), dtype::fp32, static_cast<int64_t>(c.k.size()) / row, c.problem.kv_heads, c.problem.k_dim);
}

const_head_view v_view(const attention_case& c) {
    const_head_view view = k_view(c);  // a view of K's rows where V has none of its own
    if (!c.v.empty()) return dense_view(c.v.data(), dtype::fp32, view.tokens, c.problem.kv_heads, c.problem.v_dim);
    view.dim = c.problem.v_dim;
    return view;
}

// Runs a built plan with a workspace of its own; `keys` are the arguments of run() between q and out.
template <class... Keys>
result<attention_output> run_plan(const attention_case& c, const attention_plan& plan, executor& on, const Keys&... keys) {
    const int64_t rows = plan.q_tokens();
    attention_output output = output_for(c, rows);
    const const_head_view q = dense_view(c.q.data(), dtype::fp32, rows, c.problem.heads, c.problem.k_dim);
    const head_view out = dense_view(output.out.data(), dtype::fp32, rows, c.problem.heads, c.problem.v_dim);
    const result<mapped_memory> workspace = mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes()));
    if (!workspace.ok()) return workspace.state();
    const attention_layer layer{nullptr, c.problem.relative != nullptr ? &c.relative : nullptr};
    const status ran = run(plan, q, keys..., out, output.lse, workspace->bytes(), layer, on);
    if (!ran.ok()) return ran;
    return output;
}

// Which pages hold which tokens, and a slot for every row of K.
struct placement {
    std::vector<int64_t> page_indptr{0};
    std::vector<int32_t> page_ids;
    std::vector<int64_t> slots;
    int32_t page_count = 0;
};

// Odd multiples of an odd step modulo a power of two visit every page once, in no order that memory has.
placement place(const std::vector<int64_t>& kv_lens, int32_t page_tokens) {
    placement p;
    int64_t pages = 1;
    for (const int64_t length : kv_lens) pages += (length + page_tokens - 1) / page_tokens;
    p.page_count = 1;
    while (p.page_count < pages) p.page_count *= 2;
    int32_t next = 0;
    for (const int64_t length : kv_lens) {
        for (int64_t token = 0; token < length; ++token) {
            if (token % page_tokens == 0) p.page_ids.push_back((5 * next++ + 3) % p.page_count);
            p.slots.push_back(int64_t{p.page_ids.back()} * page_tokens + token % page_tokens);
        }
        p.page_indptr.push_back(static_cast<int64_t>(p.page_ids.size()));
    }
    return p;
}

// attention_batch::k_segments as pages have them.
std::vector<uint8_t> paged_segments(const attention_case& c, const placement& where, int32_t page_tokens) {
    if (c.k_segments.empty()) return {};
    std::vector<uint8_t> segments(where.page_ids.size() * static_cast<std::size_t>(page_tokens));
    auto next = c.k_segments.begin();
    for (std::size_t s = 0; s < c.kv_lens.size(); ++s) {
        std::copy_n(next, c.kv_lens[s], segments.begin() + static_cast<std::ptrdiff_t>(where.page_indptr[s] * page_tokens));
        next += static_cast<std::ptrdiff_t>(c.kv_lens[s]);
    }
    return segments;
}

attention_batch batch_of(const attention_case& c, const std::vector<int64_t>& q_indptr) {
    attention_batch batch;
    batch.q_indptr = q_indptr;
    batch.kv_lens = c.kv_lens;
    batch.tree_masks = c.tree_masks;
    batch.tree_indptr = c.tree_indptr;
    batch.q_starts = c.q_starts;
    batch.key_masks = c.key_masks;
    batch.key_mask_indptr = c.key_mask_indptr;
    batch.q_segments = c.q_segments;
    return batch;
}

}  // namespace

bool is_span(const std::vector<int64_t>& keep, const attention_span& span, int64_t q_tokens, int64_t kv_tokens) {
    for (int64_t i = 0; i < q_tokens; ++i) {
        const int64_t position = kv_tokens - q_tokens + i;
        for (int64_t j = 0; j < kv_tokens; ++j) {
            const bool near = position - j <= span.left && j - position <= span.right;
            const bool seen = near && (span.chunk == 0 || position / span.chunk == j / span.chunk);
            if (seen != (keep[static_cast<std::size_t>(i * kv_tokens + j)] != 0)) return false;
        }
    }
    return true;
}

result<attention_output> run_contiguous(const attention_case& c, executor& on) {
    const std::vector<int64_t> q_indptr = offsets_of(c.q_lens), kv_indptr = offsets_of(c.kv_lens);
    attention_batch batch = batch_of(c, q_indptr);
    batch.kv_indptr = std::span(kv_indptr);
    batch.k_segments = c.k_segments;
    attention_plan plan;
    const status built = plan.build(c.problem, batch, dtype::fp32, dtype::fp32, on.concurrency());
    if (!built.ok()) return built;
    return run_plan(c, plan, on, k_view(c), v_view(c));
}

result<attention_output> run_paged(const attention_case& c, int32_t page_tokens, executor& on, bool v_in_k) {
    const placement where = place(c.kv_lens, page_tokens);
    kv_layout layout;
    layout.k_type = layout.v_type = dtype::fp32;
    layout.kv_heads = c.problem.kv_heads;
    layout.k_dim = c.problem.k_dim;
    layout.v_dim = c.problem.v_dim;
    layout.page_tokens = page_tokens;
    layout.v_in_k = v_in_k;
    const status valid = layout.validate();
    if (!valid.ok()) return valid;
    const result<mapped_memory> memory = mapped_memory::create(where.page_count * layout.page_stride_bytes());
    if (!memory.ok()) return memory.state();
    std::memset(memory->data(), 0xff, static_cast<std::size_t>(memory->size()));
    const kv_pages pages{memory->data(), layout, where.page_count};
    const status appended = kv_append(pages, where.slots, k_view(c), v_in_k ? const_head_view{} : v_view(c), {}, on);
    if (!appended.ok()) return appended;

    const std::vector<int64_t> q_indptr = offsets_of(c.q_lens);
    attention_batch batch = batch_of(c, q_indptr);
    batch.page_indptr = where.page_indptr;
    batch.page_ids = where.page_ids;
    const std::vector<uint8_t> segments = paged_segments(c, where, page_tokens);
    batch.k_segments = segments;
    attention_plan plan;
    const status built = plan.build(c.problem, batch, layout, where.page_count, on.concurrency());
    if (!built.ok()) return built;
    return run_plan(c, plan, on, pages);
}

result<attention_output> run_all_ways(const attention_case& c, comparison& checks, executor& on) {
    result<attention_output> plain = run_contiguous(c, on);
    if (!plain.ok()) return plain;
    for (const int32_t page_tokens : {16, 64, 128}) {
        const result<attention_output> paged = run_paged(c, page_tokens, on);
        if (!paged.ok()) return paged;
        checks.same_bits(fmt::format("out, pages of {}", page_tokens), paged->out, plain->out);
        checks.same_bits(fmt::format("lse, pages of {}", page_tokens), paged->lse, plain->lse);
        if (!c.v.empty()) continue;
        const result<attention_output> latent = run_paged(c, page_tokens, on, true);
        if (!latent.ok()) return latent;
        checks.same_bits(fmt::format("out, pages of {} without V", page_tokens), latent->out, plain->out);
        checks.same_bits(fmt::format("lse, pages of {} without V", page_tokens), latent->lse, plain->lse);
    }
    return plain;
}

}  // namespace ropewalk::toolkit
