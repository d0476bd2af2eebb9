#include <ropewalk/rope_axes.hpp>

#include <cinttypes>
#include <new>

#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

constexpr int t = 0, h = 1, w = 2;

status check_sections(axis_order order, std::span<const int32_t> sections, std::size_t pairs) noexcept {
    const auto kind = static_cast<int32_t>(order);
    if (kind < 0 || kind > 3) {
        return refuse(status_code::invalid_argument, "order is %d; must be 0 (contiguous), 1 (interleaved), 2 (cyclic) or 3 (alternating)", kind);
    }
    const bool any_count = order == axis_order::contiguous;
    if (any_count ? sections.size() < 2 || sections.size() > runtime::max_rope_axes : sections.size() != 3) {
        return refuse(status_code::invalid_argument, "sections has %zu entries; must be %s", sections.size(), any_count ? "2 .. 4" : "3: t, h, w");
    }
    int64_t sum = 0;
    for (std::size_t i = 0; i < sections.size(); ++i) {
        if (sections[i] < 0) return refuse(status_code::invalid_argument, "sections[%zu] is %d; must be at least 0", i, sections[i]);
        sum += sections[i];
    }
    if (sum != static_cast<int64_t>(pairs)) {
        return refuse(status_code::invalid_argument, "sections sum to %" PRId64 "; must be rotary_dim / 2 = %zu", sum, pairs);
    }
    if (order == axis_order::alternating && sections[h] != sections[w]) {
        return refuse(status_code::invalid_argument, "sections[1] is %d; must be sections[2] = %d: h and w alternate", sections[h], sections[w]);
    }
    return {};
}

// The axis of every pair, one after the other.
class axis_dealer {
public:
    axis_dealer(axis_order order, std::span<const int32_t> sections) noexcept : order_(order), sections_(sections) {
        for (std::size_t a = 0; a < sections.size(); ++a) left_[a] = sections[a];
    }
    uint8_t next() noexcept {
        const int axis = axis_of(pair_);
        --left_[axis];
        ++pair_;
        return static_cast<uint8_t>(axis);
    }

private:
    int axis_of(int32_t pair) const noexcept {
        switch (order_) {
            case axis_order::contiguous: return first_left(0);
            case axis_order::interleaved:
                if (pair % 3 != t && pair < 3 * int64_t{sections_[static_cast<std::size_t>(pair % 3)]}) return pair % 3;
                return t;
            case axis_order::cyclic: return first_left(pair % 3);
            case axis_order::alternating: return left_[h] + left_[w] == 0 ? t : pair % 2 == 0 ? h : w;
        }
        return t;
    }
    // The first axis from `axis` on, in turn, that still has pairs: there is one as long as the sections sum to the pairs.
    int first_left(int axis) const noexcept {
        const auto axes = static_cast<int>(sections_.size());
        while (left_[axis] == 0) axis = (axis + 1) % axes;
        return axis;
    }

    axis_order order_;
    std::span<const int32_t> sections_;
    int32_t left_[runtime::max_rope_axes] = {};
    int32_t pair_ = 0;
};

status check_quarters(int32_t rotary_dim) noexcept {
    if (rotary_dim >= 4 && rotary_dim % 4 == 0 && rotary_dim <= 2 * runtime::max_rope_pairs) return {};
    return refuse(status_code::invalid_argument, "rotary_dim is %d; must be a multiple of 4, 4 .. %d", rotary_dim, 2 * runtime::max_rope_pairs);
}

// Two halves of the pairs, with frequencies [first(j)] and [second(j)] of `from`.
template <class Index>
result<rope_spec> two_halves(const result<rope_spec>& from, int32_t quarter, const Index& index) noexcept {
    if (!from.ok()) return from.state();
    try {
        rope_spec spec = *from;
        spec.inv_freq.clear();
        for (int32_t axis = 0; axis < 2; ++axis) {
            for (int32_t j = 0; j < quarter; ++j) spec.inv_freq.push_back(from->inv_freq[static_cast<std::size_t>(index(axis, j))]);
        }
        const int32_t sections[] = {quarter, quarter};
        return with_axes(spec, axis_order::contiguous, sections);
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %d frequencies", 2 * quarter);
    }
}

}  // namespace

result<rope_spec> with_axes(const rope_spec& spec, axis_order order, std::span<const int32_t> sections) noexcept {
    const std::size_t pairs = spec.inv_freq.size();
    if (const status s = check_sections(order, sections, pairs); !s.ok()) return s;
    try {
        rope_spec made = spec;
        made.axis_of_pair.resize(pairs);
        axis_dealer dealer(order, sections);
        for (uint8_t& axis : made.axis_of_pair) axis = dealer.next();
        if (const status s = made.validate(); !s.ok()) return s;
        return made;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu axes", pairs);
    }
}

result<rope_spec> vision_2d(int32_t rotary_dim, double theta) noexcept {
    if (const status s = check_quarters(rotary_dim); !s.ok()) return s;
    return two_halves(rope_spec::standard(rotary_dim / 2, theta), rotary_dim / 4, [](int32_t, int32_t j) { return j; });
}

result<rope_spec> pixtral_2d(int32_t rotary_dim, double theta) noexcept {
    if (const status s = check_quarters(rotary_dim); !s.ok()) return s;
    return two_halves(rope_spec::standard(rotary_dim, theta), rotary_dim / 4, [](int32_t axis, int32_t j) { return 2 * j + axis; });
}

}  // namespace ropewalk
