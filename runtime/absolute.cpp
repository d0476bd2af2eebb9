// Absolute encodings: one loop over tokens that writes or adds rows, and two sources of rows.
#include <ropewalk/absolute.hpp>

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <new>
#include <vector>

#include "runtime/blocks.hpp"
#include "runtime/refuse.hpp"
#include "runtime/views.hpp"
#include "simd/core/dispatch.hpp"

namespace ropewalk {

using runtime::refuse;

namespace {

constexpr int64_t row_limit = int64_t{1} << 31;

// Rows are formed and added in pieces that lie on a stack, 4 KiB each.
constexpr int32_t piece = 1024;

// Elements of a block, some 50 us of one core: of a gather, which is bound by memory, and of sines.
constexpr int64_t gather_elements = 128 * 1024;
constexpr int64_t sine_elements = 2 * 1024;

enum class row_use { store, add };

status check_tokens(const char* name, const head_view& view, int64_t tokens, int32_t dim) noexcept {
    if (const status s = runtime::check_view(name, view, runtime::view_use::write); !s.ok()) return s;
    return runtime::check_shape(name, view, {tokens, 1, dim}, "one token per position, as wide as the encoding");
}

// Row `position + offset` lies in [least, most].
status check_rows(std::span<const int64_t> positions, int64_t offset, int64_t least, int64_t most) noexcept {
    for (std::size_t t = 0; t < positions.size(); ++t) {
        const runtime::wide_int row = runtime::wide_int{positions[t]} + offset;
        if (row < least || row > most) {
            return refuse(status_code::out_of_range,
                          "positions[%zu] is %" PRId64 "; with offset %" PRId64 " it must be a row %" PRId64 " .. %" PRId64, t, positions[t], offset,
                          least, most);
        }
    }
    return {};
}

// Source: void fill(int64_t row, int32_t first, int32_t count, float* out) writes columns first .. first + count - 1.
template <class Source>
void for_each_row(const Source& source, std::span<const int64_t> positions, int64_t offset, const head_view& x, row_use use, int64_t block_elements,
                  const simd::kernel_table& kernels, executor& on) noexcept {
    const auto type = static_cast<int>(x.type);
    const auto body = [&](int64_t first_token, int64_t last_token) {
        float row[piece], sum[piece];
        for (int64_t t = first_token; t < last_token; ++t) {
            for (int32_t first = 0; first < x.dim; first += std::min(piece, x.dim - first)) {
                const int32_t count = std::min(piece, x.dim - first);
                std::byte* const at = runtime::row_address(x, t, 0) + int64_t{first} * element_bytes(x.type);
                source.fill(positions[static_cast<std::size_t>(t)] + offset, first, count, row);
                if (use == row_use::add) {
                    kernels.kv.load_row[type](at, sum, count);
                    kernels.attention.fold(row, sum, 1.0f, 1.0f, count);
                }
                kernels.kv.store_row[type](row, at, count);
            }
        }
    };
    runtime::for_each_block(on, x.tokens, std::max<int64_t>(block_elements / x.dim, 1), body);
}

// ---- sinusoidal -----------------------------------------------------------------------------------------------------------------------

// Columns of sines; the others are cosines, but for a zero one at the end.
int32_t sines_of(const sinusoid_spec& spec) noexcept { return spec.zero_odd_column ? spec.dim / 2 : spec.dim - spec.dim / 2; }

result<std::vector<double>> frequencies_of(const sinusoid_spec& spec) noexcept {
    try {
        std::vector<double> frequencies(static_cast<std::size_t>(sines_of(spec)));
        for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(spec.base, -static_cast<double>(i) / spec.denominator);
        return frequencies;
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %d frequencies", sines_of(spec));
    }
}

struct sinusoid_source {
    const sinusoid_spec& spec;
    const std::vector<double>& frequencies;

    void fill(int64_t row, int32_t first, int32_t count, float* out) const noexcept {
        const bool interleaved = spec.columns == sinusoid_columns::interleaved;
        const auto sines = static_cast<int32_t>(frequencies.size());
        for (int32_t column = first; column < first + count; ++column) {
            const bool cosine = interleaved ? column % 2 != 0 : column >= sines;
            const int32_t i = interleaved ? column / 2 : column - (cosine ? sines : 0);
            const bool zero = row == spec.zero_row || (spec.zero_odd_column && spec.dim % 2 != 0 && column == spec.dim - 1);
            const double angle = zero ? 0.0 : static_cast<double>(row) * frequencies[static_cast<std::size_t>(i)];
            out[column - first] = static_cast<float>(zero ? 0.0 : cosine ? std::cos(angle) : std::sin(angle));
        }
    }
};

status write_sinusoids(const char* name, const sinusoid_spec& spec, std::span<const int64_t> positions, const head_view& x, row_use use,
                       executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = spec.validate(); !s.ok()) return s;
    if (s = check_tokens(name, x, static_cast<int64_t>(positions.size()), spec.dim); !s.ok()) return s;
    if (s = check_rows(positions, spec.offset, -row_limit, row_limit); !s.ok()) return s;
    const result<std::vector<double>> frequencies = frequencies_of(spec);
    if (!frequencies.ok()) return frequencies.state();
    for_each_row(sinusoid_source{spec, *frequencies}, positions, spec.offset, x, use, sine_elements, *kernels, on);
    return {};
}

// ---- learned --------------------------------------------------------------------------------------------------------------------------

struct learned_source {
    const const_head_view& table;
    const simd::kernel_table& kernels;

    void fill(int64_t row, int32_t first, int32_t count, float* out) const noexcept {
        const std::byte* from = runtime::row_address(table, row, 0) + int64_t{first} * element_bytes(table.type);
        kernels.kv.load_row[static_cast<int>(table.type)](from, out, count);
    }
};

status write_learned(const char* name, const learned_positions& learned, std::span<const int64_t> positions, const head_view& x, row_use use,
                     executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    const const_head_view& table = learned.table;
    if (s = runtime::check_view("learned.table", table, runtime::view_use::read); !s.ok()) return s;
    if (s = runtime::check_shape("learned.table", table, {.heads = 1}, "a row per position"); !s.ok()) return s;
    if (s = check_tokens(name, x, static_cast<int64_t>(positions.size()), table.dim); !s.ok()) return s;
    if (s = check_rows(positions, learned.offset, 0, table.tokens - 1); !s.ok()) return s;
    for_each_row(learned_source{table, *kernels}, positions, learned.offset, x, use, gather_elements, *kernels, on);
    return {};
}

status check_outputs(std::span<const int64_t> positions, std::size_t wanted, const char* reason) noexcept {
    if (positions.size() != wanted) {
        return refuse(status_code::invalid_argument, "positions has %zu entries; must have %zu: %s", positions.size(), wanted, reason);
    }
    if (wanted == 0 || positions.data() != nullptr) return {};
    return refuse(status_code::invalid_argument, "positions.data() is null; must point to %zu entries", wanted);
}

status check_count(const char* name, int64_t value, int64_t most) noexcept {
    if (value >= 0 && value <= most) return {};
    return refuse(status_code::invalid_argument, "%s is %" PRId64 "; must be 0 .. %" PRId64, name, value, most);
}

}  // namespace

sinusoid_spec sinusoid_spec::vaswani(int32_t dim) noexcept { return {.dim = dim, .denominator = dim / 2.0}; }

sinusoid_spec sinusoid_spec::marian(int32_t dim) noexcept {
    return {.dim = dim, .columns = sinusoid_columns::concatenated, .denominator = dim / 2.0};
}

sinusoid_spec sinusoid_spec::whisper(int32_t dim) noexcept {
    return {.dim = dim, .columns = sinusoid_columns::concatenated, .denominator = dim / 2 - 1.0, .zero_odd_column = true};
}

sinusoid_spec sinusoid_spec::fairseq(int32_t dim, int64_t padding_idx) noexcept {
    sinusoid_spec spec = whisper(dim);
    spec.zero_row = padding_idx;
    return spec;
}

status sinusoid_spec::validate() const noexcept {
    constexpr status_code invalid = status_code::invalid_argument;
    if (dim < 1) return refuse(invalid, "spec.dim is %d; must be at least 1", dim);
    if (columns != sinusoid_columns::interleaved && columns != sinusoid_columns::concatenated) {
        return refuse(invalid, "spec.columns is %d; must be 0 (interleaved) or 1 (concatenated)", static_cast<int>(columns));
    }
    if (!std::isfinite(denominator) || denominator <= 0.0) {
        return refuse(invalid, "spec.denominator is %g for dim %d; must be finite and positive", denominator, dim);
    }
    if (!std::isfinite(base) || base < 1.0) return refuse(invalid, "spec.base is %g; must be finite and at least 1", base);
    return {};
}

status sinusoid_rows(const sinusoid_spec& spec, std::span<const int64_t> positions, head_view rows, executor& on) noexcept {
    return write_sinusoids("rows", spec, positions, rows, row_use::store, on);
}

status sinusoid_add(const sinusoid_spec& spec, std::span<const int64_t> positions, head_view x, executor& on) noexcept {
    return write_sinusoids("x", spec, positions, x, row_use::add, on);
}

// (sin, cos)(r + k) is (sin, cos)(r) turned by -k in the sense of rope: its kernels do it, with tokens for heads.
status sinusoid_shift(const sinusoid_spec& spec, int64_t k, head_view rows, executor& on) noexcept {
    status s;
    const simd::kernel_table* kernels = simd::active_kernels(&s);
    if (kernels == nullptr) return s;
    if (s = spec.validate(); !s.ok()) return s;
    if (spec.dim % 2 != 0 && !spec.zero_odd_column) {
        return refuse(status_code::invalid_argument, "spec.dim is %d; must be even or have zero_odd_column: the last sine has no cosine", spec.dim);
    }
    if (s = check_tokens("rows", rows, rows.tokens, spec.dim); !s.ok()) return s;
    if (k < -row_limit || k > row_limit) return refuse(status_code::out_of_range, "k is %" PRId64 "; must be within 2^31 of 0", k);
    const result<std::vector<double>> frequencies = frequencies_of(spec);
    if (!frequencies.ok()) return frequencies.state();
    std::vector<float> turn;
    try {
        turn.resize(2 * frequencies->size());
    } catch (const std::bad_alloc&) {
        return refuse(status_code::out_of_memory, "no memory for %zu angles", frequencies->size());
    }
    const auto pairs = static_cast<int32_t>(frequencies->size());
    if (pairs == 0) return {};
    for (std::size_t i = 0; i < frequencies->size(); ++i) {
        const double angle = static_cast<double>(k) * (*frequencies)[i];
        turn[i] = static_cast<float>(std::cos(angle));
        turn[frequencies->size() + i] = static_cast<float>(-std::sin(angle));
    }
    const auto layout = spec.columns == sinusoid_columns::interleaved ? simd::interleaved_pairs : simd::half_pairs;
    const simd::rotate_function rotate = kernels->rope.rotate[static_cast<int>(rows.type)][layout];
    runtime::for_each_block(on, rows.tokens, std::max<int64_t>(gather_elements / rows.dim, 1), [&](int64_t first, int64_t last) {
        rotate(
            {runtime::row_address(rows, first, 0), rows.token_stride, static_cast<int32_t>(last - first), pairs, turn.data(), turn.data() + pairs});
    });
    return {};
}

status xlnet_positions(std::span<int64_t> positions, const xlnet_positions_rule& rule) noexcept {
    if (const status s = check_count("rule.query_tokens", rule.query_tokens, row_limit / 2); !s.ok()) return s;
    if (const status s = check_count("rule.key_tokens", rule.key_tokens, row_limit / 2); !s.ok()) return s;
    if (const status s = check_outputs(positions, static_cast<std::size_t>(rule.rows()), "rule.rows()"); !s.ok()) return s;
    int64_t next = rule.key_tokens;
    for (int64_t& position : positions) {
        const int64_t clamped = rule.clamp_len > 0 ? std::clamp(next, -rule.clamp_len, rule.clamp_len) : next;
        position = rule.negated ? -clamped : clamped;
        --next;
    }
    return {};
}

status learned_rows(const learned_positions& learned, std::span<const int64_t> positions, head_view rows, executor& on) noexcept {
    return write_learned("rows", learned, positions, rows, row_use::store, on);
}

status learned_add(const learned_positions& learned, std::span<const int64_t> positions, head_view x, executor& on) noexcept {
    return write_learned("x", learned, positions, x, row_use::add, on);
}

status positions_from_mask(std::span<int64_t> positions, std::span<const uint8_t> mask) noexcept {
    if (const status s = check_outputs(positions, mask.size(), "one per entry of mask"); !s.ok()) return s;
    int64_t attended = 0;
    for (std::size_t t = 0; t < mask.size(); ++t) positions[t] = mask[t] != 0 ? attended++ : -1;
    return {};
}

status positions_from_tokens(std::span<int64_t> positions, std::span<const int64_t> tokens, int64_t padding_idx, int64_t past) noexcept {
    if (const status s = check_count("padding_idx", padding_idx, row_limit); !s.ok()) return s;
    if (const status s = check_count("past", past, row_limit); !s.ok()) return s;
    if (const status s = check_outputs(positions, tokens.size(), "one per token"); !s.ok()) return s;
    int64_t last = padding_idx + past;
    for (std::size_t t = 0; t < tokens.size(); ++t) positions[t] = tokens[t] != padding_idx ? ++last : padding_idx;
    return {};
}

}  // namespace ropewalk
