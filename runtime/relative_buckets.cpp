// A logarithm in double says on which side of an edge a distance lies, unless it is so near that its rounding matters; there integers decide.
#include <ropewalk/relative_buckets.hpp>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "runtime/refuse.hpp"

namespace ropewalk {

namespace {

using runtime::refuse;

__extension__ typedef unsigned __int128 double_limb;

// A product of powers below 2^(31 * 1536): limit^k with a 31-bit limit, and k up to the 3 / 2 max_relative_buckets where deberta_buckets() stops.
class natural {
public:
    void multiply(uint64_t factor, int32_t times) noexcept {
        for (; times > 0; --times) {
            double_limb carry = 0;
            for (int32_t i = 0; i < size_; ++i) {
                carry += double_limb{limbs_[i]} * factor;
                limbs_[i] = static_cast<uint64_t>(carry);
                carry >>= 64;
            }
            if (carry != 0) limbs_[size_++] = static_cast<uint64_t>(carry);
        }
    }
    // Negative, 0 or positive.
    [[nodiscard]] int compare(const natural& other) const noexcept {
        if (size_ != other.size_) return size_ - other.size_;
        int32_t i = size_ - 1;
        while (i > 0 && limbs_[i] == other.limbs_[i]) --i;
        return limbs_[i] < other.limbs_[i] ? -1 : limbs_[i] > other.limbs_[i];
    }

private:
    uint64_t limbs_[31 * 3 * max_relative_buckets / 2 / 64 + 2] = {1};
    int32_t size_ = 1;
};

// The scale x(r) = steps * ln(r / start) / ln(limit / start), which is 0 at start and `steps` at limit.
struct log_scale {
    int64_t start, limit;
    int32_t steps;

    // Sign of x(r) - k: of r^steps * start^k - start^steps * limit^k, without the common powers.
    [[nodiscard]] int compare(uint64_t r, int32_t k) const noexcept {
        const int32_t common = std::max(std::gcd(steps, k), 1), n = steps / common, m = k / common;
        natural left, right;
        left.multiply(r, n);
        left.multiply(static_cast<uint64_t>(start), std::max(m - n, 0));
        right.multiply(static_cast<uint64_t>(limit), m);
        right.multiply(static_cast<uint64_t>(start), std::max(n - m, 0));
        return left.compare(right);
    }

    // floor(x(r)), or ceil(x(r)) if `up`, but at most `most`, for r >= start.
    [[nodiscard]] int32_t step(uint64_t r, int32_t most, bool up) const noexcept {
        // ln(limit / start) >= 1 / max_relative_buckets, so that the rounding of the two quotients moves x by less than 1e-9.
        constexpr double sure = 1e-8;
        const auto first = static_cast<double>(start);
        const double x = steps * std::log(static_cast<double>(r) / first) / std::log(static_cast<double>(limit) / first);
        if (x > most + 0.5) return most;
        const double nearest = std::nearbyint(x);
        const auto k = static_cast<int32_t>(nearest);
        const int side = std::abs(x - nearest) > sure ? (x < nearest ? -1 : 1) : compare(r, k);
        return std::min(up ? k + (side > 0) : k - (side < 0), most);
    }
};

// Writes bucket_of(p) for every relative position; distances are unsigned, since that of -2^63 has no other type.
template <class BucketOf>
status fill(std::span<int32_t> buckets, int64_t first, BucketOf bucket_of) noexcept {
    if (buckets.empty()) return {};
    if (buckets.data() == nullptr) return refuse(status_code::invalid_argument, "buckets.data() is null; must point to %zu entries", buckets.size());
    if (first > 0 && buckets.size() - 1 > static_cast<uint64_t>(std::numeric_limits<int64_t>::max() - first)) {
        return refuse(status_code::out_of_range, "first_relative_position is %" PRId64 "; the last of %zu relative positions must fit 64 bits", first,
                      buckets.size());
    }
    for (std::size_t i = 0; i < buckets.size(); ++i) {
        const int64_t position = first + static_cast<int64_t>(i);
        const uint64_t distance = position < 0 ? -static_cast<uint64_t>(position) : static_cast<uint64_t>(position);
        buckets[i] = bucket_of(distance, position > 0);
    }
    return {};
}

}  // namespace

status t5_buckets(std::span<int32_t> buckets, int64_t first_relative_position, const t5_bucket_rule& rule) noexcept {
    const int32_t least = rule.bidirectional ? 4 : 2;
    if (rule.num_buckets < least || rule.num_buckets > max_relative_buckets || (rule.bidirectional && rule.num_buckets % 2 != 0)) {
        return refuse(status_code::invalid_argument, "rule.num_buckets is %d; must be %s%d .. %d", rule.num_buckets,
                      rule.bidirectional ? "even (bidirectional) and " : "", least, max_relative_buckets);
    }
    const int32_t count = rule.bidirectional ? rule.num_buckets / 2 : rule.num_buckets, exact = count / 2;
    if (rule.max_distance <= exact) {
        return refuse(status_code::invalid_argument, "rule.max_distance is %d; must be more than the %d distances that have a bucket each",
                      rule.max_distance, exact);
    }
    const log_scale scale{exact, rule.max_distance, count - exact};
    return fill(buckets, first_relative_position, [&](uint64_t distance, bool key_is_later) {
        if (key_is_later && !rule.bidirectional) return 0;
        const int32_t first = key_is_later ? count : 0;
        if (distance < static_cast<uint64_t>(exact)) return first + static_cast<int32_t>(distance);
        return first + exact + scale.step(distance, count - exact - 1, false);
    });
}

status deberta_buckets(std::span<int32_t> buckets, int64_t first_relative_position, const deberta_bucket_rule& rule) noexcept {
    if (rule.position_buckets < 2 || rule.position_buckets > max_relative_buckets) {
        return refuse(status_code::invalid_argument, "rule.position_buckets is %d; must be 2 .. %d", rule.position_buckets, max_relative_buckets);
    }
    const int32_t mid = rule.position_buckets / 2;
    if (rule.max_relative_positions <= mid + 1) {
        return refuse(status_code::invalid_argument, "rule.max_relative_positions is %d; must be more than position_buckets / 2 + 1 = %d",
                      rule.max_relative_positions, mid + 1);
    }
    const log_scale scale{mid, rule.max_relative_positions - 1, mid - 1};
    return fill(buckets, first_relative_position, [&](uint64_t distance, bool positive) {
        const int32_t bucket = distance <= static_cast<uint64_t>(mid) ? static_cast<int32_t>(distance)
                                                                      : mid + scale.step(distance, 2 * rule.position_buckets - mid, true);
        return positive ? bucket : -bucket;
    });
}

}  // namespace ropewalk
