#include "tools/lib/statistics.hpp"

#include <algorithm>

namespace ropewalk::toolkit {

spread spread_of(std::span<const double> values) {
    std::vector<double> sorted(values.begin(), values.end());
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    const double median = sorted.size() % 2 != 0 ? sorted[middle] : 0.5 * (sorted[middle - 1] + sorted[middle]);
    return {sorted.front(), median, sorted.back()};
}

double median(std::span<const double> values) { return spread_of(values).median; }

void paired_rates::add(double rate, double roof) {
    rates_.push_back(rate);
    roofs_.push_back(roof);
    shares_.push_back(roof > 0.0 ? rate / roof : 0.0);
}

}  // namespace ropewalk::toolkit
