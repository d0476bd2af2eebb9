// Frequencies that follow the length of a sequence, and keys that are turned where they lie.
#include <ropewalk/rope_cache.hpp>

#include <algorithm>
#include <cinttypes>
#include <new>
#include <utility>

#include "runtime/kv_slots.hpp"
#include "runtime/pages.hpp"
#include "runtime/panel_runs.hpp"
#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {

using runtime::refuse;

// ---- schedule ------------------------------------------------------------------------------------------------------------------------------

rope_schedule::rope_schedule(rope_spec constant) noexcept : short_(std::move(constant)) {}

result<rope_schedule> rope_schedule::longrope(const rope_spec::longrope_parameters& parameters, phase_mode phases) noexcept {
    result<rope_spec> within = rope_spec::longrope(parameters, 0, phases);
    if (!within.ok()) return within.state();
    result<rope_spec> beyond = rope_spec::longrope(parameters, std::numeric_limits<int64_t>::max(), phases);
    if (!beyond.ok()) return beyond.state();
    rope_schedule schedule(*std::move(within));
    schedule.long_ = *std::move(beyond);
    schedule.limit_ = parameters.original_max_position;
    return schedule;
}

result<rope_schedule> rope_schedule::dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position, phase_mode phases) noexcept {
    result<rope_spec> within = rope_spec::dynamic_ntk(rotary_dim, theta, factor, max_position, 0, phases);
    if (!within.ok()) return within.state();
    rope_schedule schedule(*std::move(within));
    schedule.limit_ = max_position;
    schedule.theta_ = theta;
    schedule.factor_ = factor;
    return schedule;
}

result<rope_spec> rope_schedule::spec_at(int64_t length) const noexcept {
    if (length < 0) return refuse(status_code::invalid_argument, "length is %" PRId64 "; must be at least 0", length);
    const bool beyond = static_cast<double>(length) > limit_;
    try {
        if (!beyond || theta_ == 0.0) return beyond ? long_ : short_;
        result<rope_spec> spec = rope_spec::dynamic_ntk(short_.rotary_dim(), theta_, factor_, limit_, length, short_.phases);
        if (spec.ok() && !divisors_.empty()) spec = spec->divided(divisors_);
        if (spec.ok()) spec->axis_of_pair = short_.axis_of_pair;
        return spec;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu frequencies", short_.inv_freq.size());
    }
}

status rope_schedule::check_growth(int64_t from, int64_t to) const noexcept {
    if (from < 0) return refuse(status_code::invalid_argument, "from is %" PRId64 "; must be at least 0", from);
    if (to < 0) return refuse(status_code::invalid_argument, "to is %" PRId64 "; must be at least 0", to);
    const auto here = static_cast<double>(from), there = static_cast<double>(to);
    const bool same = theta_ != 0.0 ? std::max(here, limit_) == std::max(there, limit_) : (here > limit_) == (there > limit_);
    if (from == 0 || same) return {};
    return refuse(status_code::needs_rerotation,
                  "the length goes from %" PRId64 " to %" PRId64
                  ", frequencies change beyond %g; kv_rerotate the keys, or pin the sequence to one spec",
                  from, to, limit_);
}

// ---- keys in pages -------------------------------------------------------------------------------------------------------------------------

namespace {

// The checks that both calls share; `name` is that of the angles.
status check_turn(const kv_pages& pages, std::span<const int64_t> slots, const char* name, std::span<const int64_t> angles, const rope_table& table,
                  const rope_options& options) noexcept {
    if (const status s = runtime::check_pages(pages); !s.ok()) return s;
    if (const status s = runtime::check_slots(slots, int64_t{pages.count} * pages.layout.page_tokens); !s.ok()) return s;
    if (const status s = runtime::check_distinct(slots); !s.ok()) return s;
    if (const status s = runtime::check_rope(table, options); !s.ok()) return s;
    if (const status s = runtime::check_streams(name, angles.size(), static_cast<int64_t>(slots.size()), table); !s.ok()) return s;
    if (options.inverse) return refuse(status_code::invalid_argument, "options.inverse is true; must be false");
    if (!table.spec().pure_rotation()) {
        return refuse(status_code::invalid_argument, "table has xPos or FoPE; keys in pages are turned by pure rotations only");
    }
    return runtime::check_rope_slice("k", pages.layout.k_dim, table, options);
}

// Turns K of every slot by row_of(token, scratch): cos [pairs] then sin [pairs], or null for none. Everything is checked. Each run has a copy of
// row_of and scratch of its own, three rows, so that the sources in it find there what they left.
template <class RowOf>
void turn_keys(const kv_pages& pages, std::span<const int64_t> slots, int32_t pairs, const rope_options& options, const simd::kernel_table& kernels,
               executor& on, const RowOf& any_row_of) noexcept {
    if (pairs == 0) return;
    const kv_layout& layout = pages.layout;
    const simd::rotate_function rotate = runtime::rotation_of(kernels, dtype::fp32, options, runtime::rope_action::shift);
    const auto turn = [&](int64_t slot, int32_t head, const float* by) {
        alignas(64) float row[simd::max_head_dim];
        runtime::read_k(pages, slot, head, row);
        if (layout.hadamard) kernels.kv.hadamard(row, layout.k_dim);
        rotate({row + options.first_dim, 0, 1, pairs, by, by + pairs, 0, options.pair_distance});
        if (layout.hadamard) kernels.kv.hadamard(row, layout.k_dim);
        kernels.kv.pack_k[static_cast<int>(layout.k_type)](row, layout.k_dim, layout.k_dim, runtime::k_part(pages, slot / layout.page_tokens, head),
                                                           static_cast<int32_t>(slot % layout.page_tokens), 1);
    };
    const int64_t elements = static_cast<int64_t>(slots.size()) * layout.kv_heads * layout.k_dim;
    runtime::for_each_panel_run(on, {slots, layout.kv_heads, elements, on.concurrency()}, panel_tokens,
                                [&](const runtime::token_run& run, int32_t first_head, int32_t last_head) {
                                    float scratch[3 * 2 * runtime::max_rope_pairs];
                                    RowOf row_of = any_row_of;
                                    for (int32_t i = 0; i < run.count; ++i) {
                                        const float* by = row_of(run.token + i, scratch);
                                        if (by == nullptr) continue;
                                        for (int32_t head = first_head; head < last_head; ++head) turn(run.slot + i, head, by);
                                    }
                                });
}

}  // namespace

status kv_rerotate(const kv_pages& pages, std::span<const int64_t> slots, std::span<const int64_t> positions, const rope_table& from,
                   const rope_table& to, const rope_options& options, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    for (const rope_table* table : {&from, &to}) {
        if (s = check_turn(pages, slots, "positions", positions, *table, options); !s.ok()) return s;
        if (s = runtime::check_positions("positions", positions, table->max_position()); !s.ok()) return s;
    }
    const int32_t pairs = from.pairs();
    if (to.pairs() != pairs) return refuse(status_code::invalid_argument, "to has %d pairs; must be %d, as many as from", to.pairs(), pairs);
    const double amplitude = from.spec().amplitude, ratio = to.spec().amplitude / amplitude;
    if (!(ratio >= 0x1p-100 && ratio <= 0x1p100)) {
        return refuse(status_code::invalid_argument, "the amplitude of to is %g times that of from; must be 2^-100 .. 2^100", ratio);
    }
    // R_to(p) R_from(p)^-1: a turn by the difference of the angles. Both rows carry their amplitudes.
    const runtime::rope_row_source old_rows(from, runtime::rope_action::rotate, options.conjugate, positions, *kernels);
    const runtime::rope_row_source new_rows(to, runtime::rope_action::rotate, options.conjugate, positions, *kernels);
    const double scale = 1.0 / (amplitude * amplitude);
    turn_keys(pages, slots, pairs, options, *kernels, on, [from_rows = old_rows, to_rows = new_rows, scale, pairs](int64_t token, float* by) mutable {
        const float *before = from_rows.row(token, by + 2 * pairs), *after = to_rows.row(token, by + 4 * pairs);
        for (int32_t i = 0; i < pairs; ++i) {
            const double c0 = before[i], s0 = before[pairs + i], c1 = after[i], s1 = after[pairs + i];
            by[i] = static_cast<float>((c1 * c0 + s1 * s0) * scale);
            by[pairs + i] = static_cast<float>((s1 * c0 - c1 * s0) * scale);
        }
        return static_cast<const float*>(by);
    });
    return {};
}

status kv_shift(const kv_pages& pages, std::span<const int64_t> slots, std::span<const int64_t> deltas, const rope_table& table,
                const rope_options& options, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = check_turn(pages, slots, "deltas", deltas, table, options); !s.ok()) return s;
    if (s = runtime::check_deltas(deltas, table); !s.ok()) return s;
    const runtime::rope_row_source rows(table, runtime::rope_action::shift, options.conjugate, deltas, *kernels);
    turn_keys(pages, slots, table.pairs(), options, *kernels, on, [source = rows](int64_t token, float* scratch) mutable -> const float* {
        return source.still(token) ? nullptr : source.row(token, scratch);
    });
    return {};
}

}  // namespace ropewalk
