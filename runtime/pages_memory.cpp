#include "runtime/pages_memory.hpp"

#include <sys/mman.h>

#include <utility>

#include "runtime/refuse.hpp"

namespace ropewalk::runtime {

namespace {

// Mappings are cut at multiples of 64 KiB, the largest system page of the processors we know (4 KiB on x86, up to 64 KiB on Arm).
constexpr std::size_t mapped_size(std::size_t bytes) {
    constexpr std::size_t granule = std::size_t{64} << 10;
    return (bytes + granule - 1) / granule * granule;
}

}  // namespace

result<mapped_memory> mapped_memory::create(int64_t bytes, pages wanted) noexcept {
    if (bytes < 0) return refuse(status_code::invalid_argument, "bytes is %lld; must be >= 0", static_cast<long long>(bytes));
    if (bytes == 0) return mapped_memory();
    // The system aligns to its own pages only: map one alignment more and give back what sticks out on both sides.
    const std::size_t size = static_cast<std::size_t>(bytes);
    const std::size_t kept = mapped_size(size);
    const std::size_t padded = kept + alignment;
    void* mapping = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        return refuse(status_code::out_of_memory, "the system has no %lld bytes of address space to map", static_cast<long long>(bytes));
    }
    std::byte* const begin = static_cast<std::byte*>(mapping);
    const std::size_t head = -reinterpret_cast<std::uintptr_t>(begin) % alignment;
    if (head != 0) munmap(begin, head);
    munmap(begin + head + kept, alignment - head);
    // Advice: where transparent huge pages are off it fails, and nothing but speed is lost.
    (void)madvise(begin + head, kept, wanted == pages::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return mapped_memory({begin + head, size});
}

mapped_memory::mapped_memory(mapped_memory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

mapped_memory& mapped_memory::operator=(mapped_memory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
}

mapped_memory::~mapped_memory() {
    if (!bytes_.empty()) munmap(bytes_.data(), mapped_size(bytes_.size()));
}

}  // namespace ropewalk::runtime
