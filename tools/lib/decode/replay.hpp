// Replays a trace through the KV cache: a prefill, then one token at a time through every layer, as a server decodes.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/executor.hpp>
#include <ropewalk/status.hpp>
#include "tools/lib/decode/engine.hpp"
#include "tools/lib/decode/trace.hpp"
#include "tools/lib/golden/comparison.hpp"

namespace ropewalk::toolkit {

class trace_replay {
public:
    struct settings {
        int64_t prefill = 0;  // tokens of the first step; 0 decodes everything
        kv_preset kv = *find_kv_preset("fp32");
        int32_t page_tokens = 64;
    };
    // What the decode steps of one run took.
    struct timing {
        int64_t steps = 0;
        double seconds = 0.0;
        double kv_bytes = 0.0;
        decode_engine::times parts;
    };

    // The trace must outlive the replay.
    static result<trace_replay> create(const trace& recorded, const settings& chosen);

    // One run from an empty cache; every run must give the same bits.
    status run(executor& on, timing& decoded);
    // Compares all outputs and logsumexps of the last run with the recorded ones.
    void compare(comparison& checks) const;
    // Compares the last run with an earlier one's outputs.
    [[nodiscard]] const std::vector<std::vector<float>>& outputs() const { return outputs_; }
    [[nodiscard]] int64_t cache_bytes() { return static_cast<int64_t>(engine_.memory().size()); }

private:
    trace_replay(const trace& recorded, const settings& chosen, decode_engine engine);
    status step(sequence_id sequence, int64_t first, int64_t count, executor& on);

    const trace* recorded_;
    settings chosen_;
    decode_engine engine_;
    std::vector<float> q_rows_;                // of one step and layer, rotated in place
    std::vector<std::vector<float>> outputs_;  // a layer: [heads, tokens, head_dim]
    std::vector<std::vector<float>> lses_;     // a layer: [tokens, heads]
};

}  // namespace ropewalk::toolkit
