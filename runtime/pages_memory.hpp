// Memory for pages: address space from the system that costs nothing until it is written. Used by kv_cache, tools and benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ropewalk/status.hpp>

namespace ropewalk::runtime {

// Zero-filled memory of its own mapping, 2 MiB aligned, asked for in huge pages. Nothing is touched here: the thread that first writes to it decides
// on which NUMA node it lies, and resident memory grows with use only, 2 MiB at a time where the system has huge pages. Not counted against the
// commit limit (MAP_NORESERVE), so a pool may be larger than what is ever used of it; a host that really runs out of memory then kills, as
// it does with any overcommitted mapping.
class mapped_memory {
public:
    enum class pages { huge, small };  // small: to measure what huge ones are worth
    // Why 2 MiB: a 4 KiB TLB entry covers less than one head's record of a default page (64 tokens, bf16, dim 128: 32 KiB), a huge one 64 of them.
    static constexpr std::size_t alignment = std::size_t{2} << 20;

    // bytes >= 0; 0 gives an empty object. out_of_memory if the system refuses.
    static result<mapped_memory> create(int64_t bytes, pages wanted = pages::huge) noexcept;

    mapped_memory() noexcept = default;
    mapped_memory(mapped_memory&& other) noexcept;
    mapped_memory& operator=(mapped_memory&& other) noexcept;
    ~mapped_memory();

    [[nodiscard]] std::byte* data() const noexcept { return bytes_.data(); }
    [[nodiscard]] int64_t size() const noexcept { return static_cast<int64_t>(bytes_.size()); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

private:
    explicit mapped_memory(std::span<std::byte> bytes) noexcept : bytes_(bytes) {}

    std::span<std::byte> bytes_;
};

}  // namespace ropewalk::runtime
