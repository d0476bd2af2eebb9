// The KV-cache manager: a pool of pages with holder counts, and per sequence the list of its pages.
//
//   sequence.pages = [ pages with tokens: ceil(length / page_tokens) | pages set aside by reserve() ]
//
// A page is shared when more than one sequence holds it; only pages with tokens are. A page is copied exactly when tokens are to be written
// behind others in it, that is when the last page is partly filled and shared.
#include <ropewalk/kv_cache.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "runtime/pages.hpp"
#include "runtime/pages_memory.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk {
namespace {

using runtime::refuse;
using number = long long;  // what printf's %lld takes

// Positions are 0 .. 2^31 - 1 everywhere in the library (rope_table), which also bounds the length of a sequence.
constexpr int64_t position_limit = int64_t{1} << 31;

struct sequence_state {
    int64_t first_position = 0;
    int64_t length = 0;
    int64_t promised = 0;  // length up to which appends never ask for a page; a reservation is in force while it exceeds length
    int32_t generation = 1;
    bool alive = false;
    uint64_t named_by = 0;  // the last append() that named the sequence
    std::vector<int32_t> pages;
};

status check_config(const kv_cache_config& config) noexcept {
    if (const status valid = config.layout.validate(); !valid.ok()) return valid;
    if (config.layout.head_stride != 0 || config.layout.page_stride != 0) {
        return refuse(status_code::invalid_argument, "layout.head_stride is %lld, layout.page_stride is %lld; a cache packs its pages: must be 0",
                      number{config.layout.head_stride}, number{config.layout.page_stride});
    }
    if (config.layers < 1) return refuse(status_code::invalid_argument, "layers is %d; must be >= 1", config.layers);
    if (config.page_count < 1) return refuse(status_code::invalid_argument, "page_count is %d; must be >= 1", config.page_count);
    return {};
}

status check_memory(std::span<const std::byte> memory, int64_t required) noexcept {
    if (memory.data() == nullptr || reinterpret_cast<std::uintptr_t>(memory.data()) % page_alignment != 0) {
        return refuse(status_code::invalid_argument, "memory.data() is %p; must be aligned to %lld bytes", static_cast<const void*>(memory.data()),
                      number{page_alignment});
    }
    if (memory.size() < static_cast<std::size_t>(required)) {
        return refuse(status_code::invalid_argument, "memory.size() is %zu; must be at least required_bytes(), %lld", memory.size(),
                      number{required});
    }
    return {};
}

status no_sequence(sequence_id id) noexcept {
    return refuse(status_code::not_found, "sequence is %lld; the cache has none of this id", static_cast<number>(id));
}

// Room for `count` entries in all; doubles, so that growing one by one costs no more than a few allocations.
template <class Entry>
void grow(std::vector<Entry>& vector, std::size_t count) {
    if (vector.capacity() < count) vector.reserve(std::max(count, 2 * vector.capacity()));
}

}  // namespace

struct kv_cache::state {
    kv_layout layout;
    int32_t layers = 0;
    int32_t page_count = 0;
    int64_t page_bytes = 0;
    runtime::mapped_memory own_memory;  // empty when the caller brought some
    std::byte* base = nullptr;

    // Pages 0 .. fresh - 1 have been used at least once; those of them that nobody holds are in `recycled`, the last one freed at the back.
    std::vector<int32_t> holders;  // [page_count]
    std::vector<int32_t> recycled;
    int32_t fresh = 0;
    int32_t shared_pages = 0;

    std::vector<sequence_state> sequences;
    std::vector<int32_t> vacant;  // indices into sequences
    int32_t alive = 0;
    int64_t tokens = 0;
    uint64_t append_calls = 0;

    struct append_step {
        sequence_state* sequence;
        int64_t tokens;
        bool copy;
    };
    std::vector<append_step> steps;  // scratch of append()

    explicit state(const kv_cache_config& config)
        : layout(config.layout),
          layers(config.layers),
          page_count(config.page_count),
          page_bytes(config.layout.page_stride_bytes()),
          holders(static_cast<std::size_t>(config.page_count)) {
        recycled.reserve(holders.size());  // so that giving pages back never allocates
    }

    // ---- pages ----------------------------------------------------------------------------------------------------------------------------

    int64_t pages_for(int64_t length) const noexcept { return (length + layout.page_tokens - 1) / layout.page_tokens; }
    int32_t free_pages() const noexcept { return page_count - fresh + static_cast<int32_t>(recycled.size()); }
    kv_pages layer_pages(int32_t layer) const noexcept { return {base + layer * page_count * page_bytes, layout, page_count}; }

    // Precondition: a page is free.
    int32_t take_page() noexcept {
        int32_t page;
        if (recycled.empty()) {
            page = fresh++;
        } else {
            page = recycled.back();
            recycled.pop_back();
        }
        holders[static_cast<std::size_t>(page)] = 1;
        return page;
    }

    void add_holder(int32_t page) noexcept {
        if (++holders[static_cast<std::size_t>(page)] == 2) ++shared_pages;
    }

    void drop_holder(int32_t page) noexcept {
        const int32_t left = --holders[static_cast<std::size_t>(page)];
        if (left == 1) --shared_pages;
        if (left == 0) recycled.push_back(page);
    }

    // Drops the pages from index `kept` on, last first, so that the next to take them gets them in ascending order of the sequence.
    void drop_pages(sequence_state& s, int64_t kept) noexcept {
        while (static_cast<int64_t>(s.pages.size()) > kept) {
            drop_holder(s.pages.back());
            s.pages.pop_back();
        }
    }

    void take_pages(sequence_state& s, int64_t count) noexcept {
        for (int64_t i = 0; i < count; ++i) s.pages.push_back(take_page());
    }

    status check_free(int64_t missing) const noexcept {
        if (missing <= free_pages()) return {};
        return refuse(status_code::out_of_pages, "%lld more pages are needed; %d of %d are free", number{missing}, free_pages(), page_count);
    }

    bool partly_filled(const sequence_state& s) const noexcept { return s.length % layout.page_tokens != 0; }
    int32_t last_page(const sequence_state& s) const noexcept { return s.pages[static_cast<std::size_t>(pages_for(s.length) - 1)]; }
    bool must_copy(const sequence_state& s) const noexcept { return partly_filled(s) && holders[static_cast<std::size_t>(last_page(s))] > 1; }

    // Pages that the sequence has to hold to reach `length`, one more if its last page is copied first.
    int64_t missing_pages(const sequence_state& s, int64_t length, bool copy) const noexcept {
        return std::max<int64_t>(0, pages_for(length) + (copy ? 1 : 0) - static_cast<int64_t>(s.pages.size()));
    }

    // The first `count` tokens of a page in all layers: K and V by whole panels, and the scales.
    void copy_tokens(int32_t from, int32_t to, int64_t count) const noexcept {
        const int64_t panels = runtime::round_up(count, panel_tokens) / panel_tokens, page_panels = layout.page_tokens / panel_tokens;
        const auto k_bytes = static_cast<std::size_t>(layout.k_part_bytes() / page_panels * panels);
        const auto v_bytes = static_cast<std::size_t>(layout.v_part_bytes() / page_panels * panels);
        const auto scale_bytes = static_cast<std::size_t>(layout.k_scale_bytes() + layout.v_scale_bytes());
        for (int32_t layer = 0; layer < layers; ++layer) {
            const kv_pages pages = layer_pages(layer);
            for (int32_t head = 0; head < layout.kv_heads; ++head) {
                const simd::kv_part to_k = runtime::k_part(pages, to, head), from_k = runtime::k_part(pages, from, head);
                std::memcpy(to_k.elements, from_k.elements, k_bytes);
                std::memcpy(runtime::v_part(pages, to, head).elements, runtime::v_part(pages, from, head).elements, v_bytes);
                std::memcpy(to_k.scales, from_k.scales, scale_bytes);
            }
        }
    }

    // ---- sequences ------------------------------------------------------------------------------------------------------------------------

    // An id is generation * 2^32 + index; a generation counts the uses of an entry of the table, from 1.
    sequence_id id_of(std::size_t index) const noexcept {
        return static_cast<sequence_id>(int64_t{sequences[index].generation} << 32 | static_cast<int64_t>(index));
    }

    sequence_state* find(sequence_id id) noexcept { return const_cast<sequence_state*>(std::as_const(*this).find(id)); }
    const sequence_state* find(sequence_id id) const noexcept {
        const uint64_t bits = static_cast<uint64_t>(id);
        const std::size_t index = bits & 0xffffffffu;
        if (index >= sequences.size()) return nullptr;
        const sequence_state& s = sequences[index];
        return s.alive && static_cast<uint64_t>(s.generation) == bits >> 32 ? &s : nullptr;
    }

    // Makes an entry available without using it: vacant.back() is its index. May throw bad_alloc, and then has changed nothing that shows.
    void make_vacant() {
        if (!vacant.empty()) return;
        grow(vacant, sequences.size() + 1);  // so that freeing sequences never allocates
        grow(sequences, sequences.size() + 1);
        vacant.push_back(static_cast<int32_t>(sequences.size()));
        sequences.emplace_back();
    }

    sequence_id occupy(int64_t first_position) noexcept {
        const std::size_t index = static_cast<std::size_t>(vacant.back());
        vacant.pop_back();
        sequences[index].first_position = first_position;
        sequences[index].alive = true;
        ++alive;
        return id_of(index);
    }

    void vacate(sequence_state& s) noexcept {
        drop_pages(s, 0);
        tokens -= s.length;
        --alive;
        const int32_t next_generation = s.generation + 1;
        s = sequence_state{};
        s.generation = next_generation;
        // An entry whose generations are used up stays empty for good: 64 bytes for each 2^31 sequences.
        constexpr int32_t last_generation = std::numeric_limits<int32_t>::max();
        if (next_generation < last_generation) vacant.push_back(static_cast<int32_t>(&s - sequences.data()));
    }

    // ---- append ---------------------------------------------------------------------------------------------------------------------------

    static status check_tokens(const sequence_state& s, int64_t tokens) noexcept {
        if (tokens < 0) return refuse(status_code::invalid_argument, "tokens is %lld; must be >= 0", number{tokens});
        const int64_t next = s.first_position + s.length;
        if (tokens <= position_limit - next) return {};
        return refuse(status_code::out_of_range, "tokens is %lld; from position %lld on, positions beyond 2^31 - 1 would be needed", number{tokens},
                      number{next});
    }

    // Fills `steps`, copy flags excepted, and checks everything that does not depend on free pages.
    status plan_steps(std::span<const append_request> requests, std::size_t slots, std::size_t positions) {
        steps.clear();
        grow(steps, requests.size());
        ++append_calls;
        int64_t total = 0;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            sequence_state* s = find(requests[i].sequence);
            status valid = s != nullptr ? check_tokens(*s, requests[i].tokens) : no_sequence(requests[i].sequence);
            if (valid.ok() && s->named_by == append_calls) {
                valid =
                    refuse(status_code::invalid_argument, "sequence is %lld; it must be named only once", static_cast<number>(requests[i].sequence));
            }
            if (!valid.ok()) return refuse(valid.code(), "requests[%zu].%s", i, valid.text());
            s->named_by = append_calls;
            total += requests[i].tokens;  // at most 2^31 for each of fewer than 2^31 sequences
            if (requests[i].tokens != 0) steps.push_back({s, requests[i].tokens, false});
        }
        if (slots != static_cast<std::size_t>(total)) {
            return refuse(status_code::invalid_argument, "slots.size() is %zu; must be the sum of all tokens, %lld", slots, number{total});
        }
        if (positions != 0 && positions != static_cast<std::size_t>(total)) {
            return refuse(status_code::invalid_argument, "positions.size() is %zu; must be 0 or the sum of all tokens, %lld", positions,
                          number{total});
        }
        for (const append_step& step : steps) grow_page_table(*step.sequence, step.sequence->length + step.tokens);
        return {};
    }

    // Room for the pages of `length` tokens and for one that is about to be copied, so that nothing below allocates.
    void grow_page_table(sequence_state& s, int64_t length) const {
        // A request beyond the pool is refused for want of pages; it must not ask the host for a table of its size first.
        grow(s.pages, static_cast<std::size_t>(std::min<int64_t>(pages_for(length), page_count)) + 1);
    }

    // Decides which steps copy their last page and leaves these pages; undone if the pool cannot serve all steps. One step after the other, because a
    // page that two of them share is copied by the first and then belongs to the second alone.
    status claim_pages() noexcept {
        int64_t missing = 0;
        for (append_step& step : steps) {
            step.copy = must_copy(*step.sequence);
            if (step.copy) drop_holder(last_page(*step.sequence));
            missing += missing_pages(*step.sequence, step.sequence->length + step.tokens, step.copy);
        }
        const status enough = check_free(missing);
        if (enough.ok()) return enough;
        for (const append_step& step : steps) {
            if (step.copy) add_holder(last_page(*step.sequence));
        }
        return enough;
    }

    void extend(const append_step& step) noexcept {
        sequence_state& s = *step.sequence;
        const int64_t length = s.length + step.tokens;
        take_pages(s, missing_pages(s, length, step.copy));
        if (step.copy) {
            const int32_t copy = s.pages.back();
            s.pages.pop_back();
            int32_t& last = s.pages[static_cast<std::size_t>(pages_for(s.length) - 1)];
            copy_tokens(last, copy, s.length % layout.page_tokens);
            last = copy;
        }
        s.length = length;
        s.promised = std::max(s.promised, length);
        tokens += step.tokens;
    }

    // ---- reading --------------------------------------------------------------------------------------------------------------------------

    status check_batch(std::span<const sequence_id> ids, std::span<const int64_t> q_lens) const noexcept {
        if (q_lens.size() != ids.size()) {
            return refuse(status_code::invalid_argument, "q_lens.size() is %zu; must be sequences.size(), %zu", q_lens.size(), ids.size());
        }
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const sequence_state* s = find(ids[i]);
            if (s == nullptr) {
                return refuse(status_code::not_found, "sequences[%zu] is %lld; the cache has none of this id", i, static_cast<number>(ids[i]));
            }
            if (q_lens[i] < 0 || q_lens[i] > s->length) {
                return refuse(status_code::out_of_range, "q_lens[%zu] is %lld; must be 0 .. %lld, the length of the sequence", i, number{q_lens[i]},
                              number{s->length});
            }
        }
        return {};
    }

    // Empties the storage and makes room for the batch.
    void grow_batch(std::span<const sequence_id> ids, batch_storage& storage) const {
        std::size_t page_total = 0;
        for (const sequence_id id : ids) page_total += static_cast<std::size_t>(pages_for(find(id)->length));
        for (auto* values : {&storage.q_indptr, &storage.page_indptr, &storage.kv_lens, &storage.q_starts}) {
            values->clear();
            grow(*values, ids.size() + 1);
        }
        storage.page_ids.clear();
        grow(storage.page_ids, page_total);
    }

    // Precondition: first + slots.size() <= length.
    void write_slots(const sequence_state& s, int64_t first, std::span<int64_t> slots) const noexcept {
        for (std::size_t i = 0; i < slots.size(); ++i) {
            const int64_t token = first + static_cast<int64_t>(i);
            slots[i] = int64_t{s.pages[static_cast<std::size_t>(token / layout.page_tokens)]} * layout.page_tokens + token % layout.page_tokens;
        }
    }
};

// ---- the public class -----------------------------------------------------------------------------------------------------------------------

kv_cache::kv_cache(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
kv_cache::kv_cache(kv_cache&&) noexcept = default;
kv_cache& kv_cache::operator=(kv_cache&&) noexcept = default;
kv_cache::~kv_cache() = default;

result<int64_t> kv_cache::required_bytes(const kv_cache_config& config) noexcept {
    const status valid = check_config(config);
    if (!valid.ok()) return valid;
    const int64_t page_bytes = config.layout.page_stride_bytes();
    int64_t bytes = 0;
    if (__builtin_mul_overflow(page_bytes, int64_t{config.page_count}, &bytes) || __builtin_mul_overflow(bytes, int64_t{config.layers}, &bytes)) {
        return refuse(status_code::invalid_argument, "page_count is %d, layers is %d, a page has %lld bytes; their product must be below 2^63",
                      config.page_count, config.layers, number{page_bytes});
    }
    return bytes;
}

result<kv_cache> kv_cache::create(const kv_cache_config& config) noexcept try {
    const result<int64_t> required = required_bytes(config);
    if (!required.ok()) return required.state();
    if (!config.memory.empty()) {
        const status valid = check_memory(config.memory, *required);
        if (!valid.ok()) return valid;
    }
    result<runtime::mapped_memory> mapped = runtime::mapped_memory::create(config.memory.empty() ? *required : 0);
    if (!mapped.ok()) return mapped.state();
    auto made = std::make_unique<state>(config);
    made->base = config.memory.empty() ? mapped->data() : config.memory.data();
    made->own_memory = std::move(*mapped);
    return kv_cache(std::move(made));
} catch (const std::bad_alloc&) {
    return refuse(status_code::out_of_memory, "the host has no memory for the tables of %d pages", config.page_count);
}

result<sequence_id> kv_cache::create_sequence(int64_t first_position) noexcept try {
    if (first_position < 0 || first_position >= position_limit) {
        return refuse(status_code::out_of_range, "first_position is %lld; must be 0 .. 2^31 - 1", number{first_position});
    }
    state_->make_vacant();
    return state_->occupy(first_position);
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "the host has no memory for another sequence");
}

result<sequence_id> kv_cache::fork(sequence_id parent) noexcept try {
    state& s = *state_;
    if (s.find(parent) == nullptr) return no_sequence(parent);
    s.make_vacant();  // before the references below: the table may move
    sequence_state& from = *s.find(parent);
    const auto shared_end = from.pages.begin() + s.pages_for(from.length);
    std::vector<int32_t> shared(from.pages.begin(), shared_end);
    if (from.promised > from.length) {
        // What was promised to the parent includes the copy of the page that is shared from now on.
        const int64_t missing = s.missing_pages(from, from.promised, s.partly_filled(from));
        const status enough = s.check_free(missing);
        if (!enough.ok()) return enough;
        s.grow_page_table(from, from.promised);
        s.take_pages(from, missing);
    }
    const sequence_id id = s.occupy(from.first_position);
    sequence_state& child = *s.find(id);
    for (const int32_t page : shared) s.add_holder(page);
    child.pages = std::move(shared);
    child.length = child.promised = from.length;
    s.tokens += child.length;
    return id;
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "the host has no memory for another sequence");
}

status kv_cache::free(sequence_id sequence) noexcept {
    sequence_state* s = state_->find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    state_->vacate(*s);
    return {};
}

status kv_cache::reserve(sequence_id sequence, int64_t tokens) noexcept try {
    sequence_state* s = state_->find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    const status valid = state::check_tokens(*s, tokens);
    if (!valid.ok()) return valid;
    if (tokens == 0) return {};
    const int64_t length = std::max(s->promised, s->length + tokens);
    const int64_t missing = state_->missing_pages(*s, length, state_->must_copy(*s));
    const status enough = state_->check_free(missing);
    if (!enough.ok()) return enough;
    state_->grow_page_table(*s, length);
    state_->take_pages(*s, missing);
    s->promised = length;
    return {};
} catch (const std::bad_alloc&) {
    return refuse(status_code::out_of_memory, "the host has no memory for the page table of %lld tokens", number{tokens});
}

status kv_cache::append(std::span<const append_request> requests, std::span<int64_t> slots, std::span<int64_t> positions) noexcept try {
    status accepted = state_->plan_steps(requests, slots.size(), positions.size());
    if (accepted.ok()) accepted = state_->claim_pages();
    if (!accepted.ok()) return accepted;
    std::size_t row = 0;
    for (const state::append_step& step : state_->steps) {
        const sequence_state& s = *step.sequence;
        const int64_t first = s.length;
        const std::size_t count = static_cast<std::size_t>(step.tokens);
        state_->extend(step);
        state_->write_slots(s, first, slots.subspan(row, count));
        for (std::size_t i = 0; i < count && !positions.empty(); ++i) positions[row + i] = s.first_position + first + static_cast<int64_t>(i);
        row += count;
    }
    return {};
} catch (const std::bad_alloc&) {
    return refuse(status_code::out_of_memory, "the host has no memory for the page tables of %zu requests", requests.size());
}

status kv_cache::truncate(sequence_id sequence, int64_t length) noexcept {
    sequence_state* s = state_->find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    if (length < 0 || length > s->length) {
        return refuse(status_code::out_of_range, "length is %lld; must be 0 .. %lld, the current length", number{length}, number{s->length});
    }
    state_->drop_pages(*s, state_->pages_for(length));
    state_->tokens -= s->length - length;
    s->length = s->promised = length;
    return {};
}

result<int64_t> kv_cache::trim_front(sequence_id sequence, int64_t tokens) noexcept {
    sequence_state* s = state_->find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    if (tokens < 0 || tokens > s->length) {
        return refuse(status_code::out_of_range, "tokens is %lld; must be 0 .. %lld, the current length", number{tokens}, number{s->length});
    }
    const int64_t pages = tokens / state_->layout.page_tokens, gone = pages * state_->layout.page_tokens;
    for (int64_t i = pages; i-- > 0;) state_->drop_holder(s->pages[static_cast<std::size_t>(i)]);
    s->pages.erase(s->pages.begin(), s->pages.begin() + pages);
    s->first_position += gone;
    s->length -= gone;
    s->promised -= gone;
    state_->tokens -= gone;
    return gone;
}

result<int64_t> kv_cache::length(sequence_id sequence) const noexcept {
    const sequence_state* s = std::as_const(*state_).find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    return s->length;
}

result<int64_t> kv_cache::next_position(sequence_id sequence) const noexcept {
    const sequence_state* s = std::as_const(*state_).find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    return s->first_position + s->length;
}

result<std::span<const int32_t>> kv_cache::page_table(sequence_id sequence) const noexcept {
    const sequence_state* s = std::as_const(*state_).find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    return std::span<const int32_t>(s->pages.data(), static_cast<std::size_t>(state_->pages_for(s->length)));
}

status kv_cache::slots(sequence_id sequence, int64_t first, std::span<int64_t> slots) const noexcept {
    const sequence_state* s = std::as_const(*state_).find(sequence);
    if (s == nullptr) return no_sequence(sequence);
    if (first < 0 || first > s->length || slots.size() > static_cast<std::size_t>(s->length - first)) {
        return refuse(status_code::out_of_range, "first is %lld, slots.size() is %zu; must lie within the %lld tokens of the sequence", number{first},
                      slots.size(), number{s->length});
    }
    state_->write_slots(*s, first, slots);
    return {};
}

const kv_layout& kv_cache::layout() const noexcept { return state_->layout; }
int32_t kv_cache::layers() const noexcept { return state_->layers; }
kv_pages kv_cache::pages(int32_t layer) const noexcept { return state_->layer_pages(layer); }

kv_cache_stats kv_cache::stats() const noexcept {
    const state& s = *state_;
    kv_cache_stats stats;
    stats.total_pages = s.page_count;
    stats.free_pages = s.free_pages();
    stats.shared_pages = s.shared_pages;
    stats.sequences = s.alive;
    stats.tokens = s.tokens;
    stats.used_bytes = (s.page_count - stats.free_pages) * s.page_bytes * s.layers;
    stats.total_bytes = s.page_count * s.page_bytes * s.layers;
    return stats;
}

result<attention_batch> kv_cache::batch(std::span<const sequence_id> sequences, std::span<const int64_t> q_lens,
                                        batch_storage& storage) const noexcept try {
    const status valid = state_->check_batch(sequences, q_lens);
    if (!valid.ok()) return valid;
    state_->grow_batch(sequences, storage);
    storage.q_indptr.assign(1, 0);
    storage.page_indptr.assign(1, 0);
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const sequence_state& s = *std::as_const(*state_).find(sequences[i]);
        storage.q_indptr.push_back(storage.q_indptr.back() + q_lens[i]);
        storage.kv_lens.push_back(s.length);
        storage.q_starts.push_back(s.length - q_lens[i]);
        storage.page_ids.insert(storage.page_ids.end(), s.pages.begin(), s.pages.begin() + state_->pages_for(s.length));
        storage.page_indptr.push_back(static_cast<int64_t>(storage.page_ids.size()));
    }
    attention_batch batch;
    batch.q_indptr = storage.q_indptr;
    batch.kv_lens = storage.kv_lens;
    batch.q_starts = storage.q_starts;
    batch.page_indptr = storage.page_indptr;
    batch.page_ids = storage.page_ids;
    return batch;
} catch (const std::bad_alloc&) {
    return refuse(status_code::out_of_memory, "the host has no memory for the page tables of %zu sequences", sequences.size());
}

}  // namespace ropewalk
