// Buckets of T5 and DeBERTa against their formulas, evaluated with exact rational arithmetic where an edge is near.
#include <ropewalk/relative_buckets.hpp>

#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace ropewalk::test {
namespace {

int32_t t5_bucket(int64_t position, const t5_bucket_rule& rule) {
    int32_t bucket = -1;
    const status s = t5_buckets({&bucket, 1}, position, rule);
    EXPECT_TRUE(s.ok()) << s.text();
    return bucket;
}

int32_t deberta_bucket(int64_t position, const deberta_bucket_rule& rule) {
    int32_t bucket = -1;
    const status s = deberta_buckets({&bucket, 1}, position, rule);
    EXPECT_TRUE(s.ok()) << s.text();
    return bucket;
}

// 16 buckets a direction, 8 of them for one distance each; from 8 on a bucket is a factor of 16^(1/8) = 2^(1/2), so that a power of two is an edge,
// where a logarithm one unit in the last place too low gives the bucket below.
TEST(t5_buckets, distances_on_an_edge_belong_to_the_upper_bucket) {
    const t5_bucket_rule encoder{32, 128, true}, decoder{32, 128, false};
    const std::vector<std::pair<int64_t, int32_t>> edges = {{0, 0},   {7, 7},   {8, 8},   {15, 9},  {16, 10},  {31, 11},  {32, 12},
                                                            {63, 13}, {64, 14}, {90, 14}, {91, 15}, {127, 15}, {128, 15}, {1 << 30, 15}};
    for (const auto& [distance, bucket] : edges) {
        EXPECT_EQ(t5_bucket(-distance, encoder), bucket) << distance;
        EXPECT_EQ(t5_bucket(distance, encoder), distance == 0 ? 0 : 16 + bucket) << distance;
        EXPECT_EQ(t5_bucket(distance, decoder), 0) << distance;
    }
    // A factor of 8^(1/16): edges where the cube of the distance over 16 is a power of two: 16, 32, 64, 128.
    for (const auto& [distance, bucket] :
         std::vector<std::pair<int64_t, int32_t>>{{15, 15}, {16, 16}, {31, 21}, {32, 21}, {63, 26}, {64, 26}, {113, 31}, {127, 31}, {128, 31}}) {
        EXPECT_EQ(t5_bucket(-distance, decoder), bucket) << distance;
    }
}

// Every edge of bucket e + k is the least r with r^n >= e^(n - k) max^k; for small rules that fits 128 bits.
TEST(t5_buckets, edges_are_those_of_integer_powers) {
    __extension__ typedef unsigned __int128 wide;
    const auto power = [](int64_t base, int32_t exponent) {
        wide product = 1;
        for (; exponent > 0; --exponent) product *= static_cast<wide>(base);
        return product;
    };
    for (const t5_bucket_rule& rule : {t5_bucket_rule{32, 128, true}, t5_bucket_rule{16, 64, false}, t5_bucket_rule{8, 20, true},
                                       t5_bucket_rule{8, 4096, true}, t5_bucket_rule{6, 9, true}, t5_bucket_rule{5, 1000, false}}) {
        const int32_t count = rule.bidirectional ? rule.num_buckets / 2 : rule.num_buckets, e = count / 2, n = count - e;
        std::vector<int32_t> buckets(static_cast<std::size_t>(rule.max_distance + 3));
        const status filled = t5_buckets(buckets, -rule.max_distance - 2, rule);
        ASSERT_TRUE(filled.ok()) << filled.text();
        for (int32_t r = 0; r <= rule.max_distance + 2; ++r) {
            int32_t k = 0;
            while (r >= e && k < n - 1 && power(r, n) >= power(e, n - k - 1) * power(rule.max_distance, k + 1)) ++k;
            ASSERT_EQ(buckets[static_cast<std::size_t>(rule.max_distance + 2 - r)], r < e ? r : e + k) << rule.num_buckets << " buckets, " << r;
        }
    }
}

// WavLM's rule, whose powers have 800 bits: e = 80, n = 80, a factor of 10^(1/80).
TEST(t5_buckets, the_largest_published_rule) {
    const t5_bucket_rule rule{320, 800, true};
    EXPECT_EQ(t5_bucket(-79, rule), 79);
    EXPECT_EQ(t5_bucket(-80, rule), 80);
    EXPECT_EQ(t5_bucket(-777, rule), 158);  // 80 log10(777 / 80) = 78.99
    EXPECT_EQ(t5_bucket(-778, rule), 159);  // 79.03
    EXPECT_EQ(t5_bucket(-800, rule), 159);
    EXPECT_EQ(t5_bucket(800, rule), 319);
    // All edges on powers of two, and as large as rules may be: e = 512, 512 steps to 2^29 = 2^20 e, so 2^(9 + i) has bucket 512 + floor(25.6 i).
    const t5_bucket_rule large{1024, 1 << 29, false};
    for (int32_t i = 0; i < 20; ++i) {
        EXPECT_EQ(t5_bucket(-(int64_t{512} << i), large), 512 + 512 * i / 20) << i;
        EXPECT_EQ(t5_bucket(1 - (int64_t{512} << i), large), i == 0 ? 511 : 512 + (512 * i - 1) / 20) << i;
    }
}

TEST(t5_buckets, the_last_bucket_reaches_to_infinity) {
    constexpr int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(t5_bucket(least, {}), 15);
    EXPECT_EQ(t5_bucket(most, {}), 31);
    EXPECT_EQ(t5_bucket(least, {2, 2, false}), 1);
    EXPECT_EQ(t5_bucket(most, {2, 2, false}), 0);
}

TEST(deberta_buckets, edges_of_the_published_rule) {
    const deberta_bucket_rule rule{256, 512};  // mid 128, 127 steps to 511
    for (const auto& [delta, bucket] : std::vector<std::pair<int64_t, int32_t>>{
             {0, 0}, {1, 1}, {127, 127}, {128, 128}, {129, 129}, {130, 130}, {510, 255}, {511, 255}, {512, 256}, {513, 256}}) {
        EXPECT_EQ(deberta_bucket(delta, rule), bucket) << delta;
        EXPECT_EQ(deberta_bucket(-delta, rule), -bucket) << delta;
    }
}

// mid = 4, 3 steps to 4 * 2^3: each bucket ends exactly at a doubling, also beyond max - 1 = 32.
TEST(deberta_buckets, distances_on_an_edge_belong_to_the_lower_bucket) {
    const deberta_bucket_rule rule{8, 33};
    for (int32_t i = 0; i < 12; ++i) {
        EXPECT_EQ(deberta_bucket(int64_t{4} << i, rule), 4 + i) << i;
        EXPECT_EQ(deberta_bucket((int64_t{4} << i) + 1, rule), 5 + i) << i;
    }
    constexpr int64_t least = std::numeric_limits<int64_t>::min();
    EXPECT_EQ(deberta_bucket(int64_t{4} << 13, rule), 16);
    EXPECT_EQ(deberta_bucket(least, rule), -16);
    EXPECT_EQ(deberta_bucket(least, {2, 3}), -1);
    // The largest numbers that are compared: mid = 512, 511 steps to 2^30 = 2^21 mid, whose cube has bucket 512 + 3 * 511 = 2045.
    const deberta_bucket_rule large{1024, (1 << 30) + 1};
    EXPECT_EQ(deberta_bucket(int64_t{512} << 42, large), 512 + 2 * 511);
    EXPECT_EQ(deberta_bucket((int64_t{512} << 42) + (1 << 20), large), 512 + 2 * 511 + 1);
    EXPECT_EQ(deberta_bucket(int64_t{1} << 61, large), 512 + (52 * 511 + 20) / 21);
}

TEST(relative_buckets, refused_arguments) {
    std::vector<int32_t> buckets(3, 77);
    const auto t5 = [&](const t5_bucket_rule& rule, int64_t first = 0) { return t5_buckets(buckets, first, rule); };
    const auto deberta = [&](const deberta_bucket_rule& rule) { return deberta_buckets(buckets, 0, rule); };
    EXPECT_STREQ(t5({0, 128, true}).text(), "rule.num_buckets is 0; must be even (bidirectional) and 4 .. 1024");
    EXPECT_STREQ(t5({0, 128, false}).text(), "rule.num_buckets is 0; must be 2 .. 1024");
    for (const int32_t bad : {-32, 2, 33, 1026}) EXPECT_EQ(t5({bad, 4096, true}).code(), status_code::invalid_argument) << bad;
    for (const int32_t bad : {-1, 1, 1025}) EXPECT_EQ(t5({bad, 4096, false}).code(), status_code::invalid_argument) << bad;
    EXPECT_STREQ(t5({32, 8, true}).text(), "rule.max_distance is 8; must be more than the 8 distances that have a bucket each");
    EXPECT_EQ(t5({32, 16, false}).code(), status_code::invalid_argument);
    EXPECT_STREQ(deberta({0, 512}).text(), "rule.position_buckets is 0; must be 2 .. 1024");
    for (const int32_t bad : {-1, 1, 1025}) EXPECT_EQ(deberta({bad, 4096}).code(), status_code::invalid_argument) << bad;
    EXPECT_STREQ(deberta({256, 129}).text(), "rule.max_relative_positions is 129; must be more than position_buckets / 2 + 1 = 129");
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    EXPECT_STREQ(t5({}, most - 1).text(), "first_relative_position is 9223372036854775806; the last of 3 relative positions must fit 64 bits");
    EXPECT_EQ(buckets, std::vector<int32_t>(3, 77));
    EXPECT_TRUE(t5({}, most - 2).ok());
    EXPECT_TRUE(t5_buckets({}, 0, {}).ok());
}

}  // namespace
}  // namespace ropewalk::test
