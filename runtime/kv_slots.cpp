#include "runtime/kv_slots.hpp"

#include <algorithm>
#include <cinttypes>

#include "runtime/pages.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::runtime {

namespace {

status check_part(const char* name, const const_head_view& view, const view_shape& shape, view_use use) noexcept {
    if (const status s = check_view(name, view, use); !s.ok()) return s;
    if (view.heads == 0) return {};
    return check_shape(name, view, shape, "one token per slot, heads and dim of the layout");
}

// The last runs of consecutive slots.
class recent_runs {
public:
    // A slot that both a remembered run and [first, last] hold, or no_slot.
    int64_t common(int64_t first, int64_t last) const noexcept {
        for (int32_t i = 0; i < held_; ++i) {
            if (runs_[i].first <= last && first <= runs_[i].last) return std::max(first, runs_[i].first);
        }
        return no_slot;
    }

    void remember(int64_t first, int64_t last) noexcept {
        runs_[next_] = {first, last};
        next_ = (next_ + 1) % most;
        held_ = std::min(held_ + 1, most);
    }

private:
    static constexpr int32_t most = 64;
    struct run {
        int64_t first, last;
    };
    run runs_[most];
    int32_t held_ = 0, next_ = 0;
};

}  // namespace

status check_slots(std::span<const int64_t> slots, int64_t limit) noexcept {
    for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] >= limit || (slots[i] < 0 && slots[i] != no_slot)) {
            return refuse(status_code::out_of_range, "slots[%zu] is %" PRId64 "; must be no_slot (-1) or 0 .. %" PRId64, i, slots[i], limit - 1);
        }
    }
    return {};
}

status check_transfer(const kv_pages& pages, std::span<const int64_t> slots, const const_head_view& k, const const_head_view& v,
                      view_use use) noexcept {
    if (const status s = check_pages(pages); !s.ok()) return s;
    const auto tokens = static_cast<int64_t>(slots.size());
    const kv_layout& layout = pages.layout;
    if (const status s = check_part("k", k, {tokens, layout.kv_heads, layout.k_dim}, use); !s.ok()) return s;
    if (const status s = check_part("v", v, {tokens, layout.kv_heads, layout.v_dim}, use); !s.ok()) return s;
    if (k.heads == 0 && v.heads == 0 && tokens != 0) {
        return refuse(status_code::invalid_argument, "k.heads and v.heads are both 0; one must be %d (layout.kv_heads)", layout.kv_heads);
    }
    return check_slots(slots, int64_t{pages.count} * layout.page_tokens);
}

status check_distinct(std::span<const int64_t> slots) noexcept {
    recent_runs runs;
    for (std::size_t i = 0, end; i < slots.size(); i = end) {
        for (end = i + 1; end < slots.size() && slots[end] == slots[end - 1] + 1;) ++end;
        // A run that grows out of no_slot (-1, 0, 1, ..) begins at 0.
        const int64_t first = std::max<int64_t>(slots[i], 0), last = slots[end - 1];
        if (last < first) continue;
        if (const int64_t twice = runs.common(first, last); twice != no_slot) {
            return refuse(status_code::invalid_argument, "slots names %" PRId64 " twice (again in the run at index %zu); slots must differ", twice,
                          i);
        }
        runs.remember(first, last);
    }
    return {};
}

}  // namespace ropewalk::runtime
