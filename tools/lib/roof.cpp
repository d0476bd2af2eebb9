#include "tools/lib/roof.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "tools/lib/parallel.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr int64_t block_bytes = int64_t{2} << 20;
constexpr int64_t read_granule = 4096;  // what roof_kernels::read asks for

// Seconds until the workers have taken every block [first, first + size) of `total` units from a shared cursor.
template <class Body>
double time_blocks(int64_t total, int64_t block, executor& on, Body&& body) {
    std::atomic<int64_t> cursor{0};
    const stopwatch watch;
    parallel(on, on.concurrency(), [&](int32_t) {
        for (int64_t first; (first = cursor.fetch_add(block, std::memory_order_relaxed)) < total;) body(first, std::min(block, total - first));
    });
    return watch.seconds();
}

using arithmetic_loop = float (*)(int64_t rounds, double* flops);

// Rounds are doubled until a call takes long enough to be timed; after that all workers do the same number of rounds at the same time.
double arithmetic_roof(arithmetic_loop loop, executor& on, double seconds) {
    int64_t rounds = 1 << 10;
    for (;; rounds *= 2) {
        double flops = 0.0;
        const stopwatch watch;
        loop(rounds, &flops);
        if (watch.seconds() >= seconds / 4) break;
    }
    rounds *= 4;
    std::atomic<double> done{0.0};
    const stopwatch watch;
    parallel(on, on.concurrency(), [&](int32_t) {
        double flops = 0.0;
        loop(rounds, &flops);
        done.fetch_add(flops, std::memory_order_relaxed);
    });
    return done.load() / watch.seconds() * 1e-9;
}

}  // namespace

double read_roof(const simd::roof_kernels& kernels, std::span<const std::byte> buffer, executor& on) {
    const int64_t bytes = static_cast<int64_t>(buffer.size()) / read_granule * read_granule;
    if (bytes == 0) return 0.0;
    std::atomic<float> sink{0.0f};  // so that no compiler can see that nobody wants the sums
    const double seconds = time_blocks(bytes, block_bytes, on, [&](int64_t first, int64_t size) {
        sink.store(kernels.read(buffer.data() + first, size), std::memory_order_relaxed);
    });
    return static_cast<double>(bytes) / seconds * 1e-9;
}

double scale_roof(const simd::roof_kernels& kernels, std::span<float> buffer, executor& on) {
    const int64_t count = static_cast<int64_t>(buffer.size());
    if (count == 0) return 0.0;
    const double seconds = time_blocks(count, block_bytes / static_cast<int64_t>(sizeof(float)), on,
                                       [&](int64_t first, int64_t size) { kernels.scale(buffer.data() + first, size, 1.0f); });
    return 2.0 * static_cast<double>(buffer.size_bytes()) / seconds * 1e-9;
}

double fma_roof(const simd::roof_kernels& kernels, executor& on, double seconds) { return arithmetic_roof(kernels.fma, on, seconds); }

double bf16_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds) {
    return kernels.bf16_dot != nullptr ? arithmetic_roof(kernels.bf16_dot, on, seconds) : 0.0;
}

}  // namespace ropewalk::toolkit
