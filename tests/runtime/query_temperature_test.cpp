// The temperature of queries by their position. Factors: 1 + beta ln(1 + floor((p + offset) / floor_length)), by hand.
#include <ropewalk/query_temperature.hpp>

#include <cmath>
#include <limits>

#include "tests/runtime/rope_fixture.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

constexpr query_temperature llama4{.beta = 0.1, .floor_length = 8192, .offset = 1};
constexpr query_temperature ministral{.beta = 0.1, .floor_length = 16384, .offset = 0};

TEST(query_temperature, factors_of_llama_4_and_ministral) {
    EXPECT_EQ(llama4.at(0), 1.0);
    EXPECT_EQ(llama4.at(8190), 1.0);
    EXPECT_NEAR(llama4.at(8191), 1.0 + 0.1 * std::log(2.0), 1e-15);  // its offset of 1
    EXPECT_NEAR(llama4.at(24575), 1.0 + 0.1 * std::log(4.0), 1e-15);
    EXPECT_EQ(ministral.at(16383), 1.0);
    EXPECT_NEAR(ministral.at(16384), 1.0 + 0.1 * std::log(2.0), 1e-15);
    EXPECT_NEAR(ministral.at((int64_t{1} << 31) - 1), 1.0 + 0.1 * std::log(131072.0), 1e-15);
}

class scaled_queries : public rope_tensors {};

TEST_F(scaled_queries, every_token_by_its_factor_and_below_the_floor_not_at_all) {
    for (const dtype type : all_types) {
        for (const int32_t dim : {3, 64, 1100}) {
            strided_tensor q = random_tensor(type, 4, 3, dim, 1, 5);
            std::memset(q.at(0, 1, 0), 0xff, static_cast<std::size_t>(element_bytes(type)));  // NaN with a payload
            strided_tensor before = q;
            const status s = scale_queries(q.view(), positions{8190, 8191, 100'000, 5}, llama4);
            ASSERT_TRUE(s.ok()) << s.text();
            const double factors[4] = {1.0, 1.0 + 0.1 * std::log(2.0), 1.0 + 0.1 * std::log(13.0), 1.0};
            for (int64_t t = 0; t < 4; ++t) {
                for (int32_t h = 0; h < 3; ++h) {
                    if (factors[t] == 1.0) {
                        ASSERT_EQ(std::memcmp(q.at(t, h, 0), before.at(t, h, 0), static_cast<std::size_t>(dim * element_bytes(type))), 0);
                        continue;
                    }
                    for (int32_t d = 0; d < dim; ++d) {
                        // The factor, the product and the type round once each.
                        const double exact = before.value(t, h, d) * factors[t];
                        ASSERT_NEAR(q.value(t, h, d), exact, (2 * 0x1p-24 + unit_roundoff(type)) * 1.001 * std::abs(exact) + subnormal_error(type));
                    }
                }
            }
            // The gaps hold what they held.
            for (int64_t t = 0; t < 4; ++t) {
                for (int32_t h = 0; h < 3; ++h) std::memcpy(q.at(t, h, 0), before.at(t, h, 0), static_cast<std::size_t>(dim * element_bytes(type)));
            }
            ASSERT_EQ(q.memory, before.memory);
        }
    }
}

TEST_F(scaled_queries, any_number_of_threads_gives_the_same_bits) {
    positions at(1000);
    for (int64_t& p : at) p = between(0, 100'000);
    strided_tensor q = random_tensor(dtype::bf16, 1000, 8, 64), before = q;
    serial_executor serial;
    ASSERT_TRUE(scale_queries(q.view(), at, llama4, serial).ok());
    for (const int32_t threads : {2, 7}) {
        strided_tensor again = before;
        thread_executor many(threads);
        ASSERT_TRUE(scale_queries(again.view(), at, llama4, many).ok());
        EXPECT_EQ(again.memory, q.memory);
    }
}

TEST_F(scaled_queries, refusals_name_argument_value_and_rule) {
    strided_tensor q = random_tensor(dtype::fp32, 2, 1, 8), before = q;
    const auto text = [&](const positions& at, query_temperature temperature) {
        return std::string(scale_queries(q.view(), at, temperature).text());
    };
    EXPECT_EQ(text({9000, 9000}, {.beta = -0.1}), "beta is -0.1; must be finite and at least 0");
    EXPECT_FALSE(text({9000, 9000}, {.beta = std::numeric_limits<double>::infinity()}).empty());
    EXPECT_EQ(text({9000, 9000}, {.floor_length = 0}), "floor_length is 0; must be at least 1");
    EXPECT_EQ(text({9000, 9000}, {.offset = -1}), "offset is -1; must be 0 .. 2^31");
    EXPECT_EQ(text({9000, -1}, {}), "positions[1] is -1; must be 0 .. 2147483647");
    EXPECT_EQ(text({9000, int64_t{1} << 31}, {}), "positions[1] is 2147483648; must be 0 .. 2147483647");
    EXPECT_EQ(text({9000}, {}).substr(0, 42), "q has shape [2, 1, 8]; must be [1, *, *]: ");
    head_view wide = q.view();
    wide.dim_stride = 2;
    EXPECT_STREQ(scale_queries(wide, positions{9000, 9000}, {}).text(), "q.dim_stride is 2; must be 1");
    EXPECT_EQ(q.memory, before.memory);
    EXPECT_TRUE(scale_queries({}, positions{9000}, {}).ok());
}

}  // namespace
}  // namespace ropewalk::test
