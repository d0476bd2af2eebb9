// Collects the comparisons of one golden file and keeps the one that comes closest to its tolerance, or passes it by most.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ropewalk::toolkit {

class comparison {
public:
    // Largest |got - expected|; NaN counts as infinite, equal infinities as equal.
    void absolute(std::string_view quantity, std::span<const float> got, std::span<const double> expected, double tolerance);
    // Largest |got - expected| / |expected|; where the expected value is 0 it must be met exactly.
    void relative(std::string_view quantity, std::span<const double> got, std::span<const double> expected, double tolerance);
    // Element by element; reports the largest error in units of the tolerance of its element.
    void bounded(std::string_view quantity, std::span<const float> got, std::span<const double> expected, std::span<const double> tolerance);
    // Same bits, NaN included.
    void same_bits(std::string_view quantity, std::span<const float> got, std::span<const float> expected);

    // At least one comparison, and none beyond its tolerance.
    [[nodiscard]] bool passed() const { return ratio_ >= 0.0 && ratio_ <= 1.0; }
    [[nodiscard]] double error() const { return error_; }
    [[nodiscard]] double tolerance() const { return tolerance_; }
    [[nodiscard]] const std::string& quantity() const { return quantity_; }
    // error / tolerance of that comparison: at most 1 if all passed.
    [[nodiscard]] double ratio() const { return ratio_; }
    // Largest error of all absolute() and bounded() comparisons, and the tolerance it had. The error is -1 where there was none.
    struct outlier {
        double error = -1.0, tolerance = 0.0;
    };
    [[nodiscard]] const outlier& largest() const { return largest_; }

private:
    void consider(std::string_view quantity, double error, double tolerance);
    void consider_absolute(std::string_view quantity, double error, double tolerance);

    std::string quantity_;
    double error_ = 0.0, tolerance_ = 0.0, ratio_ = -1.0;
    outlier largest_;
};

}  // namespace ropewalk::toolkit
