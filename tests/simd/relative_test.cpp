// Kernels of relative terms against the scalar reference. Each score takes one addition, so the bits are the same.
#include <algorithm>
#include <vector>

#include "simd/core/dispatch.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::simd {
namespace {

class relative_kernels_test : public test::seeded, public testing::WithParamInterface<target> {
protected:
    const relative_kernels& kernels = kernels_of(GetParam())->attention.relative;
    const relative_kernels& reference = kernels_of(target::scalar)->attention.relative;

    std::vector<float> normals(int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& x : values) x = normal();
        return values;
    }
    // Ends at a page without access.
    static void copy(const std::vector<float>& values, const test::guarded_buffer& to) { std::ranges::copy(values, to.as<float>()); }
    static std::vector<float> read(const test::guarded_buffer& from) { return {from.as<float>(), from.as<float>() + from.size() / 4}; }

    // Runs f(kernels, scores) on the same scores, of which `count` end at a page without access.
    template <class F>
    void expect_same(int64_t count, F f) {
        std::vector<float> expected = normals(count);
        const test::guarded_buffer scores(static_cast<std::size_t>(count) * 4);
        copy(expected, scores);
        f(kernels, scores.as<float>());
        f(reference, expected.data());
        EXPECT_EQ(read(scores), expected);
    }
};

TEST_P(relative_kernels_test, rows_are_added) {
    for (const int32_t tokens : {16, 48, 128}) {
        for (const int32_t rows : {1, 5, 17}) {
            for (const int64_t stride : {int64_t{0}, int64_t{tokens} + 3}) {
                const std::vector<float> values = normals((rows - 1) * stride + tokens);
                const test::guarded_buffer term(values.size() * 4);
                copy(values, term);
                expect_same((rows - 1) * int64_t{tokens + 1} + tokens, [&](const relative_kernels& k, float* scores) {
                    k.add_rows(scores, tokens + 1, rows, tokens, term.as<float>(), stride);
                });
            }
        }
    }
}

TEST_P(relative_kernels_test, diagonals_are_added) {
    for (const int32_t rows : {1, 2, 7, 8, 9, 16, 31, 96}) {
        const std::vector<float> values = normals(((rows + 15) / 16 * 16 + 15) * 16);
        const test::guarded_buffer term(values.size() * 4);
        copy(values, term);
        expect_same((rows - 1) * int64_t{19} + 16,
                    [&](const relative_kernels& k, float* scores) { k.add_diagonals(scores, 19, rows, term.as<float>()); });
    }
}

TEST_P(relative_kernels_test, pairs_are_added) {
    for (const int32_t tokens : {16, 128}) {
        for (const int32_t rows : {1, 6}) {
            const std::vector<float> pair = normals(rows * 3 - 1);
            std::vector<float> own(static_cast<std::size_t>(rows)), segments(static_cast<std::size_t>(tokens));
            for (float& x : own) x = static_cast<float>(between(0, 2));
            for (float& x : segments) x = static_cast<float>(between(0, 2));
            for (const float* keys : {static_cast<const float*>(segments.data()), static_cast<const float*>(nullptr)}) {
                expect_same((rows - 1) * int64_t{tokens + 5} + tokens, [&](const relative_kernels& k, float* scores) {
                    k.add_pairs(scores, tokens + 5, rows, tokens, pair.data(), 3, own.data(), keys);
                });
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(targets, relative_kernels_test, testing::ValuesIn(test::vector_targets()),
                         [](const auto& param) { return std::string(name(param.param)); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(relative_kernels_test);

}  // namespace
}  // namespace ropewalk::simd
