// Synthetic decoding: caches as large as a server's (all layers), filled with numbers, and one token a sequence and step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ropewalk/status.hpp>
#include "simd/core/kernels.hpp"
#include "tools/lib/decode/engine.hpp"
#include "tools/lib/decode/model.hpp"
#include "tools/lib/statistics.hpp"
#include "tools/lib/workers.hpp"

namespace ropewalk::toolkit {

// One cache; measured once for each number of threads.
struct sweep_case {
    model_shape model;
    kv_preset kv = *find_kv_preset("bf16");
    dtype q_type = dtype::bf16;
    attention_precision precision = attention_precision::standard;
    int64_t context = 4096;  // keys the new token sees, its own included
    int32_t batch = 1;       // sequences in a step
    int32_t page_tokens = 64;
    int64_t least_bytes = 0;  // of the cache; see synthetic_cache::bytes
};

// Seconds of one step, a value a repetition.
struct measurement {
    std::vector<double> step, attention, append;
    paired_rates bandwidth;  // GB/s of K and V over the whole step, against the read roof right after it
};

class synthetic_cache {
public:
    // Bytes of the cache. Where one batch takes less than least_bytes, the cache holds as many as fill them and steps take turns, so that K and V
    // come from DRAM even where all layers of a batch fit into the CPU's caches: in a server a token's weights have gone through them in between.
    static result<int64_t> bytes(const sweep_case& c);
    // Allocates and fills; all workers write their part, so that memory is spread over their nodes.
    static result<synthetic_cache> create(const sweep_case& c, executor& on);

    // `repetitions` times: steps for about a quarter of a second, then the read roof over the cache's memory.
    result<measurement> measure(int32_t repetitions, const workers& team, const std::function<void()>& progress);

private:
    synthetic_cache(const sweep_case& c, decode_engine engine);
    status fill_sequences();
    // One step of the batch whose turn it is; adds what it took.
    status step(executor& on, double& seconds);
    status warm_up(executor& on, int64_t& steps);
    status repeat(executor& on, int64_t steps, const simd::roof_kernels& roof, measurement& m);

    sweep_case case_;
    decode_engine engine_;
    std::vector<std::vector<sequence_id>> batches_;
    std::vector<kv_cache::append_request> requests_;
    std::size_t next_batch_ = 0;
    std::vector<std::byte> q_fresh_, q_, k_, v_, out_;  // of one layer
};

}  // namespace ropewalk::toolkit
