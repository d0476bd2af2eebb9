// A decoder of the Llama family: what a server computes in a step. Everything between the projections of q, k and v and that of the output is
// ropewalk's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ropewalk/ropewalk.hpp>

#include "checkpoint.hpp"
#include "config.hpp"
#include "projection.hpp"

namespace llama {

// The tokens of a step, sequence after sequence: chunks of prompts and single tokens of texts that are being written, in any mixture.
struct step {
    std::vector<int32_t> tokens;            // [tokens]
    std::vector<int64_t> slots, positions;  // [tokens] as kv_cache::append gave them out
    std::vector<int64_t> last_rows;         // tokens whose successor is wanted
    ropewalk::attention_batch batch;        // points into storage
    ropewalk::kv_cache::batch_storage storage;
};

class model {
public:
    // Reads the weights as fp32. Throws where the checkpoint is not one of a model that is computed here. Attention runs on `on`.
    model(const checkpoint& files, ropewalk::executor& on);

    [[nodiscard]] const config& facts() const noexcept { return facts_; }
    [[nodiscard]] ropewalk::kv_layout layout(const ropewalk::kv_preset& types, int32_t page_tokens) const noexcept;

    // Writes keys and values of the step's tokens into the cache; returns the likeliest successor of each of last_rows.
    std::vector<int32_t> forward(const step& work, const ropewalk::kv_cache& cache);

    // Spent in forward() so far.
    struct seconds {
        double attention = 0.0;  // planning, rope, append, attention
        double products = 0.0;
    };
    [[nodiscard]] const seconds& spent() const noexcept { return spent_; }

private:
    // What layers of equal position_spec share: all layers of Llama; two kinds where some layers have a window.
    struct layer_kind {
        ropewalk::rope_table rope;
        ropewalk::rope_options rope_options;
        ropewalk::attention_problem problem;
        ropewalk::attention_plan plan;
    };
    struct layer_weights {
        std::vector<float> attention_norm, qkv, output, mlp_norm, gate_up, down;
    };
    struct alignas(64) cache_line {
        std::byte bytes[64];
    };

    static layer_kind make_kind(const ropewalk::position_spec& spec);
    void read_layer(const checkpoint& files, int32_t layer);
    void plan(const step& work, const ropewalk::kv_cache& cache);
    void attend(int32_t layer, const step& work, const ropewalk::kv_cache& cache);
    void multiply(projection& by, const std::vector<float>& x, const std::vector<float>& weights, std::vector<float>& y, std::size_t tokens);
    void normalise(const std::vector<float>& x, const std::vector<float>& gains, std::vector<float>& out) const;
    std::vector<int32_t> successors(const std::vector<int64_t>& rows);

    config facts_;
    ropewalk::executor& on_;
    int32_t heads_, kv_heads_, head_dim_;
    std::vector<layer_kind> kinds_;
    std::vector<layer_weights> layers_;
    std::vector<float> embedding_, final_norm_, untied_head_;
    projection qkv_, output_, gate_up_, down_, head_;

    // Kept from step to step, so that they are allocated while they grow only. [tokens, ...]
    std::vector<float> x_, normed_, qkv_rows_, attended_, gate_up_rows_, gated_, logits_;
    std::vector<cache_line> workspace_;
    seconds spent_;
};

}  // namespace llama
