// Medians and spreads of repeated measurements.
#pragma once

#include <span>
#include <vector>

namespace ropewalk::toolkit {

struct spread {
    double lowest = 0.0;
    double median = 0.0;
    double highest = 0.0;
};

// Of an even number of values the median is the mean of the middle two. Precondition: not empty.
double median(std::span<const double> values);
spread spread_of(std::span<const double> values);

// Pairs a rate with the roof that was measured right after it. On shared machines the read roof of two cores drifts between 27 and 50 GB/s within
// minutes, so only the quotient of neighbours in time means anything; the share is the median of these quotients.
class paired_rates {
public:
    void add(double rate, double roof);

    [[nodiscard]] bool empty() const { return rates_.empty(); }
    [[nodiscard]] spread rate() const { return spread_of(rates_); }
    [[nodiscard]] spread roof() const { return spread_of(roofs_); }
    [[nodiscard]] spread share() const { return spread_of(shares_); }

private:
    std::vector<double> rates_, roofs_, shares_;
};

}  // namespace ropewalk::toolkit
