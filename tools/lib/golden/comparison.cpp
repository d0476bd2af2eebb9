#include "tools/lib/golden/comparison.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <fmt/format.h>

namespace ropewalk::toolkit {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double distance(double got, double expected) {
    if (got == expected) return 0.0;
    const double error = std::fabs(got - expected);
    return std::isnan(error) ? infinity : error;
}

}  // namespace

void comparison::consider(std::string_view quantity, double error, double tolerance) {
    // Tolerance 0: infinite as soon as there is an error. A tolerance that is no finite number was derived from nonsense and accepts nothing.
    const double ratio = !std::isfinite(tolerance) ? infinity : error == 0.0 ? 0.0 : error / tolerance;
    if (ratio <= ratio_) return;
    ratio_ = ratio;
    quantity_ = quantity;
    error_ = error;
    tolerance_ = tolerance;
}

void comparison::consider_absolute(std::string_view quantity, double error, double tolerance) {
    if (error > largest_.error) largest_ = {error, tolerance};
    consider(quantity, error, tolerance);
}

void comparison::absolute(std::string_view quantity, std::span<const float> got, std::span<const double> expected, double tolerance) {
    double error = got.size() == expected.size() ? 0.0 : infinity;
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) error = std::max(error, distance(got[i], expected[i]));
    consider_absolute(quantity, error, tolerance);
}

void comparison::relative(std::string_view quantity, std::span<const double> got, std::span<const double> expected, double tolerance) {
    double error = got.size() == expected.size() ? 0.0 : infinity;
    for (std::size_t i = 0; i < std::min(got.size(), expected.size()); ++i) {
        const double difference = distance(got[i], expected[i]);
        error = std::max(error, difference == 0.0 ? 0.0 : difference / std::fabs(expected[i]));
    }
    consider(quantity, error, tolerance);
}

void comparison::bounded(std::string_view quantity, std::span<const float> got, std::span<const double> expected, std::span<const double> tolerance) {
    if (got.size() != expected.size() || got.size() != tolerance.size()) return consider(quantity, infinity, 0.0);
    for (std::size_t i = 0; i < got.size(); ++i) {
        consider_absolute(quantity, distance(got[i], expected[i]), tolerance[i]);
    }
}

void comparison::same_bits(std::string_view quantity, std::span<const float> got, std::span<const float> expected) {
    if (got.size() != expected.size()) return consider(quantity, infinity, 0.0);
    double largest = 0.0;
    std::size_t different = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(expected[i])) continue;
        ++different;
        largest = std::max({largest, distance(got[i], expected[i]), static_cast<double>(std::numeric_limits<float>::denorm_min())});
    }
    consider(fmt::format("{}: {} of {} differ in bits", quantity, different, got.size()), largest, 0.0);
}

}  // namespace ropewalk::toolkit
