#include "scheduler.hpp"

#include <algorithm>
#include <utility>

#include "errors.hpp"

namespace llama {

using namespace ropewalk;

scheduler::scheduler(kv_cache& cache, limits limit) : cache_(cache), limits_(std::move(limit)) {}

void scheduler::submit(std::vector<int32_t> prompt) {
    waiting_.push_back(texts_.size());
    const std::size_t length = prompt.size();
    texts_.push_back({std::move(prompt), length, 0, {}});
}

const step* scheduler::next() {
    while (!out_of_pages_ && !waiting_.empty() && running_.size() < limits_.sequences) {
        running_.push_back(waiting_.front());
        waiting_.pop_front();
        texts_[running_.back()].sequence = value(cache_.create_sequence());
    }
    if (running_.empty()) return nullptr;
    for (;;) {
        collect();
        // All or nothing: after out_of_pages the cache is as it was, and the step is put together anew.
        const status appended = cache_.append(appends_, step_.slots, step_.positions);
        if (appended) break;
        if (appended.code() != status_code::out_of_pages || running_.size() == 1) check(appended);
        send_back_youngest();
    }
    step_.batch = value(cache_.batch(sequences_, q_lens_, step_.storage));
    return &step_;
}

// Oldest first. All that are older than the one whose prompt is being read write their texts, a token a step, so a long prompt delays no text by more
// than step_tokens tokens.
void scheduler::collect() {
    step_.tokens.clear();
    step_.last_rows.clear();
    appends_.clear();
    sequences_.clear();
    q_lens_.clear();
    int64_t room = limits_.step_tokens;
    for (const std::size_t index : running_) {
        const text& t = texts_[index];
        const int64_t missing = static_cast<int64_t>(t.tokens.size() - t.cached), taken = std::min(missing, room);
        if (taken == 0) break;
        const auto first = t.tokens.begin() + static_cast<std::ptrdiff_t>(t.cached);
        step_.tokens.insert(step_.tokens.end(), first, first + taken);
        if (taken == missing) step_.last_rows.push_back(static_cast<int64_t>(step_.tokens.size()) - 1);
        appends_.push_back({t.sequence, taken});
        sequences_.push_back(t.sequence);
        q_lens_.push_back(taken);
        room -= taken;
    }
    step_.slots.resize(step_.tokens.size());
    step_.positions.resize(step_.tokens.size());
}

// All its tokens, prompt and text, are computed again when it returns.
void scheduler::send_back_youngest() {
    text& youngest = texts_[running_.back()];
    check(cache_.free(youngest.sequence));
    youngest.cached = 0;
    waiting_.push_front(running_.back());
    running_.pop_back();
    out_of_pages_ = true;
    ++sent_back_;
}

void scheduler::accept(std::span<const int32_t> successors) {
    auto successor = successors.begin();
    for (std::size_t i = 0; i < appends_.size(); ++i) {
        text& t = texts_[running_[i]];
        t.cached += static_cast<std::size_t>(appends_[i].tokens);
        if (t.cached == t.tokens.size()) t.tokens.push_back(*successor++);
    }
    std::erase_if(running_, [this](std::size_t index) {
        if (!finished(texts_[index])) return false;
        check(cache_.free(texts_[index].sequence));
        out_of_pages_ = false;
        return true;
    });
}

bool scheduler::finished(const text& t) const {
    const std::size_t written = t.tokens.size() - t.prompt;
    return written == limits_.new_tokens || (written > 0 && std::ranges::count(limits_.endings, t.tokens.back()) != 0);
}

std::vector<std::vector<int32_t>> scheduler::texts() const {
    std::vector<std::vector<int32_t>> written;
    for (const text& t : texts_) written.emplace_back(t.tokens.begin() + static_cast<std::ptrdiff_t>(t.prompt), t.tokens.end());
    return written;
}

}  // namespace llama
