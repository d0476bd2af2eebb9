// Sharing independent work among the workers of an executor.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include <ropewalk/executor.hpp>

namespace ropewalk::runtime {

// Calls body(first, last) for consecutive blocks that cover [0, items), each exactly once, on at most on.concurrency() workers. Every worker takes
// the next block from a shared cursor: a worker that wakes late (25 to 40 us for a sleeping TBB thread) finds less to do instead of holding up the
// rest, so callers cut more blocks than there are workers. One block runs on the calling thread without touching the executor.
template <class Body>
void for_each_block(executor& on, int64_t items, int64_t block, const Body& body) noexcept {
    struct shared {
        const Body& body;
        int64_t items, block;
        std::atomic<int64_t> next{0};

        void drain() noexcept {
            for (int64_t first; (first = next.fetch_add(block, std::memory_order_relaxed)) < items;) {
                body(first, std::min(first + block, items));
            }
        }
    };
    if (items <= 0) return;
    const int64_t blocks = (items + block - 1) / block;
    if (blocks == 1) return body(int64_t{0}, items);
    shared work{body, items, block};
    const auto workers = static_cast<int32_t>(std::min<int64_t>(std::max(on.concurrency(), 1), blocks));
    if (workers == 1) return work.drain();
    on.run(
        workers, [](void* context, int32_t) { static_cast<shared*>(context)->drain(); }, &work);
}

// The same over tokens of so many elements each that are read, turned or scaled, and written: 24 K elements, a block, take one core about 4 us, large
// against the 50 ns of taking it from the cursor; below eight blocks a worker that wakes 25 to 40 us late cannot help.
template <class Body>
void for_each_token_block(executor& on, int64_t tokens, int64_t token_elements, const Body& body) noexcept {
    constexpr int64_t block_elements = 24 * 1024, alone_elements = 8 * block_elements;
    const bool alone = tokens <= alone_elements / token_elements;
    for_each_block(on, tokens, alone ? tokens : std::max<int64_t>(block_elements / token_elements, 1), body);
}

}  // namespace ropewalk::runtime
