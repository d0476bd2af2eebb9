// Level 2: a KV cache that keeps pages, page tables and positions for the caller.
//
// All layers share one page table per sequence: page id p of layer l lies at memory + l * layer_bytes + p * page_bytes. A step is
//   append()             reserves slots for new tokens of any number of sequences, all or nothing
//   kv_append(pages(l))  writes K and V of each layer into these slots, rope fused in
//   batch()              describes the sequences to attention_plan::build
//
// One thread at a time may change a cache; const calls and writing into pages may run concurrently with each other. A cache that was moved from
// may be assigned to or destroyed, nothing else.
//
// Pages go out in the order last freed, first used; pages never used yet come last. A page just freed is the likeliest to lie in a processor's
// cache, and the memory that is resident stays at what was in use at the worst moment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <ropewalk/attention.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/kv_pages.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// What create() makes.
struct kv_cache_config {
    kv_layout layout;        // strides 0
    int32_t layers = 0;      // >= 1
    int32_t page_count = 0;  // >= 1; pages of the pool, each holds page_tokens tokens of every layer
    // The caller's memory, 64-byte aligned, at least kv_cache::required_bytes(); empty: the cache maps its own, in huge pages where the system has
    // them, untouched until written.
    std::span<std::byte> memory;
};

// Handle of a sequence. Ids are not reused within a cache, so a stale one is recognised (not_found); a value-initialised one never names a sequence.
enum class sequence_id : int64_t {};

// What a cache holds now.
struct kv_cache_stats {
    int32_t total_pages = 0;
    int32_t free_pages = 0;    // pages set aside by reserve() are not free
    int32_t shared_pages = 0;  // pages held by more than one sequence
    int32_t sequences = 0;
    int64_t tokens = 0;      // sum of the sequences' lengths; a shared token counts once per sequence
    int64_t used_bytes = 0;  // pages that are not free, all layers
    int64_t total_bytes = 0;
};

// Sequences over one pool of pages: a movable handle.
class ROPEWALK_API kv_cache {
public:
    // layers * page_count * page bytes; config.memory is not looked at.
    static result<int64_t> required_bytes(const kv_cache_config& config) noexcept;
    // invalid_argument for a layout that is not valid or has strides, layers or page_count < 1, sizes beyond 2^63 and memory that is too small or not
    // aligned; out_of_memory. No page is touched.
    static result<kv_cache> create(const kv_cache_config& config) noexcept;

    kv_cache(kv_cache&&) noexcept;
    kv_cache& operator=(kv_cache&&) noexcept;
    ~kv_cache();

    // An empty sequence whose first token gets position first_position, 0 .. 2^31 - 1.
    result<sequence_id> create_sequence(int64_t first_position = 0) noexcept;
    // A new sequence with the same tokens, sharing all pages; the partly filled last page is copied when either of them appends (copy on write).
    // Reserved pages stay the parent's. Only where the parent has some and its last page is partly filled, one page more is set aside, which is
    // what keeps the promise of reserve(), and out_of_pages is possible.
    result<sequence_id> fork(sequence_id parent) noexcept;
    // Returns the pages that nobody else holds.
    status free(sequence_id sequence) noexcept;

    // Makes sure that `tokens` more tokens can be appended to the sequence without asking for pages, e.g. before a long prefill, and without
    // allocating. Pages set aside are nobody else's until the sequence is freed or truncated. out_of_pages changes nothing.
    status reserve(sequence_id sequence, int64_t tokens) noexcept;

    // So many tokens more for a sequence.
    struct append_request {
        sequence_id sequence{};
        int64_t tokens = 0;  // >= 0
    };
    // Reserves slots for all requests or, with out_of_pages, changes nothing. slots and positions receive one entry per token in request order;
    // positions may be empty. A sequence may be named once. Pages shared with a fork are copied here, before the slots are handed out: only
    // what kv_append has written by then is in the copy. out_of_range for positions beyond 2^31 - 1. Allocates only where the page table of a
    // sequence outgrows what it ever held or was reserved, and at a longer list of requests than ever before.
    // Costs some 20 ns a sequence, and 0.9 ms where it copies a full-size page: 63 tokens, 32 layers, 8 heads of 128, bf16: 8.3 MB (one EPYC core).
    status append(std::span<const append_request> requests, std::span<int64_t> slots, std::span<int64_t> positions) noexcept;

    // Forgets all tokens from `length` on (rollback of drafted tokens). length may not exceed the current one. Whole pages beyond it are returned,
    // reserved ones too: truncating to the current length ends a reservation. Never needs a page: a last page that is shared stays
    // shared until the next append.
    status truncate(sequence_id sequence, int64_t length) noexcept;

    // Forgets tokens at the front that no later query sees (sliding windows): the whole pages within the first `tokens`, which are returned where
    // nobody else holds them. Gives how many tokens went, a multiple of page_tokens; the sequence is that much shorter and starts at that much larger
    // a position: the next token's is what it was. tokens may not exceed the length. Reservations stay.
    result<int64_t> trim_front(sequence_id sequence, int64_t tokens) noexcept;

    // Tokens that a sequence has.
    [[nodiscard]] result<int64_t> length(sequence_id sequence) const noexcept;
    // Position that the next appended token gets.
    [[nodiscard]] result<int64_t> next_position(sequence_id sequence) const noexcept;
    // The pages that hold tokens, in order, without reserved ones. Valid until the next change of this sequence.
    [[nodiscard]] result<std::span<const int32_t>> page_table(sequence_id sequence) const noexcept;
    // Slots of tokens [first, first + slots.size()), e.g. for kv_gather.
    status slots(sequence_id sequence, int64_t first, std::span<int64_t> slots) const noexcept;

    // As the cache was created.
    [[nodiscard]] const kv_layout& layout() const noexcept;
    [[nodiscard]] int32_t layers() const noexcept;
    // The pool of one layer. Precondition: 0 <= layer < layers().
    [[nodiscard]] kv_pages pages(int32_t layer) const noexcept;
    // Counted while it changes: costs nothing.
    [[nodiscard]] kv_cache_stats stats() const noexcept;

    // Memory behind a batch, to be kept from step to step.
    struct batch_storage {
        std::vector<int64_t> q_indptr, kv_lens, q_starts, page_indptr;
        std::vector<int32_t> page_ids;
    };
    // Gathers page tables and lengths of `sequences`, in order, as attention_plan wants them: query tokens of sequence i are its last
    // q_lens[i] tokens, 0 <= q_lens[i] <= length. q_starts count from the sequence's first key, whatever its first position. A sequence may be
    // named more than once. The spans of the result point into `storage`, whose memory is reused; a refused call leaves it alone.
    [[nodiscard]] result<attention_batch> batch(std::span<const sequence_id> sequences, std::span<const int64_t> q_lens,
                                                batch_storage& storage) const noexcept;

private:
    struct state;
    explicit kv_cache(std::unique_ptr<state> s) noexcept;
    std::unique_ptr<state> state_;
};

}  // namespace ropewalk
