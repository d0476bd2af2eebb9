// Counts allocations through operator new and makes them fail, for the calling thread: for tests of "allocates nothing" and of what happens when
// memory is out. Works because the test binaries replace operator new (allocations.cpp).
#pragma once

#include <cstdint>

namespace ropewalk::test {

// How often the calling thread has allocated since it began.
int64_t allocation_count() noexcept;

// While it lives, the calling thread's next `granted` allocations succeed and all later ones fail with std::bad_alloc. One at a time a thread.
class allocation_limit {
public:
    explicit allocation_limit(int64_t granted) noexcept;
    ~allocation_limit();
    allocation_limit(const allocation_limit&) = delete;
    allocation_limit& operator=(const allocation_limit&) = delete;
};

}  // namespace ropewalk::test
