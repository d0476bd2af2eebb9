// Tables over distance from the parameters that models ship.
#include <ropewalk/relative_bias.hpp>

#include <cmath>
#include <new>
#include <vector>

#include "runtime/refuse.hpp"

namespace ropewalk {

using runtime::refuse;

result<attention_bias> t5_bias(std::span<const float> weight, int32_t heads, const t5_bucket_rule& rule) noexcept try {
    if (auto s = runtime::check_range("rule.max_distance", rule.max_distance, 1, max_bias_distance); !s) return s;
    if (heads < 1 || rule.num_buckets < 1 || static_cast<int64_t>(weight.size()) != int64_t{rule.num_buckets} * heads) {
        return refuse(status_code::invalid_argument, "weight has %zu entries; must have num_buckets * heads = %d * %d", weight.size(),
                      rule.num_buckets, heads);
    }
    // Decoders have one bucket for all keys from the query on.
    const int32_t last = rule.bidirectional ? rule.max_distance : 0;
    std::vector<int32_t> buckets(static_cast<std::size_t>(int64_t{rule.max_distance} + last + 1));
    if (auto s = t5_buckets(buckets, -int64_t{rule.max_distance}, rule); !s) return s;
    std::vector<float> table;
    table.reserve(buckets.size() * static_cast<std::size_t>(heads));
    for (int32_t h = 0; h < heads; ++h) {
        for (const int32_t bucket : buckets) table.push_back(weight[static_cast<std::size_t>(int64_t{bucket} * heads + h)]);
    }
    return attention_bias::over_distance(table, heads, -int64_t{rule.max_distance});
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "no memory for the bias");
}

result<attention_bias> kerple_bias(std::span<const float> r1, std::span<const float> r2, int64_t max_distance) noexcept try {
    if (auto s = runtime::check_range("max_distance", max_distance, 1, max_bias_distance); !s) return s;
    if (r1.empty() || r1.size() > 1 << 16 || r1.size() != r2.size()) {
        return refuse(status_code::invalid_argument, "r1 has %zu entries and r2 %zu; both must have one for each query head", r1.size(), r2.size());
    }
    std::vector<float> table;
    table.reserve(r1.size() * static_cast<std::size_t>(2 * max_distance + 1));
    for (std::size_t h = 0; h < r1.size(); ++h) {
        const double a = r1[h], b = r2[h];
        if (!(std::isfinite(a) && a > 0.0 && std::isfinite(b) && b > 0.0)) {
            return refuse(status_code::invalid_argument, "r1[%zu] is %g and r2[%zu] %g; both must be finite and positive", h, a, h, b);
        }
        for (int64_t delta = -max_distance; delta <= max_distance; ++delta) {
            table.push_back(static_cast<float>(-a * std::log1p(b * std::fabs(static_cast<double>(delta)))));
        }
    }
    return attention_bias::over_distance(table, static_cast<int32_t>(r1.size()), -max_distance);
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "no memory for the bias");
}

}  // namespace ropewalk
