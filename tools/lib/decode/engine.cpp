#include "tools/lib/decode/engine.hpp"

#include <algorithm>

#include "tools/lib/parallel.hpp"

namespace ropewalk::toolkit {
namespace {

kv_cache_config config_of(const model_shape& model, const kv_preset& kv, int32_t page_tokens, int32_t page_count) {
    kv_cache_config config;
    config.layout.k_type = kv.k_type;
    config.layout.v_type = kv.v_type;
    config.layout.hadamard = kv.hadamard;
    config.layout.kv_heads = model.kv_heads;
    config.layout.k_dim = config.layout.v_dim = model.head_dim;
    config.layout.page_tokens = page_tokens;
    config.layers = model.layers;
    config.page_count = page_count;
    return config;
}

}  // namespace

decode_engine::decode_engine(const model_shape& model, kv_cache cache) : model_(model), cache_(std::move(cache)) {}

result<int64_t> decode_engine::cache_bytes(const model_shape& model, const kv_preset& kv, int32_t page_tokens, int32_t page_count) {
    return kv_cache::required_bytes(config_of(model, kv, page_tokens, page_count));
}

result<decode_engine> decode_engine::create(const model_shape& model, const number_types& types, int32_t page_tokens, int32_t page_count) {
    result<kv_cache> cache = kv_cache::create(config_of(model, types.kv, page_tokens, page_count));
    if (!cache.ok()) return cache.state();
    decode_engine engine(model, std::move(*cache));
    if (model.encoding == model_shape::position::rope) {
        result<rope_table> table = rope_table::growing(model.rope);
        if (!table.ok()) return table.state();
        engine.table_ = std::make_unique<rope_table>(std::move(*table));
    }
    if (model.encoding == model_shape::position::alibi) {
        engine.slopes_.resize(static_cast<std::size_t>(model.heads));
        const status formed = alibi_slopes(engine.slopes_, model.slopes);
        if (!formed.ok()) return formed;
    }
    attention_problem& problem = engine.global_;
    problem.heads = model.heads;
    problem.kv_heads = model.kv_heads;
    problem.k_dim = problem.v_dim = model.head_dim;
    problem.q_type = problem.out_type = types.q;
    problem.precision = types.precision;
    problem.scale = model.scale;
    problem.softcap = model.softcap;
    problem.alibi_slopes = engine.slopes_.empty() ? nullptr : engine.slopes_.data();
    engine.windowed_ = problem;
    if (model.window > 0) engine.windowed_.span = attention_span::sliding_window(model.window);
    return engine;
}

std::span<std::byte> decode_engine::memory() {
    const kv_pages first = cache_.pages(0);
    const int64_t layer_bytes = cache_.layers() > 1 ? cache_.pages(1).base - first.base : first.count * first.layout.page_stride_bytes();
    return {first.base, static_cast<std::size_t>(layer_bytes * cache_.layers())};
}

status decode_engine::begin(std::span<const kv_cache::append_request> requests, executor& on) {
    int64_t tokens = 0;
    sequences_.clear();
    q_lens_.clear();
    for (const kv_cache::append_request& request : requests) {
        tokens += request.tokens;
        sequences_.push_back(request.sequence);
        q_lens_.push_back(request.tokens);
    }
    slots_.resize(static_cast<std::size_t>(tokens));
    positions_.resize(slots_.size());
    const status appended = cache_.append(requests, slots_, positions_);
    if (!appended.ok()) return appended;
    const result<attention_batch> batch = cache_.batch(sequences_, q_lens_, storage_);
    if (!batch.ok()) return batch.state();

    const int32_t pages = cache_.pages(0).count;
    const bool any_windowed = model_.window > 0, all_windowed = any_windowed && model_.window_period == 1;
    status built;
    if (!all_windowed) built = global_plan_.build(global_, *batch, cache_.layout(), pages, on.concurrency());
    if (built.ok() && any_windowed) built = windowed_plan_.build(windowed_, *batch, cache_.layout(), pages, on.concurrency());
    if (!built.ok()) return built;
    const auto needed = static_cast<int64_t>(std::max(global_plan_.workspace_bytes(), windowed_plan_.workspace_bytes()));
    if (needed <= workspace_.size()) return {};
    result<runtime::mapped_memory> larger = runtime::mapped_memory::create(2 * needed);
    if (!larger.ok()) return larger.state();
    workspace_ = std::move(*larger);
    return {};
}

status decode_engine::run_layer(int32_t layer, const layer_tensors& tensors, executor& on) {
    kv_append_rope rope;
    if (table_ != nullptr) {
        rope = {table_.get(), positions_, {model_.pairing, false, 0}};
        const status rotated = rope_apply(*table_, positions_, tensors.q, {}, rope.options, on);
        if (!rotated.ok()) return rotated;
    }
    const kv_pages pages = cache_.pages(layer);
    const stopwatch append_watch;
    const status appended = kv_append(pages, slots_, tensors.k, tensors.v, rope, on);
    times_.append += append_watch.seconds();
    if (!appended.ok()) return appended;
    const stopwatch attention_watch;
    const attention_plan& plan = model_.windowed(layer) ? windowed_plan_ : global_plan_;
    const status ran = run(plan, tensors.q, pages, tensors.out, tensors.lse, workspace_.bytes(), on);
    times_.attention += attention_watch.seconds();
    return ran;
}

int64_t decode_engine::step_kv_bytes() const {
    int64_t bytes = 0;
    for (int32_t layer = 0; layer < model_.layers; ++layer) {
        bytes += model_.windowed(layer) ? windowed_plan_.kv_bytes() : global_plan_.kv_bytes();
    }
    return bytes;
}

}  // namespace ropewalk::toolkit
