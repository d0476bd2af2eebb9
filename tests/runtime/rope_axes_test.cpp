// RoPE with several positions a token. Axis maps are those of the models' published code, written out; rotations are compared with the formula in
// long double. A21 is a row of the field reports.
#include <ropewalk/rope_axes.hpp>

#include <algorithm>
#include <numeric>

#include "tests/allocations.hpp"
#include "tests/runtime/rope_fixture.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using axes = std::vector<uint8_t>;
using sections = std::vector<int32_t>;

axes map_of(axis_order order, const sections& given) {
    const int32_t pairs = std::accumulate(given.begin(), given.end(), 0);
    return made(with_axes(standard(2 * pairs), order, given)).axis_of_pair;
}

TEST(axis_maps, A21_sections_of_qwen2_vl) {
    const axes map = map_of(axis_order::contiguous, {16, 24, 24});
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(map[i], i < 16 ? 0 : i < 40 ? 1 : 2) << i;
}

TEST(axis_maps, four_streams_of_xdrope) {
    const axes map = map_of(axis_order::contiguous, {16, 8, 24, 16});
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(map[i], i < 16 ? 0 : i < 24 ? 1 : i < 48 ? 2 : 3) << i;
}

TEST(axis_maps, A21_what_the_interleaved_sections_of_qwen3_vl_leave_over_is_of_t) {
    const axes map = map_of(axis_order::interleaved, {24, 20, 20});
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(map[i], i < 60 ? i % 3 : 0) << i;
    const axes qwen35 = map_of(axis_order::interleaved, {11, 11, 10});
    for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(qwen35[i], i % 3) << i;
}

TEST(axis_maps, glm_passes_over_axes_that_are_full) {
    axes wanted;
    for (int i = 0; i < 8; ++i) wanted.insert(wanted.end(), {0, 1, 2});
    wanted.insert(wanted.end(), {1, 1, 2, 1, 1, 2, 2, 2});
    EXPECT_EQ(map_of(axis_order::cyclic, {8, 12, 12}), wanted);
}

TEST(axis_maps, ernie_alternates_height_and_width_and_ends_with_time) {
    const axes map = map_of(axis_order::alternating, {20, 22, 22});
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(map[i], i >= 44 ? 0 : i % 2 == 0 ? 1 : 2) << i;
}

TEST(axis_maps, empty_sections) {
    EXPECT_EQ(map_of(axis_order::contiguous, {2, 0, 1}), (axes{0, 0, 2}));
    EXPECT_EQ(map_of(axis_order::cyclic, {0, 2, 1}), (axes{1, 1, 2}));
    const rope_spec text = made(with_axes(standard(8), axis_order::contiguous, sections{4, 0, 0}));
    EXPECT_EQ(text.axes(), 1);
    EXPECT_EQ(made(with_axes(standard(0), axis_order::contiguous, sections{0, 0})).axes(), 1);
}

TEST(axis_maps, frequencies_keep_their_index) {
    EXPECT_EQ(made(with_axes(standard(128), axis_order::contiguous, sections{16, 24, 24})).inv_freq, standard(128).inv_freq);
}

TEST(axis_maps, frequencies_of_vision_towers) {
    const rope_spec qwen = made(vision_2d(80, 1e4)), pixtral = made(pixtral_2d(64, 1e4));
    ASSERT_EQ(qwen.rotary_dim(), 80);
    ASSERT_EQ(pixtral.rotary_dim(), 64);
    for (std::size_t i = 0; i < 40; ++i) {
        EXPECT_EQ(qwen.axis_of_pair[i], i / 20);
        EXPECT_NEAR(qwen.inv_freq[i], std::pow(1e4, -2.0 * static_cast<double>(i % 20) / 40), 1e-15) << i;
    }
    for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t index = 2 * (i % 16) + i / 16;
        EXPECT_EQ(pixtral.axis_of_pair[i], i / 16);
        EXPECT_NEAR(pixtral.inv_freq[i], std::pow(1e4, -2.0 * static_cast<double>(index) / 64), 1e-15) << i;
    }
}

TEST(axis_maps, refusals_name_what_is_wrong) {
    const auto text = [](axis_order order, const sections& given) { return refusal_of(with_axes(standard(128), order, given)); };
    EXPECT_EQ(text(axis_order::contiguous, {16, 24, 23}), "sections sum to 63; must be rotary_dim / 2 = 64");
    EXPECT_EQ(text(axis_order::interleaved, {24, 20, 21}), "sections sum to 65; must be rotary_dim / 2 = 64");
    EXPECT_EQ(text(axis_order::contiguous, {2147483647, 2147483647, 66}), "sections sum to 4294967360; must be rotary_dim / 2 = 64");
    EXPECT_EQ(text(axis_order::contiguous, {16, -24, 72}), "sections[1] is -24; must be at least 0");
    EXPECT_EQ(text(axis_order::contiguous, {64}), "sections has 1 entries; must be 2 .. 4");
    EXPECT_EQ(text(axis_order::contiguous, {16, 16, 16, 8, 8}), "sections has 5 entries; must be 2 .. 4");
    for (const axis_order order : {axis_order::interleaved, axis_order::cyclic, axis_order::alternating}) {
        EXPECT_EQ(text(order, {32, 32}), "sections has 2 entries; must be 3: t, h, w");
    }
    EXPECT_EQ(text(axis_order::alternating, {20, 23, 21}), "sections[1] is 23; must be sections[2] = 21: h and w alternate");
    EXPECT_EQ(text(static_cast<axis_order>(4), {16, 24, 24}), "order is 4; must be 0 (contiguous), 1 (interleaved), 2 (cyclic) or 3 (alternating)");
    EXPECT_EQ(refusal_of(vision_2d(82, 1e4)), "rotary_dim is 82; must be a multiple of 4, 4 .. 2048");
    EXPECT_EQ(refusal_of(pixtral_2d(0, 1e4)), "rotary_dim is 0; must be a multiple of 4, 4 .. 2048");
    EXPECT_EQ(refusal_of(vision_2d(80, 0)), "theta is 0; must be finite and positive");
    EXPECT_EQ(refusal_of(pixtral_2d(2052, 1e4)), "rotary_dim is 2052; must be a multiple of 4, 4 .. 2048");
    const allocation_limit none(0);
    EXPECT_EQ(vision_2d(80, 1e4).state().code(), status_code::out_of_memory);
}

// ---- rotation by several positions --------------------------------------------------------------------------------------------------------------

std::vector<rope_spec> all_specs() {
    const rope_spec plain = standard(48);
    return {made(with_axes(plain, axis_order::contiguous, sections{6, 9, 9})),
            made(with_axes(plain, axis_order::contiguous, sections{5, 7, 4, 8})),
            made(with_axes(plain, axis_order::interleaved, sections{10, 7, 7})),
            made(with_axes(plain, axis_order::cyclic, sections{4, 10, 10})),
            made(with_axes(plain, axis_order::alternating, sections{8, 8, 8})),
            made(vision_2d(48, 1e4)),
            made(pixtral_2d(48, 1e4))};
}

class rope_axes : public rope_tensors {
protected:
    // [axes][tokens], some equal on all axes.
    positions streams(const rope_spec& spec, int64_t tokens, int64_t least, int64_t most) {
        positions all(static_cast<std::size_t>(spec.axes() * tokens));
        for (int64_t& p : all) p = between(least, most);
        for (int32_t a = 1; a < spec.axes(); ++a) all[static_cast<std::size_t>(a * tokens)] = all[0];
        return all;
    }
};

TEST_F(rope_axes, A21_equal_positions_are_one_position_bit_for_bit) {
    for (const rope_spec& spec : all_specs()) {
        rope_spec one = spec;
        one.axis_of_pair.clear();
        for (const int64_t kept : {rope_table::default_cached_positions, int64_t{0}}) {
            const rope_table several = table_of(spec, kept), single = table_of(one);
            const positions at = {0, 1, 77, 4096, 1'000'000};
            positions repeated;
            for (int32_t a = 0; a < spec.axes(); ++a) repeated.insert(repeated.end(), at.begin(), at.end());
            for (const dtype type : all_types) {
                strided_tensor x = random_tensor(type, 5, 2, 50), y = x;
                ASSERT_TRUE(rope_apply(several, repeated, x.view(), {}).ok());
                ASSERT_TRUE(rope_apply(single, at, y.view(), {}).ok());
                ASSERT_EQ(x.memory, y.memory);
                ASSERT_TRUE(rope_shift(several, repeated, x.view()).ok());
                ASSERT_TRUE(rope_shift(single, at, y.view()).ok());
                ASSERT_EQ(x.memory, y.memory);
            }
        }
    }
}

TEST_F(rope_axes, every_pair_is_turned_by_the_position_of_its_axis) {
    constexpr int64_t tokens = 9;
    for (const rope_spec& spec : all_specs()) {
        const rope_table table = table_of(spec, 3000);
        const positions at = streams(spec, tokens, 0, 6000);  // within the table and beyond
        for (const dtype type : all_types) {
            for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
                strided_tensor x = random_tensor(type, tokens, 3, 51, 2, 3), before = x;
                ASSERT_TRUE(rope_apply(table, at, {}, x.view(), {.pairing = pairing, .first_dim = 2}).ok());
                for (int64_t t = 0; t < tokens; ++t) {
                    for (int32_t i = 0; i < 24; ++i) {
                        const auto pair = static_cast<std::size_t>(i);
                        const auto p = static_cast<long double>(at[static_cast<std::size_t>(spec.axis_of_pair[pair] * tokens + t)]);
                        const long double angle = p * static_cast<long double>(spec.inv_freq[pair]);
                        const bool half = pairing == rope_pairing::half;
                        const int32_t d0 = 2 + (half ? i : 2 * i), d1 = half ? d0 + 24 : d0 + 1;
                        const double x0 = before.value(t, 1, d0), x1 = before.value(t, 1, d1);
                        const auto c = static_cast<double>(std::cos(angle)), s = static_cast<double>(std::sin(angle));
                        // cos and sin, product and sum: one rounding each; and the type's.
                        const double tolerance = 3 * 0x1p-24 * (std::abs(x0) + std::abs(x1)) + subnormal_error(type);
                        const double y0 = x0 * c - x1 * s, y1 = x1 * c + x0 * s;
                        ASSERT_NEAR(x.value(t, 1, d0), y0, tolerance + 1.001 * unit_roundoff(type) * std::abs(y0)) << "token " << t << " pair " << i;
                        ASSERT_NEAR(x.value(t, 1, d1), y1, tolerance + 1.001 * unit_roundoff(type) * std::abs(y1)) << "token " << t << " pair " << i;
                    }
                }
            }
        }
    }
}

TEST_F(rope_axes, appending_rotates_as_in_place) {
    for (rope_spec spec : all_specs()) {
        for (const double amplitude : {1.0, 1.25}) {
            spec.amplitude = amplitude;
            for (const int64_t kept : {int64_t{4096}, int64_t{0}}) {
                const rope_table table = table_of(spec, kept);
                const positions at = streams(spec, 40, 0, 3000);
                for (const bool inverse : {false, true}) {
                    const rope_options options{.inverse = inverse, .first_dim = 8};
                    strided_tensor k = random_tensor(dtype::fp32, 40, 2, 64), in_place = k;
                    ASSERT_TRUE(rope_apply(table, at, {}, in_place.view(), options).ok());
                    strided_tensor appended = through_pages(k, {&table, at, options});
                    ASSERT_TRUE(same_bits(appended, in_place));
                }
            }
        }
    }
}

TEST_F(rope_axes, inverse_gives_back_what_was_rotated) {
    for (rope_spec spec : all_specs()) {
        spec.amplitude = 1.13862944;
        const rope_table table = table_of(spec);
        const positions at = streams(spec, 7, 0, 100'000);
        strided_tensor x = random_tensor(dtype::fp32, 7, 2, 48), before = x;
        ASSERT_TRUE(rope_apply(table, at, x.view(), {}).ok());
        ASSERT_TRUE(rope_apply(table, at, x.view(), {}, {.inverse = true}).ok());
        for (int64_t t = 0; t < 7; ++t) {
            // two rotations with 3 roundings of |x0| + |x1| <= 12 each
            for (int32_t d = 0; d < 48; ++d) ASSERT_NEAR(x.value(t, 1, d), before.value(t, 1, d), 6 * 0x1p-24 * 12) << t << " " << d;
        }
    }
}

TEST_F(rope_axes, shifts_move_every_axis_by_its_own_delta) {
    constexpr int64_t tokens = 8;
    for (rope_spec spec : all_specs()) {
        spec.amplitude = 1.0693147;  // never applied again
        const rope_table table = table_of(spec);
        const positions from = streams(spec, tokens, 500, 4000), delta = streams(spec, tokens, -500, 500);
        positions to = from;
        for (std::size_t i = 0; i < to.size(); ++i) to[i] += delta[i];
        strided_tensor raw = random_tensor(dtype::fp32, tokens, 2, 48), shifted = raw, fresh = raw;
        ASSERT_TRUE(rope_apply(table, from, shifted.view(), {}).ok());
        strided_tensor same = shifted;
        ASSERT_TRUE(rope_shift(table, positions(from.size(), 0), same.view()).ok());
        ASSERT_EQ(same.memory, shifted.memory) << "a shift by 0 changes no bit";
        ASSERT_TRUE(rope_shift(table, delta, shifted.view()).ok());
        ASSERT_TRUE(rope_apply(table, to, fresh.view(), {}).ok());
        for (int64_t t = 0; t < tokens; ++t) {
            for (int32_t d = 0; d < 48; ++d) ASSERT_NEAR(shifted.value(t, 1, d), fresh.value(t, 1, d), 9 * 0x1p-24 * 12) << t << " " << d;
        }
    }
}

TEST_F(rope_axes, any_number_of_threads_gives_the_same_bits) {
    const rope_spec spec = all_specs()[2];
    const rope_table table = table_of(spec, 1000);
    const positions at = streams(spec, 1500, 0, 2000);
    strided_tensor q = random_tensor(dtype::bf16, 1500, 6, 48), k = random_tensor(dtype::bf16, 1500, 2, 48), q0 = q, k0 = k;
    serial_executor serial;
    ASSERT_TRUE(rope_apply(table, at, q.view(), k.view(), {}, serial).ok());
    for (const int32_t threads : {2, 7, 16}) {
        strided_tensor q1 = q0, k1 = k0;
        thread_executor many(threads);
        ASSERT_TRUE(rope_apply(table, at, q1.view(), k1.view(), {}, many).ok());
        ASSERT_EQ(q1.memory, q.memory);
        ASSERT_EQ(k1.memory, k.memory);
    }
}

// Llama 4's vision tower: the class token has no angle.
TEST_F(rope_axes, a_class_token_at_zero_keeps_its_values) {
    const rope_table table = table_of(made(vision_2d(88, 1e4)));
    strided_tensor x = random_tensor(dtype::fp32, 2, 3, 88), before = x;
    ASSERT_TRUE(rope_apply(table, positions{1, 0, 1, 0}, x.view(), {}, {.pairing = rope_pairing::interleaved}).ok());
    for (int32_t d = 0; d < 88; ++d) {
        EXPECT_EQ(x.value(1, 2, d), before.value(1, 2, d));
        EXPECT_NE(x.value(0, 2, d), before.value(0, 2, d));
    }
}

TEST_F(rope_axes, A21_one_row_of_positions_is_refused_and_nothing_changes) {
    const rope_table table = table_of(all_specs()[0]);
    strided_tensor x = random_tensor(dtype::fp32, 3, 1, 48), before = x;
    const auto text = [&](const positions& given) { return std::string(rope_apply(table, given, x.view(), {}).text()); };
    EXPECT_EQ(text({0, 1, 2}), "positions has 3 entries; must be [axes][tokens] = 3 x 3");
    EXPECT_EQ(text(positions(6, 1)), "positions has 6 entries; must be [axes][tokens] = 3 x 3");
    EXPECT_EQ(text(positions(12, 1)), "positions has 12 entries; must be [axes][tokens] = 3 x 3");
    EXPECT_EQ(text({0, 1, 2, 3, 4, 5, 6, 7, -8}), "positions[8] is -8; must be 0 .. 2147483647");
    EXPECT_STREQ(rope_shift(table, positions(3, 1), x.view()).text(), "deltas has 3 entries; must be [axes][tokens] = 3 x 3");
    EXPECT_STREQ(rope_apply(table, positions(9, 1), {}, dense_view(static_cast<void*>(x.memory.data()), dtype::fp32, 2, 1, 48)).text(),
                 "positions has 9 entries; must be [axes][tokens] = 3 x 2");
    EXPECT_EQ(x.memory, before.memory);
    EXPECT_TRUE(rope_apply(table, positions(9, 1), {}, {}).ok());

    const kv_layout layout{.kv_heads = 1, .k_dim = 48, .v_dim = 16, .page_tokens = 16};
    const auto memory = made(runtime::mapped_memory::create(layout.page_stride_bytes()));
    const positions slots = {0, 1, 2}, short_of = {0, 1, 2};
    EXPECT_STREQ(kv_append({memory.data(), layout, 1}, slots, x.view(), {}, {&table, short_of, {}}).text(),
                 "rope.positions has 3 entries; must be [axes][tokens] = 3 x 3");
}

TEST_F(rope_axes, rotating_allocates_nothing) {
    const rope_table table = made(rope_table::growing(all_specs()[2], 512, 512));
    const positions at = streams(table.spec(), 200, 0, 700);
    strided_tensor q = random_tensor(dtype::bf16, 200, 4, 48), k = random_tensor(dtype::fp32, 200, 2, 48);
    serial_executor serial;
    const int64_t before = allocation_count();
    bool ok = rope_apply(table, at, q.view(), k.view(), {}, serial).ok();
    ok = rope_shift(table, at, k.view(), {}, serial).ok() && ok;
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace ropewalk::test
