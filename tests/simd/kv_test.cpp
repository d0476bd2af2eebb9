// Conversion and packing kernels of every target that runs here, against the definition of the formats and of the page layout.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "simd/core/dispatch.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

constexpr dtype narrow_types[] = {dtype::bf16, dtype::fp16};

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

class kv_kernels : public seeded {
protected:
    float any_bits() { return std::bit_cast<float>(static_cast<uint32_t>(random())); }
    void check_store(target t, dtype type, const std::vector<float>& values);
    void check_lengths(target t, dtype type);
};

TEST_F(kv_kernels, load_row_knows_every_16_bit_pattern) {
    std::vector<uint16_t> patterns(65536);
    for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
    std::vector<float> row(patterns.size());
    for (const target t : available_targets()) {
        for (const dtype type : narrow_types) {
            simd::kernels_of(t)->kv.load_row[static_cast<int>(type)](patterns.data(), row.data(), 65536);
            for (const uint16_t pattern : patterns) {
                const double wanted = element_value(type, &pattern);
                if (std::isnan(wanted)) {
                    ASSERT_TRUE(std::isnan(row[pattern])) << name(t) << " " << name(type) << " " << pattern;
                } else {
                    ASSERT_EQ(bits_of(row[pattern]), bits_of(static_cast<float>(wanted))) << name(t) << " " << name(type) << " " << pattern;
                }
            }
        }
    }
}

// To nearest even; NaN stays NaN with its sign.
void kv_kernels::check_store(target t, dtype type, const std::vector<float>& values) {
    std::vector<uint16_t> stored(values.size());
    simd::kernels_of(t)->kv.store_row[static_cast<int>(type)](values.data(), stored.data(), static_cast<int64_t>(values.size()));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const float value = values[i];
        if (std::isnan(value)) {
            ASSERT_TRUE(std::isnan(element_value(type, &stored[i]))) << name(t) << " " << name(type) << " bits " << std::hex << bits_of(value);
            ASSERT_EQ(stored[i] >> 15 != 0, std::signbit(value)) << name(t) << " " << name(type) << " bits " << std::hex << bits_of(value);
            continue;
        }
        uint16_t wanted = static_cast<uint16_t>((std::signbit(value) ? 0x8000 : 0) | (type == dtype::bf16 ? 0x7f80 : 0x7c00));
        if (std::isfinite(value)) set_element(type, &wanted, value);
        ASSERT_EQ(stored[i], wanted) << name(t) << " " << name(type) << " of " << value << ", bits " << std::hex << bits_of(value);
    }
}

TEST_F(kv_kernels, store_row_rounds_to_nearest_even) {
    for (const dtype type : narrow_types) {
        // Every value of the type, the midpoint to the next, and the floats on both sides of each.
        std::vector<float> values;
        for (int pattern = 0; pattern < 65536; ++pattern) {
            const uint16_t here = static_cast<uint16_t>(pattern), next = static_cast<uint16_t>(pattern + 1);
            const double value = element_value(type, &here), above = element_value(type, &next);
            if (!std::isfinite(value)) continue;
            const double step = std::isfinite(above) ? (above - value) / 2 : 0.0;
            for (const double base : {value, value + step}) {
                const auto single = static_cast<float>(base);
                values.insert(values.end(), {single, std::nextafter(single, 1e38f), std::nextafter(single, -1e38f)});
            }
        }
        for (const float value : {65504.0f, 65519.0f, 65520.0f, 1e6f, 3e38f, 1e-45f}) values.insert(values.end(), {value, -value});
        const float infinity = std::numeric_limits<float>::infinity();
        values.insert(values.end(), {std::numeric_limits<float>::max(), infinity, -infinity});
        for (const uint32_t nan : {0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
            values.push_back(std::bit_cast<float>(nan));
        }
        for (int i = 0; i < 200000; ++i) values.push_back(any_bits());
        for (const target t : available_targets()) {
            check_store(t, type, values);
            if (HasFatalFailure()) return;
        }
    }
}

// The bits of NaN, too, are those of the reference.
TEST_F(kv_kernels, nan_has_the_same_bits_on_every_target) {
    std::vector<float> values;
    for (int i = 0; i < 1000; ++i) values.push_back(std::bit_cast<float>(0x7f800001u | static_cast<uint32_t>(random() & 0x807fffffu)));
    for (const target t : available_targets()) {
        for (const dtype type : narrow_types) {
            std::vector<uint16_t> stored(values.size()), wanted(values.size());
            const auto n = static_cast<int64_t>(values.size());
            simd::kernels_of(t)->kv.store_row[static_cast<int>(type)](values.data(), stored.data(), n);
            simd::kernels_of(target::scalar)->kv.store_row[static_cast<int>(type)](values.data(), wanted.data(), n);
            ASSERT_EQ(stored, wanted) << name(t) << " " << name(type);
        }
    }
}

// Every length, on memory that ends with the last element, one element off its alignment.
void kv_kernels::check_lengths(target t, dtype type) {
    const auto bytes = static_cast<std::size_t>(element_bytes(type));
    for (std::size_t n = 0; n <= 70; ++n) {
        for (const guard edge : {guard::back, guard::front}) {
            const guarded_buffer source((n + 1) * bytes, edge), row((n + 1) * sizeof(float), edge), target_row((n + 1) * bytes, edge);
            source.fill(0xff);
            row.fill(0xff);
            target_row.fill(0xff);
            const std::size_t skip = edge == guard::back ? 1 : 0;  // the spare element lies before or behind
            for (std::size_t i = 0; i < n; ++i) set_element(type, source.data() + (i + skip) * bytes, normal());
            simd::kernels_of(t)->kv.load_row[static_cast<int>(type)](source.data() + skip * bytes, row.as<float>() + skip, static_cast<int64_t>(n));
            simd::kernels_of(t)->kv.store_row[static_cast<int>(type)](row.as<float>() + skip, target_row.data() + skip * bytes,
                                                                      static_cast<int64_t>(n));
            for (std::size_t i = 0; i < n; ++i) {
                ASSERT_EQ(row.as<float>()[i + skip], element_value(type, source.data() + (i + skip) * bytes)) << name(t) << " n " << n << " at " << i;
            }
            ASSERT_EQ(std::memcmp(source.data(), target_row.data(), source.size()), 0) << name(t) << " " << name(type) << " n " << n;
            ASSERT_EQ(bits_of(row.as<float>()[skip == 1 ? 0 : n]), 0xffffffffu) << name(t) << " n " << n;
        }
    }
}

TEST_F(kv_kernels, rows_of_every_length) {
    for (const target t : available_targets()) {
        for (const dtype type : all_types) {
            check_lengths(t, type);
            if (HasFatalFailure()) return;
        }
    }
}

// ---- packing ------------------------------------------------------------------------------------------------------------------------------

constexpr int32_t page_tokens = 32;

struct pack_case {
    target t;
    dtype type;
    bool keys;
    int32_t dim;
    int32_t first, count;
    int64_t row_gap;  // row_stride - dim
};

std::ostream& operator<<(std::ostream& out, const pack_case& c) {
    return out << name(c.t) << " " << name(c.type) << (c.keys ? " pack_k" : " pack_v") << " dim " << c.dim << " tokens " << c.first << " + "
               << c.count << " row gap " << c.row_gap;
}

int32_t padded_dim(const pack_case& c) {
    const int32_t multiple = !c.keys ? 16 : c.type == dtype::bf16 ? 2 : 1;
    return (c.dim + multiple - 1) / multiple * multiple;
}

// Element index of (token, d) by the formulas of kv_pages.hpp.
std::size_t element_index(const pack_case& c, int32_t token, int32_t d) {
    const int32_t g = c.type == dtype::bf16 ? 2 : 1, padded = padded_dim(c);
    const int32_t index = c.keys ? ((token / 16 * (padded / g) + d / g) * 16 + token % 16) * g + d % g : (token / g * padded + d) * g + token % g;
    return static_cast<std::size_t>(index);
}

class kv_packing : public seeded {
protected:
    void check(const pack_case& c);
};

void kv_packing::check(const pack_case& c) {
    const auto bytes = static_cast<std::size_t>(element_bytes(c.type));
    const auto part_bytes = static_cast<std::size_t>(page_tokens * padded_dim(c)) * bytes;
    const guarded_buffer part(part_bytes);
    for (std::byte& b : part.bytes()) b = static_cast<std::byte>(random());
    std::vector<std::byte> wanted(part.bytes().begin(), part.bytes().end());
    const int64_t stride = c.dim + c.row_gap;
    const auto row_floats = static_cast<std::size_t>((c.count - 1) * stride + c.dim);
    const guarded_buffer rows(row_floats * sizeof(float));
    rows.fill(0xff);
    for (int32_t row = 0; row < c.count; ++row) {
        for (int32_t d = 0; d < padded_dim(c); ++d) {
            float value = 0.0f;
            if (d < c.dim) rows.as<float>()[row * stride + d] = value = normal();
            set_element(c.type, wanted.data() + element_index(c, c.first + row, d) * bytes, value);
        }
    }
    const simd::kv_kernels& kernels = simd::kernels_of(c.t)->kv;
    const auto pack = c.keys ? kernels.pack_k[static_cast<int>(c.type)] : kernels.pack_v[static_cast<int>(c.type)];
    pack(rows.as<float>(), stride, c.dim, {part.data(), nullptr, page_tokens}, c.first, c.count);
    for (std::size_t i = 0; i < part_bytes; ++i) {
        ASSERT_EQ(part.data()[i], wanted[i]) << c << ": byte " << i << " of " << part_bytes;
    }
}

constexpr struct {
    int32_t first, count;
} ranges[] = {{0, 32}, {0, 16}, {16, 16}, {0, 1}, {1, 1}, {5, 1}, {31, 1}, {15, 2}, {2, 2}, {3, 13}, {5, 20}, {14, 18}, {1, 31}};

TEST_F(kv_packing, every_target_type_dim_and_range) {
    std::vector<int32_t> dims;
    for (int32_t dim = 1; dim <= 40; ++dim) dims.push_back(dim);
    dims.insert(dims.end(), {64, 72, 80, 96, 100, 112, 127, 128, 129, 192, 256, 257, 512, 576});
    for (const target t : available_targets()) {
        for (const dtype type : all_types) {
            for (const bool keys : {true, false}) {
                for (const int32_t dim : dims) {
                    for (const auto& range : ranges) {
                        if (dim > 130 && range.count > 2 && range.first % 16 != 0 && range.first != 5) continue;  // big and alike
                        check({t, type, keys, dim, range.first, range.count, dim % 3});
                        if (HasFatalFailure()) return;
                    }
                }
            }
        }
    }
}

// ---- quantised pages -----------------------------------------------------------------------------------------------------------------------

constexpr dtype quantised_types[] = {dtype::int8, dtype::int4, dtype::fp8};

// A K part or V part of a quantised type with its scales, filled with noise.
struct quantised_part {
    guarded_buffer elements, scales;

    quantised_part(const pack_case& c, std::mt19937_64& random) : elements(element_bytes_of(c)), scales(scale_bytes_of(c)) {
        for (const guarded_buffer* buffer : {&elements, &scales}) {
            for (std::byte& b : buffer->bytes()) b = static_cast<std::byte>(random());
        }
    }
    // kv_pages.hpp: dims padded to g in K, to 16 in V, to 32 in int4; a line of scales behind each 32 dims of a K panel of int4.
    static int32_t stored(const pack_case& c) {
        const int32_t unit = c.type == dtype::int4 ? 32 : !c.keys ? 16 : c.type == dtype::int8 ? 4 : 1;
        return (c.dim + unit - 1) / unit * unit;
    }
    static std::size_t element_bytes_of(const pack_case& c) {
        const int32_t dims = stored(c);
        if (c.type != dtype::int4) return static_cast<std::size_t>(page_tokens * dims);
        return static_cast<std::size_t>(page_tokens * dims / 2 + (c.keys ? page_tokens / 16 * dims / 32 * 64 : 0));
    }
    static std::size_t scale_bytes_of(const pack_case& c) {
        if (c.type == dtype::int4) return c.keys ? 0 : static_cast<std::size_t>(page_tokens * stored(c) / 32 * 4);
        return page_tokens * 4;
    }
    [[nodiscard]] simd::kv_part view() const { return {elements.data(), scales.data(), page_tokens}; }

    // The code of (token, d) as it lies in the page, by the formulas of kv_pages.hpp; fp8 as its bits.
    [[nodiscard]] int code(const pack_case& c, int32_t token, int32_t d) const {
        const auto byte = [&](int64_t at) { return std::to_integer<int>(elements.data()[at]); };
        const int64_t dims = stored(c);
        if (c.type == dtype::fp8) return byte(c.keys ? (token / 16 * dims + d) * 16 + token % 16 : token * dims + d);
        if (c.type == dtype::int8) {
            const int64_t at = c.keys ? ((token / 16 * (dims / 4) + d / 4) * 16 + token % 16) * 4 + d % 4 : (token / 4 * dims + d) * 4 + token % 4;
            return static_cast<int8_t>(byte(at));
        }
        const int64_t word = c.keys ? (token / 16 * (dims / 32) + d / 32) * (64 * 5) + d % 32 / 8 * 64 + token % 16 * 4 : (token / 8 * dims + d) * 4;
        const int32_t e = c.keys ? d % 8 : token % 8;
        return byte(word + e % 4) >> (e < 4 ? 0 : 4) & 15;
    }
    // Scale and mid of (token, d).
    [[nodiscard]] std::pair<double, double> scale(const pack_case& c, int32_t token, int32_t d) const {
        if (c.type != dtype::int4) return {element_value(dtype::fp32, scales.data() + token * 4), 0.0};
        const int64_t dims = stored(c), group = d / 32, groups = dims / 32;
        if (!c.keys) {
            const auto half = [&](int64_t row) { return element_value(dtype::fp16, scales.data() + (row * page_tokens + token) * 2); };
            return {half(group), half(groups + group)};
        }
        const std::byte* line = elements.data() + (token / 16 * groups + group) * (64 * 5) + 256;
        return {element_value(dtype::fp16, line + token % 16 * 2), element_value(dtype::fp16, line + 32 + token % 16 * 2)};
    }
};

// Bits of E4M3 as a number, from the definition: bias 7, three fraction bits.
double e4m3(int bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

class kv_quantised : public seeded {
protected:
    void check(const pack_case& c, const std::vector<float>& rows);
    std::vector<float> random_rows(const pack_case& c) {
        std::vector<float> rows(static_cast<std::size_t>(c.count * c.dim));
        // Rows of very different size, some with an outlier.
        for (std::size_t i = 0; i < rows.size(); ++i) {
            const auto row = static_cast<int>(i) / c.dim;
            rows[i] = normal() * std::ldexp(1.0f, row % 7 * 3 - 9);
            if (row % 5 == 3 && random() % 16 == 0) rows[i] *= 50.0f;
        }
        return rows;
    }
};

// Every target writes the bytes that the reference writes, and nothing else; the reference is near what it was given.
void kv_quantised::check(const pack_case& c, const std::vector<float>& rows) {
    const auto type = static_cast<int>(c.type);
    const std::mt19937_64 noise(random());
    std::mt19937_64 first_noise = noise, second_noise = noise;
    const quantised_part part(c, first_noise), wanted(c, second_noise);
    const simd::kv_kernels &kernels = simd::kernels_of(c.t)->kv, &reference = simd::kernels_of(target::scalar)->kv;
    const auto pack = [&](const simd::kv_kernels& table, const quantised_part& to) {
        (c.keys ? table.pack_k : table.pack_v)[type](rows.data(), c.dim, c.dim, to.view(), c.first, c.count);
    };
    pack(kernels, part);
    pack(reference, wanted);
    for (std::size_t i = 0; i < part.elements.size(); ++i) ASSERT_EQ(part.elements.data()[i], wanted.elements.data()[i]) << c << ": byte " << i;
    for (std::size_t i = 0; i < part.scales.size(); ++i) ASSERT_EQ(part.scales.data()[i], wanted.scales.data()[i]) << c << ": scale byte " << i;
    for (int32_t row = 0; row < c.count; ++row) {
        const int32_t token = c.first + row;
        const float* x = rows.data() + row * c.dim;
        double largest = 0.0;
        for (int32_t d = 0; d < c.dim; ++d) largest = std::max(largest, std::abs(double{x[d]}));
        if (largest < 0x1p-100) largest = 0.0;  // stored as 0
        for (int32_t d = 0; d < c.dim; ++d) {
            const auto [scale, mid] = part.scale(c, token, d);
            const int code = part.code(c, token, d);
            double value = 0.0, bound = 0.0;  // half a step, and what rounding of the scale itself moves
            if (c.type == dtype::int8) {
                value = code * scale;
                bound = scale * 0.5001;
                ASSERT_NEAR(scale, largest / 127.0, largest * 1e-7) << c;
            } else if (c.type == dtype::fp8) {
                value = e4m3(code) * scale;
                bound = std::max(std::abs(double{x[d]}) * 0x1p-4, scale * 0x1p-10) * 1.0001;
                ASSERT_NEAR(scale, largest / 448.0, largest * 1e-7) << c;
            } else {
                value = (code - 8) * scale + mid;
                bound = scale * 0.51 + 0x1p-11 * (std::abs(mid) + 8 * scale) + 0x1p-25 * 15;  // scale and mid are fp16
            }
            ASSERT_NEAR(value, largest == 0.0 ? 0.0 : x[d], bound)
                << c << " row " << row << " dim " << d << " code " << code << " scale " << scale << " mid " << mid;
        }
    }
}

TEST_F(kv_quantised, every_target_type_dim_and_range) {
    for (const target t : available_targets()) {
        for (const dtype type : quantised_types) {
            for (const bool keys : {true, false}) {
                for (const int32_t dim : {1, 3, 8, 15, 16, 17, 31, 32, 33, 40, 64, 72, 80, 100, 128, 129, 160, 256, 576}) {
                    for (const auto& range : ranges) {
                        if (dim > 130 && range.count > 2 && range.first % 16 != 0 && range.first != 5) continue;  // big and alike
                        const pack_case c{t, type, keys, dim, range.first, range.count, 0};
                        check(c, random_rows(c));
                        if (HasFatalFailure()) return;
                    }
                }
            }
        }
    }
}

// Zero, constant, tiny, huge and tied rows.
TEST_F(kv_quantised, odd_rows) {
    constexpr int32_t dim = 64;
    for (const target t : available_targets()) {
        for (const dtype type : quantised_types) {
            for (const bool keys : {true, false}) {
                const pack_case c{t, type, keys, dim, 0, 16, 0};
                std::vector<float> rows(16 * dim);
                for (std::size_t i = 0; i < rows.size(); ++i) {
                    const float d = static_cast<float>(i % dim), sign = i % 2 == 0 ? 1.0f : -1.0f;
                    const float kinds[] = {0.0f,
                                           -0.0f,
                                           3.0f,
                                           -1.0f,
                                           1e-30f * d,
                                           sign * 0x1p-101f,
                                           (d - 31.5f) / 63.0f * 127.0f,
                                           d * 100.0f,
                                           sign,
                                           d == 5 ? 1.0f : 0.0f,
                                           0x1p-20f * d,
                                           d - 32,
                                           448.0f - d,
                                           sign * d * 0.5f,
                                           1e-3f * d * d,
                                           127.0f - 2 * d};
                    rows[i] = kinds[i / dim];
                }
                check(c, rows);
                if (HasFatalFailure()) return;
            }
        }
    }
}

// Against the definition, which the reference spells out, and twice is the identity.
TEST_F(kv_quantised, hadamard_is_orthonormal) {
    for (const target t : available_targets()) {
        for (const int32_t dim : {16, 32, 48, 64, 80, 96, 128, 192, 512, 576, 1024}) {
            const guarded_buffer memory(static_cast<std::size_t>(dim) * 4);
            auto* row = memory.as<float>();
            std::vector<float> given(static_cast<std::size_t>(dim));
            for (float& x : given) x = normal();
            std::vector<float> wanted = given;
            std::copy(given.begin(), given.end(), row);
            simd::kernels_of(target::scalar)->kv.hadamard(wanted.data(), dim);
            const auto hadamard = simd::kernels_of(t)->kv.hadamard;
            hadamard(row, dim);
            // log2(block) sums of values of up to 4.5 sqrt(block) before the factor.
            for (int32_t d = 0; d < dim; ++d)
                ASSERT_NEAR(row[d], wanted[static_cast<std::size_t>(d)], 10 * 4.5 * 0x1p-24) << name(t) << " " << dim << " at " << d;
            hadamard(row, dim);
            for (int32_t d = 0; d < dim; ++d)
                ASSERT_NEAR(row[d], given[static_cast<std::size_t>(d)], 20 * 4.5 * 0x1p-24) << name(t) << " " << dim << " at " << d;
        }
    }
}

// A row, in int4 a group of 32 dims, that holds Inf or NaN is NaN as a whole, and its neighbours are not.
TEST_F(kv_quantised, non_finite_rows_read_as_nan) {
    constexpr int32_t dim = 64;
    for (const target t : available_targets()) {
        for (const dtype type : quantised_types) {
            for (const bool keys : {true, false}) {
                for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
                    const pack_case c{t, type, keys, dim, 0, 16, 0};
                    std::vector<float> rows(16 * dim, 0.25f);
                    rows[3 * dim + 40] = bad;
                    const quantised_part part(c, random);
                    const auto& kernels = simd::kernels_of(t)->kv;
                    (keys ? kernels.pack_k : kernels.pack_v)[static_cast<int>(type)](rows.data(), dim, dim, part.view(), 0, 16);
                    for (int32_t token = 0; token < 16; ++token) {
                        for (int32_t d = 0; d < dim; ++d) {
                            const bool hit = token == 3 && (type != dtype::int4 || d >= 32);
                            ASSERT_EQ(std::isnan(part.scale(c, token, d).first), hit) << c << " token " << token << " dim " << d;
                        }
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
