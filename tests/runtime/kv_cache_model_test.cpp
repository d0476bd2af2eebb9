// Random operations on a KV cache against a model that keeps everything in vectors: every token's tag, how many pages each sequence must hold.
// After each operation lengths, positions, page tables, statistics and contents must agree; a refused operation must have changed nothing.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "tests/runtime/token_store.hpp"

namespace ropewalk::test {
namespace {

struct model_sequence {
    int64_t first_position = 0;
    std::vector<int64_t> tags;
    int64_t held = 0;      // pages, those set aside included
    int64_t promised = 0;  // length up to which the pages suffice
    [[nodiscard]] int64_t length() const { return static_cast<int64_t>(tags.size()); }
};

class random_walk {
public:
    random_walk(uint32_t seed, const kv_cache_config& config)
        : random_(seed), page_tokens_(config.layout.page_tokens), page_count_(config.page_count), cache_(std::move(*kv_cache::create(config))) {}

    void step() {
        const int dice = pick(0, 99);
        if (dice < 8) return create();
        if (dice < 18) return fork();
        if (dice < 65) return append();
        if (dice < 76) return truncate();
        if (dice < 80) return trim_front();
        if (dice < 88) return free();
        if (dice < 96) return reserve();
        refuse();
    }

    void check_everything() {
        for (const auto& [id, s] : model_) expect_tokens(cache_, sequence_id{id}, s.tags);
    }

    // Frees all and expects an untouched pool.
    void finish() {
        while (!model_.empty()) free();
        EXPECT_EQ(cache_.stats().free_pages, page_count_);
        EXPECT_EQ(cache_.stats().sequences, 0);
    }

    [[nodiscard]] int refused_for_pages() const { return refused_for_pages_; }
    [[nodiscard]] int copies() const { return copies_; }

private:
    int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
    int64_t pages_for(int64_t length) const { return (length + page_tokens_ - 1) / page_tokens_; }

    // A live sequence, or end().
    std::map<int64_t, model_sequence>::iterator any() {
        return model_.empty() ? model_.end() : std::next(model_.begin(), pick(0, static_cast<int>(model_.size()) - 1));
    }

    std::vector<int32_t> table_of(int64_t id) const {
        const auto table = cache_.page_table(sequence_id{id});
        EXPECT_TRUE(table.ok()) << table.state().text();
        return {table->begin(), table->end()};
    }

    // How many sequences hold each page, counted from the page tables.
    std::map<int32_t, int> count_holders() const {
        std::map<int32_t, int> holders;
        for (const auto& [id, s] : model_) {
            for (const int32_t page : table_of(id)) ++holders[page];
        }
        return holders;
    }

    int64_t free_pages() const {
        int64_t in_use = static_cast<int64_t>(count_holders().size());
        for (const auto& [id, s] : model_) in_use += s.held - pages_for(s.length());
        return page_count_ - in_use;
    }

    // Whether to append to the sequence is to copy its last page, given the holders.
    bool copies(int64_t id, const std::map<int32_t, int>& holders) const {
        const model_sequence& s = model_.at(id);
        return s.length() % page_tokens_ != 0 && holders.at(table_of(id).back()) > 1;
    }

    void check_tables() {
        for (const auto& [id, s] : model_) {
            ASSERT_EQ(*cache_.length(sequence_id{id}), s.length());
            ASSERT_EQ(*cache_.next_position(sequence_id{id}), s.first_position + s.length());
            const std::vector<int32_t> table = table_of(id);
            ASSERT_EQ(static_cast<int64_t>(table.size()), pages_for(s.length()));
            ASSERT_EQ(std::set<int32_t>(table.begin(), table.end()).size(), table.size()) << "a page twice in one table";
            for (const int32_t page : table) ASSERT_TRUE(page >= 0 && page < page_count_) << page;
        }
    }

    void check_stats() {
        const kv_cache_stats stats = cache_.stats();
        const auto holders = count_holders();
        const auto shared = std::count_if(holders.begin(), holders.end(), [](const auto& entry) { return entry.second > 1; });
        int64_t tokens = 0;
        for (const auto& [id, s] : model_) tokens += s.length();
        ASSERT_EQ(stats.free_pages, free_pages());
        ASSERT_EQ(stats.shared_pages, shared);
        ASSERT_EQ(stats.sequences, static_cast<int32_t>(model_.size()));
        ASSERT_EQ(stats.tokens, tokens);
        ASSERT_EQ(stats.used_bytes, (page_count_ - stats.free_pages) * cache_.layout().page_stride_bytes() * cache_.layers());
    }

    void check() {
        check_tables();
        check_stats();
    }

    // A call that must be refused for want of pages, after which every table is as it was.
    template <class Call>
    void expect_out_of_pages(Call call) {
        ++refused_for_pages_;
        std::map<int64_t, std::vector<int32_t>> tables;
        for (const auto& [id, s] : model_) tables[id] = table_of(id);
        const status answer = call();
        EXPECT_EQ(answer.code(), status_code::out_of_pages) << answer.text();
        for (const auto& [id, table] : tables) EXPECT_EQ(table_of(id), table);
        check();
    }

    void create() {
        if (model_.size() >= 12) return;
        const int64_t first = pick(0, 1) == 0 ? 0 : pick(1, 1000);
        const auto id = cache_.create_sequence(first);
        ASSERT_TRUE(id.ok()) << id.state().text();
        ASSERT_EQ(model_.count(static_cast<int64_t>(*id)) + gone_.count(static_cast<int64_t>(*id)), 0u) << "an id twice";
        model_[static_cast<int64_t>(*id)].first_position = first;
        check();
    }

    void fork() {
        const auto parent = any();
        if (parent == model_.end() || model_.size() >= 12) return;
        model_sequence& s = parent->second;
        int64_t needed = s.held;
        if (s.promised > s.length()) needed = std::max(needed, pages_for(s.promised) + (s.length() % page_tokens_ != 0 ? 1 : 0));
        const sequence_id from{parent->first};
        if (needed - s.held > free_pages()) return expect_out_of_pages([&] { return cache_.fork(from).state(); });
        const auto id = cache_.fork(from);
        ASSERT_TRUE(id.ok()) << id.state().text();
        s.held = needed;
        model_[static_cast<int64_t>(*id)] = {s.first_position, s.tags, pages_for(s.length()), s.length()};
        EXPECT_EQ(table_of(static_cast<int64_t>(*id)), table_of(parent->first));
        check();
    }

    // Draws requests; sequences in random order, each once.
    std::vector<kv_cache::append_request> draw_requests() {
        std::vector<int64_t> order;
        for (const auto& [id, s] : model_) order.push_back(id);
        std::shuffle(order.begin(), order.end(), random_);
        order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(pick(1, 4))));
        std::vector<kv_cache::append_request> requests;
        for (const int64_t id : order) requests.push_back({sequence_id{id}, pick(0, 3) == 0 ? pick(0, 3 * page_tokens_) : pick(0, 3)});
        return requests;
    }

    void append() {
        if (model_.empty()) return;
        const auto requests = draw_requests();
        // What the requests need, one after the other: whoever copies a page leaves it to its other holders.
        auto holders = count_holders();
        int64_t missing = 0, total = 0;
        std::map<int64_t, int64_t> held;
        for (const auto& [sequence, tokens] : requests) {
            const int64_t id = static_cast<int64_t>(sequence);
            held[id] = model_.at(id).held;
            total += tokens;
            if (tokens == 0) continue;
            const bool copy = copies(id, holders);
            if (copy) --holders.at(table_of(id).back());
            copies_ += copy;
            const int64_t needed = std::max(held[id], pages_for(model_.at(id).length() + tokens) + copy);
            missing += needed - held[id];
            held[id] = needed - copy;
        }
        std::vector<int64_t> slots(static_cast<std::size_t>(total), -7), positions(pick(0, 1) == 0 ? 0 : slots.size(), -7);
        if (missing > free_pages()) {
            expect_out_of_pages([&] { return cache_.append(requests, slots, positions); });
            EXPECT_TRUE(std::all_of(slots.begin(), slots.end(), [](int64_t slot) { return slot == -7; }));
            return;
        }
        const status appended = cache_.append(requests, slots, positions);
        ASSERT_TRUE(appended.ok()) << appended.text();
        store_appended(requests, slots, positions, held);
        check();
    }

    void store_appended(const std::vector<kv_cache::append_request>& requests, const std::vector<int64_t>& slots,
                        const std::vector<int64_t>& positions, const std::map<int64_t, int64_t>& held) {
        std::vector<int64_t> tags;
        for (const auto& [sequence, tokens] : requests) {
            model_sequence& s = model_.at(static_cast<int64_t>(sequence));
            const std::vector<int32_t> table = table_of(static_cast<int64_t>(sequence));
            for (int64_t i = 0; i < tokens; ++i) {
                const int64_t token = s.length();
                if (!positions.empty()) {
                    ASSERT_EQ(positions[tags.size()], s.first_position + token);
                }
                ASSERT_EQ(slots[tags.size()], int64_t{table[static_cast<std::size_t>(token / page_tokens_)]} * page_tokens_ + token % page_tokens_);
                s.tags.push_back(next_tag_);
                tags.push_back(next_tag_++);
            }
            s.held = held.at(static_cast<int64_t>(sequence));
            s.promised = std::max(s.promised, s.length());
        }
        const auto holders = count_holders();
        for (const int64_t slot : slots) ASSERT_EQ(holders.at(static_cast<int32_t>(slot / page_tokens_)), 1) << "a slot in a shared page";
        store_tokens(cache_, slots, tags);
        for (const auto& request : requests) expect_tokens(cache_, request.sequence, model_.at(static_cast<int64_t>(request.sequence)).tags);
    }

    void truncate() {
        const auto it = any();
        if (it == model_.end()) return;
        model_sequence& s = it->second;
        const int64_t most = s.length();
        const int64_t length = pick(0, 2) == 0 ? pick(0, static_cast<int>(most)) : std::max<int64_t>(0, most - pick(0, 5));
        const status truncated = cache_.truncate(sequence_id{it->first}, length);
        ASSERT_TRUE(truncated.ok()) << truncated.text();
        s.tags.resize(static_cast<std::size_t>(length));
        s.promised = length;
        s.held = pages_for(length);
        check();
        expect_tokens(cache_, sequence_id{it->first}, s.tags);
    }

    void trim_front() {
        const auto it = any();
        if (it == model_.end()) return;
        model_sequence& s = it->second;
        const int64_t tokens = pick(0, static_cast<int>(s.length())), pages = tokens / page_tokens_, gone = pages * page_tokens_;
        const auto trimmed = cache_.trim_front(sequence_id{it->first}, tokens);
        ASSERT_TRUE(trimmed.ok()) << trimmed.state().text();
        ASSERT_EQ(*trimmed, gone);
        s.first_position += gone;
        s.tags.erase(s.tags.begin(), s.tags.begin() + gone);
        s.promised -= gone;
        s.held -= pages;
        check();
        expect_tokens(cache_, sequence_id{it->first}, s.tags);
    }

    void free() {
        const auto it = any();
        if (it == model_.end()) return;
        const status freed = cache_.free(sequence_id{it->first});
        ASSERT_TRUE(freed.ok()) << freed.text();
        gone_.insert(it->first);
        model_.erase(it);
        check();
    }

    void reserve() {
        const auto it = any();
        if (it == model_.end()) return;
        model_sequence& s = it->second;
        const sequence_id id{it->first};
        const int64_t tokens = pick(0, 4 * page_tokens_);
        if (tokens == 0) {
            EXPECT_TRUE(cache_.reserve(id, tokens).ok());
            return check();
        }
        const int64_t promised = std::max(s.promised, s.length() + tokens);
        const int64_t needed = std::max(s.held, pages_for(promised) + copies(it->first, count_holders()));
        if (needed - s.held > free_pages()) return expect_out_of_pages([&] { return cache_.reserve(id, tokens); });
        const status reserved = cache_.reserve(id, tokens);
        ASSERT_TRUE(reserved.ok()) << reserved.text();
        s.promised = promised;
        s.held = needed;
        check();
    }

    // Calls that are wrong whatever the state.
    void refuse() {
        if (!gone_.empty()) {
            const sequence_id stale{*std::next(gone_.begin(), pick(0, static_cast<int>(gone_.size()) - 1))};
            EXPECT_EQ(cache_.free(stale).code(), status_code::not_found);
            EXPECT_EQ(cache_.fork(stale).state().code(), status_code::not_found);
            EXPECT_EQ(cache_.truncate(stale, 0).code(), status_code::not_found);
            EXPECT_EQ(cache_.trim_front(stale, 0).state().code(), status_code::not_found);
        }
        if (const auto it = any(); it != model_.end()) {
            const sequence_id id{it->first};
            const std::vector<kv_cache::append_request> twice{{id, 1}, {id, 1}};
            std::vector<int64_t> slots(2);
            EXPECT_EQ(cache_.append(twice, slots, {}).code(), status_code::invalid_argument);
            EXPECT_EQ(cache_.truncate(id, it->second.length() + 1).code(), status_code::out_of_range);
            EXPECT_EQ(cache_.trim_front(id, it->second.length() + 1).state().code(), status_code::out_of_range);
            EXPECT_EQ(cache_.slots(id, it->second.length() - 1, slots).code(), status_code::out_of_range);
        }
        check();
    }

    std::mt19937 random_;
    const int32_t page_tokens_;
    const int32_t page_count_;
    kv_cache cache_;
    std::map<int64_t, model_sequence> model_;
    std::set<int64_t> gone_;
    int64_t next_tag_ = 1;
    int refused_for_pages_ = 0;
    int copies_ = 0;
};

class kv_cache_model : public testing::TestWithParam<uint32_t> {};

TEST_P(kv_cache_model, random_operations) {
    const uint32_t seed = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed));
    constexpr dtype types[] = {dtype::fp32, dtype::bf16, dtype::fp16};
    constexpr int32_t page_sizes[] = {16, 32, 64};
    kv_cache_config config;
    config.layout = {.k_type = types[seed % 3],
                     .v_type = types[seed / 3 % 3],
                     .kv_heads = 1 + static_cast<int32_t>(seed % 2),
                     .k_dim = 5,
                     .v_dim = 18,
                     .page_tokens = page_sizes[seed % 3]};
    config.layers = 2;
    config.page_count = 20 + static_cast<int32_t>(seed % 7);
    random_walk walk(seed, config);
    for (int i = 0; i < 3000 && !HasFailure(); ++i) {
        SCOPED_TRACE("operation " + std::to_string(i));
        walk.step();
        if (i % 64 == 0) walk.check_everything();
    }
    walk.check_everything();
    // A walk that never came to the interesting places has tested nothing.
    EXPECT_GT(walk.refused_for_pages(), 50);
    EXPECT_GT(walk.copies(), 50);
    walk.finish();
}

INSTANTIATE_TEST_SUITE_P(seeds, kv_cache_model, testing::Range(1u, 8u));

}  // namespace
}  // namespace ropewalk::test
