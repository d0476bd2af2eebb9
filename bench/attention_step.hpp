// Steps of attention over layers of pages: what the benchmarks of decode, prefill and append run.
#pragma once

#include <memory>

#include "bench/bench.hpp"

namespace ropewalk::bench {

// Layers that together exceed every cache, so that each iteration reads its layer from DRAM.
inline constexpr int64_t decode_bytes = int64_t{768} << 20;

// Pages of one step: `sequences` of `tokens` keys in a layer, as many layers as fill total_bytes, at least one.
struct pages_shape {
    head_shape heads;
    kv_preset preset;
    int64_t tokens = 0;
    int64_t sequences = 1;
    int64_t total_bytes = 0;
    int32_t v_dim = 0;    // other than 0: V has so many dims, not heads.dim ..
    bool v_in_k = false;  // .. which are the first of K

    [[nodiscard]] kv_layout layout() const;
    [[nodiscard]] int64_t sequence_pages() const;
    [[nodiscard]] int64_t layer_bytes() const;
    [[nodiscard]] int64_t layers() const { return std::max<int64_t>(1, total_bytes / layer_bytes()); }
    [[nodiscard]] int64_t bytes() const { return layers() * layer_bytes(); }
    // They take at most a third of the memory that is free: what does not is not registered.
    [[nodiscard]] bool fits() const;
    // "h32x8x128/n4096", with b<sequences> where there are several; h128x1x576v512, and h128x1x576k512 where K holds V.
    [[nodiscard]] std::string text() const;
};

// The pages of a sequence lie in random order among those of all.
struct paged_layers {
    pages_shape shape;
    kv_layout layout;
    int32_t page_count;
    std::vector<int32_t> page_ids;
    std::vector<int64_t> page_indptr;
    runtime::mapped_memory memory;

    explicit paged_layers(const pages_shape& s);
    [[nodiscard]] kv_pages pages(int64_t layer) const;

    // The memory in units of whole layers, of at least 16 MiB: less tells nothing about the roof of all threads. Work on the first layer of unit 2i
    // and the roof over unit 2i + 1 never meet what the other has left in a cache.
    [[nodiscard]] int64_t unit_layers() const;
    [[nodiscard]] kv_pages unit_pages(int64_t unit) const { return pages(unit * unit_layers()); }
    [[nodiscard]] std::span<const std::byte> unit_bytes(int64_t unit) const;
};

// Google Benchmark calls a benchmark function several times to find the number of iterations, so pages outlive it: the last two that were asked for.
paged_layers& layers_of(const pages_shape& shape);

// Queries are of the type of the pages, bf16 on quantised ones; int4 pages are read in the fast precision.
attention_problem make_problem(const pages_shape& shape);

// A step of a batch over the pages of kv, or of q_len query tokens at the end of each sequence's first `tokens` keys.
class step {
public:
    step(const attention_problem& problem, const paged_layers& kv, const attention_batch& batch, executor& on);
    step(const attention_problem& problem, const paged_layers& kv, int64_t q_len, int64_t tokens, executor& on);

    status run(const kv_pages& pages) { return ropewalk::run(plan_, q_view_, pages, out_view_, {}, workspace_.bytes(), on_); }
    double seconds(const kv_pages& pages) {
        return timed([&] { return run(pages); });
    }
    [[nodiscard]] const attention_plan& plan() const { return plan_; }
    [[nodiscard]] const const_head_view& q() const { return q_view_; }
    [[nodiscard]] const head_view& out() const { return out_view_; }
    [[nodiscard]] std::span<std::byte> workspace() const { return workspace_.bytes(); }

private:
    void build(const attention_problem& problem, const paged_layers& kv, const attention_batch& batch);

    attention_plan plan_;
    executor& on_;
    runtime::mapped_memory q_, out_, workspace_;
    const_head_view q_view_;
    head_view out_view_;
};

// The roof of the arithmetic that a plan uses, on registers: fp32 multiply-adds, bf16 pair dots, or int16 pair dots for int8 pages. Null where the
// target has no loop for it, or K and V use different ones.
using peak_function = double (*)(const simd::roof_kernels&, executor&, double seconds);
peak_function peak_of(const attention_plan& plan);

}  // namespace ropewalk::bench
