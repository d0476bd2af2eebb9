#include "bench/attention_step.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "runtime/attention_plan.hpp"
#include "tools/lib/machine.hpp"

namespace ropewalk::bench {
namespace {

constexpr int64_t roof_bytes = int64_t{16} << 20;

bool has_int4(const kv_preset& preset) { return preset.k_type == dtype::int4 || preset.v_type == dtype::int4; }

}  // namespace

kv_layout pages_shape::layout() const {
    kv_layout l;
    l.k_type = preset.k_type;
    l.v_type = preset.v_type;
    l.hadamard = preset.hadamard;
    l.kv_heads = heads.kv_heads;
    l.k_dim = heads.dim;
    l.v_dim = v_dim != 0 ? v_dim : heads.dim;
    l.v_in_k = v_in_k;
    return l;
}

int64_t pages_shape::sequence_pages() const {
    const int32_t page_tokens = layout().page_tokens;
    return (tokens + page_tokens - 1) / page_tokens;
}

int64_t pages_shape::layer_bytes() const { return sequences * sequence_pages() * layout().page_stride_bytes(); }

bool pages_shape::fits() const {
    static const int64_t free = toolkit::available_memory();
    return free < 0 || bytes() <= free / 3;
}

std::string pages_shape::text() const {
    const std::string values = v_dim != 0 ? (v_in_k ? "k" : "v") + std::to_string(v_dim) : "";
    return heads.text() + values + "/n" + std::to_string(tokens) + (sequences > 1 ? "b" + std::to_string(sequences) : "");
}

paged_layers::paged_layers(const pages_shape& s)
    : shape(s),
      layout(s.layout()),
      page_count(static_cast<int32_t>(s.sequences * s.sequence_pages())),
      page_ids(static_cast<std::size_t>(page_count)),
      memory(random_memory(s.bytes(), s.preset.k_type)) {
    std::iota(page_ids.begin(), page_ids.end(), 0);
    std::shuffle(page_ids.begin(), page_ids.end(), std::mt19937(3));
    for (int64_t i = 0; i <= s.sequences; ++i) page_indptr.push_back(i * s.sequence_pages());
}

kv_pages paged_layers::pages(int64_t layer) const { return {memory.data() + layer % shape.layers() * shape.layer_bytes(), layout, page_count}; }

int64_t paged_layers::unit_layers() const { return (roof_bytes + shape.layer_bytes() - 1) / shape.layer_bytes(); }

std::span<const std::byte> paged_layers::unit_bytes(int64_t unit) const {
    const int64_t bytes = std::min(unit_layers() * shape.layer_bytes(), memory.size());
    const int64_t first = unit * unit_layers() % shape.layers() * shape.layer_bytes();
    return memory.bytes().subspan(static_cast<std::size_t>(std::min(first, memory.size() - bytes)), static_cast<std::size_t>(bytes));
}

paged_layers& layers_of(const pages_shape& shape) {
    static std::vector<std::pair<std::string, std::unique_ptr<paged_layers>>> kept;  // the last one is the one asked for last
    const std::string key = std::string(shape.preset.name) + "/" + shape.text() + "/" + std::to_string(shape.total_bytes);
    const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& entry) { return entry.first == key; });
    if (found != kept.end()) {
        std::rotate(found, found + 1, kept.end());
    } else {
        if (kept.size() == 2) kept.erase(kept.begin());
        kept.emplace_back(key, std::make_unique<paged_layers>(shape));
    }
    return *kept.back().second;
}

attention_problem make_problem(const pages_shape& shape) {
    attention_problem p;
    p.precision = has_int4(shape.preset) ? attention_precision::fast : attention_precision::standard;
    p.heads = shape.heads.heads;
    p.kv_heads = shape.heads.kv_heads;
    p.k_dim = shape.heads.dim;
    p.v_dim = shape.layout().v_dim;
    p.q_type = p.out_type = element_bytes(shape.preset.k_type) != 0 ? shape.preset.k_type : dtype::bf16;
    return p;
}

step::step(const attention_problem& problem, const paged_layers& kv, const attention_batch& batch, executor& on) : on_(on) {
    build(problem, kv, batch);
}

step::step(const attention_problem& problem, const paged_layers& kv, int64_t q_len, int64_t tokens, executor& on) : on_(on) {
    std::vector<int64_t> q_indptr, kv_lens(static_cast<std::size_t>(kv.shape.sequences), tokens);
    for (int64_t i = 0; i <= kv.shape.sequences; ++i) q_indptr.push_back(i * q_len);
    build(problem, kv, {q_indptr, kv_lens, {}, kv.page_indptr, kv.page_ids, {}});
}

void step::build(const attention_problem& problem, const paged_layers& kv, const attention_batch& batch) {
    require(plan_.build(problem, batch, kv.layout, kv.page_count, on_.concurrency()));
    const int64_t rows = plan_.q_tokens(), bytes = rows * problem.heads * problem.k_dim * element_bytes(problem.q_type);
    q_ = random_memory(bytes, problem.q_type);
    out_ = random_memory(bytes, problem.out_type);
    workspace_ = require(runtime::mapped_memory::create(static_cast<int64_t>(plan_.workspace_bytes())));
    q_view_ = dense_view(static_cast<const void*>(q_.data()), problem.q_type, rows, problem.heads, problem.k_dim);
    out_view_ = dense_view(static_cast<void*>(out_.data()), problem.out_type, rows, problem.heads, problem.v_dim);
}

peak_function peak_of(const attention_plan& plan) {
    const attention_plan::state& state = *plan.internals();
    const int arithmetic = state.shape.qk_arithmetic;
    const simd::roof_kernels& loops = state.kernels->roof;
    if (state.shape.pv_arithmetic != arithmetic || state.shape.k_type != state.shape.v_type) return nullptr;
    if (arithmetic == simd::fma_fp32) return toolkit::fma_roof;
    if (arithmetic == simd::dot_bf16) return loops.bf16_dot != nullptr ? toolkit::bf16_dot_roof : nullptr;
    return state.shape.k_type == simd::int8 && loops.int16_madd != nullptr ? toolkit::int16_madd_roof : nullptr;
}

}  // namespace ropewalk::bench
