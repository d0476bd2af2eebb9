// Memory that faults one byte beyond its end, or before its start: for kernels that must touch exactly what they were given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace ropewalk::test {

// Where the buffer touches a page without access. The other side keeps the rest of a page.
enum class guard { front, back };

// `bytes` bytes between two pages without access, at the edge that is asked for.
class guarded_buffer {
public:
    explicit guarded_buffer(std::size_t bytes, guard edge = guard::back) : bytes_(bytes) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const std::size_t inner = (bytes + page - 1) / page * page;
        mapped_ = inner + 2 * page;
        map_ = static_cast<std::byte*>(mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        EXPECT_NE(static_cast<void*>(map_), MAP_FAILED);
        if (inner != 0) {
            EXPECT_EQ(mprotect(map_ + page, inner, PROT_READ | PROT_WRITE), 0);
        }
        data_ = map_ + page + (edge == guard::back ? inner - bytes : 0);
    }
    ~guarded_buffer() { munmap(map_, mapped_); }
    guarded_buffer(const guarded_buffer&) = delete;
    guarded_buffer& operator=(const guarded_buffer&) = delete;

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] std::size_t size() const { return bytes_; }
    template <class T>
    [[nodiscard]] T* as() const {
        return reinterpret_cast<T*>(data_);
    }
    [[nodiscard]] std::span<std::byte> bytes() const { return {data_, bytes_}; }
    void fill(int value) const { std::memset(data_, value, bytes_); }

private:
    std::byte* map_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t mapped_ = 0, bytes_ = 0;
};

}  // namespace ropewalk::test
