// Decode (share of the read roof), prefill (share of the multiply-add or pair-dot peak), a shared prefix (share of the lower of both).
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>

#include "bench/bench.hpp"

namespace ropewalk::bench {
namespace {

// Layers that together exceed every cache, so that each iteration reads its layer from DRAM.
constexpr int64_t decode_bytes = int64_t{768} << 20;

// Queries are of the type of the pages, bf16 on quantised ones; int4 pages are read in the fast precision.
attention_problem make_problem(const head_shape& shape, dtype kv_type) {
    const dtype q_type = element_bytes(kv_type) != 0 ? kv_type : dtype::bf16;
    attention_problem p;
    p.precision = kv_type == dtype::int4 ? attention_precision::fast : attention_precision::standard;
    p.heads = shape.heads;
    p.kv_heads = shape.kv_heads;
    p.k_dim = p.v_dim = shape.dim;
    p.q_type = p.out_type = q_type;
    return p;
}

// Layers of pages, one sequence, pages in random order.
struct paged_layers {
    kv_layout layout;
    int32_t page_count = 0;
    int64_t layers = 1;
    std::vector<int32_t> page_ids;
    runtime::mapped_memory memory;

    paged_layers(const head_shape& shape, dtype kv_type, int64_t tokens, int64_t total_bytes) {
        layout.k_type = layout.v_type = kv_type;
        layout.kv_heads = shape.kv_heads;
        layout.k_dim = layout.v_dim = shape.dim;
        page_count = static_cast<int32_t>((tokens + layout.page_tokens - 1) / layout.page_tokens);
        layers = std::max<int64_t>(1, total_bytes / layer_bytes());
        page_ids.resize(static_cast<std::size_t>(page_count));
        std::iota(page_ids.begin(), page_ids.end(), 0);
        std::shuffle(page_ids.begin(), page_ids.end(), std::mt19937(3));
        memory = random_memory(layers * layer_bytes(), kv_type);
    }
    [[nodiscard]] int64_t layer_bytes() const { return page_count * layout.page_stride_bytes(); }
    [[nodiscard]] std::span<std::byte> layer(int64_t i) {
        return memory.bytes().subspan(static_cast<std::size_t>(i % layers * layer_bytes()), static_cast<std::size_t>(layer_bytes()));
    }
    [[nodiscard]] kv_pages pages(int64_t i) { return {layer(i).data(), layout, page_count}; }
};

// A step of a batch, or of `q_len` query tokens at the end of one sequence of `tokens` keys.
struct step {
    attention_plan plan;
    runtime::mapped_memory q, out, workspace;
    const_head_view q_view;
    head_view out_view;

    step(const attention_problem& p, const paged_layers& kv, int64_t q_len, int64_t tokens, executor& on) {
        const int64_t q_indptr[] = {0, q_len}, kv_lens[] = {tokens}, page_indptr[] = {0, kv.page_count};
        build(p, kv, {q_indptr, kv_lens, {}, page_indptr, kv.page_ids, {}}, on);
    }
    step(const attention_problem& p, const paged_layers& kv, const attention_batch& batch, executor& on) { build(p, kv, batch, on); }
    void build(const attention_problem& p, const paged_layers& kv, const attention_batch& batch, executor& on) {
        require(plan.build(p, batch, kv.layout, kv.page_count, on.concurrency()));
        const int64_t q_len = plan.q_tokens(), bytes = q_len * p.heads * p.k_dim * element_bytes(p.q_type);
        q = random_memory(bytes, p.q_type);
        out = random_memory(bytes, p.out_type);
        workspace = require(runtime::mapped_memory::create(static_cast<int64_t>(plan.workspace_bytes())));
        q_view = dense_view(static_cast<const void*>(q.data()), p.q_type, q_len, p.heads, p.k_dim);
        out_view = dense_view(static_cast<void*>(out.data()), p.out_type, q_len, p.heads, p.v_dim);
    }
    status run(const kv_pages& pages, executor& on) { return ropewalk::run(plan, q_view, pages, out_view, {}, workspace.bytes(), on); }
};

// The caches outlive a benchmark function, which Google Benchmark calls several times to find the number of iterations.
template <class Key, class Make>
auto& kept(const Key& key, Make make) {
    static Key last;
    static decltype(make()) value;
    if (!value || last != key) {
        value.reset();
        value = make();
        last = key;
    }
    return *value;
}

void decode(benchmark::State& state, const simd::kernel_table& kernels, const head_shape& shape, dtype kv_type, int64_t tokens, bool one_core) {
    serial_executor serial;
    executor& on = one_core ? static_cast<executor&>(serial) : default_executor();
    auto& kv = kept(shape.text() + std::string(name(kv_type)) + std::to_string(tokens),
                    [&] { return std::make_unique<paged_layers>(shape, kv_type, tokens, decode_bytes); });
    step s(make_problem(shape, kv_type), kv, 1, tokens, on);
    run_paired(
        state, "GB/s", static_cast<double>(s.plan.kv_bytes()) * 1e-9, [&](int64_t i) { return s.run(kv.pages(2 * i), on); },
        [&](int64_t i) { return toolkit::read_roof(kernels.roof, kv.layer(2 * i + 1), on); });
}

void prefill(benchmark::State& state, const simd::kernel_table& kernels, const head_shape& shape, dtype type, int64_t tokens) {
    executor& on = default_executor();
    auto& kv =
        kept(shape.text() + std::string(name(type)) + std::to_string(tokens), [&] { return std::make_unique<paged_layers>(shape, type, tokens, 0); });
    step s(make_problem(shape, type), kv, tokens, tokens, on);
    const bool pair_dot = type == dtype::bf16 && kernels.roof.bf16_dot != nullptr;
    run_paired(
        state, "GFLOP/s", s.plan.flops() * 1e-9, [&](int64_t) { return s.run(kv.pages(0), on); },
        [&](int64_t) { return pair_dot ? toolkit::bf16_dot_roof(kernels.roof, on, 0.02) : toolkit::fma_roof(kernels.roof, on, 0.02); });
}

// One query token of each of `sequences`, which have their first `shared` tokens in common and 64 of their own: one pass over the shared pages is
// bound by arithmetic, so the roof is what the slower of reading and multiplying allows.
void cascade(benchmark::State& state, const simd::kernel_table& kernels, const head_shape& shape, dtype type, int64_t sequences, int64_t shared) {
    executor& on = default_executor();
    auto& kv = kept(shape.text() + std::string(name(type)) + std::to_string(sequences) + "s" + std::to_string(shared),
                    [&] { return std::make_unique<paged_layers>(shape, type, shared + sequences * 64, decode_bytes); });
    std::vector<int64_t> q_indptr{0}, kv_lens, page_indptr{0};
    std::vector<int32_t> page_ids;
    const auto prefix = kv.page_ids.begin(), own = prefix + shared / kv.layout.page_tokens;
    for (int64_t s = 0; s < sequences; ++s) {
        q_indptr.push_back(s + 1);
        kv_lens.push_back(shared + 64);
        page_ids.insert(page_ids.end(), prefix, own);
        page_ids.push_back(own[s]);
        page_indptr.push_back(static_cast<int64_t>(page_ids.size()));
    }
    step s(make_problem(shape, type), kv, {q_indptr, kv_lens, {}, page_indptr, page_ids, {}}, on);
    const double flops_per_byte = s.plan.flops() / static_cast<double>(s.plan.kv_bytes());
    const bool pair_dot = type == dtype::bf16 && kernels.roof.bf16_dot != nullptr;
    run_paired(
        state, "GFLOP/s", s.plan.flops() * 1e-9, [&](int64_t i) { return s.run(kv.pages(2 * i), on); },
        [&](int64_t i) {
            const double peak = pair_dot ? toolkit::bf16_dot_roof(kernels.roof, on, 0.02) : toolkit::fma_roof(kernels.roof, on, 0.02);
            return std::min(peak, toolkit::read_roof(kernels.roof, kv.layer(2 * i + 1), on) * flops_per_byte);
        });
}

}  // namespace

void register_attention() {
    const head_shape grouped{32, 8, 128};
    for_targets("cascade", "bf16/" + grouped.text() + "/s32p4096",
                [=](benchmark::State& state, const simd::kernel_table& k) { cascade(state, k, grouped, dtype::bf16, 32, 4096); });
    for (const head_shape& shape :
         {head_shape{32, 8, 128}, head_shape{32, 32, 128}, head_shape{28, 4, 128}, head_shape{64, 8, 128}, head_shape{71, 1, 64}}) {
        for (const dtype type : {dtype::bf16, dtype::fp32, dtype::fp16, dtype::int8, dtype::int4, dtype::fp8}) {
            for (const int64_t tokens : {4096, 16384}) {
                const std::string rest = std::string(name(type)) + "/" + shape.text() + "/n" + std::to_string(tokens);
                for_targets("decode", rest,
                            [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, type, tokens, false); });
                for_targets("decode_one_core", rest,
                            [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, type, tokens, true); });
            }
        }
    }
    for (const head_shape& shape : {head_shape{32, 8, 128}, head_shape{32, 8, 64}, head_shape{32, 8, 96}, head_shape{16, 8, 256}}) {
        for (const dtype type : {dtype::fp32, dtype::bf16}) {
            for (const int64_t tokens : {512, 2048, 4096}) {
                for_targets("prefill", std::string(name(type)) + "/" + shape.text() + "/n" + std::to_string(tokens),
                            [=](benchmark::State& state, const simd::kernel_table& k) { prefill(state, k, shape, type, tokens); });
            }
        }
    }
}

}  // namespace ropewalk::bench
