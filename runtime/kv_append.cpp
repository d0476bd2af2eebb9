// kv_append: validate everything, then convert, rotate and pack runs of tokens.
#include <ropewalk/kv_pages.hpp>

#include <algorithm>

#include "runtime/kv_slots.hpp"
#include "runtime/pages.hpp"
#include "runtime/panel_runs.hpp"
#include "runtime/refuse.hpp"
#include "runtime/rope_rows.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {

namespace {

// Rows that are converted and rotated before they are packed: a whole panel if they fit 16 KiB of stack, which is up to 256 dims.
constexpr int32_t scratch_floats = 4096;
constexpr int32_t rows_at_once(int32_t dim) noexcept { return dim <= 256 ? 16 : dim <= 512 ? 8 : 4; }
static_assert(rows_at_once(1024) * 1024 == scratch_floats);

// Rows of cos and sin of so many tokens fit the scratch of one: all that a head of that dim may need but with FoPE.
int32_t rope_rows_at_once(const rope_table* table) noexcept {
    int32_t rows = panel_tokens;
    while (table != nullptr && rows * runtime::row_floats(table->spec()) > runtime::max_row_floats) rows /= 2;
    return rows;
}

using runtime::token_run;

class append_job {
public:
    append_job(const kv_pages& pages, std::span<const int64_t> slots, const const_head_view& k, const const_head_view& v, const kv_append_rope& rope,
               const simd::kernel_table& kernels) noexcept;

    void run(executor& on) const noexcept;

private:
    void append(const token_run& run, int32_t first_head, int32_t last_head) const noexcept;
    void find_rope_rows(const token_run& run, float* scratch, const float** rows) const noexcept;
    void append_k(const token_run& run, int32_t head, const float* const* rope_rows) const noexcept;
    void append_v(const token_run& run, int32_t head) const noexcept;

    const kv_pages& pages_;
    std::span<const int64_t> slots_;
    const_head_view k_, v_;
    const kv_append_rope& rope_;
    const simd::kernel_table& kernels_;
    const bool turned_;
    const int32_t run_tokens_;
    simd::rotate_function rotate_ = nullptr;
};

append_job::append_job(const kv_pages& pages, std::span<const int64_t> slots, const const_head_view& k, const const_head_view& v,
                       const kv_append_rope& rope, const simd::kernel_table& kernels) noexcept
    : pages_(pages),
      slots_(slots),
      k_(k),
      v_(v),
      rope_(rope),
      kernels_(kernels),
      turned_(rope.table != nullptr && rope.table->pairs() != 0 && k.heads != 0),
      run_tokens_(std::min({rows_at_once(pages.layout.k_dim), rows_at_once(pages.layout.v_dim), rope_rows_at_once(rope.table)})) {
    if (turned_) rotate_ = runtime::rotation_of(kernels, dtype::fp32, rope.options, runtime::action_of(rope.options));
}

void append_job::run(executor& on) const noexcept {
    const kv_layout& layout = pages_.layout;
    const int64_t elements = static_cast<int64_t>(slots_.size()) * layout.kv_heads * (int64_t{layout.k_dim} + layout.v_dim);
    runtime::for_each_panel_run(on, {slots_, layout.kv_heads, elements, on.concurrency()}, run_tokens_,
                                [this](const token_run& run, int32_t first_head, int32_t last_head) { append(run, first_head, last_head); });
}

void append_job::append(const token_run& run, int32_t first_head, int32_t last_head) const noexcept {
    alignas(64) float rope_scratch[runtime::max_row_floats];  // for rows that the table does not keep
    const float* rope_rows[panel_tokens] = {};
    if (turned_) find_rope_rows(run, rope_scratch, rope_rows);
    for (int32_t head = first_head; head < last_head; ++head) {
        if (k_.heads != 0) append_k(run, head, rope_rows);
        if (v_.heads != 0) append_v(run, head);
    }
}

// The rows of the run, once for all heads.
void append_job::find_rope_rows(const token_run& run, float* scratch, const float** rows) const noexcept {
    runtime::rope_row_source source(*rope_.table, runtime::action_of(rope_.options), rope_.options.conjugate, rope_.positions, kernels_);
    const int64_t row_floats = runtime::row_floats(rope_.table->spec());
    for (int32_t i = 0; i < run.count; ++i) rows[i] = source.row(run.token + i, scratch + i * row_floats);
}

void append_job::append_k(const token_run& run, int32_t head, const float* const* rope_rows) const noexcept {
    const kv_layout& layout = pages_.layout;
    alignas(64) float scratch[scratch_floats];
    const float* rows = scratch;
    int64_t row_stride = layout.k_dim;
    if (k_.type == dtype::fp32 && !turned_ && !layout.hadamard) {
        rows = reinterpret_cast<const float*>(runtime::row_address(k_, run.token, head));
        row_stride = k_.token_stride;
    } else {
        for (int32_t i = 0; i < run.count; ++i) {
            float* row = scratch + i * row_stride;
            kernels_.kv.load_row[static_cast<int>(k_.type)](runtime::row_address(k_, run.token + i, head), row, layout.k_dim);
            if (turned_) {
                const int32_t pairs = rope_.table->pairs();
                const runtime::turn_range turns = runtime::turns_of_k(rope_.table->spec());
                const float* cos = rope_rows[i] + (turns.first + head * turns.count / layout.kv_heads) * 2 * pairs;
                rotate_({row + rope_.options.first_dim, 0, 1, pairs, cos, cos + pairs, 0, rope_.options.pair_distance});
            }
            if (layout.hadamard) kernels_.kv.hadamard(row, layout.k_dim);
        }
    }
    kernels_.kv.pack_k[static_cast<int>(layout.k_type)](rows, row_stride, layout.k_dim, runtime::k_part(pages_, run.slot / layout.page_tokens, head),
                                                        static_cast<int32_t>(run.slot % layout.page_tokens), run.count);
}

void append_job::append_v(const token_run& run, int32_t head) const noexcept {
    const kv_layout& layout = pages_.layout;
    alignas(64) float scratch[scratch_floats];
    const float* rows = scratch;
    int64_t row_stride = layout.v_dim;
    if (v_.type == dtype::fp32 && !layout.hadamard) {
        rows = reinterpret_cast<const float*>(runtime::row_address(v_, run.token, head));
        row_stride = v_.token_stride;
    } else {
        for (int32_t i = 0; i < run.count; ++i) {
            float* row = scratch + i * row_stride;
            kernels_.kv.load_row[static_cast<int>(v_.type)](runtime::row_address(v_, run.token + i, head), row, layout.v_dim);
            if (layout.hadamard) kernels_.kv.hadamard(row, layout.v_dim);
        }
    }
    kernels_.kv.pack_v[static_cast<int>(layout.v_type)](rows, row_stride, layout.v_dim, runtime::v_part(pages_, run.slot / layout.page_tokens, head),
                                                        static_cast<int32_t>(run.slot % layout.page_tokens), run.count);
}

status check_append_rope(const kv_append_rope& rope, std::size_t tokens, const const_head_view& k) noexcept {
    if (rope.table == nullptr) return {};
    if (const status s = runtime::check_rope(*rope.table, rope.options); !s.ok()) return s;
    if (rope.table->axes() > 1) {
        if (const status s = runtime::check_streams("rope.positions", rope.positions.size(), static_cast<int64_t>(tokens), *rope.table); !s.ok()) {
            return s;
        }
    } else if (rope.positions.size() != tokens) {
        return runtime::refuse(status_code::invalid_argument, "rope.positions has %zu entries; must be %zu, one per slot", rope.positions.size(),
                               tokens);
    }
    if (k.heads == 0) return {};
    if (const status s = runtime::check_rope_heads("k", k.heads, *rope.table); !s.ok()) return s;
    if (const status s = runtime::check_rope_slice("k", k.dim, *rope.table, rope.options); !s.ok()) return s;
    return runtime::check_positions("rope.positions", rope.positions, rope.table->max_position());
}

}  // namespace

status kv_append(const kv_pages& pages, std::span<const int64_t> slots, const_head_view k, const_head_view v, const kv_append_rope& rope,
                 executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = runtime::check_transfer(pages, slots, k, v, runtime::view_use::read); !s.ok()) return s;
    if (pages.layout.v_in_k && v.heads != 0) {
        return runtime::refuse(status_code::invalid_argument, "v.heads is %d; must be 0, since layout.v_in_k says that K holds V", v.heads);
    }
    if (s = runtime::check_distinct(slots); !s.ok()) return s;
    if (s = check_append_rope(rope, slots.size(), k); !s.ok()) return s;
    append_job(pages, slots, k, v, rope, *kernels).run(on);
    return {};
}

}  // namespace ropewalk
