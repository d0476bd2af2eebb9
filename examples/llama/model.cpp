#include "model.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "errors.hpp"

namespace llama {

using namespace ropewalk;

namespace {

// Adds the time of its scope to a sum.
class stopwatch {
public:
    explicit stopwatch(double& sum) noexcept : sum_(sum) {}
    ~stopwatch() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    stopwatch(const stopwatch&) = delete;
    stopwatch& operator=(const stopwatch&) = delete;

private:
    double& sum_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// A handful of rows is done before the team has been told of it.
template <class Row>
void for_rows(std::size_t count, const Row& row) {
#pragma omp parallel for if (count > 8)
    for (std::size_t i = 0; i < count; ++i) row(i);
}

// out[i] = silu(gate[i]) * up[i]; gate_up holds one behind the other.
void gate(const float* gate_up, std::size_t width, float* out) {
    for (std::size_t i = 0; i < width; ++i) out[i] = gate_up[i] / (1.0f + std::exp(-gate_up[i])) * gate_up[width + i];
}

}  // namespace

model::model(const checkpoint& files, executor& on)
    : facts_(read_config(files.config())),
      on_(on),
      heads_(facts_.positions.layers.kinds.at(0).heads),
      kv_heads_(facts_.positions.layers.kinds.at(0).kv_heads),
      head_dim_(facts_.positions.layers.kinds.at(0).k_dim),
      qkv_(facts_.hidden, (heads_ + 2 * kv_heads_) * head_dim_),
      output_(heads_ * head_dim_, facts_.hidden, true),
      gate_up_(facts_.hidden, 2 * facts_.intermediate),
      down_(facts_.intermediate, facts_.hidden, true),
      head_(facts_.hidden, facts_.vocabulary) {
    for (const position_spec& spec : facts_.positions.layers.kinds) kinds_.push_back(make_kind(spec));
    for (int32_t i = 0; i < facts_.positions.layers.layers(); ++i) read_layer(files, i);
    files.read("model.embed_tokens.weight", {facts_.vocabulary, facts_.hidden}, embedding_);
    files.read("model.norm.weight", {facts_.hidden}, final_norm_);
    if (!facts_.tied) files.read("lm_head.weight", {facts_.vocabulary, facts_.hidden}, untied_head_);
}

model::layer_kind model::make_kind(const position_spec& spec) {
    if (spec.encoding != position_encoding::rope) throw std::runtime_error("layers without rope are not computed here");
    if (spec.rope.parameters.depends_on_length()) throw std::runtime_error("frequencies that follow the length need rope_cache.hpp");
    layer_kind kind{value(rope_table::growing(spec.rope.spec)), {}, {}, {}};
    kind.rope_options.pairing = spec.rope.pairing;
    kind.rope_options.first_dim = spec.rope.first_dim;
    kind.problem.heads = spec.heads;
    kind.problem.kv_heads = spec.kv_heads;
    kind.problem.k_dim = spec.k_dim;
    kind.problem.v_dim = spec.v_dim;
    kind.problem.scale = static_cast<float>(spec.scale);
    kind.problem.span = spec.span;
    return kind;
}

// Matrices that read the same rows lie one behind the other: one product gives q, k and v, one the gate and what it gates.
void model::read_layer(const checkpoint& files, int32_t layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const int64_t q_width = int64_t{heads_} * head_dim_, kv_width = int64_t{kv_heads_} * head_dim_;
    layer_weights& w = layers_.emplace_back();
    files.read(prefix + "input_layernorm.weight", {facts_.hidden}, w.attention_norm);
    files.read(prefix + "self_attn.q_proj.weight", {q_width, facts_.hidden}, w.qkv);
    files.read(prefix + "self_attn.k_proj.weight", {kv_width, facts_.hidden}, w.qkv);
    files.read(prefix + "self_attn.v_proj.weight", {kv_width, facts_.hidden}, w.qkv);
    files.read(prefix + "self_attn.o_proj.weight", {facts_.hidden, q_width}, w.output);
    files.read(prefix + "post_attention_layernorm.weight", {facts_.hidden}, w.mlp_norm);
    files.read(prefix + "mlp.gate_proj.weight", {facts_.intermediate, facts_.hidden}, w.gate_up);
    files.read(prefix + "mlp.up_proj.weight", {facts_.intermediate, facts_.hidden}, w.gate_up);
    files.read(prefix + "mlp.down_proj.weight", {facts_.hidden, facts_.intermediate}, w.down);
}

kv_layout model::layout(const kv_preset& types, int32_t page_tokens) const noexcept {
    kv_layout layout;
    layout.k_type = types.k_type;
    layout.v_type = types.v_type;
    layout.hadamard = types.hadamard;
    layout.page_tokens = page_tokens;
    layout.kv_heads = kv_heads_;
    layout.k_dim = layout.v_dim = head_dim_;
    return layout;
}

std::vector<int32_t> model::forward(const step& work, const kv_cache& cache) {
    const std::size_t tokens = work.tokens.size(), hidden = static_cast<std::size_t>(facts_.hidden);
    plan(work, cache);
    x_.resize(tokens * hidden);
    for (std::size_t t = 0; t < tokens; ++t) {
        const auto row = embedding_.begin() + static_cast<int64_t>(work.tokens[t]) * facts_.hidden;
        std::copy(row, row + facts_.hidden, x_.begin() + static_cast<std::ptrdiff_t>(t * hidden));
    }
    const std::size_t width = static_cast<std::size_t>(facts_.intermediate);
    gated_.resize(tokens * width);
    for (int32_t layer = 0; layer < cache.layers(); ++layer) {
        const layer_weights& w = layers_[static_cast<std::size_t>(layer)];
        normalise(x_, w.attention_norm, normed_);
        multiply(qkv_, normed_, w.qkv, qkv_rows_, tokens);
        attend(layer, work, cache);
        multiply(output_, attended_, w.output, x_, tokens);
        normalise(x_, w.mlp_norm, normed_);
        multiply(gate_up_, normed_, w.gate_up, gate_up_rows_, tokens);
        for_rows(tokens, [&](std::size_t t) { gate(&gate_up_rows_[t * 2 * width], width, &gated_[t * width]); });
        multiply(down_, gated_, w.down, x_, tokens);
    }
    return successors(work.last_rows);
}

// Once a step, whatever the number of layers: a plan holds offsets only.
void model::plan(const step& work, const kv_cache& cache) {
    const stopwatch watch(spent_.attention);
    std::size_t bytes = 0;
    for (layer_kind& kind : kinds_) {
        check(kind.plan.build(kind.problem, work.batch, cache.layout(), cache.stats().total_pages, on_.concurrency()));
        bytes = std::max(bytes, kind.plan.workspace_bytes());
    }
    workspace_.resize((bytes + sizeof(cache_line) - 1) / sizeof(cache_line));
}

// q, k and v stay where their product left them, in rows [q heads | k heads | v heads].
void model::attend(int32_t layer, const step& work, const kv_cache& cache) {
    const stopwatch watch(spent_.attention);
    const layer_kind& kind = kinds_[static_cast<std::size_t>(facts_.positions.layers.kind_of_layer[static_cast<std::size_t>(layer)])];
    const int64_t tokens = static_cast<int64_t>(work.tokens.size()), row = int64_t{heads_ + 2 * kv_heads_} * head_dim_;
    const auto heads_at = [&](int32_t first, int32_t count) {
        return head_view(qkv_rows_.data() + int64_t{first} * head_dim_, dtype::fp32, tokens, count, head_dim_, row, head_dim_);
    };
    const head_view q = heads_at(0, heads_), k = heads_at(heads_, kv_heads_), v = heads_at(heads_ + kv_heads_, kv_heads_);
    attended_.resize(static_cast<std::size_t>(tokens * heads_ * head_dim_));
    const head_view out = dense_view(static_cast<void*>(attended_.data()), dtype::fp32, tokens, heads_, head_dim_);

    check(rope_apply(kind.rope, work.positions, q, {}, kind.rope_options, on_));
    check(kv_append(cache.pages(layer), work.slots, k, v, {&kind.rope, work.positions, kind.rope_options}, on_));
    check(run(kind.plan, q, cache.pages(layer), out, {}, std::as_writable_bytes(std::span(workspace_)), on_));
}

void model::multiply(projection& by, const std::vector<float>& x, const std::vector<float>& weights, std::vector<float>& y, std::size_t tokens) {
    const stopwatch watch(spent_.products);
    y.resize(tokens * by.width());
    by.run(x.data(), weights.data(), y.data(), static_cast<int64_t>(tokens));
}

// Root mean square norm of each row.
void model::normalise(const std::vector<float>& x, const std::vector<float>& gains, std::vector<float>& out) const {
    const std::size_t hidden = gains.size();
    out.resize(x.size());
    for_rows(x.size() / hidden, [&](std::size_t t) {
        const float* const from = &x[t * hidden];
        float squares = 0.0f;
        for (std::size_t i = 0; i < hidden; ++i) squares += from[i] * from[i];
        const float factor = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + facts_.norm_epsilon);
        for (std::size_t i = 0; i < hidden; ++i) out[t * hidden + i] = from[i] * factor * gains[i];
    });
}

// Logits are formed of the rows that need them only: the output matrix is the largest of all.
std::vector<int32_t> model::successors(const std::vector<int64_t>& rows) {
    std::vector<float> last;
    for (const int64_t row : rows) last.insert(last.end(), x_.begin() + row * facts_.hidden, x_.begin() + (row + 1) * facts_.hidden);
    normalise(last, final_norm_, normed_);
    if (!rows.empty()) multiply(head_, normed_, facts_.tied ? embedding_ : untied_head_, logits_, rows.size());
    std::vector<int32_t> likeliest;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto first = logits_.begin() + static_cast<int64_t>(r) * facts_.vocabulary;
        likeliest.push_back(static_cast<int32_t>(std::max_element(first, first + facts_.vocabulary) - first));
    }
    return likeliest;
}

}  // namespace llama
