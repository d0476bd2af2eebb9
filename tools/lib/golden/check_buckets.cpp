#include <string>

#include <fmt/format.h>
#include <ropewalk/relative_buckets.hpp>
#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

// Buckets are small integers: exact as floats.
std::vector<float> as_floats(const auto& buckets) { return {buckets.begin(), buckets.end()}; }

// The map `name` over all of the file's relative positions, as the published library made it in fp32, and with an fp64 logarithm.
template <class Rule>
status check_map(golden_reader& golden, const std::string& name, status (*buckets_of)(std::span<int32_t>, int64_t, const Rule&) noexcept,
                 const Rule& rule, comparison& checks) {
    const std::vector<int64_t> positions = golden.integers("relative_position", {any_extent}).values;
    const auto count = static_cast<int64_t>(positions.size());
    const tensor<int64_t> fp32 = golden.integers(name, {count}), fp64 = golden.integers(name + "_f64", {count});
    for (std::size_t i = 1; i < positions.size(); ++i) {
        golden.require(positions[i - 1] < positions[i] && static_cast<uint64_t>(positions[i]) - static_cast<uint64_t>(positions[i - 1]) == 1,
                       "relative_position must count upwards by one");
    }
    golden.require(count > 0, "relative_position must not be empty");
    if (!golden.state().ok()) return {};
    std::vector<int32_t> buckets(positions.size());
    const status filled = buckets_of(buckets, positions.front(), rule);
    if (!filled.ok()) return filled;
    checks.same_bits(name, as_floats(buckets), as_floats(fp32.values));
    checks.same_bits(name + "_f64", as_floats(buckets), as_floats(fp64.values));
    return {};
}

// params.combos: pairs of numbers of buckets and largest distance.
std::vector<std::pair<int32_t, int32_t>> combinations(golden_reader& golden) {
    std::vector<std::pair<int32_t, int32_t>> pairs;
    const nlohmann::json& combos = golden.raw("combos");
    for (const nlohmann::json& combo : combos) {
        const bool legal = combo.is_array() && combo.size() == 2 && combo[0].is_number_integer() && combo[1].is_number_integer();
        golden.require(legal, "params.combos must hold pairs of integers");
        if (!legal) return {};
        pairs.emplace_back(combo[0].get<int32_t>(), combo[1].get<int32_t>());
    }
    golden.require(!pairs.empty(), "params.combos must hold pairs of integers");
    return pairs;
}

}  // namespace

status check_t5_buckets(golden_reader& golden, comparison& checks, executor&) {
    for (const auto& [count, distance] : combinations(golden)) {
        for (const bool bidirectional : {true, false}) {
            const std::string name = fmt::format("bucket_{}_n{}_d{}", bidirectional ? "bidir" : "causal", count, distance);
            const status checked = check_map(golden, name, t5_buckets, t5_bucket_rule{count, distance, bidirectional}, checks);
            if (!checked.ok()) return checked;
        }
    }
    return {};
}

status check_deberta_buckets(golden_reader& golden, comparison& checks, executor&) {
    for (const auto& [count, most] : combinations(golden)) {
        const status checked =
            check_map(golden, fmt::format("bucket_b{}_m{}", count, most), deberta_buckets, deberta_bucket_rule{count, most}, checks);
        if (!checked.ok()) return checked;
    }
    return {};
}

}  // namespace ropewalk::toolkit
