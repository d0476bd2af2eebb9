// ALiBi slopes. B.. are rows of the field reports.
#include <ropewalk/alibi.hpp>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ropewalk::test {
namespace {

std::vector<float> slopes_of(std::size_t heads, alibi_rule rule = alibi_rule::press, double max_exponent = 8.0) {
    std::vector<float> slopes(heads, -1.0f);
    const status s = alibi_slopes(slopes, rule, max_exponent);
    EXPECT_TRUE(s.ok()) << s.text();
    return slopes;
}

// Both sides rounded once from double: equal but for an ulp of exp2.
void expect_exponents(const std::vector<float>& slopes, const std::vector<double>& exponents) {
    ASSERT_EQ(slopes.size(), exponents.size());
    for (std::size_t h = 0; h < slopes.size(); ++h) EXPECT_FLOAT_EQ(slopes[h], static_cast<float>(std::pow(2.0, -exponents[h]))) << "head " << h;
}

TEST(alibi, B01_heads_that_are_no_power_of_two) {
    expect_exponents(slopes_of(6), {2, 4, 6, 8, 1, 3});
    expect_exponents(slopes_of(8), {1, 2, 3, 4, 5, 6, 7, 8});
    expect_exponents(slopes_of(12), {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
    expect_exponents(slopes_of(1), {8});
    expect_exponents(slopes_of(3), {4, 8, 2});
}

TEST(alibi, B03_bloom_head_counts) {
    std::vector<double> exponents;
    for (int h = 0; h < 16; ++h) exponents.push_back((h + 1) / 2.0);
    expect_exponents(slopes_of(16), exponents);
    exponents.clear();
    for (int h = 0; h < 64; ++h) exponents.push_back((h + 1) / 8.0);
    for (int h = 64; h < 112; ++h) exponents.push_back((2 * (h - 64) + 1) / 16.0);
    expect_exponents(slopes_of(112), exponents);
}

// The series of the next power of two, first the even entries, then the odd ones: the same numbers as Press.
TEST(alibi, the_mpt_rule_agrees_with_press) {
    for (std::size_t heads = 1; heads <= 130; ++heads) {
        const std::vector<float> press = slopes_of(heads), mpt = slopes_of(heads, alibi_rule::mpt);
        for (std::size_t h = 0; h < heads; ++h) ASSERT_FLOAT_EQ(press[h], mpt[h]) << heads << " heads, head " << h;
    }
    expect_exponents(slopes_of(3, alibi_rule::mpt, 16.0), {8, 16, 4});
}

TEST(alibi, the_exponent_scales_all_slopes) {
    expect_exponents(slopes_of(4, alibi_rule::press, 4.0), {1, 2, 3, 4});
    expect_exponents(slopes_of(5, alibi_rule::press, 16.0), {4, 8, 12, 16, 2});
}

TEST(alibi, refused_arguments) {
    std::vector<float> slopes(4, 7.0f);
    const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
    EXPECT_STREQ(alibi_slopes({}).text(), "slopes has 0 entries; must have one per query head");
    EXPECT_STREQ(alibi_slopes(slopes, alibi_rule::press, 0.0).text(), "max_exponent is 0; must be finite and positive");
    for (const double bad : {-8.0, nan, infinity}) EXPECT_EQ(alibi_slopes(slopes, alibi_rule::mpt, bad).code(), status_code::invalid_argument) << bad;
    EXPECT_STREQ(alibi_slopes(slopes, static_cast<alibi_rule>(5)).text(), "rule is 5; must be 0 (press), 1 (mpt) or 2 (falcon)");
    EXPECT_EQ(slopes, std::vector<float>(4, 7.0f));
}

}  // namespace
}  // namespace ropewalk::test
