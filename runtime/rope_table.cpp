// The table of cos and sin. Blocks of rows hang in two levels of atomic pointers: a reader takes two acquire loads and no lock, a block is filled
// before its pointer is published, and neither blocks nor levels ever move.
#include <ropewalk/rope.hpp>

#include <array>
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <mutex>
#include <new>

#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

// Angles are formed exactly every 16 positions; the rows between follow by one angle addition in double. That replaces 15 of 16 calls of sincos
// (some 40 ns each) by four multiplications. The error of a row, before its rounding to fp32:
//   phase at the base         p * w is split by fma into the rounded product and the rest, which is added to first order: below 1e-14 for w <= 2 pi
//   sincos of base and step   1 ulp each, 2^-53 relative to at most 1
//   angle addition            two products and a sum: 3 * 2^-53
// together below 2e-14, against 3e-8 from rounding to fp32.
constexpr int32_t base_rows = 16;

// phase_mode::hf_f32 has rounded phases, which do not add up: there every row is formed by itself.

constexpr int64_t block_rows = 256;  // 128 KiB at 64 pairs: few allocations, and growth by one position is still 0.1 ms
constexpr int64_t segment_blocks = 1024;
constexpr int64_t position_limit = int64_t{1} << 31;

struct turn {
    double cos, sin;
};

turn turn_by(int64_t position, double inv_freq) noexcept {
    const auto p = static_cast<double>(position);  // exact below 2^53
    const double angle = p * inv_freq, rest = std::fma(p, inv_freq, -angle);
    const double c = std::cos(angle), s = std::sin(angle);
    return {c - rest * s, s + rest * c};
}

// As transformers and torch do on CPU: position, phase, cos and sin are fp32, and the amplitude multiplies what was rounded.
void hf_row(const rope_spec& spec, int64_t position, double amplitude, float* out) noexcept {
    const std::size_t pairs = spec.inv_freq.size();
    const auto p = static_cast<float>(position), a = static_cast<float>(amplitude);
    for (std::size_t i = 0; i < pairs; ++i) {
        const double phase = static_cast<double>(p * static_cast<float>(spec.inv_freq[i]));
        out[i] = static_cast<float>(std::cos(phase)) * a;
        out[pairs + i] = static_cast<float>(std::sin(phase)) * a;
    }
}

// Rotation by base, then by step.
inline void combine(double base_cos, double base_sin, double step_cos, double step_sin, float& out_cos, float& out_sin) noexcept {
    out_cos = static_cast<float>(base_cos * step_cos - base_sin * step_sin);
    out_sin = static_cast<float>(base_sin * step_cos + base_cos * step_sin);
}

void exact_row(const rope_spec& spec, int64_t distance, double amplitude, float* out) noexcept {
    const std::size_t pairs = spec.inv_freq.size();
    for (std::size_t i = 0; i < pairs; ++i) {
        const turn base = turn_by(distance / base_rows * base_rows, spec.inv_freq[i]);
        const turn step = turn_by(distance % base_rows, spec.inv_freq[i]);
        combine(base.cos * amplitude, base.sin * amplitude, step.cos, step.sin, out[i], out[pairs + i]);
    }
}

float* allocate_floats(int64_t count) noexcept {
    return static_cast<float*>(::operator new (static_cast<std::size_t>(count) * sizeof(float), std::align_val_t{64}, std::nothrow));
}
void free_floats(float* floats) noexcept { ::operator delete (floats, std::align_val_t{64}); }

struct free_floats_deleter {
    void operator()(float* floats) const noexcept { free_floats(floats); }
};

struct segment {
    std::array<std::atomic<float*>, segment_blocks> blocks{};
};

}  // namespace

namespace runtime {

void compute_rope_row(const rope_spec& spec, int64_t distance, double amplitude, float* row) noexcept {
    float plain[2 * max_rope_pairs];
    float* out = spec.pure_rotation() ? row : plain;
    if (spec.phases == phase_mode::hf_f32) {
        hf_row(spec, distance, amplitude, out);
    } else {
        exact_row(spec, distance, amplitude, out);
    }
    if (!spec.pure_rotation()) mix_rope_row(spec, distance, plain, row);
}

}  // namespace runtime

struct rope_table::state {
    rope_spec spec;
    int32_t axes = 1;
    int64_t accepted = 0;                                 // positions 0 .. accepted - 1 are legal
    int64_t kept = 0;                                     // rows below are kept
    int64_t initial_rows = 0;                             // rows in `initial`
    std::vector<double> step_cos, step_sin;               // [base_rows][pairs]
    std::unique_ptr<float, free_floats_deleter> initial;  // rows filled at construction, in one piece
    std::vector<std::atomic<segment*>> segments;
    // Growth: different blocks fill in parallel, two threads never fill the same one. 16 locks make a clash of different blocks unlikely.
    std::array<std::mutex, 16> growing;
    std::atomic<int64_t> bytes{0};

    ~state();
    [[nodiscard]] int64_t pairs() const noexcept { return static_cast<int64_t>(spec.inv_freq.size()); }
    [[nodiscard]] int64_t row_floats() const noexcept { return runtime::row_floats(spec); }
    [[nodiscard]] status prepare() noexcept;
    void fill(int64_t first, int64_t count, float* rows) const noexcept;
    [[nodiscard]] const float* block(int64_t index) const noexcept;
    [[nodiscard]] const float* grow(int64_t index) noexcept;
    [[nodiscard]] segment* segment_of(int64_t index) noexcept;
};

rope_table::state::~state() {
    const int64_t initial_blocks = (initial_rows + block_rows - 1) / block_rows;
    for (std::size_t s = 0; s < segments.size(); ++s) {
        segment* here = segments[s].load(std::memory_order_acquire);
        if (here == nullptr) continue;
        for (int64_t b = 0; b < segment_blocks; ++b) {
            if (static_cast<int64_t>(s) * segment_blocks + b >= initial_blocks) free_floats(here->blocks[static_cast<std::size_t>(b)].load());
        }
        delete here;
    }
}

// rows [count][row_floats] of positions first .. first + count - 1; first is a multiple of base_rows.
void rope_table::state::fill(int64_t first, int64_t count, float* rows) const noexcept {
    if (spec.phases == phase_mode::hf_f32 || !spec.pure_rotation()) {
        for (int64_t r = 0; r < count; ++r) runtime::compute_rope_row(spec, first + r, spec.amplitude, rows + r * row_floats());
        return;
    }
    const auto n = static_cast<std::size_t>(pairs());
    std::array<double, runtime::max_rope_pairs> base_cos, base_sin;
    for (int64_t base = 0; base < count; base += base_rows) {
        for (std::size_t i = 0; i < n; ++i) {
            const turn t = turn_by(first + base, spec.inv_freq[i]);
            base_cos[i] = t.cos * spec.amplitude;
            base_sin[i] = t.sin * spec.amplitude;
        }
        for (int64_t step = 0; step < base_rows && base + step < count; ++step) {
            const double* cos = step_cos.data() + step * pairs();
            const double* sin = step_sin.data() + step * pairs();
            float* row = rows + (base + step) * row_floats();
            for (std::size_t i = 0; i < n; ++i) combine(base_cos[i], base_sin[i], cos[i], sin[i], row[i], row[n + i]);
        }
    }
}

const float* rope_table::state::block(int64_t index) const noexcept {
    const segment* here = segments[static_cast<std::size_t>(index / segment_blocks)].load(std::memory_order_acquire);
    return here == nullptr ? nullptr : here->blocks[static_cast<std::size_t>(index % segment_blocks)].load(std::memory_order_acquire);
}

segment* rope_table::state::segment_of(int64_t index) noexcept {
    std::atomic<segment*>& place = segments[static_cast<std::size_t>(index / segment_blocks)];
    segment* here = place.load(std::memory_order_acquire);
    if (here != nullptr) return here;
    auto* made = new (std::nothrow) segment;
    if (made == nullptr || place.compare_exchange_strong(here, made, std::memory_order_acq_rel)) return made;
    delete made;
    return here;
}

// The block, filled by this thread if nobody has before; null when memory is out.
const float* rope_table::state::grow(int64_t index) noexcept {
    segment* here = segment_of(index);
    if (here == nullptr) return nullptr;
    std::atomic<float*>& place = here->blocks[static_cast<std::size_t>(index % segment_blocks)];
    const std::lock_guard lock(growing[static_cast<std::size_t>(index) % growing.size()]);
    if (const float* filled = place.load(std::memory_order_acquire)) return filled;
    float* rows = allocate_floats(block_rows * row_floats());
    if (rows == nullptr) return nullptr;
    fill(index * block_rows, block_rows, rows);
    place.store(rows, std::memory_order_release);
    bytes.fetch_add(block_rows * row_floats() * static_cast<int64_t>(sizeof(float)), std::memory_order_relaxed);
    return rows;
}

// Steps, levels and the initial rows.
status rope_table::state::prepare() noexcept {
    const status no_memory = refuse(status_code::out_of_memory, "no memory for %" PRId64 " rows of %" PRId64 " pairs", initial_rows, pairs());
    try {
        step_cos.resize(static_cast<std::size_t>(base_rows * pairs()));
        step_sin.resize(step_cos.size());
        const int64_t blocks = (kept + block_rows - 1) / block_rows;
        segments = std::vector<std::atomic<segment*>>(static_cast<std::size_t>((blocks + segment_blocks - 1) / segment_blocks));
    } catch (const std::bad_alloc&) {
        return no_memory;
    }
    for (std::size_t k = 0; k < step_cos.size(); ++k) {
        const std::size_t n = spec.inv_freq.size();
        const turn t = turn_by(static_cast<int64_t>(k / n), spec.inv_freq[k % n]);
        step_cos[k] = t.cos;
        step_sin[k] = t.sin;
    }
    if (initial_rows == 0 || pairs() == 0) return {};
    initial.reset(allocate_floats(initial_rows * row_floats()));
    if (initial == nullptr) return no_memory;
    fill(0, initial_rows, initial.get());
    for (int64_t first = 0; first < initial_rows; first += block_rows) {
        segment* here = segment_of(first / block_rows);
        if (here == nullptr) return no_memory;
        here->blocks[static_cast<std::size_t>(first / block_rows % segment_blocks)].store(initial.get() + first * row_floats());
    }
    bytes.store(initial_rows * row_floats() * static_cast<int64_t>(sizeof(float)));
    return {};
}

namespace {

status check_rows(const char* name, int64_t value, int64_t least) noexcept {
    if (value >= least && value <= position_limit) return {};
    return refuse(status_code::invalid_argument, "%s is %" PRId64 "; must be %" PRId64 " .. 2^31", name, value, least);
}

}  // namespace

result<rope_table> rope_table::growing(const rope_spec& spec, int64_t initial_positions, int64_t max_cached_positions) noexcept {
    if (const status s = spec.validate(); !s.ok()) return s;
    if (const status s = check_rows("initial_positions", initial_positions, 0); !s.ok()) return s;
    if (const status s = check_rows("max_cached_positions", max_cached_positions, 0); !s.ok()) return s;
    if (initial_positions > max_cached_positions) {
        return refuse(status_code::invalid_argument, "initial_positions is %" PRId64 "; must be at most max_cached_positions (%" PRId64 ")",
                      initial_positions, max_cached_positions);
    }
    // Whole blocks, so that nothing is ever added to a block that readers see.
    return make(spec, position_limit, max_cached_positions, (initial_positions + block_rows - 1) / block_rows * block_rows);
}

result<rope_table> rope_table::fixed(const rope_spec& spec, int64_t max_position) noexcept {
    if (const status s = spec.validate(); !s.ok()) return s;
    if (const status s = check_rows("max_position", max_position, 1); !s.ok()) return s;
    if (const int64_t most = runtime::mix_position_limit(spec, max_position); most < max_position) {
        return refuse(status_code::invalid_argument, "max_position is %" PRId64 "; must be at most %" PRId64 ", where xPos leaves fp32", max_position,
                      most);
    }
    return make(spec, max_position, max_position, max_position);
}

result<rope_table> rope_table::make(const rope_spec& spec, int64_t accepted, int64_t kept, int64_t initial_rows) noexcept {
    try {
        auto made = std::make_unique<state>();
        made->spec = spec;
        made->axes = spec.axes();
        made->accepted = runtime::mix_position_limit(spec, accepted);
        made->kept = kept;
        made->initial_rows = initial_rows;
        if (const status s = made->prepare(); !s.ok()) return s;
        return rope_table(std::move(made));
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for a rope table");
    }
}

rope_table::rope_table(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
rope_table::rope_table(rope_table&&) noexcept = default;
rope_table& rope_table::operator=(rope_table&&) noexcept = default;
rope_table::~rope_table() = default;

const rope_spec& rope_table::spec() const noexcept {
    static const rope_spec nothing;  // of a table that was moved from
    return state_ != nullptr ? state_->spec : nothing;
}

int32_t rope_table::axes() const noexcept { return state_ != nullptr ? state_->axes : 1; }
int32_t rope_table::pairs() const noexcept { return static_cast<int32_t>(spec().inv_freq.size()); }
int64_t rope_table::cached_bytes() const noexcept { return state_ != nullptr ? state_->bytes.load(std::memory_order_relaxed) : 0; }
int64_t rope_table::max_position() const noexcept { return state_ != nullptr ? state_->accepted - 1 : -1; }

const float* rope_table::find_row(int64_t position, float* scratch) const noexcept {
    static constexpr float nothing[1] = {};
    if (position < 0 || position > max_position()) return nullptr;
    if (state_->pairs() == 0) return nothing;
    if (position < state_->kept) {
        const float* rows = state_->block(position / block_rows);
        if (rows == nullptr) rows = state_->grow(position / block_rows);
        if (rows != nullptr) return rows + position % block_rows * state_->row_floats();
    }
    // Beyond what is kept, or no memory to keep it: the same bits, formed for this call.
    runtime::compute_rope_row(state_->spec, position, state_->spec.amplitude, scratch);
    return scratch;
}

status rope_table::row(int64_t position, std::span<float> cos, std::span<float> sin) const noexcept {
    const auto n = static_cast<std::size_t>(pairs());
    if (cos.size() != n) return refuse(status_code::invalid_argument, "cos has %zu entries; must be pairs() = %zu", cos.size(), n);
    if (sin.size() != n) return refuse(status_code::invalid_argument, "sin has %zu entries; must be pairs() = %zu", sin.size(), n);
    if (const status s = runtime::check_positions("position", {&position, 1}, max_position()); !s.ok()) return s;
    std::array<float, runtime::max_row_floats> scratch;
    const float* found = find_row(position, scratch.data());
    if (n == 0) return {};
    std::memcpy(cos.data(), found, n * sizeof(float));
    std::memcpy(sin.data(), found + n, n * sizeof(float));
    return {};
}

}  // namespace ropewalk
