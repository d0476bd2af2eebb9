// Absolute encodings against their formulas in long double, on strided tensors of every type.
#include <ropewalk/absolute.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/elements.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using positions = std::vector<int64_t>;

// Column by column, as the publications have it.
double published(const sinusoid_spec& spec, int64_t row, int32_t column) {
    const int32_t half = spec.dim / 2;
    const int32_t sines = spec.zero_odd_column ? half : spec.dim - half;
    const bool interleaved = spec.columns == sinusoid_columns::interleaved;
    if (row == spec.zero_row || (spec.zero_odd_column && column == 2 * half)) return 0.0;
    const int32_t i = interleaved ? column / 2 : column < sines ? column : column - sines;
    const bool sine = interleaved ? column % 2 == 0 : column < sines;
    const long double angle =
        static_cast<long double>(row) * std::pow(static_cast<long double>(spec.base), -i / static_cast<long double>(spec.denominator));
    return static_cast<double>(sine ? std::sin(angle) : std::cos(angle));
}

// Rounded once to fp32, of a phase that errs by |row| 2^-52: its frequency and the product are rounded.
double row_bound(int64_t row) { return 0x1p-25 + std::abs(static_cast<double>(row)) * 0x1p-52 + 1e-15; }

std::vector<sinusoid_spec> published_specs(int32_t dim) {
    return {sinusoid_spec::vaswani(dim), sinusoid_spec::marian(dim), sinusoid_spec::whisper(dim), sinusoid_spec::fairseq(dim, 1)};
}

void expect_ok(const status& s) { ASSERT_TRUE(s.ok()) << s.text(); }

TEST(sinusoid, rows_of_every_published_order_near_and_far) {
    const positions at = {0, 1, 2, 3, 255, 65537, 1000003, (int64_t{1} << 31), -1, -77, -(int64_t{1} << 31)};
    for (const int32_t dim : {4, 5, 7, 16, 63, 64, 1030}) {
        for (const sinusoid_spec& spec : published_specs(dim)) {
            strided_tensor rows(dtype::fp32, static_cast<int64_t>(at.size()), 1, dim, 0, 3);
            expect_ok(sinusoid_rows(spec, at, rows.view()));
            for (std::size_t t = 0; t < at.size(); ++t) {
                for (int32_t c = 0; c < dim; ++c) {
                    ASSERT_NEAR(rows.value(static_cast<int64_t>(t), 0, c), published(spec, at[t], c), row_bound(at[t]))
                        << "dim " << dim << ", columns " << static_cast<int>(spec.columns) << ", position " << at[t] << ", column " << c;
                }
            }
        }
    }
}

// The facts that tell the orders apart, at position 1: the highest and the lowest frequency.
TEST(sinusoid, denominators_and_odd_dims) {
    const auto row_of = [](const sinusoid_spec& spec, int64_t position) {
        std::vector<float> row(static_cast<std::size_t>(spec.dim));
        expect_ok(sinusoid_rows(spec, {&position, 1}, dense_view(row.data(), dtype::fp32, 1, 1, spec.dim)));
        return row;
    };
    EXPECT_EQ(row_of(sinusoid_spec::vaswani(4), 1), (std::vector<float>{0.841470985f, 0.540302306f, 0.00999983333f, 0.999950000f}));
    EXPECT_EQ(row_of(sinusoid_spec::marian(4), 1), (std::vector<float>{0.841470985f, 0.00999983333f, 0.540302306f, 0.999950000f}));
    EXPECT_EQ(row_of(sinusoid_spec::whisper(4), 1), (std::vector<float>{0.841470985f, 0.0001f, 0.540302306f, 1.0f}));
    EXPECT_EQ(row_of(sinusoid_spec::whisper(5), 1), (std::vector<float>{0.841470985f, 0.0001f, 0.540302306f, 1.0f, 0.0f}));
    EXPECT_EQ(row_of(sinusoid_spec::fairseq(5, 1), 1), (std::vector<float>(5, 0.0f)));
    EXPECT_EQ(row_of(sinusoid_spec::marian(3), 0), (std::vector<float>{0.0f, 0.0f, 1.0f}));
    EXPECT_EQ(row_of(sinusoid_spec::vaswani(1), 1), (std::vector<float>{0.841470985f}));
    sinusoid_spec shifted = sinusoid_spec::fairseq(8, 1);
    shifted.offset = 2;
    EXPECT_EQ(row_of(shifted, -1), std::vector<float>(8, 0.0f));
    EXPECT_EQ(row_of(shifted, 5), row_of(sinusoid_spec::whisper(8), 7));
}

class absolute : public seeded {
protected:
    strided_tensor random_tensor(dtype type, int64_t tokens, int32_t dim, int64_t gap) {
        strided_tensor made(type, tokens, 1, dim, 0, gap);
        made.fill([&] { return normal(); });
        return made;
    }
    positions random_positions(int64_t tokens, int64_t least, int64_t most) {
        positions made(static_cast<std::size_t>(tokens));
        for (int64_t& p : made) p = between(least, most);
        return made;
    }
};

// One fp32 sum and one rounding to the type; what lies between rows is untouched.
TEST_F(absolute, rows_are_added_in_place_to_strided_embeddings) {
    constexpr int64_t tokens = 9;
    for (const dtype type : all_types) {
        for (const int32_t dim : {1, 6, 67, 1029}) {
            strided_tensor x = random_tensor(type, tokens, dim, 5), y = x;
            const strided_tensor before = x;
            strided_tensor table = random_tensor(dtype::fp32, 40, dim, 2);
            const positions at = random_positions(tokens, -2, 37);
            expect_ok(learned_add({table.view(), 2}, at, x.view()));
            const sinusoid_spec spec = sinusoid_spec::vaswani(dim);
            expect_ok(sinusoid_add(spec, at, y.view()));
            for (int64_t t = 0; t < tokens; ++t) {
                const int64_t p = at[static_cast<std::size_t>(t)];
                for (int32_t c = 0; c < dim; ++c) {
                    strided_tensor old = before;
                    const auto was = static_cast<float>(old.value(t, 0, c));
                    std::vector<std::byte> expected(static_cast<std::size_t>(element_bytes(type)));
                    set_element(type, expected.data(), was + static_cast<float>(table.value(p + 2, 0, c)));
                    ASSERT_EQ(std::memcmp(x.at(t, 0, c), expected.data(), expected.size()), 0) << name(type) << " dim " << dim << ", token " << t;
                    const double sum = was + published(spec, p, c);
                    ASSERT_NEAR(y.value(t, 0, c), sum,
                                row_bound(p) + (std::abs(sum) + 0x1p-25) * (unit_roundoff(type) + 0x1p-24) + subnormal_error(type))
                        << name(type) << " dim " << dim << ", token " << t;
                }
                for (std::byte* gap = x.at(t, 0, dim); gap < x.at(t, 0, dim) + 5 * element_bytes(type); ++gap) ASSERT_EQ(*gap, std::byte{0xff});
            }
        }
    }
}

TEST_F(absolute, learned_rows_keep_their_bits_and_convert_between_types) {
    for (const dtype from : all_types) {
        for (const dtype to : all_types) {
            strided_tensor table = random_tensor(from, 30, 21, 1), rows = random_tensor(to, 12, 21, 3);
            const positions at = random_positions(12, 0, 29);
            expect_ok(learned_rows({table.view()}, at, rows.view()));
            for (int64_t t = 0; t < 12; ++t) {
                for (int32_t c = 0; c < 21; ++c) {
                    std::vector<std::byte> expected(static_cast<std::size_t>(element_bytes(to)));
                    set_element(to, expected.data(), table.value(at[static_cast<std::size_t>(t)], 0, c));
                    ASSERT_EQ(std::memcmp(rows.at(t, 0, c), expected.data(), expected.size()), 0) << name(from) << " to " << name(to);
                }
            }
        }
    }
}

TEST_F(absolute, any_number_of_threads_gives_the_same_bits) {
    constexpr int64_t tokens = 700;
    const positions at = random_positions(tokens, 0, 5000);
    thread_executor threads(4);
    serial_executor serial;
    const sinusoid_spec spec = sinusoid_spec::fairseq(300, 1);
    strided_tensor one = random_tensor(dtype::bf16, tokens, 300, 4), many = one;
    expect_ok(sinusoid_add(spec, at, one.view(), serial));
    expect_ok(sinusoid_add(spec, at, many.view(), threads));
    EXPECT_EQ(one.memory, many.memory);
    expect_ok(sinusoid_shift(spec, 77, one.view(), serial));
    expect_ok(sinusoid_shift(spec, 77, many.view(), threads));
    EXPECT_EQ(one.memory, many.memory);
}

// PE(r + k) = M_k PE(r): each pair by two products and a sum of rounded factors, 3 u (|sin| + |cos|) <= 3 sqrt(2) u, on top of the rounded rows.
TEST_F(absolute, a_linear_shift_moves_every_row_by_the_same_distance) {
    for (const int32_t dim : {4, 5, 64, 130}) {
        for (const sinusoid_spec& spec : published_specs(dim)) {
            if (dim % 2 != 0 && !spec.zero_odd_column) continue;
            const positions from = random_positions(20, 2, 100000);
            for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{-2}, int64_t{4099}, int64_t{-100000}}) {
                positions to = from;
                for (int64_t& p : to) p += k;
                strided_tensor moved = random_tensor(dtype::fp32, 20, dim, 7);
                expect_ok(sinusoid_rows(spec, from, moved.view()));
                expect_ok(sinusoid_shift(spec, k, moved.view()));
                for (int64_t t = 0; t < 20; ++t) {
                    const int64_t p = to[static_cast<std::size_t>(t)];
                    if (p == spec.zero_row) continue;
                    for (int32_t c = 0; c < dim; ++c) {
                        ASSERT_NEAR(moved.value(t, 0, c), published(spec, p, c), 3 * 1.42 * 0x1p-24 + 2 * row_bound(200000))
                            << "dim " << dim << ", k " << k << ", column " << c;
                    }
                }
            }
        }
    }
}

TEST(xlnet_positions, count_down_from_the_keys_to_the_queries) {
    const auto made = [](const xlnet_positions_rule& rule) {
        positions list(static_cast<std::size_t>(rule.rows()));
        expect_ok(xlnet_positions(list, rule));
        return list;
    };
    EXPECT_EQ(made({2, 5, true}), (positions{5, 4, 3, 2, 1, 0, -1}));
    EXPECT_EQ(made({2, 5, false}), (positions{5, 4, 3, 2, 1, 0}));
    EXPECT_EQ(made({3, 4, true, 2}), (positions{2, 2, 2, 1, 0, -1, -2}));
    EXPECT_EQ(made({3, 4, true, 2, true}), (positions{-2, -2, -2, -1, 0, 1, 2}));
    EXPECT_EQ(made({3, 4, false, -1, true}), (positions{-4, -3, -2, -1, 0}));
}

TEST(padding, positions_of_masks_and_tokens) {
    positions made(6);
    const std::vector<uint8_t> mask = {0, 0, 1, 1, 0, 1};
    expect_ok(positions_from_mask(made, mask));
    EXPECT_EQ(made, (positions{-1, -1, 0, 1, -1, 2}));
    const positions tokens = {1, 1, 9, 0, 1, 5};
    expect_ok(positions_from_tokens(made, tokens, 1));
    EXPECT_EQ(made, (positions{1, 1, 2, 3, 1, 4}));
    expect_ok(positions_from_tokens(made, tokens, 0, 10));
    EXPECT_EQ(made, (positions{11, 12, 13, 0, 14, 15}));
}

// Nothing is written, and the text names argument, value and rule.
TEST(absolute_errors, refused_arguments) {
    strided_tensor x(dtype::fp32, 2, 1, 8), table(dtype::bf16, 10, 1, 8), two_heads(dtype::fp32, 2, 2, 8);
    const std::vector<std::byte> before = x.memory;
    const sinusoid_spec spec = sinusoid_spec::vaswani(8);
    const auto with = [&](auto change) {
        sinusoid_spec bent = spec;
        change(bent);
        return sinusoid_add(bent, positions{0, 1}, x.view());
    };
    const learned_positions opt{table.view(), 2};
    EXPECT_STREQ(learned_add(opt, positions{0, 8}, x.view()).text(), "positions[1] is 8; with offset 2 it must be a row 0 .. 9");
    EXPECT_STREQ(learned_rows(opt, positions{-3, 0}, x.view()).text(), "positions[0] is -3; with offset 2 it must be a row 0 .. 9");
    EXPECT_EQ(learned_rows(opt, positions{0, std::numeric_limits<int64_t>::max()}, x.view()).code(), status_code::out_of_range);
    EXPECT_STREQ(learned_add(opt, positions{0}, x.view()).text(),
                 "x has shape [2, 1, 8]; must be [1, 1, 8]: one token per position, as wide as the encoding");
    EXPECT_EQ(learned_add({two_heads.view(), 0}, positions{0, 1}, x.view()).code(), status_code::invalid_argument);
    EXPECT_EQ(learned_add({}, positions{0, 1}, x.view()).code(), status_code::invalid_argument);
    EXPECT_EQ(learned_add(opt, positions{0, 1}, two_heads.view()).code(), status_code::invalid_argument);
    EXPECT_STREQ(sinusoid_add(spec, positions{0, (int64_t{1} << 31) + 1}, x.view()).text(),
                 "positions[1] is 2147483649; with offset 0 it must be a row -2147483648 .. 2147483648");
    EXPECT_STREQ(with([](sinusoid_spec& s) { s.dim = 0; }).text(), "spec.dim is 0; must be at least 1");
    EXPECT_STREQ(with([](sinusoid_spec& s) { s.columns = static_cast<sinusoid_columns>(2); }).text(),
                 "spec.columns is 2; must be 0 (interleaved) or 1 (concatenated)");
    EXPECT_STREQ(with([](sinusoid_spec& s) { s.base = 0.5; }).text(), "spec.base is 0.5; must be finite and at least 1");
    EXPECT_STREQ(with([](sinusoid_spec& s) { s.denominator = 0.0; }).text(), "spec.denominator is 0 for dim 8; must be finite and positive");
    EXPECT_STREQ(sinusoid_rows(sinusoid_spec::whisper(3), positions{0, 1}, x.view()).text(),
                 "spec.denominator is 0 for dim 3; must be finite and positive");
    EXPECT_EQ(with([](sinusoid_spec& s) { s.offset = std::numeric_limits<int64_t>::max(); }).code(), status_code::out_of_range);
    EXPECT_STREQ(sinusoid_shift(sinusoid_spec::marian(7), 1, dense_view(x.memory.data(), dtype::fp32, 2, 1, 7)).text(),
                 "spec.dim is 7; must be even or have zero_odd_column: the last sine has no cosine");
    EXPECT_STREQ(sinusoid_shift(spec, -(int64_t{1} << 31) - 1, x.view()).text(), "k is -2147483649; must be within 2^31 of 0");
    EXPECT_EQ(x.memory, before);

    positions list(3, 77);
    EXPECT_STREQ(xlnet_positions(list, {2, 2, true}).text(), "positions has 3 entries; must have 4: rule.rows()");
    EXPECT_EQ(xlnet_positions(list, {-1, 4, true}).code(), status_code::invalid_argument);
    EXPECT_STREQ(positions_from_mask(list, std::vector<uint8_t>(2, 1)).text(), "positions has 3 entries; must have 2: one per entry of mask");
    EXPECT_STREQ(positions_from_tokens(list, positions{4, 5, 6}, -1).text(), "padding_idx is -1; must be 0 .. 2147483648");
    EXPECT_EQ(list, positions(3, 77));
    EXPECT_TRUE(sinusoid_add(spec, {}, strided_tensor(dtype::fp32, 0, 1, 8).view()).ok());
}

}  // namespace
}  // namespace ropewalk::test
