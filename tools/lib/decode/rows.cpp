#include "tools/lib/decode/rows.hpp"

#include <fmt/format.h>

namespace ropewalk::toolkit {

nlohmann::ordered_json to_json(const decode_row& row) {
    const model_shape& model = *row.model;
    const spread rate = row.bandwidth.rate(), roof = row.bandwidth.roof(), share = row.bandwidth.share();
    nlohmann::ordered_json json = {
        {"mode", row.mode},
        {"model", model.name},
        {"target", name(row.used)},
        {"kv_type", row.kv.name},
        {"q_type", name(row.q_type)},
        {"precision", row.precision == attention_precision::fast ? "fast" : "standard"},
        {"heads", model.heads},
        {"kv_heads", model.kv_heads},
        {"head_dim", model.head_dim},
        {"layers", model.layers},
        {"context", row.context},
        {"batch", row.batch},
        {"threads", row.threads},
        {"page_tokens", row.page_tokens},
        {"tokens_per_s", row.tokens_per_second()},
        {"us_per_layer", row.microseconds_per_layer()},
        {"attention_us_per_layer", row.attention_seconds / model.layers * 1e6},
        {"append_us_per_layer", row.append_seconds / model.layers * 1e6},
        {"kv_gb_per_s", rate.median},
        {"roof_gb_per_s", roof.median},
        {"roof_share", share.median},
        {"roof_share_low", share.lowest},
        {"roof_share_high", share.highest},
        {"max_error", nullptr},
        {"tolerance", nullptr},
        {"tolerance_used", nullptr},
    };
    if (row.errors) {
        json["max_error"] = row.errors->max_error;
        json["tolerance"] = row.errors->tolerance;
        json["tolerance_used"] = row.errors->tolerance_used;
    }
    return json;
}

table decode_table(bool replay) {
    using align = table::align;
    std::vector<table::column> columns = {
        {"model", align::left, replay ? 21u : 12u},
        {"kv", align::left, 4},
        {"context", align::right},
        {"batch", align::right},
        {"threads", align::right},
        {"tokens/s", align::right, 9},
        {"us/layer", align::right, 8},
        {"KV GB/s", align::right},
        {"roof GB/s", align::right},
        {"share", align::right, 6},
    };
    if (replay) {
        columns.insert(columns.end(),
                       {{"max error", align::right}, {"tolerance", align::right}, {"worst used", align::right}, {"result", align::left}});
    } else {
        columns.push_back({"share range", align::left});
    }
    return table(stdout, columns);
}

std::vector<std::string> table_cells(const decode_row& row) {
    const auto fixed = [](double value, int digits) { return fmt::format("{:.{}f}", value, digits); };
    const auto percent = [](double share) { return fmt::format("{:.0f} %", 100.0 * share); };
    const spread share = row.bandwidth.share();
    std::vector<std::string> cells = {
        row.model->name,
        std::string(row.kv.name),
        std::to_string(row.context),
        std::to_string(row.batch),
        std::to_string(row.threads),
        fixed(row.tokens_per_second(), 1),
        fixed(row.microseconds_per_layer(), 1),
        fixed(row.bandwidth.rate().median, 1),
        fixed(row.bandwidth.roof().median, 1),
        percent(share.median),
    };
    if (row.errors) {
        cells.push_back(fmt::format("{:.1e}", row.errors->max_error));
        cells.push_back(fmt::format("{:.1e}", row.errors->tolerance));
        cells.push_back(percent(row.errors->tolerance_used));
        cells.push_back(row.errors->passed ? "ok" : "FAILED: " + row.errors->worst);
    } else {
        cells.push_back(fmt::format("{} - {}", percent(share.lowest), percent(share.highest)));
    }
    return cells;
}

}  // namespace ropewalk::toolkit
