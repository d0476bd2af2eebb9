// Deals the tokens of a call to workers such that no two of them write to the same panel of the same head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <ropewalk/executor.hpp>
#include <ropewalk/kv_pages.hpp>
#include "runtime/blocks.hpp"

namespace ropewalk::runtime {

// Tokens token .. token + count - 1 of the call go into consecutive slots of one panel.
struct token_run {
    int64_t token;
    int64_t slot;
    int32_t count;
};

// Items own panels (by hash) and heads, not token ranges: whatever the order of the slots, no two workers touch the same 32-bit word.
class panel_deal {
public:
    // elements: all that the call writes. Below some 30 us of work of one core a second worker comes too late (see blocks.hpp).
    panel_deal(std::span<const int64_t> slots, int32_t heads, int64_t elements, int32_t workers) noexcept : slots_(slots), heads_(heads) {
        if (elements <= alone_elements) return;
        const auto tokens = static_cast<int64_t>(slots.size());
        const int64_t wanted = items_per_worker * std::max(workers, 1);
        panel_parts_ = std::clamp<int64_t>(tokens / panel_tokens, 1, wanted);
        head_parts_ = static_cast<int32_t>(std::min<int64_t>((wanted + panel_parts_ - 1) / panel_parts_, heads));
    }

    [[nodiscard]] int64_t items() const noexcept { return panel_parts_ * head_parts_; }

    // body(run, first_head, last_head) for every run of an item. Runs do not cross a multiple of run_tokens, which divides a panel.
    template <class Body>
    void for_each_run(int64_t item, int32_t run_tokens, const Body& body) const noexcept {
        const int64_t part = item / head_parts_;
        const auto head_part = static_cast<int32_t>(item % head_parts_);
        const auto first_head = static_cast<int32_t>(int64_t{heads_} * head_part / head_parts_),
                   last_head = static_cast<int32_t>(int64_t{heads_} * (head_part + 1) / head_parts_);
        const auto tokens = static_cast<int64_t>(slots_.size());
        const auto slot_of = [this](int64_t token) { return slots_[static_cast<std::size_t>(token)]; };
        for (token_run run{0, 0, 1}; run.token < tokens; run.token += run.count) {
            run.slot = slot_of(run.token);
            run.count = 1;
            if (run.slot == no_slot || !mine(run.slot, part)) continue;
            const auto room = static_cast<int32_t>(std::min<int64_t>(run_tokens - run.slot % run_tokens, tokens - run.token));
            while (run.count < room && slot_of(run.token + run.count) == run.slot + run.count) ++run.count;
            body(run, first_head, last_head);
        }
    }

private:
    // Elements of K and V that one core packs into cold pages in about 30 us.
    static constexpr int64_t alone_elements = 16 * 1024;
    // More items than workers, so that one that wakes late finds less to do.
    static constexpr int64_t items_per_worker = 4;

    // Fibonacci hashing: slots of a batch of sequences often lie at the same index of their pages, so a plain remainder would deal unevenly.
    [[nodiscard]] bool mine(int64_t slot, int64_t part) const noexcept {
        if (panel_parts_ == 1) return true;
        const auto mixed = static_cast<uint32_t>((static_cast<uint64_t>(slot / panel_tokens) * 0x9e3779b97f4a7c15ull) >> 32);
        return static_cast<int64_t>((uint64_t{mixed} * static_cast<uint64_t>(panel_parts_)) >> 32) == part;
    }

    std::span<const int64_t> slots_;
    int32_t heads_;
    int64_t panel_parts_ = 1;  // panels are dealt to so many parts ..
    int32_t head_parts_ = 1;   // .. and heads to so many: an item is one of each
};

template <class Body>
void for_each_panel_run(executor& on, const panel_deal& deal, int32_t run_tokens, const Body& body) noexcept {
    for_each_block(on, deal.items(), 1, [&](int64_t first, int64_t last) {
        for (int64_t item = first; item < last; ++item) deal.for_each_run(item, run_tokens, body);
    });
}

}  // namespace ropewalk::runtime
