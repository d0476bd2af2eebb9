// The attention side of a server's step, built on the KV-cache manager: begin() once a step, run_layer() once a layer. What lies between them in a
// server (the products with weights) is left out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ropewalk/attention.hpp>
#include <ropewalk/kv_cache.hpp>
#include "runtime/pages_memory.hpp"
#include "tools/lib/decode/model.hpp"

namespace ropewalk::toolkit {

// Q and K before rotation, V, and where the output goes: all rows of the step, sequence by sequence.
struct layer_tensors {
    head_view q;  // rotated in place
    const_head_view k, v;
    head_view out;
    std::span<float> lse;  // or empty
};

struct number_types {
    kv_preset kv;
    dtype q = dtype::fp32;  // of queries, new keys and values, and outputs
    attention_precision precision = attention_precision::standard;
};

class decode_engine {
public:
    // A cache of page_count pages of page_tokens tokens. Q and the output have type q_type.
    static result<decode_engine> create(const model_shape& model, const number_types& types, int32_t page_tokens, int32_t page_count);
    // Bytes such a cache takes, all layers.
    static result<int64_t> cache_bytes(const model_shape& model, const kv_preset& kv, int32_t page_tokens, int32_t page_count);

    kv_cache& cache() { return cache_; }
    // All pages of all layers.
    std::span<std::byte> memory();

    // Appends the tokens of every request and plans the step for at most on.concurrency() workers.
    status begin(std::span<const kv_cache::append_request> requests, executor& on);
    // Rotates q, appends k (rotated on the way in) and v, attends.
    status run_layer(int32_t layer, const layer_tensors& tensors, executor& on);

    // K and V bytes that attention reads in the step that was begun last, all layers.
    [[nodiscard]] int64_t step_kv_bytes() const;
    // Seconds spent in kv_append, and in run(), since the last call.
    struct times {
        double append = 0.0, attention = 0.0;
    };
    times take_times() { return std::exchange(times_, {}); }

private:
    decode_engine(const model_shape& model, kv_cache cache);

    model_shape model_;
    kv_cache cache_;
    std::unique_ptr<rope_table> table_;  // null: no rope
    std::vector<float> slopes_;          // empty: no ALiBi
    attention_problem global_, windowed_;
    attention_plan global_plan_, windowed_plan_;
    runtime::mapped_memory workspace_;

    // Of the step, memory reused.
    std::vector<int64_t> slots_, positions_, q_lens_;
    std::vector<sequence_id> sequences_;
    kv_cache::batch_storage storage_;
    times times_;
};

}  // namespace ropewalk::toolkit
