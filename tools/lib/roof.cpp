#include "tools/lib/roof.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "tools/lib/parallel.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr int64_t block_bytes = int64_t{2} << 20;
constexpr int64_t read_granule = 4096;  // what roof_kernels::read asks for

constexpr int64_t slice_granule = 2 * read_granule;  // both halves of a copy

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

// Rounds that take about `seconds`: doubled until body(rounds) takes long enough to be timed.
template <class Body>
int64_t rounds_lasting(double seconds, int64_t rounds, Body&& body) {
    for (;; rounds *= 2) {
        const stopwatch watch;
        body(rounds);
        if (watch.seconds() >= seconds / 4) return rounds * 4;
    }
}

// All workers do the same number of rounds at the same time. loop(rounds, &operations) says how many operations that was.
template <class Loop>
double arithmetic_roof(Loop&& loop, executor& on, double seconds) {
    const int64_t rounds = rounds_lasting(seconds, 1 << 10, [&](int64_t count) {
        double flops = 0.0;
        loop(count, &flops);
    });
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

double copy_roof(const simd::roof_kernels& kernels, std::span<std::byte> buffer, executor& on) {
    const int64_t half = static_cast<int64_t>(buffer.size()) / 2 / read_granule * read_granule;
    if (half == 0) return 0.0;
    const double seconds = time_blocks(half, block_bytes, on,
                                       [&](int64_t first, int64_t size) { kernels.copy(buffer.data() + half + first, buffer.data() + first, size); });
    return 2.0 * static_cast<double>(half) / seconds * 1e-9;
}

double cached_roof(const simd::roof_kernels& kernels, traffic what, std::span<std::byte> buffer, int64_t bytes_each, executor& on, double seconds) {
    if (bytes_each <= 0 || bytes_each % slice_granule != 0) return 0.0;
    if (bytes_each * on.concurrency() > static_cast<int64_t>(buffer.size())) return 0.0;
    std::atomic<float> sink{0.0f};
    const auto pass_over = [&](std::byte* own, int64_t passes) {
        if (what == traffic::read) sink.store(kernels.read_cached(own, bytes_each, passes), std::memory_order_relaxed);
        for (int64_t pass = 0; what == traffic::copy && pass < passes; ++pass) kernels.copy(own + bytes_each / 2, own, bytes_each / 2);
        for (int64_t pass = 0; what == traffic::scale && pass < passes; ++pass) kernels.scale(reinterpret_cast<float*>(own), bytes_each / 4, 1.0f);
    };
    // Workers take turns of about a block from a shared cursor until none is left: one that comes late costs its own time only.
    const int64_t passes = std::max<int64_t>(1, block_bytes / bytes_each);
    const auto run = [&](int64_t turns) {
        std::atomic<int64_t> cursor{0};
        const stopwatch watch;
        parallel(on, on.concurrency(), [&](int32_t worker) {
            while (cursor.fetch_add(1, std::memory_order_relaxed) < turns) pass_over(buffer.data() + worker * bytes_each, passes);
        });
        return watch.seconds();
    };
    const int64_t turns = rounds_lasting(seconds, on.concurrency(), run);
    const double moved = static_cast<double>(turns * passes * bytes_each) * (what == traffic::scale ? 2.0 : 1.0);
    return moved / run(turns) * 1e-9;
}

std::vector<cached_level> cached_levels(const cache_sizes& caches, int32_t workers, int64_t most) {
    const int64_t l3_each = caches.l3 / 4 / std::min(workers, caches.l3_sharers);
    std::vector<cached_level> levels{{"L1", caches.l1 / 2}, {"L2", caches.l2 / 2}, {"L3", caches.l3 > 0 ? std::max(l3_each, 2 * caches.l2) : 0}};
    for (cached_level& level : levels) level.bytes_each = std::min(level.bytes_each, most) / slice_granule * slice_granule;
    std::erase_if(levels, [](const cached_level& level) { return level.bytes_each == 0; });
    return levels;
}

double fma_roof(const simd::roof_kernels& kernels, executor& on, double seconds) { return arithmetic_roof(kernels.fma, on, seconds); }

double bf16_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds) {
    return kernels.bf16_dot != nullptr ? arithmetic_roof(kernels.bf16_dot, on, seconds) : 0.0;
}

double int16_madd_roof(const simd::roof_kernels& kernels, executor& on, double seconds) {
    return kernels.int16_madd != nullptr ? arithmetic_roof(kernels.int16_madd, on, seconds) : 0.0;
}

double int8_dot_roof(const simd::roof_kernels& kernels, executor& on, double seconds) {
    return kernels.int8_dot != nullptr ? arithmetic_roof(kernels.int8_dot, on, seconds) : 0.0;
}

double exp2_roof(const simd::math_kernels& kernels, executor& on, double seconds) {
    constexpr int64_t count = 1024;  // arguments and results: a quarter of the smallest L1
    const auto loop = [&](int64_t rounds, double* values) {
        float x[count], y[count];
        for (int64_t i = 0; i < count; ++i) x[i] = -0.01f * static_cast<float>(i);
        for (int64_t round = 0; round < rounds; ++round) kernels.exp2(x, y, count);
        *values = static_cast<double>(rounds * count);
    };
    return arithmetic_roof(loop, on, seconds);
}

}  // namespace ropewalk::toolkit
