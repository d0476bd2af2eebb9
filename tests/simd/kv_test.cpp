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
    pack(rows.as<float>(), stride, c.dim, part.data(), c.first, c.count);
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

}  // namespace
}  // namespace ropewalk::test
