// Where rope reads and writes the elements of a pair, and which way it turns. A18 is a row of the field reports.
#include "tests/runtime/rope_fixture.hpp"

namespace ropewalk::test {
namespace {

class rope_layout : public rope_tensors {};

// (2i, 2i + 1) -> (i, i + pairs)
int32_t moved(int32_t d, int32_t pairs) { return d / 2 + d % 2 * pairs; }

TEST_F(rope_layout, A18_interleaved_in_half_out_is_interleaved_with_the_order_of_half) {
    for (const int32_t pairs : {1, 3, 8, 13, 32, 64}) {
        rope_spec spec = standard(2 * pairs);
        spec.amplitude = 1.25;
        const rope_table table = table_of(spec);
        const positions at = {1, 77, 5000};
        for (const dtype type : all_types) {
            strided_tensor in = random_tensor(type, 3, 3, 2 * pairs + 5, 1), out = in, halves = in;
            for (int64_t t = 0; t < 3; ++t) {
                for (int32_t h = 0; h < 3; ++h) {
                    for (int32_t d = 0; d < 2 * pairs; ++d)
                        std::memcpy(halves.at(t, h, 2 + moved(d, pairs)), in.at(t, h, 2 + d), element_bytes(type));
                }
            }
            ASSERT_TRUE(rope_apply(table, at, out.view(), {}, {.pairing = rope_pairing::interleaved_in_half_out, .first_dim = 2}).ok());
            ASSERT_TRUE(rope_apply(table, at, halves.view(), {}, {.first_dim = 2}).ok());  // half(P x)
            EXPECT_EQ(out.memory, halves.memory) << name(type) << " pairs " << pairs;
        }
    }
}

TEST_F(rope_layout, interleaved_in_half_out_is_undone_and_shifted) {
    rope_spec spec = standard(64);
    spec.amplitude = 1.25;
    const rope_table table = table_of(spec);
    const rope_options options{.pairing = rope_pairing::interleaved_in_half_out}, back{.pairing = options.pairing, .inverse = true};
    strided_tensor x = random_tensor(dtype::fp32, 2, 2, 64), before = x, fresh = x;
    ASSERT_TRUE(rope_apply(table, positions{100, 7}, x.view(), {}, options).ok());
    strided_tensor undone = x;
    ASSERT_TRUE(rope_apply(table, positions{100, 7}, undone.view(), {}, back).ok());
    ASSERT_TRUE(rope_shift(table, positions{-60, 13}, x.view(), options).ok());
    ASSERT_TRUE(rope_apply(table, positions{40, 20}, fresh.view(), {}, options).ok());
    for (int64_t t = 0; t < 2; ++t) {
        for (int32_t d = 0; d < 64; ++d) {
            // 2 and 3 rotations, each with 3 roundings of |x0| + |x1| <= 12
            ASSERT_NEAR(undone.value(t, 1, d), before.value(t, 1, d), 6 * 0x1p-24 * 12) << t << " " << d;
            ASSERT_NEAR(x.value(t, 1, d), fresh.value(t, 1, d), 9 * 0x1p-24 * 12) << t << " " << d;
        }
    }
}

// Gemma 4 turns the first pairs of (i, i + head_dim / 2) only: the same bits as a table that turns the others by 0.
TEST_F(rope_layout, pairs_at_a_distance_leave_the_elements_between_alone) {
    const rope_spec few = standard(32);
    rope_spec all = few;
    all.inv_freq.resize(64, 0.0);
    const rope_table short_table = table_of(few), long_table = table_of(all);
    const positions at = {3, 1000};
    for (const dtype type : all_types) {
        strided_tensor x = random_tensor(type, 2, 3, 130), y = x, before = x;
        ASSERT_TRUE(rope_apply(short_table, at, x.view(), {}, {.first_dim = 1, .pair_distance = 64}).ok());
        ASSERT_TRUE(rope_apply(long_table, at, y.view(), {}, {.first_dim = 1}).ok());
        for (int64_t t = 0; t < 2; ++t) {
            for (int32_t d = 0; d < 130; ++d) ASSERT_EQ(x.value(t, 2, d), y.value(t, 2, d)) << name(type) << " " << d;
        }
        if (type != dtype::fp32) continue;
        strided_tensor appended = through_pages(before, {&short_table, at, {.first_dim = 1, .pair_distance = 64}});
        EXPECT_TRUE(same_bits(appended, x));
        ASSERT_TRUE(rope_shift(short_table, at, x.view(), {.first_dim = 1, .pair_distance = 64}).ok());
        ASSERT_TRUE(rope_shift(long_table, at, y.view(), {.first_dim = 1}).ok());
        for (int32_t d = 0; d < 130; ++d) ASSERT_EQ(x.value(1, 0, d), y.value(1, 0, d)) << d;
    }
}

TEST_F(rope_layout, refused_distances) {
    const rope_table table = table_of(standard(32));
    strided_tensor x = random_tensor(dtype::fp32, 1, 1, 64), before = x;
    const auto text = [&](const rope_options& options) { return std::string(rope_apply(table, positions{1}, x.view(), {}, options).text()); };
    EXPECT_EQ(text({.pair_distance = 15}), "options.pair_distance is 15; must be 0 or at least 16, the pairs of the table");
    EXPECT_EQ(text({.pair_distance = -1}), "options.pair_distance is -1; must be 0 or at least 16, the pairs of the table");
    EXPECT_EQ(text({.pairing = rope_pairing::interleaved, .pair_distance = 32}),
              "options.pair_distance is 32; must be 0 unless options.pairing is 0 (half)");
    EXPECT_EQ(text({.first_dim = 2, .pair_distance = 47}), "q.dim is 64; must be at least first_dim + pair_distance + pairs = 2 + 47 + 16");
    EXPECT_FALSE(text({.pair_distance = 2147483647}).empty());
    EXPECT_EQ(x.memory, before.memory);
    EXPECT_TRUE(text({.pair_distance = 48}).empty());
}

// NanoChat: rotate_half(x) = (x2, -x1), so y1 = x1 cos + x2 sin, y2 = x2 cos - x1 sin, with the amplitude.
TEST_F(rope_layout, conjugate_turns_the_other_way_and_keeps_the_amplitude) {
    rope_spec spec = standard(32);
    spec.amplitude = 1.5;
    for (const int64_t kept : {int64_t{1000}, int64_t{0}}) {
        const rope_table table = table_of(spec, kept);
        for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved, rope_pairing::interleaved_in_half_out}) {
            const rope_options options{.pairing = pairing, .conjugate = true};
            strided_tensor x = random_tensor(dtype::fp32, 1, 1, 32), before = x;
            const positions at = {321};
            ASSERT_TRUE(rope_apply(table, at, {}, x.view(), options).ok());
            for (int32_t i = 0; i < 16; ++i) {
                const bool in_half = pairing == rope_pairing::half, out_half = pairing != rope_pairing::interleaved;
                const double x1 = before.value(0, 0, in_half ? i : 2 * i), x2 = before.value(0, 0, in_half ? i + 16 : 2 * i + 1);
                const double angle = 321 * spec.inv_freq[static_cast<std::size_t>(i)], tolerance = 3 * 0x1p-24 * 1.5 * (std::abs(x1) + std::abs(x2));
                EXPECT_NEAR(x.value(0, 0, out_half ? i : 2 * i), 1.5 * (x1 * std::cos(angle) + x2 * std::sin(angle)), tolerance);
                EXPECT_NEAR(x.value(0, 0, out_half ? i + 16 : 2 * i + 1), 1.5 * (x2 * std::cos(angle) - x1 * std::sin(angle)), tolerance);
            }
            strided_tensor appended = through_pages(before, {&table, at, options});
            EXPECT_TRUE(same_bits(appended, x));
            // Shift goes on in its direction, inverse undoes it.
            strided_tensor far = before;
            ASSERT_TRUE(rope_apply(table, positions{400}, {}, far.view(), options).ok());
            strided_tensor shifted = x;
            ASSERT_TRUE(rope_shift(table, positions{79}, shifted.view(), options).ok());
            ASSERT_TRUE(rope_apply(table, at, {}, x.view(), {.pairing = pairing, .inverse = true, .conjugate = true}).ok());
            for (int32_t d = 0; d < 32; ++d) {
                ASSERT_NEAR(shifted.value(0, 0, d), far.value(0, 0, d), 9 * 0x1p-24 * 1.5 * 12);
                ASSERT_NEAR(x.value(0, 0, d), before.value(0, 0, d), 6 * 0x1p-24 * 12);
            }
        }
    }
}

// MLA keeps one rotated key for all heads behind the latent: the last 64 of 576 dims; queries have theirs behind 128 others.
TEST_F(rope_layout, the_shared_key_of_mla_is_a_trailing_slice) {
    const rope_table table = table_of(standard(64));
    const positions at = {0, 5, 4095};
    for (const rope_pairing pairing : {rope_pairing::interleaved, rope_pairing::interleaved_in_half_out}) {
        strided_tensor q = random_tensor(dtype::fp32, 3, 16, 192), k = random_tensor(dtype::fp32, 3, 1, 576), k0 = k, slices(dtype::fp32, 3, 1, 64);
        for (int64_t t = 0; t < 3; ++t) std::memcpy(slices.at(t, 0, 0), k.at(t, 0, 512), 64 * 4);
        ASSERT_TRUE(rope_apply(table, at, q.view(), {}, {.pairing = pairing, .first_dim = 128}).ok());
        ASSERT_TRUE(rope_apply(table, at, {}, k.view(), {.pairing = pairing, .first_dim = 512}).ok());
        ASSERT_TRUE(rope_apply(table, at, {}, slices.view(), {.pairing = pairing}).ok());
        for (int64_t t = 0; t < 3; ++t) {
            EXPECT_EQ(std::memcmp(k.at(t, 0, 0), k0.at(t, 0, 0), 512 * 4), 0);
            EXPECT_EQ(std::memcmp(k.at(t, 0, 512), slices.at(t, 0, 0), 64 * 4), 0);
        }
        strided_tensor appended = through_pages(k0, {&table, at, {.pairing = pairing, .first_dim = 512}});
        EXPECT_TRUE(same_bits(appended, k));
    }
}

// Two position streams on the halves of a head are two calls with a table of half the dim.
TEST_F(rope_layout, chatglm_6b_turns_each_half_by_its_own_positions) {
    const rope_spec spec = standard(64);
    const rope_table table = table_of(spec);
    strided_tensor q = random_tensor(dtype::fp32, 2, 2, 128), before = q;
    const positions at[2] = {{11, 12}, {0, 3}};
    for (int32_t stream = 0; stream < 2; ++stream) ASSERT_TRUE(rope_apply(table, at[stream], q.view(), {}, {.first_dim = 64 * stream}).ok());
    for (std::size_t stream = 0; stream < 2; ++stream) {
        for (int32_t i = 0; i < 32; ++i) {
            const int32_t d = 64 * static_cast<int32_t>(stream) + i;
            const double x0 = before.value(1, 1, d), x1 = before.value(1, 1, d + 32);
            const double angle = static_cast<double>(at[stream][1]) * spec.inv_freq[static_cast<std::size_t>(i)];
            EXPECT_NEAR(q.value(1, 1, d), x0 * std::cos(angle) - x1 * std::sin(angle), 3 * 0x1p-24 * (std::abs(x0) + std::abs(x1)));
        }
    }
}

// Layers with dims and thetas of their own (Gemma 3 and 4): each shifts with its own table and slice.
TEST_F(rope_layout, layers_of_different_dims_shift_alike) {
    struct layer {
        int32_t head_dim, rotary_dim;
        double theta;
        rope_options options;
    };
    for (const layer& l : {layer{64, 64, 1e4, {}}, layer{128, 32, 1e6, {}},
                           layer{96, 48, 5e5, {.pairing = rope_pairing::interleaved, .first_dim = 48}}, layer{80, 20, 1e6, {.pair_distance = 40}}}) {
        const rope_table table = table_of(standard(l.rotary_dim, l.theta));
        strided_tensor x = random_tensor(dtype::fp32, 2, 2, l.head_dim), fresh = x;
        ASSERT_TRUE(rope_apply(table, positions{900, 40}, {}, x.view(), l.options).ok());
        ASSERT_TRUE(rope_shift(table, positions{-256, -4}, x.view(), l.options).ok());
        ASSERT_TRUE(rope_apply(table, positions{644, 36}, {}, fresh.view(), l.options).ok());
        for (int32_t d = 0; d < l.head_dim; ++d) ASSERT_NEAR(x.value(0, 1, d), fresh.value(0, 1, d), 9 * 0x1p-24 * 12) << l.head_dim << " " << d;
    }
}

}  // namespace
}  // namespace ropewalk::test
