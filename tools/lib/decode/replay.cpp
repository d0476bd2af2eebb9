#include "tools/lib/decode/replay.hpp"

#include <algorithm>

#include <fmt/format.h>
#include "tools/lib/decode/reference.hpp"
#include "tools/lib/golden/check.hpp"
#include "tools/lib/parallel.hpp"
#include "tools/lib/refusal.hpp"

namespace ropewalk::toolkit {
namespace {

// Tokens [first, first + count) of a tensor [heads, tokens, dim], as the strided view [count, heads, dim] it already is.
template <class Value>
auto tokens_of(Value* values, int64_t tokens, int32_t heads, int32_t dim, int64_t first, int64_t count) {
    using view = std::conditional_t<std::is_const_v<Value>, const_head_view, head_view>;
    return view{values + first * dim, dtype::fp32, count, heads, dim, dim, tokens * dim};
}

}  // namespace

trace_replay::trace_replay(const trace& recorded, const settings& chosen, decode_engine engine)
    : recorded_(&recorded), chosen_(chosen), engine_(std::move(engine)) {
    for (const trace_layer& layer : recorded.layers) {
        outputs_.emplace_back(layer.out.size());
        lses_.emplace_back(layer.lse.size());
    }
}

result<trace_replay> trace_replay::create(const trace& recorded, const settings& chosen) {
    if (chosen.prefill < 0 || chosen.prefill > recorded.tokens) {
        return refusal(status_code::invalid_argument, "prefill is {}; must be 0 to {}, the tokens of the trace", chosen.prefill, recorded.tokens);
    }
    if (chosen.page_tokens < 1) return refusal(status_code::invalid_argument, "page_tokens is {}; must be positive", chosen.page_tokens);
    const int64_t pages = (recorded.tokens + chosen.page_tokens - 1) / chosen.page_tokens;
    result<decode_engine> engine = decode_engine::create(recorded.model, {chosen.kv, dtype::fp32}, chosen.page_tokens, static_cast<int32_t>(pages));
    if (!engine.ok()) return engine.state();
    return trace_replay(recorded, chosen, std::move(*engine));
}

status trace_replay::step(sequence_id sequence, int64_t first, int64_t count, executor& on) {
    const model_shape& model = recorded_->model;
    const int64_t tokens = recorded_->tokens;
    const kv_cache::append_request request{sequence, count};
    const status begun = engine_.begin({&request, 1}, on);
    if (!begun.ok()) return begun;
    q_rows_.resize(static_cast<std::size_t>(count * model.heads * model.head_dim));
    for (std::size_t l = 0; l < recorded_->layers.size(); ++l) {
        const trace_layer& layer = recorded_->layers[l];
        const float* q = layer.q.data() + first * model.head_dim;
        for (int64_t head = 0; head < model.heads; ++head) {
            std::copy_n(q + head * tokens * model.head_dim, count * model.head_dim, q_rows_.data() + head * count * model.head_dim);
        }
        layer_tensors tensors;
        tensors.q = tokens_of(q_rows_.data(), count, model.heads, model.head_dim, 0, count);
        tensors.k = tokens_of(layer.k.data(), tokens, model.kv_heads, model.head_dim, first, count);
        tensors.v = tokens_of(layer.v.data(), tokens, model.kv_heads, model.head_dim, first, count);
        tensors.out = tokens_of(outputs_[l].data(), tokens, model.heads, model.head_dim, first, count);
        tensors.lse = std::span(lses_[l]).subspan(static_cast<std::size_t>(first * model.heads), static_cast<std::size_t>(count * model.heads));
        const status ran = engine_.run_layer(static_cast<int32_t>(l), tensors, on);
        if (!ran.ok()) return ran;
    }
    return {};
}

status trace_replay::run(executor& on, timing& decoded) {
    const result<sequence_id> sequence = engine_.cache().create_sequence();
    if (!sequence.ok()) return sequence.state();
    status done = chosen_.prefill > 0 ? step(*sequence, 0, chosen_.prefill, on) : status();
    engine_.take_times();
    const stopwatch watch;
    for (int64_t token = chosen_.prefill; done.ok() && token < recorded_->tokens; ++token) {
        done = step(*sequence, token, 1, on);
        decoded.kv_bytes += static_cast<double>(engine_.step_kv_bytes());
        ++decoded.steps;
    }
    decoded.seconds += watch.seconds();
    decoded.parts = engine_.take_times();
    const status freed = engine_.cache().free(*sequence);
    return done.ok() ? freed : done;
}

void trace_replay::compare(comparison& checks) const {
    const model_shape& model = recorded_->model;
    for (std::size_t l = 0; l < recorded_->layers.size(); ++l) {
        const trace_layer& layer = recorded_->layers[l];
        attention_bounds bounds = bounds_of(*recorded_, layer, chosen_.kv);
        for (double& bound : bounds.out) bound += layer.recorded_error;
        checks.bounded(fmt::format("layer{}.attn_out", layer.number), outputs_[l], layer.out, bounds.out);
        const std::vector<double> lse = tokens_first<double>(layer.lse, 1, model.heads, recorded_->tokens, 1);
        checks.bounded(fmt::format("layer{}.lse", layer.number), lses_[l], lse,
                       tokens_first<double>(bounds.lse, 1, model.heads, recorded_->tokens, 1));
    }
}

status check_trace(golden_reader& golden, comparison& checks, executor& on) {
    trace recorded;
    const status loaded = load_trace(golden, recorded);
    if (!loaded.ok() || !golden.state().ok()) return loaded;
    for (const kv_preset& kv : kv_presets) {
        result<trace_replay> replay = trace_replay::create(recorded, {recorded.prompt_tokens, kv, 64});
        if (!replay.ok()) return replay.state();
        trace_replay::timing unused;
        const status ran = replay->run(on, unused);
        if (!ran.ok()) return ran;
        replay->compare(checks);
    }
    return {};
}

}  // namespace ropewalk::toolkit
