// The KV-cache manager, case by case. Names that begin with a letter and a number are rows of the field reports: faults that people met elsewhere.
// Random operations against a model: kv_cache_model_test.cpp.
#include <ropewalk/kv_cache.hpp>

#include <unistd.h>
#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/pages_memory.hpp"
#include "tests/allocations.hpp"
#include "tests/results.hpp"
#include "tests/runtime/token_store.hpp"

namespace ropewalk {
namespace {

using test::expect_refused;
using test::expect_tokens;
using test::made;
using ids = std::vector<sequence_id>;
using numbers = std::vector<int64_t>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool sanitized = false;
#endif

kv_cache_config small_config(int32_t page_tokens = 16, int32_t page_count = 32) {
    kv_cache_config config;
    config.layout = {.k_type = dtype::bf16, .v_type = dtype::fp32, .kv_heads = 2, .k_dim = 5, .v_dim = 7, .page_tokens = page_tokens};
    config.layers = 2;
    config.page_count = page_count;
    return config;
}

kv_cache make(const kv_cache_config& config) { return made(kv_cache::create(config)); }

numbers tags_from(int64_t first, int64_t count) {
    numbers tags(static_cast<std::size_t>(count));
    std::iota(tags.begin(), tags.end(), first);
    return tags;
}

// Appends tokens of these tags and returns their slots.
numbers append_tags(kv_cache& cache, sequence_id sequence, const numbers& tags) {
    numbers slots(tags.size(), -7);
    const kv_cache::append_request request{sequence, static_cast<int64_t>(tags.size())};
    const status appended = cache.append({&request, 1}, slots, {});
    EXPECT_TRUE(appended.ok()) << appended.text();
    test::store_tokens(cache, slots, tags);
    return slots;
}

std::vector<int32_t> table_of(const kv_cache& cache, sequence_id sequence) {
    const auto table = cache.page_table(sequence);
    EXPECT_TRUE(table.ok()) << table.state().text();
    return {table->begin(), table->end()};
}

void expect_equal(const kv_cache_stats& a, const kv_cache_stats& b) {
    EXPECT_EQ(a.total_pages, b.total_pages);
    EXPECT_EQ(a.free_pages, b.free_pages);
    EXPECT_EQ(a.shared_pages, b.shared_pages);
    EXPECT_EQ(a.sequences, b.sequences);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.used_bytes, b.used_bytes);
    EXPECT_EQ(a.total_bytes, b.total_bytes);
}

// Memory of this process; 0 where the system does not say.
struct process_memory {
    int64_t mapped = 0, resident = 0;
    process_memory() {
        std::ifstream("/proc/self/statm") >> mapped >> resident;
        mapped *= sysconf(_SC_PAGESIZE);
        resident *= sysconf(_SC_PAGESIZE);
    }
};
int64_t resident_bytes() { return process_memory().resident; }

// ---- creation ---------------------------------------------------------------------------------------------------------------------------------

TEST(kv_cache, refuses_configurations_with_the_reason) {
    const auto refused = [](auto change, const char* part) {
        kv_cache_config config = small_config();
        change(config);
        expect_refused(kv_cache::create(config).state(), status_code::invalid_argument, part);
        expect_refused(kv_cache::required_bytes(config).state(), status_code::invalid_argument, part);
    };
    refused([](auto& c) { c.layers = 0; }, "layers is 0");
    refused([](auto& c) { c.layers = -1; }, "layers is -1");
    refused([](auto& c) { c.page_count = 0; }, "page_count is 0");
    refused([](auto& c) { c.page_count = -5; }, "page_count is -5");
    refused([](auto& c) { c.layout.kv_heads = 0; }, "kv_heads");
    refused([](auto& c) { c.layout.k_dim = 0; }, "k_dim");
    refused([](auto& c) { c.layout.v_dim = 1025; }, "v_dim");
    refused([](auto& c) { c.layout.k_type = static_cast<dtype>(9); }, "k_type");
    refused([](auto& c) { c.layout.head_stride = 4096; }, "head_stride is 4096");
    refused([](auto& c) { c.layout.page_stride = 1 << 20; }, "page_stride is 1048576");
    const auto huge = [](auto& c) { c.layers = c.page_count = c.layout.kv_heads = std::numeric_limits<int32_t>::max(); };
    refused(huge, "2^63");
}

// G11: each page size is either refused at creation, with the rule, or works to the end.
TEST(kv_cache, G11_page_sizes) {
    for (const int32_t size : {0, -1, 1, 3, 24, 48, 512, 768}) {
        SCOPED_TRACE(size);
        const status refused = kv_cache::create(small_config(size)).state();
        expect_refused(refused, status_code::invalid_argument, "page_tokens is " + std::to_string(size));
        expect_refused(refused, status_code::invalid_argument, "16, 32, 64, 128 or 256");
    }
    for (const int32_t size : {16, 32, 64, 128, 256}) {
        SCOPED_TRACE(size);
        kv_cache cache = make(small_config(size));
        const sequence_id a = *cache.create_sequence();
        const numbers tags = tags_from(1, 3 * size + 5);
        append_tags(cache, a, tags);
        expect_tokens(cache, a, tags);
        EXPECT_EQ(cache.page_table(a)->size(), 4u);
    }
}

TEST(kv_cache, memory_of_the_caller) {
    kv_cache_config config = small_config();
    const int64_t required = *kv_cache::required_bytes(config);
    EXPECT_EQ(required, int64_t{config.layers} * config.page_count * config.layout.page_stride_bytes());
    auto memory = runtime::mapped_memory::create(required + 64);
    ASSERT_TRUE(memory.ok());
    const std::span<std::byte> bytes = memory->bytes();
    const std::size_t exact = static_cast<std::size_t>(required);

    config.memory = bytes.first(exact - 1);
    expect_refused(kv_cache::create(config).state(), status_code::invalid_argument, "memory.size()");
    config.memory = bytes.subspan(32, exact);
    expect_refused(kv_cache::create(config).state(), status_code::invalid_argument, "memory.data()");
    config.memory = {static_cast<std::byte*>(nullptr), exact};
    expect_refused(kv_cache::create(config).state(), status_code::invalid_argument, "memory.data()");

    config.memory = bytes.subspan(64, exact);
    kv_cache cache = make(config);
    EXPECT_EQ(cache.pages(0).base, config.memory.data());
    EXPECT_EQ(cache.pages(1).base, config.memory.data() + required / 2);
    EXPECT_EQ(cache.pages(1).count, config.page_count);
    EXPECT_EQ(cache.stats().total_bytes, required);
    const sequence_id a = *cache.create_sequence();
    const numbers tags = tags_from(0, 32 * 16);  // every page of the pool
    append_tags(cache, a, tags);
    expect_tokens(cache, a, tags);
}

TEST(kv_cache, reports_what_it_was_made_of) {
    const kv_cache_config config = small_config(32, 10);
    const kv_cache cache = make(config);
    EXPECT_EQ(cache.layers(), 2);
    EXPECT_EQ(cache.layout().page_tokens, 32);
    EXPECT_EQ(cache.layout().k_type, dtype::bf16);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(cache.pages(0).base) % runtime::mapped_memory::alignment, 0u);
    const kv_cache_stats stats = cache.stats();
    EXPECT_EQ(stats.total_pages, 10);
    EXPECT_EQ(stats.free_pages, 10);
    EXPECT_EQ(stats.used_bytes, 0);
    EXPECT_EQ(stats.total_bytes, *kv_cache::required_bytes(config));
}

// ---- sequences --------------------------------------------------------------------------------------------------------------------------------

TEST(kv_cache, slots_and_positions_follow_the_pages) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(100);
    EXPECT_EQ(*cache.length(a), 0);
    EXPECT_EQ(*cache.next_position(a), 100);
    numbers slots(20), positions(20);
    const kv_cache::append_request request{a, 20};
    ASSERT_TRUE(cache.append({&request, 1}, slots, positions).ok());
    const std::vector<int32_t> table = table_of(cache, a);
    ASSERT_EQ(table.size(), 2u);
    for (std::size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(slots[i], table[i / 16] * 16 + static_cast<int64_t>(i % 16));
        EXPECT_EQ(positions[i], 100 + static_cast<int64_t>(i));
    }
    EXPECT_EQ(*cache.next_position(a), 120);
    numbers some(7);
    ASSERT_TRUE(cache.slots(a, 13, some).ok());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), slots.begin() + 13));
    EXPECT_EQ(cache.stats().tokens, 20);
    EXPECT_EQ(cache.stats().used_bytes, 2 * 2 * cache.layout().page_stride_bytes());
}

TEST(kv_cache, slots_outside_the_sequence_are_refused) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 10));
    numbers slots(3, -7);
    for (const int64_t first : {int64_t{-1}, int64_t{8}, int64_t{11}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
        expect_refused(cache.slots(a, first, slots), status_code::out_of_range, "first is");
    }
    EXPECT_EQ(slots, numbers(3, -7));
    EXPECT_TRUE(cache.slots(a, 7, slots).ok());
    EXPECT_TRUE(cache.slots(a, 10, {}).ok());
}

// E11 in our terms: no wildcard; an id that names nothing is a status everywhere, and never what another sequence now is.
TEST(kv_cache, E11_unknown_ids) {
    kv_cache cache = make(small_config());
    const sequence_id gone = *cache.create_sequence();
    append_tags(cache, gone, tags_from(0, 5));
    ASSERT_TRUE(cache.free(gone).ok());
    const sequence_id heir = *cache.create_sequence();  // takes the entry of `gone`
    const kv_cache_stats before = cache.stats();
    for (const sequence_id id : {gone, sequence_id{}, sequence_id{-1}, sequence_id{999}, sequence_id{std::numeric_limits<int64_t>::max()},
                                 sequence_id{std::numeric_limits<int64_t>::min()}, sequence_id{static_cast<int64_t>(heir) + 1}}) {
        SCOPED_TRACE(static_cast<int64_t>(id));
        const std::string text = std::to_string(static_cast<int64_t>(id));
        numbers slots(1);
        const kv_cache::append_request request{id, 1};
        kv_cache::batch_storage storage;
        const int64_t q_len = 0;
        expect_refused(cache.free(id), status_code::not_found, text);
        expect_refused(cache.fork(id).state(), status_code::not_found, text);
        expect_refused(cache.reserve(id, 1), status_code::not_found, text);
        expect_refused(cache.append({&request, 1}, slots, {}), status_code::not_found, "requests[0].sequence is " + text);
        expect_refused(cache.truncate(id, 0), status_code::not_found, text);
        expect_refused(cache.length(id).state(), status_code::not_found, text);
        expect_refused(cache.next_position(id).state(), status_code::not_found, text);
        expect_refused(cache.page_table(id).state(), status_code::not_found, text);
        expect_refused(cache.slots(id, 0, slots), status_code::not_found, text);
        expect_refused(cache.batch({&id, 1}, {&q_len, 1}, storage).state(), status_code::not_found, "sequences[0] is " + text);
    }
    expect_equal(cache.stats(), before);
}

TEST(kv_cache, ids_are_never_used_twice) {
    kv_cache cache = make(small_config());
    ids seen;
    for (int i = 0; i < 1000; ++i) {
        const sequence_id a = *cache.create_sequence();
        const sequence_id b = *cache.fork(a);
        seen.insert(seen.end(), {a, b});
        ASSERT_TRUE(cache.free(i % 2 == 0 ? a : b).ok());
        ASSERT_TRUE(cache.free(i % 2 == 0 ? b : a).ok());
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(kv_cache, positions_are_bounded) {
    kv_cache cache = make(small_config());
    constexpr int64_t last = (int64_t{1} << 31) - 1;
    for (const int64_t first : {int64_t{-1}, last + 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
        expect_refused(cache.create_sequence(first).state(), status_code::out_of_range, std::to_string(first));
    }
    const sequence_id a = *cache.create_sequence(last);
    numbers slots(2), positions(2);
    const kv_cache::append_request two{a, 2}, one{a, 1};
    expect_refused(cache.append({&two, 1}, slots, positions), status_code::out_of_range, "requests[0].tokens is 2");
    expect_refused(cache.reserve(a, 2), status_code::out_of_range, "tokens is 2");
    ASSERT_TRUE(cache.append({&one, 1}, std::span(slots).first(1), std::span(positions).first(1)).ok());
    EXPECT_EQ(positions[0], last);
    EXPECT_EQ(*cache.next_position(a), last + 1);
}

TEST(kv_cache, append_refuses_and_changes_nothing) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 5));
    const kv_cache_stats before = cache.stats();
    numbers slots(4, -7), positions(4, -7);
    using requests = std::vector<kv_cache::append_request>;
    const auto refused = [&](const requests& list, std::size_t slot_count, std::size_t position_count, status_code code, const char* part) {
        expect_refused(cache.append(list, std::span(slots).first(slot_count), std::span(positions).first(position_count)), code, part);
        expect_equal(cache.stats(), before);
        EXPECT_EQ(*cache.length(a), 5);
        EXPECT_EQ(slots, numbers(4, -7));
        EXPECT_EQ(positions, numbers(4, -7));
    };
    refused({{a, 2}, {b, -1}}, 2, 0, status_code::invalid_argument, "requests[1].tokens is -1");
    refused({{a, 2}, {b, 1}, {a, 1}}, 4, 0, status_code::invalid_argument, "requests[2].sequence is");
    refused({{a, 2}, {a, 0}}, 2, 0, status_code::invalid_argument, "only once");
    refused({{a, 2}, {b, 1}}, 2, 0, status_code::invalid_argument, "slots.size() is 2");
    refused({{a, 2}, {b, 1}}, 4, 0, status_code::invalid_argument, "slots.size() is 4");
    refused({{a, 2}, {b, 1}}, 3, 2, status_code::invalid_argument, "positions.size() is 2");
    refused({{a, int64_t{1} << 40}}, 0, 0, status_code::out_of_range, "requests[0].tokens is");
    refused({{a, std::numeric_limits<int64_t>::max()}}, 0, 0, status_code::out_of_range, "requests[0].tokens is");
    // The same list is taken once it is right.
    const requests list{{a, 2}, {b, 1}};
    EXPECT_TRUE(cache.append(list, std::span(slots).first(3), std::span(positions).first(3)).ok());
    EXPECT_EQ(positions, (numbers{5, 6, 0, -7}));
}

// D01 in our terms: nothing, in every argument that may be nothing.
TEST(kv_cache, D01_zero_sizes) {
    kv_cache cache = make(small_config());
    EXPECT_TRUE(cache.append({}, {}, {}).ok());
    const sequence_id a = *cache.create_sequence();
    const kv_cache::append_request none{a, 0};
    EXPECT_TRUE(cache.append({&none, 1}, {}, {}).ok());
    EXPECT_TRUE(cache.reserve(a, 0).ok());
    EXPECT_TRUE(cache.truncate(a, 0).ok());
    EXPECT_TRUE(cache.page_table(a)->empty());
    EXPECT_TRUE(cache.slots(a, 0, {}).ok());
    const sequence_id b = *cache.fork(a);
    EXPECT_EQ(*cache.length(b), 0);
    EXPECT_EQ(cache.stats().free_pages, 32);
    // A shared last page is not copied for nothing.
    append_tags(cache, a, tags_from(0, 3));
    const sequence_id c = *cache.fork(a);
    EXPECT_TRUE(cache.append({&none, 1}, {}, {}).ok());
    EXPECT_EQ(table_of(cache, a), table_of(cache, c));

    kv_cache::batch_storage storage;
    const auto empty = cache.batch({}, {}, storage);
    ASSERT_TRUE(empty.ok());
    EXPECT_EQ(numbers(empty->q_indptr.begin(), empty->q_indptr.end()), numbers{0});
    EXPECT_EQ(numbers(empty->page_indptr.begin(), empty->page_indptr.end()), numbers{0});
    const int64_t q_len = 0;
    const auto one = cache.batch({&b, 1}, {&q_len, 1}, storage);
    ASSERT_TRUE(one.ok());
    EXPECT_EQ(one->kv_lens[0], 0);
    EXPECT_TRUE(one->page_ids.empty());
}

TEST(kv_cache, pages_go_out_last_freed_first) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 48));
    append_tags(cache, b, tags_from(0, 16));
    EXPECT_EQ(table_of(cache, a), (std::vector<int32_t>{0, 1, 2}));
    ASSERT_TRUE(cache.free(a).ok());
    const sequence_id c = *cache.create_sequence();
    append_tags(cache, c, tags_from(0, 64));
    EXPECT_EQ(table_of(cache, c), (std::vector<int32_t>{0, 1, 2, 4}));  // never used pages last
}

TEST(kv_cache, moving_keeps_everything) {
    kv_cache first = make(small_config());
    const sequence_id a = *first.create_sequence();
    append_tags(first, a, tags_from(0, 20));
    kv_cache second = std::move(first);
    expect_tokens(second, a, tags_from(0, 20));
    kv_cache third = make(small_config());
    third = std::move(second);
    expect_tokens(third, a, tags_from(0, 20));
}

// ---- sharing ----------------------------------------------------------------------------------------------------------------------------------

TEST(kv_cache, fork_shares_and_append_copies_the_partial_page_only) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(7);
    append_tags(cache, a, tags_from(0, 40));
    const sequence_id b = *cache.fork(a);
    EXPECT_EQ(table_of(cache, a), table_of(cache, b));
    EXPECT_EQ(*cache.next_position(b), 47);
    EXPECT_EQ(cache.stats().shared_pages, 3);
    EXPECT_EQ(cache.stats().free_pages, 29);
    EXPECT_EQ(cache.stats().tokens, 80);
    const std::vector<int32_t> table_a = table_of(cache, a);
    append_tags(cache, b, tags_from(1000, 1));
    EXPECT_EQ(table_of(cache, a), table_a);
    EXPECT_EQ(table_of(cache, b)[1], table_a[1]);
    EXPECT_NE(table_of(cache, b)[2], table_a[2]);
    EXPECT_EQ(cache.stats().shared_pages, 2);
    EXPECT_EQ(cache.stats().free_pages, 28);
    // Now a holds its last page alone: no copy.
    append_tags(cache, a, tags_from(2000, 1));
    EXPECT_EQ(table_of(cache, a), table_a);
    numbers tags_a = tags_from(0, 40), tags_b = tags_a;
    tags_a.push_back(2000);
    tags_b.push_back(1000);
    expect_tokens(cache, a, tags_a);
    expect_tokens(cache, b, tags_b);
}

TEST(kv_cache, a_full_last_page_is_not_copied) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 32));
    const sequence_id b = *cache.fork(a);
    append_tags(cache, b, tags_from(100, 1));
    EXPECT_EQ(table_of(cache, b)[1], table_of(cache, a)[1]);
    EXPECT_EQ(cache.stats().shared_pages, 2);
    EXPECT_EQ(cache.stats().free_pages, 29);
}

TEST(kv_cache, truncating_into_a_shared_page_copies_at_the_next_append) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 40));
    const sequence_id b = *cache.fork(a);
    ASSERT_TRUE(cache.truncate(b, 20).ok());
    EXPECT_EQ(cache.stats().shared_pages, 2);
    EXPECT_EQ(table_of(cache, b)[1], table_of(cache, a)[1]);
    append_tags(cache, b, tags_from(500, 3));
    EXPECT_NE(table_of(cache, b)[1], table_of(cache, a)[1]);
    numbers tags_b = tags_from(0, 20);
    const numbers more = tags_from(500, 3);
    tags_b.insert(tags_b.end(), more.begin(), more.end());
    expect_tokens(cache, b, tags_b);
    expect_tokens(cache, a, tags_from(0, 40));
    expect_refused(cache.truncate(b, 24), status_code::out_of_range, "length is 24");
    expect_refused(cache.truncate(b, -1), status_code::out_of_range, "length is -1");
    EXPECT_EQ(*cache.length(b), 23);
}

// A window of 20 keys, decoded for 100 tokens: of pages of 16, three at most hold a key of the window or the token that comes.
TEST(kv_cache, a_window_holds_as_many_pages_as_it_has) {
    constexpr int64_t window = 20;
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(7);
    int64_t trimmed = 0;
    for (int64_t token = 0; token < 100; ++token) {
        append_tags(cache, a, tags_from(token, 1));
        EXPECT_EQ(*cache.next_position(a), 7 + token + 1);
        const int64_t unseen = *cache.length(a) - (window - 1);
        if (unseen > 0) trimmed += *cache.trim_front(a, unseen);
        EXPECT_LE(cache.stats().total_pages - cache.stats().free_pages, 3);
        expect_tokens(cache, a, tags_from(trimmed, token + 1 - trimmed));
    }
    EXPECT_EQ(trimmed, (100 - (window - 1)) / 16 * 16);
    expect_refused(cache.trim_front(a, *cache.length(a) + 1).state(), status_code::out_of_range, "tokens is 21; must be 0 .. 20");
    expect_refused(cache.trim_front(a, -1).state(), status_code::out_of_range, "tokens is -1");
}

// Pages that a fork shares stay the fork's.
TEST(kv_cache, trimming_the_front_leaves_a_fork_alone) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 40));
    const sequence_id b = *cache.fork(a);
    EXPECT_EQ(*cache.trim_front(a, 39), 32);
    EXPECT_EQ(*cache.length(a), 8);
    EXPECT_EQ(cache.stats().shared_pages, 1);
    expect_tokens(cache, b, tags_from(0, 40));
    append_tags(cache, a, tags_from(500, 1));
    EXPECT_EQ(*cache.next_position(a), 41);
    expect_tokens(cache, b, tags_from(0, 40));
}

// Three holders of one partial page append in one call: two copies, the third keeps it; exactly the free pages that this needs suffice.
TEST(kv_cache, holders_of_one_page_append_together) {
    for (const int32_t pages : {3, 2}) {
        kv_cache cache = make(small_config(16, pages));
        const sequence_id a = *cache.create_sequence();
        append_tags(cache, a, tags_from(0, 10));
        const sequence_id b = *cache.fork(a), c = *cache.fork(a);
        const std::vector<kv_cache::append_request> requests{{a, 1}, {b, 1}, {c, 1}};
        numbers slots(3);
        const kv_cache_stats before = cache.stats();
        const status appended = cache.append(requests, slots, {});
        if (pages == 2) {
            expect_refused(appended, status_code::out_of_pages, "2 more pages are needed; 1 of 2 are free");
            expect_equal(cache.stats(), before);
            EXPECT_EQ(table_of(cache, a), table_of(cache, c));
            continue;
        }
        ASSERT_TRUE(appended.ok()) << appended.text();
        const numbers last{100, 101, 102};
        test::store_tokens(cache, slots, last);
        EXPECT_EQ(cache.stats().shared_pages, 0);
        EXPECT_EQ(cache.stats().free_pages, 0);
        numbers tags = tags_from(0, 11);
        for (std::size_t i = 0; i < 3; ++i) {
            tags.back() = last[i];
            expect_tokens(cache, requests[i].sequence, tags);
        }
    }
}

// E20: copy on write and freeing in all orders, 100 times on one pool: no page is lost, none freed twice, nobody sees another's tokens.
TEST(kv_cache, E20_copy_on_write_in_all_orders) {
    kv_cache cache = make(small_config(16, 12));
    enum step { append_a, append_b, free_a, free_b };
    for (int round = 0; round < 100; ++round) {
        std::array order{append_a, append_b, free_a, free_b};
        do {
            const auto at = [&](step s) { return std::find(order.begin(), order.end(), s); };
            if (at(free_a) < at(append_a) || at(free_b) < at(append_b)) continue;
            const sequence_id a = *cache.create_sequence();
            numbers tags_a = tags_from(round, 40), tags_b = tags_a;
            append_tags(cache, a, tags_a);
            const sequence_id b = *cache.fork(a);
            const auto append = [&](sequence_id sequence, numbers& tags, int64_t first) {
                const numbers more = tags_from(first, 30);
                append_tags(cache, sequence, more);
                tags.insert(tags.end(), more.begin(), more.end());
            };
            for (const step s : order) {
                if (s == append_a) append(a, tags_a, 5000);
                if (s == append_b) append(b, tags_b, 9000);
                if (s == free_a) {
                    ASSERT_TRUE(cache.free(a).ok());
                }
                if (s == free_b) {
                    ASSERT_TRUE(cache.free(b).ok());
                }
                if (cache.length(a).ok()) expect_tokens(cache, a, tags_a);
                if (cache.length(b).ok()) expect_tokens(cache, b, tags_b);
            }
            expect_refused(cache.free(a), status_code::not_found, "sequence is");
            ASSERT_EQ(cache.stats().free_pages, 12);
            ASSERT_EQ(cache.stats().shared_pages, 0);
            ASSERT_EQ(cache.stats().tokens, 0);
        } while (std::next_permutation(order.begin(), order.end()));
        if (testing::Test::HasFailure()) return;
    }
}

// ---- exhaustion -------------------------------------------------------------------------------------------------------------------------------

// E24: pages need not be neighbours; one page too few changes nothing.
TEST(kv_cache, E24_fragmented_pool) {
    kv_cache cache = make(small_config(16, 32));
    ids sequences;
    for (int i = 0; i < 8; ++i) {
        sequences.push_back(*cache.create_sequence());
        append_tags(cache, sequences.back(), tags_from(100 * i, 64));
    }
    EXPECT_EQ(cache.stats().free_pages, 0);
    for (int i = 0; i < 8; i += 2) ASSERT_TRUE(cache.free(sequences[static_cast<std::size_t>(i)]).ok());
    ASSERT_EQ(cache.stats().free_pages, 16);

    const sequence_id big = *cache.create_sequence();
    const kv_cache_stats before = cache.stats();
    numbers slots(16 * 16 + 1, -7);
    const std::vector<kv_cache::append_request> too_many{{sequences[1], 0}, {big, 16 * 16 + 1}};
    expect_refused(cache.append(too_many, slots, {}), status_code::out_of_pages, "17 more pages are needed; 16 of 32 are free");
    const std::vector<kv_cache::append_request> together{{big, 16 * 16 - 1}, {sequences[1], 1}, {sequences[3], 1}};
    expect_refused(cache.append(together, slots, {}), status_code::out_of_pages, "18 more pages are needed");
    expect_equal(cache.stats(), before);
    EXPECT_EQ(slots, numbers(slots.size(), -7));
    EXPECT_EQ(*cache.length(big), 0);
    expect_refused(cache.reserve(big, 16 * 16 + 1), status_code::out_of_pages, "17 more pages");
    expect_equal(cache.stats(), before);

    append_tags(cache, big, tags_from(7000, 16 * 16));
    EXPECT_EQ(cache.stats().free_pages, 0);
    expect_tokens(cache, big, tags_from(7000, 16 * 16));
    for (int i = 1; i < 8; i += 2) expect_tokens(cache, sequences[static_cast<std::size_t>(i)], tags_from(100 * i, 64));
}

// E28: rows of different lengths, each appended at its own end.
TEST(kv_cache, E28_ragged_append) {
    kv_cache cache = make(small_config());
    const ids sequences{*cache.create_sequence(), *cache.create_sequence(), *cache.create_sequence()};
    const std::array<int64_t, 3> lengths{1, 4, 0};
    for (std::size_t i = 0; i < 3; ++i) append_tags(cache, sequences[i], tags_from(100 * static_cast<int64_t>(i), lengths[i]));
    std::vector<kv_cache::append_request> requests;
    for (const sequence_id s : sequences) requests.push_back({s, 1});
    numbers slots(3), positions(3);
    ASSERT_TRUE(cache.append(requests, slots, positions).ok());
    EXPECT_EQ(positions, (numbers{1, 4, 0}));
    test::store_tokens(cache, slots, numbers{900, 901, 902});
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(slots[i], table_of(cache, sequences[i])[0] * 16 + lengths[i]);
        numbers tags = tags_from(100 * static_cast<int64_t>(i), lengths[i]);
        tags.push_back(900 + static_cast<int64_t>(i));
        expect_tokens(cache, sequences[i], tags);
    }
}

TEST(kv_cache, reserved_pages_are_nobody_elses) {
    kv_cache cache = make(small_config(16, 8));
    const sequence_id a = *cache.create_sequence(), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 10));
    ASSERT_TRUE(cache.reserve(a, 60).ok());  // 70 tokens: 5 pages
    EXPECT_EQ(cache.stats().free_pages, 3);
    EXPECT_EQ(cache.page_table(a)->size(), 1u);
    ASSERT_TRUE(cache.reserve(a, 20).ok());  // less than what is promised
    EXPECT_EQ(cache.stats().free_pages, 3);
    append_tags(cache, b, tags_from(500, 48));
    EXPECT_EQ(cache.stats().free_pages, 0);
    numbers slots(1);
    const kv_cache::append_request request{b, 1};
    expect_refused(cache.append({&request, 1}, slots, {}), status_code::out_of_pages, "1 more pages");
    append_tags(cache, a, tags_from(10, 60));
    expect_tokens(cache, a, tags_from(0, 70));
    expect_tokens(cache, b, tags_from(500, 48));
    expect_refused(cache.reserve(a, -1), status_code::invalid_argument, "tokens is -1");
}

TEST(kv_cache, a_reservation_ends_with_truncate_or_free) {
    kv_cache cache = make(small_config(16, 8));
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 20));
    ASSERT_TRUE(cache.reserve(a, 100).ok());
    EXPECT_EQ(cache.stats().free_pages, 0);
    ASSERT_TRUE(cache.truncate(a, 20).ok());
    EXPECT_EQ(cache.stats().free_pages, 6);
    expect_tokens(cache, a, tags_from(0, 20));
    ASSERT_TRUE(cache.reserve(a, 100).ok());
    ASSERT_TRUE(cache.free(a).ok());
    EXPECT_EQ(cache.stats().free_pages, 8);
}

// The promise holds although the last page becomes shared, before or after reserve().
TEST(kv_cache, a_reservation_includes_the_copy_of_a_shared_page) {
    for (const bool fork_first : {true, false}) {
        SCOPED_TRACE(fork_first);
        kv_cache cache = make(small_config(16, 4));
        const sequence_id a = *cache.create_sequence(), other = *cache.create_sequence();
        append_tags(cache, a, tags_from(0, 10));
        sequence_id b{};
        if (fork_first) b = *cache.fork(a);
        ASSERT_TRUE(cache.reserve(a, 20).ok());  // 30 tokens: 2 pages, and the copy where the last page is shared
        EXPECT_EQ(cache.stats().free_pages, fork_first ? 1 : 2);
        if (!fork_first) b = *cache.fork(a);
        EXPECT_EQ(cache.stats().free_pages, 1);
        append_tags(cache, other, tags_from(300, 16));
        EXPECT_EQ(cache.stats().free_pages, 0);
        numbers slots(1);
        const kv_cache::append_request request{b, 1};
        expect_refused(cache.append({&request, 1}, slots, {}), status_code::out_of_pages, "1 more pages");
        append_tags(cache, a, tags_from(10, 20));
        expect_tokens(cache, a, tags_from(0, 30));
        expect_tokens(cache, b, tags_from(0, 10));
        EXPECT_EQ(cache.stats().free_pages, 0);
        append_tags(cache, b, tags_from(700, 6));  // holds its page alone now
    }
}

TEST(kv_cache, forking_a_reservation_again_and_again_takes_one_page) {
    kv_cache cache = make(small_config(16, 4));
    const sequence_id a = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 10));
    ASSERT_TRUE(cache.reserve(a, 20).ok());
    for (int i = 0; i < 10; ++i) {
        const sequence_id b = *cache.fork(a);
        EXPECT_EQ(cache.stats().free_pages, 1);
        ASSERT_TRUE(cache.free(b).ok());
    }
    ASSERT_TRUE(cache.truncate(a, 10).ok());
    ASSERT_TRUE(cache.reserve(a, 54).ok());  // the whole pool
    const kv_cache_stats before = cache.stats();
    expect_refused(cache.fork(a).state(), status_code::out_of_pages, "1 more pages");
    expect_equal(cache.stats(), before);
}

// ---- memory -----------------------------------------------------------------------------------------------------------------------------------

TEST(kv_cache, append_allocates_nothing_once_reserved) {
    kv_cache cache = make(small_config(16, 200));
    const sequence_id a = *cache.create_sequence(), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 10));
    ASSERT_TRUE(cache.reserve(a, 1000).ok());
    ASSERT_TRUE(cache.reserve(b, 1000).ok());
    const sequence_id c = *cache.fork(a);  // the first append of a copies
    ASSERT_TRUE(cache.reserve(c, 20).ok());
    const std::vector<kv_cache::append_request> requests{{a, 2}, {b, 3}};
    numbers slots(5), positions(5);
    ASSERT_TRUE(cache.append(requests, slots, positions).ok());  // grows the list of steps
    const int64_t before = test::allocation_count();
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(cache.append(requests, slots, positions).ok());
    EXPECT_EQ(test::allocation_count(), before);
}

TEST(kv_cache, giving_back_never_allocates) {
    kv_cache cache = make(small_config(16, 300));
    ids sequences;
    for (int i = 0; i < 100; ++i) {
        sequences.push_back(*cache.create_sequence());
        append_tags(cache, sequences.back(), tags_from(0, 40));
    }
    const test::allocation_limit none(0);
    bool all_ok = true;
    for (const sequence_id s : sequences) all_ok = cache.truncate(s, 10).ok() && all_ok;
    for (const sequence_id s : sequences) all_ok = cache.free(s).ok() && all_ok;
    EXPECT_TRUE(all_ok);
    EXPECT_EQ(cache.stats().free_pages, 300);
}

TEST(kv_cache, batch_reuses_its_storage) {
    kv_cache cache = make(small_config());
    const ids sequences{*cache.create_sequence(), *cache.create_sequence()};
    append_tags(cache, sequences[0], tags_from(0, 40));
    append_tags(cache, sequences[1], tags_from(0, 3));
    const numbers q_lens{1, 1};
    kv_cache::batch_storage storage;
    ASSERT_TRUE(cache.batch(sequences, q_lens, storage).ok());
    const int64_t before = test::allocation_count();
    ASSERT_TRUE(cache.batch(sequences, q_lens, storage).ok());
    EXPECT_EQ(test::allocation_count(), before);
}

// Every allocation of every call fails in turn: a status, nothing changed, and the same call works afterwards.
TEST(kv_cache, out_of_memory_changes_nothing) {
    const auto survives = [](kv_cache& cache, auto call) {
        for (int64_t granted = 0;; ++granted) {
            ASSERT_LT(granted, 100);
            const kv_cache_stats before = cache.stats();
            const status answer = [&] {
                const test::allocation_limit limit(granted);
                return call();
            }();
            if (answer.ok()) return;
            expect_refused(answer, status_code::out_of_memory, "memory");
            expect_equal(cache.stats(), before);
        }
    };
    kv_cache cache = make(small_config(16, 200));
    const sequence_id a = *cache.create_sequence(), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 10));
    sequence_id c{};
    survives(cache, [&] { return cache.create_sequence().state(); });
    survives(cache, [&] { return cache.reserve(a, 200); });
    survives(cache, [&] {
        const auto forked = cache.fork(a);
        if (forked.ok()) c = *forked;
        return forked.state();
    });
    const std::vector<kv_cache::append_request> requests{{a, 300}, {b, 700}, {c, 100}};
    numbers slots(1100);
    survives(cache, [&] { return cache.append(requests, slots, {}); });
    kv_cache::batch_storage storage;
    const ids sequences{a, b, c};
    const numbers q_lens{1, 1, 1};
    survives(cache, [&] { return cache.batch(sequences, q_lens, storage).state(); });
    survives(cache, [&] { return kv_cache::create(small_config()).state(); });
    EXPECT_EQ(*cache.length(a), 310);
    EXPECT_EQ(*cache.length(c), 110);
}

// A request that no pool can serve is refused for its pages; it does not ask the host for a table of that size.
TEST(kv_cache, absurd_requests_allocate_little) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence();
    expect_refused(cache.reserve(a, (int64_t{1} << 31) - 1), status_code::out_of_pages, "134217728 more pages");
    EXPECT_EQ(cache.stats().free_pages, 32);
}

// F13: creating a cache touches none of its pages; the one who writes a page does.
TEST(kv_cache, F13_no_page_is_touched_at_creation) {
    if (sanitized || resident_bytes() == 0) GTEST_SKIP() << "resident memory is unknown, or says nothing under a sanitizer";
    kv_cache_config config = small_config(64, 4096);
    config.layout = {.kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 64};
    config.layers = 1;
    ASSERT_EQ(*kv_cache::required_bytes(config), int64_t{1} << 30);
    const int64_t before = resident_bytes();
    kv_cache cache = make(config);
    constexpr int64_t mebibyte = 1 << 20;
    constexpr int64_t slack = 12 * mebibyte;  // an emulator's own notes on 1 GiB of address space are 6 MiB
    EXPECT_LT(resident_bytes() - before, slack);
    const sequence_id a = *cache.create_sequence();
    const int64_t tokens = 128 * 64;  // 128 pages: 32 MiB
    numbers slots(static_cast<std::size_t>(tokens));
    const kv_cache::append_request request{a, tokens};
    ASSERT_TRUE(cache.append({&request, 1}, slots, {}).ok());
    EXPECT_LT(resident_bytes() - before, slack);
    const kv_pages pages = cache.pages(0);
    std::fill_n(pages.base, 128 * pages.layout.page_stride_bytes(), std::byte{1});
    EXPECT_GT(resident_bytes() - before, 31 * mebibyte);
    EXPECT_LT(resident_bytes() - before, 32 * mebibyte + slack);
}

// F15: memory stays bounded over any number of sequences and appends.
TEST(kv_cache, F15_memory_is_bounded) {
    kv_cache cache = make(small_config(16, 64));
    numbers slots(50);
    const auto cycle = [&](int64_t tokens) {
        const sequence_id a = *cache.create_sequence();
        const kv_cache::append_request request{a, tokens};
        ASSERT_TRUE(cache.append({&request, 1}, std::span(slots).first(static_cast<std::size_t>(tokens)), {}).ok());
        const sequence_id b = *cache.fork(a);
        ASSERT_TRUE(cache.free(a).ok());
        ASSERT_TRUE(cache.free(b).ok());
    };
    const sequence_id ring = *cache.create_sequence();
    const auto append_one = [&] {
        if (*cache.length(ring) == 512) {
            ASSERT_TRUE(cache.truncate(ring, 0).ok());
        }
        const kv_cache::append_request request{ring, 1};
        ASSERT_TRUE(cache.append({&request, 1}, std::span(slots).first(1), {}).ok());
    };
    for (int i = 0; i < 1000; ++i) cycle(i % 50 + 1);
    for (int i = 0; i < 1000; ++i) append_one();
    const int64_t before = resident_bytes();
    for (int i = 0; i < 10000; ++i) cycle(i % 50 + 1);
    for (int i = 0; i < 100000; ++i) append_one();
    if (!sanitized) {
        EXPECT_LE(resident_bytes() - before, int64_t{1} << 20);
    }
    ASSERT_TRUE(cache.free(ring).ok());
    EXPECT_EQ(cache.stats().free_pages, 64);
    EXPECT_EQ(cache.stats().sequences, 0);
}

// ---- reading ----------------------------------------------------------------------------------------------------------------------------------

TEST(kv_cache, batch_describes_the_sequences) {
    kv_cache cache = make(small_config());
    const sequence_id a = *cache.create_sequence(1000), b = *cache.create_sequence();
    append_tags(cache, a, tags_from(0, 40));
    append_tags(cache, b, tags_from(0, 5));
    ASSERT_TRUE(cache.reserve(b, 100).ok());
    const ids sequences{b, a, b};
    kv_cache::batch_storage storage;
    const auto batch = cache.batch(sequences, numbers{5, 3, 0}, storage);
    ASSERT_TRUE(batch.ok()) << batch.state().text();
    const auto list = [](auto span) { return numbers(span.begin(), span.end()); };
    EXPECT_EQ(list(batch->q_indptr), (numbers{0, 5, 8, 8}));
    EXPECT_EQ(list(batch->kv_lens), (numbers{5, 40, 5}));
    EXPECT_EQ(list(batch->q_starts), (numbers{0, 37, 5}));  // from the first key, whatever its position
    EXPECT_EQ(list(batch->page_indptr), (numbers{0, 1, 4, 5}));
    numbers pages{table_of(cache, b)[0]};
    for (const int32_t page : table_of(cache, a)) pages.push_back(page);
    pages.push_back(pages[0]);
    EXPECT_EQ(list(batch->page_ids), pages);
    EXPECT_TRUE(batch->kv_indptr.empty());

    expect_refused(cache.batch(sequences, numbers{5, 41, 0}, storage).state(), status_code::out_of_range, "q_lens[1] is 41");
    expect_refused(cache.batch(sequences, numbers{5, 3, -1}, storage).state(), status_code::out_of_range, "q_lens[2] is -1");
    expect_refused(cache.batch(sequences, numbers{5, 3}, storage).state(), status_code::invalid_argument, "q_lens.size() is 2");
    EXPECT_EQ(list(batch->page_ids), pages);  // a refused call leaves the storage alone
}

// Writing into pages of different sequences and const calls at the same time: for the thread sanitizer.
TEST(kv_cache, concurrent_writers_and_readers) {
    kv_cache cache = make(small_config(16, 64));
    ids sequences;
    std::vector<numbers> slots;
    for (int64_t i = 0; i < 4; ++i) {
        sequences.push_back(*cache.create_sequence());
        slots.emplace_back(100);
        const kv_cache::append_request request{sequences.back(), 100};
        ASSERT_TRUE(cache.append({&request, 1}, slots.back(), {}).ok());
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            const numbers tags = tags_from(1000 * static_cast<int64_t>(i), 100);
            for (int round = 0; round < 10; ++round) {
                test::store_tokens(cache, slots[i], tags);
                expect_tokens(cache, sequences[i], tags);
                EXPECT_EQ(cache.stats().tokens, 400);
                kv_cache::batch_storage storage;
                EXPECT_TRUE(cache.batch(sequences, numbers{1, 1, 1, 1}, storage).ok());
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

TEST(mapped_memory, is_aligned_zero_and_returned) {
    using runtime::mapped_memory;
    expect_refused(mapped_memory::create(-1).state(), status_code::invalid_argument, "bytes is -1");
    expect_refused(mapped_memory::create(std::numeric_limits<int64_t>::max()).state(), status_code::out_of_memory, "address space");
    EXPECT_EQ(mapped_memory::create(0)->size(), 0);
    for (const int64_t size : {int64_t{1}, int64_t{4096}, int64_t{65537}, int64_t{5} << 20}) {
        auto memory = mapped_memory::create(size, size % 2 == 0 ? mapped_memory::pages::huge : mapped_memory::pages::small);
        ASSERT_TRUE(memory.ok()) << memory.state().text();
        EXPECT_EQ(memory->size(), size);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % mapped_memory::alignment, 0u);
        EXPECT_EQ(memory->bytes().front(), std::byte{0});
        memory->bytes().back() = std::byte{1};
    }
    const int64_t before = process_memory().mapped;
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(mapped_memory::create((int64_t{64} << 20) + i * 4096).ok()) << i;
    EXPECT_LT(process_memory().mapped - before, int64_t{64} << 20);
    auto first = *mapped_memory::create(100);
    mapped_memory second = std::move(first);
    EXPECT_EQ(second.size(), 100);
    EXPECT_EQ(first.size(), 0);
}

}  // namespace
}  // namespace ropewalk
