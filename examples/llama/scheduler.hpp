// Continuous batching: which tokens go into the next step. Sequences join and leave between steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <ropewalk/kv_cache.hpp>

#include "model.hpp"

namespace llama {

class scheduler {
public:
    struct limits {
        std::size_t sequences = 16;    // that run at the same time
        int64_t step_tokens = 512;     // of a step; longer prompts come in chunks
        std::size_t new_tokens = 48;   // of each text
        std::vector<int32_t> endings;  // tokens that end a text before
    };
    scheduler(ropewalk::kv_cache& cache, limits limit);

    // At any time between steps. The prompt has a token at least.
    void submit(std::vector<int32_t> prompt);

    // The next step, or null when every text is finished. Throws where one sequence alone needs more pages than there are.
    const step* next();
    // What the model says of the step's last_rows.
    void accept(std::span<const int32_t> successors);

    // In the order of submission: what followed the prompt.
    [[nodiscard]] std::vector<std::vector<int32_t>> texts() const;
    // How often a sequence had to give its pages back and wait.
    [[nodiscard]] int64_t sent_back() const noexcept { return sent_back_; }

private:
    // A step brings the tokens that are not in the cache yet: all of a prompt, the one written last, or all again after the pages were given back.
    struct text {
        std::vector<int32_t> tokens;  // the prompt, then what was written
        std::size_t prompt = 0;
        std::size_t cached = 0;
        ropewalk::sequence_id sequence{};
    };
    void collect();
    void send_back_youngest();
    bool finished(const text& t) const;

    ropewalk::kv_cache& cache_;
    limits limits_;
    std::vector<text> texts_;
    std::deque<std::size_t> waiting_;   // indices of texts_
    std::vector<std::size_t> running_;  // likewise, the oldest first
    bool out_of_pages_ = false;         // nobody joins before somebody has left
    int64_t sent_back_ = 0;

    step step_;
    std::vector<ropewalk::kv_cache::append_request> appends_;  // of the first so many of running_
    std::vector<ropewalk::sequence_id> sequences_;
    std::vector<int64_t> q_lens_;
};

}  // namespace llama
