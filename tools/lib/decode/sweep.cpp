#include "tools/lib/decode/sweep.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "simd/core/dispatch.hpp"
#include "tools/lib/parallel.hpp"
#include "tools/lib/refusal.hpp"
#include "tools/lib/roof.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr double repetition_seconds = 0.25;
constexpr int64_t most_steps = 100'000;
constexpr int64_t roof_bytes = int64_t{1} << 30;  // 40 ms at 25 GB/s: long enough to time, short enough to come right after the steps

// Elements of `type`, uniform in [-1, 1): scores of ordinary size, no NaN, no denormals to speak of.
std::vector<std::byte> random_elements(dtype type, std::size_t count, uint64_t seed) {
    std::vector<std::byte> bytes(count * static_cast<std::size_t>(element_bytes(type)));
    for (std::size_t i = 0; i < count; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const float value = static_cast<float>(static_cast<int64_t>(seed) >> 40) * 0x1p-23f;
        if (type == dtype::fp32) {
            std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
        } else {
            const uint16_t rounded = float_to_bf16(value);
            std::memcpy(bytes.data() + i * sizeof rounded, &rounded, sizeof rounded);
        }
    }
    return bytes;
}

// Fills memory at the speed of a copy: every block gets a piece of one random pattern that starts elsewhere. Any element of a page may hold any
// number, so no page layout has to be known. Quantised pages get bf16 numbers: any bits are codes, and as scales of either width they are ordinary
// numbers.
void fill(std::span<std::byte> memory, dtype type, executor& on) {
    constexpr std::size_t block = std::size_t{1} << 20, shifts = 4096, shift = 64;
    const dtype element = element_bytes(type) != 0 ? type : dtype::bf16;
    const std::vector<std::byte> pattern = random_elements(element, (block + shifts * shift) / static_cast<std::size_t>(element_bytes(element)), 1);
    std::atomic<std::size_t> cursor{0};
    parallel(on, on.concurrency(), [&](int32_t) {
        for (std::size_t i; (i = cursor.fetch_add(1, std::memory_order_relaxed)) * block < memory.size();) {
            std::memcpy(memory.data() + i * block, pattern.data() + i * 2654435761u % shifts * shift, std::min(block, memory.size() - i * block));
        }
    });
}

int64_t pages_of_batch(const sweep_case& c) { return c.batch * ((c.context + c.page_tokens - 1) / c.page_tokens); }

// Batches that the cache holds.
result<int64_t> batches_of(const sweep_case& c) {
    const int64_t pages = pages_of_batch(c);
    if (pages > INT32_MAX) return refusal(status_code::invalid_argument, "context {} times batch {} needs more than 2^31 pages", c.context, c.batch);
    const result<int64_t> bytes = decode_engine::cache_bytes(c.model, c.kv, c.page_tokens, static_cast<int32_t>(pages));
    if (!bytes.ok()) return bytes.state();
    return std::max<int64_t>(1, (c.least_bytes + *bytes - 1) / *bytes);
}

}  // namespace

result<int64_t> synthetic_cache::bytes(const sweep_case& c) {
    if (c.page_tokens < 1) return refusal(status_code::invalid_argument, "page_tokens is {}; must be positive", c.page_tokens);
    const result<int64_t> batches = batches_of(c);
    if (!batches.ok()) return batches;
    return decode_engine::cache_bytes(c.model, c.kv, c.page_tokens, static_cast<int32_t>(*batches * pages_of_batch(c)));
}

synthetic_cache::synthetic_cache(const sweep_case& c, decode_engine engine) : case_(c), engine_(std::move(engine)) {
    const auto rows = static_cast<std::size_t>(c.batch), dim = static_cast<std::size_t>(c.model.head_dim);
    const std::size_t q_count = rows * static_cast<std::size_t>(c.model.heads) * dim,
                      kv_count = rows * static_cast<std::size_t>(c.model.kv_heads) * dim;
    q_fresh_ = random_elements(c.q_type, q_count, 2);
    q_ = out_ = q_fresh_;
    k_ = random_elements(c.q_type, kv_count, 3);
    v_ = random_elements(c.q_type, kv_count, 4);
}

result<synthetic_cache> synthetic_cache::create(const sweep_case& c, executor& on) {
    const result<int64_t> batches = batches_of(c);
    if (!batches.ok()) return batches.state();
    const auto pages = static_cast<int32_t>(*batches * pages_of_batch(c));
    result<decode_engine> engine = decode_engine::create(c.model, {c.kv, c.q_type, c.precision}, c.page_tokens, pages);
    if (!engine.ok()) return engine.state();
    synthetic_cache cache(c, std::move(*engine));
    cache.batches_.resize(static_cast<std::size_t>(*batches));
    fill(cache.engine_.memory(), c.kv.k_type, on);
    const status filled = cache.fill_sequences();
    if (!filled.ok()) return filled;
    return cache;
}

// All sequences get context - 1 tokens, a page in turn: the pages of a sequence lie apart, as they do when requests grow side by side.
status synthetic_cache::fill_sequences() {
    kv_cache& cache = engine_.cache();
    for (std::vector<sequence_id>& batch : batches_) {
        for (int32_t i = 0; i < case_.batch; ++i) {
            const result<sequence_id> sequence = cache.create_sequence();
            if (!sequence.ok()) return sequence.state();
            batch.push_back(*sequence);
        }
    }
    std::vector<int64_t> slots;
    for (int64_t length = 0; length < case_.context - 1; length += case_.page_tokens) {
        const int64_t tokens = std::min<int64_t>(case_.page_tokens, case_.context - 1 - length);
        slots.resize(static_cast<std::size_t>(tokens));
        for (const std::vector<sequence_id>& batch : batches_) {
            for (const sequence_id sequence : batch) {
                const kv_cache::append_request request{sequence, tokens};
                const status appended = cache.append({&request, 1}, slots, {});
                if (!appended.ok()) return appended;
            }
        }
    }
    return {};
}

status synthetic_cache::step(executor& on, double& seconds) {
    const std::vector<sequence_id>& batch = batches_[next_batch_];
    next_batch_ = (next_batch_ + 1) % batches_.size();
    requests_.clear();
    for (const sequence_id sequence : batch) requests_.push_back({sequence, 1});
    const model_shape& model = case_.model;
    layer_tensors tensors;
    tensors.q = dense_view(q_.data(), case_.q_type, case_.batch, model.heads, model.head_dim);
    tensors.k = dense_view(static_cast<const void*>(k_.data()), case_.q_type, case_.batch, model.kv_heads, model.head_dim);
    tensors.v = dense_view(static_cast<const void*>(v_.data()), case_.q_type, case_.batch, model.kv_heads, model.head_dim);
    tensors.out = dense_view(out_.data(), case_.q_type, case_.batch, model.heads, model.head_dim);

    const stopwatch watch;
    status done = engine_.begin(requests_, on);
    for (int32_t layer = 0; done.ok() && layer < model.layers; ++layer) {
        std::memcpy(q_.data(), q_fresh_.data(), q_.size());  // rotation is in place: every layer brings a fresh q
        done = engine_.run_layer(layer, tensors, on);
    }
    seconds += watch.seconds();
    for (const sequence_id sequence : batch) {
        if (done.ok()) done = engine_.cache().truncate(sequence, case_.context - 1);
    }
    return done;
}

// Every batch once; then as many steps as fill a repetition.
status synthetic_cache::warm_up(executor& on, int64_t& steps) {
    double seconds = 0.0;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
        seconds = 0.0;
        const status done = step(on, seconds);
        if (!done.ok()) return done;
    }
    steps = std::clamp(static_cast<int64_t>(std::ceil(repetition_seconds / std::max(seconds, 1e-9))), int64_t{1}, most_steps);
    engine_.take_times();
    return {};
}

status synthetic_cache::repeat(executor& on, int64_t steps, const simd::roof_kernels& roof, measurement& m) {
    double seconds = 0.0, bytes = 0.0;
    for (int64_t i = 0; i < steps; ++i) {
        const status done = step(on, seconds);
        if (!done.ok()) return done;
        bytes += static_cast<double>(engine_.step_kv_bytes());
    }
    const std::span<std::byte> memory = engine_.memory();
    m.bandwidth.add(bytes / seconds * 1e-9, read_roof(roof, memory.first(std::min<std::size_t>(memory.size(), roof_bytes)), on));
    const decode_engine::times parts = engine_.take_times();
    const auto count = static_cast<double>(steps);
    m.step.push_back(seconds / count);
    m.attention.push_back(parts.attention / count);
    m.append.push_back(parts.append / count);
    return {};
}

result<measurement> synthetic_cache::measure(int32_t repetitions, const workers& team, const std::function<void()>& progress) {
    status done;
    const simd::kernel_table* kernels = simd::active_kernels(&done);
    if (kernels == nullptr) return done;
    measurement m;
    team.enter([&] {
        int64_t steps = 0;
        done = warm_up(team.on(), steps);
        for (int32_t i = 0; done.ok() && i < repetitions; ++i) {
            done = repeat(team.on(), steps, kernels->roof, m);
            progress();
        }
    });
    if (!done.ok()) return done;
    return m;
}

}  // namespace ropewalk::toolkit
