// A result of ropewalk-decode: a row of its table, its JSON and its CSV.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <ropewalk/isa.hpp>
#include "tools/lib/decode/model.hpp"
#include "tools/lib/statistics.hpp"
#include "tools/lib/table.hpp"

namespace ropewalk::toolkit {

struct decode_row {
    std::string mode;  // "replay" or "synthetic"
    const model_shape* model = nullptr;
    target used = target::scalar;
    kv_preset kv = *find_kv_preset("bf16");
    dtype q_type = dtype::fp32;
    attention_precision precision = attention_precision::standard;
    int64_t context = 0;  // keys that the last token sees
    int32_t batch = 1, threads = 1, page_tokens = 64;
    // Medians over the repetitions.
    double step_seconds = 0.0, attention_seconds = 0.0, append_seconds = 0.0;
    paired_rates bandwidth;
    // Replay only. Every output has a tolerance of its own; the largest error need not be the one that uses most of its tolerance.
    struct accuracy {
        double max_error = 0.0, tolerance = 0.0;
        double tolerance_used = 0.0;  // largest error / tolerance of all outputs; above 1 is a failure
        std::string worst;            // the tensor where that was
        bool passed = false;
    };
    std::optional<accuracy> errors;

    [[nodiscard]] double tokens_per_second() const { return batch / step_seconds; }
    [[nodiscard]] double microseconds_per_layer() const { return step_seconds / model->layers * 1e6; }
};

nlohmann::ordered_json to_json(const decode_row& row);

// The table for rows of one mode; `rows` will come one by one.
table decode_table(bool replay);
std::vector<std::string> table_cells(const decode_row& row);

}  // namespace ropewalk::toolkit
