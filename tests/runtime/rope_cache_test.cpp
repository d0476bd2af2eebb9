// RoPE over a live cache: schedules, kv_rerotate, kv_shift. Names that begin with a letter and a number are rows of the field reports. Expected
// values are turned in long double, or go the way over gathered keys, rope_apply and kv_append.
#include <ropewalk/position_spec.hpp>
#include <ropewalk/rope_cache.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/allocations.hpp"
#include "tests/results.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using numbers = std::vector<int64_t>;

rope_spec with_amplitude(rope_spec spec, double amplitude) {
    spec.amplitude = amplitude;
    return spec;
}
rope_table table_of(const rope_spec& spec) { return made(rope_table::growing(spec)); }
numbers counted(int64_t first, int64_t count) {
    numbers all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), first);
    return all;
}

// Pages in memory of their own, all bytes zero. Copies are copies of the memory.
class page_memory {
public:
    page_memory(const kv_layout& layout, int32_t count)
        : lines_(static_cast<std::size_t>(count * layout.page_stride_bytes() / page_alignment)), layout_(layout), count_(count) {
        EXPECT_TRUE(layout.validate().ok()) << layout.validate().text();
    }
    [[nodiscard]] kv_pages view() { return {lines_.data()->bytes, layout_, count_}; }
    [[nodiscard]] std::vector<std::byte> image() { return {view().base, view().base + count_ * layout_.page_stride_bytes()}; }

private:
    struct alignas(page_alignment) line {
        std::byte bytes[page_alignment];
    };
    std::vector<line> lines_;
    kv_layout layout_;
    int32_t count_;
};

class rope_cache : public seeded {
protected:
    strided_tensor random_tensor(int64_t tokens, int32_t heads, int32_t dim) {
        strided_tensor made(dtype::fp32, tokens, heads, dim);
        made.fill([this] { return normal(); });
        return made;
    }
    numbers random_slots(int64_t limit, std::size_t count) {
        numbers all = counted(0, limit);
        std::shuffle(all.begin(), all.end(), random);
        all.resize(count);
        return all;
    }
};

strided_tensor gathered(const kv_pages& pages, const numbers& slots) {
    strided_tensor k(dtype::fp32, static_cast<int64_t>(slots.size()), pages.layout.kv_heads, pages.layout.k_dim);
    const status s = kv_gather(pages, slots, k.view(), {});
    EXPECT_TRUE(s.ok()) << s.text();
    return k;
}

void append(const kv_pages& pages, const numbers& slots, strided_tensor& k, const kv_append_rope& rope = {}) {
    const status s = kv_append(pages, slots, k.view(), {}, rope);
    ASSERT_TRUE(s.ok()) << s.text();
}

const kv_layout all_layouts[] = {
    {.k_type = dtype::fp32, .v_type = dtype::fp32, .kv_heads = 3, .k_dim = 40, .v_dim = 8, .page_tokens = 32},
    {.k_type = dtype::bf16, .v_type = dtype::bf16, .kv_heads = 1, .k_dim = 64, .v_dim = 64, .page_tokens = 64},
    {.k_type = dtype::fp16, .v_type = dtype::bf16, .kv_heads = 2, .k_dim = 47, .v_dim = 32, .page_tokens = 16},
    {.k_type = dtype::fp8, .v_type = dtype::fp8, .kv_heads = 2, .k_dim = 48, .v_dim = 16, .page_tokens = 64},
    {.k_type = dtype::int8, .v_type = dtype::int8, .kv_heads = 2, .k_dim = 64, .v_dim = 64, .page_tokens = 64},
    {.k_type = dtype::int4, .v_type = dtype::int4, .kv_heads = 2, .k_dim = 72, .v_dim = 64, .page_tokens = 32},
    {.k_type = dtype::int8, .v_type = dtype::int4, .kv_heads = 1, .k_dim = 64, .v_dim = 64, .page_tokens = 64, .hadamard = true},
};

// ---- schedule ------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_cache, a_longrope_schedule_crosses_once) {
    const std::vector<double> near(32, 1.0), far(32, 8.0);
    const rope_spec::longrope_parameters parameters{64, 1e4, near, far, 32, 4096};
    const result<rope_schedule> schedule = rope_schedule::longrope(parameters);
    ASSERT_TRUE(schedule.ok()) << schedule.state().text();
    for (const int64_t length : {0, 1, 4096, 4097, 100000}) {
        EXPECT_EQ(made(schedule->spec_at(length)).inv_freq, made(rope_spec::longrope(parameters, length)).inv_freq) << length;
        EXPECT_EQ(made(schedule->spec_at(length)).amplitude, made(rope_spec::longrope(parameters, length)).amplitude) << length;
    }
    EXPECT_TRUE(schedule->check_growth(1, 4096).ok());
    EXPECT_TRUE(schedule->check_growth(4097, 1 << 30).ok());
    EXPECT_TRUE(schedule->check_growth(0, 5000).ok()) << "nothing is there that could be rotated";
    const status crossing = schedule->check_growth(4096, 4097);
    EXPECT_EQ(crossing.code(), status_code::needs_rerotation);
    EXPECT_STREQ(crossing.text(),
                 "the length goes from 4096 to 4097, frequencies change beyond 4096; kv_rerotate the keys, or pin the sequence to one spec");
    EXPECT_EQ(schedule->check_growth(5000, 100).code(), status_code::needs_rerotation) << "cut back";
    EXPECT_STREQ(schedule->check_growth(-1, 4).text(), "from is -1; must be at least 0");
    EXPECT_STREQ(schedule->check_growth(1, -4).text(), "to is -4; must be at least 0");
    EXPECT_STREQ(schedule->spec_at(-4).state().text(), "length is -4; must be at least 0");
    EXPECT_EQ(name(status_code::needs_rerotation), "needs_rerotation");
}

TEST_F(rope_cache, A15_a_dynamic_schedule_changes_with_every_token_beyond) {
    const result<rope_schedule> schedule = rope_schedule::dynamic_ntk(128, 1e4, 2, 4096);
    ASSERT_TRUE(schedule.ok()) << schedule.state().text();
    for (const int64_t length : {1, 4096, 4097, 8192}) {
        EXPECT_EQ(made(schedule->spec_at(length)).inv_freq, made(rope_spec::dynamic_ntk(128, 1e4, 2, 4096, length)).inv_freq) << length;
    }
    EXPECT_TRUE(schedule->check_growth(5, 4096).ok());
    EXPECT_TRUE(schedule->check_growth(6000, 6000).ok());
    EXPECT_EQ(schedule->check_growth(4096, 4097).code(), status_code::needs_rerotation);
    EXPECT_EQ(schedule->check_growth(6000, 6001).code(), status_code::needs_rerotation);
}

TEST_F(rope_cache, other_families_never_change) {
    const rope_schedule schedule = made(rope_spec::yarn({.factor = 4}));
    EXPECT_TRUE(schedule.check_growth(1, 1 << 30).ok());
    EXPECT_EQ(made(schedule.spec_at(7)).inv_freq, made(schedule.spec_at(1 << 30)).inv_freq);
    EXPECT_FALSE(rope_schedule::dynamic_ntk(2, 1e4, 2, 4096).ok());
    EXPECT_FALSE(rope_schedule::longrope({}).ok()) << "lists of no factors for 64 pairs";
}

TEST_F(rope_cache, the_schedule_of_a_configuration_is_its_spec_at_every_length) {
    rope_parameters p;
    p.rotary_dim = 8;
    p.factor = 4.0;
    p.original_max_position = 100.0;
    p.divisors = {1.0, 2.0, 1.0, 4.0};
    p.axis_of_pair = {0, 1, 1, 0};
    p.short_factor = {1.0, 1.0, 1.5, 2.0};
    p.long_factor = {2.0, 3.0, 4.0, 5.0};
    for (const rope_family family : {rope_family::standard, rope_family::yarn, rope_family::dynamic_ntk, rope_family::longrope}) {
        SCOPED_TRACE(name(family));
        p.family = family;
        const result<rope_schedule> schedule = p.schedule();
        ASSERT_TRUE(schedule.ok()) << schedule.state().text();
        for (const int64_t length : {0, 100, 101, 5000}) EXPECT_EQ(made(schedule->spec_at(length)), made(p.at(length))) << length;
        EXPECT_EQ(schedule->check_growth(100, 101).code(), p.depends_on_length() ? status_code::needs_rerotation : status_code::ok);
        EXPECT_TRUE(schedule->check_growth(1, 100).ok());
    }
    p.long_factor.pop_back();
    EXPECT_EQ(p.schedule().state().code(), status_code::invalid_argument);
    p.divisors.pop_back();
    p.family = rope_family::dynamic_ntk;
    EXPECT_EQ(p.schedule().state().code(), status_code::invalid_argument);
}

// ---- kv_rerotate ---------------------------------------------------------------------------------------------------------------------------

// A14 and A15: a sequence appended in chunks across the limit equals one that was appended at once.
TEST_F(rope_cache, A14_chunks_across_the_limit_equal_one_call) {
    const std::vector<double> near(32, 1.1), far(32, 6.0);
    const rope_schedule longrope = *rope_schedule::longrope({64, 1e4, near, far, 4, 64});
    const rope_schedule dynamic = *rope_schedule::dynamic_ntk(64, 1e4, 2, 64);
    for (const rope_schedule* schedule : {&longrope, &dynamic}) {
        kv_layout layout = all_layouts[1];
        layout.k_type = dtype::fp32;
        page_memory chunked(layout, 2), at_once(layout, 2);
        strided_tensor k = random_tensor(96, 1, 64);
        rope_table current = table_of(made(schedule->spec_at(0)));
        int turned = 0;
        for (int64_t length = 0; length < 96; length += 16) {
            if (const status crossing = schedule->check_growth(length, length + 16); !crossing.ok()) {
                ASSERT_EQ(crossing.code(), status_code::needs_rerotation);
                rope_table next = table_of(made(schedule->spec_at(length + 16)));
                const status s = kv_rerotate(chunked.view(), counted(0, length), counted(0, length), current, next);
                ASSERT_TRUE(s.ok()) << s.text();
                current = std::move(next);
                ++turned;
            }
            strided_tensor chunk(dtype::fp32, 16, 1, 64);
            std::copy_n(k.at(length, 0, 0), 16 * 64 * 4, chunk.at(0, 0, 0));
            const numbers at = counted(length, 16);
            append(chunked.view(), at, chunk, {&current, at, {}});
        }
        EXPECT_EQ(turned, schedule == &longrope ? 1 : 2);
        const numbers all = counted(0, 96);
        const rope_table last = table_of(made(schedule->spec_at(96)));
        append(at_once.view(), all, k, {&last, all, {}});
        strided_tensor got = gathered(chunked.view(), all), wanted = gathered(at_once.view(), all);
        for (int64_t t = 0; t < 96; ++t) {
            for (int32_t d = 0; d < 64; ++d) ASSERT_NEAR(got.value(t, 0, d), wanted.value(t, 0, d), 1e-5) << t << " " << d;
        }
    }
}

// From a table that turns nothing the new row is the new table's own: the bits of gathering, rope_apply and kv_append.
TEST_F(rope_cache, rerotating_from_nothing_is_rotating) {
    rope_spec nothing;
    nothing.inv_freq.assign(16, 0.0);
    const rope_table still = table_of(nothing), to = table_of(with_amplitude(made(rope_spec::standard(32, 1e4)), 1.19));
    for (const kv_layout& layout : all_layouts) {
        for (const rope_options& options : {rope_options{}, rope_options{rope_pairing::interleaved, false, 7}}) {
            page_memory turned(layout, 3);
            const numbers slots = random_slots(3 * layout.page_tokens, 40), at = random_slots(100000, 40);
            strided_tensor k = random_tensor(40, layout.kv_heads, layout.k_dim);
            append(turned.view(), slots, k);
            page_memory wanted = turned;
            strided_tensor stored = gathered(wanted.view(), slots);
            ASSERT_TRUE(rope_apply(to, at, {}, stored.view(), options).ok());
            append(wanted.view(), slots, stored);
            const status s = kv_rerotate(turned.view(), slots, at, still, to, options);
            ASSERT_TRUE(s.ok()) << s.text();
            ASSERT_EQ(turned.image(), wanted.image()) << describe(layout);
        }
    }
}

TEST_F(rope_cache, rerotating_replaces_turn_and_amplitude) {
    const rope_table from = table_of(with_amplitude(made(rope_spec::standard(32, 1e4)), 1.19)),
                     to = table_of(with_amplitude(made(rope_spec::linear(32, 1e6, 3)), 0.7));
    const kv_layout layout = all_layouts[0];
    for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved}) {
        const rope_options options{pairing, false, 3};
        page_memory pages(layout, 2);
        const numbers slots = random_slots(64, 50), at = random_slots(1 << 20, 50);
        strided_tensor k = random_tensor(50, layout.kv_heads, layout.k_dim);
        append(pages.view(), slots, k, {&from, at, options});
        const status s = kv_rerotate(pages.view(), slots, at, from, to, options);
        ASSERT_TRUE(s.ok()) << s.text();
        strided_tensor got = gathered(pages.view(), slots);
        for (int64_t t = 0; t < 50; ++t) {
            for (int32_t h = 0; h < layout.kv_heads; ++h) {
                for (int32_t i = 0; i < 16; ++i) {
                    const bool half = pairing == rope_pairing::half;
                    const int32_t d0 = 3 + (half ? i : 2 * i), d1 = 3 + (half ? i + 16 : 2 * i + 1);
                    const long double angle =
                        static_cast<long double>(at[static_cast<std::size_t>(t)]) * to.spec().inv_freq[static_cast<std::size_t>(i)];
                    const long double x = k.value(t, h, d0), y = k.value(t, h, d1), c = 0.7L * std::cos(angle), z = 0.7L * std::sin(angle);
                    // Two rotations of 3 roundings each, and rows of two tables that were rounded before they were combined.
                    const double size = 0.7 * static_cast<double>(std::abs(x) + std::abs(y)), tolerance = 9 * 0x1p-24 * size;
                    ASSERT_NEAR(got.value(t, h, d0), static_cast<double>(x * c - y * z), tolerance) << t << " " << i;
                    ASSERT_NEAR(got.value(t, h, d1), static_cast<double>(y * c + x * z), tolerance) << t << " " << i;
                }
                for (const int32_t d : {0, 1, 2, 35, 36, 39}) ASSERT_EQ(got.value(t, h, d), k.value(t, h, d)) << "outside the slice: " << d;
            }
        }
    }
}

// ---- kv_shift ------------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_cache, shifting_in_pages_is_shifting_gathered_keys) {
    rope_spec spec = with_amplitude(made(rope_spec::standard(32, 1e4)), 1.0693147);
    const rope_table plain = table_of(spec);
    for (std::size_t i = 0; i < 16; ++i) spec.axis_of_pair.push_back(static_cast<uint8_t>(i % 3));
    const rope_table three_axes = table_of(spec);
    const struct {
        const rope_table& table;
        rope_options options;
    } cases[] = {{plain, {}},
                 {plain, {.pairing = rope_pairing::interleaved, .first_dim = 5}},
                 {plain, {.pairing = rope_pairing::interleaved_in_half_out}},
                 {plain, {.pair_distance = 20, .conjugate = true}},
                 {three_axes, {}}};
    for (const kv_layout& layout : all_layouts) {
        for (const auto& [table, options] : cases) {
            page_memory shifted(layout, 3);
            const numbers slots = random_slots(3 * layout.page_tokens, 40);
            numbers deltas(static_cast<std::size_t>(40 * table.spec().axes()));
            for (int64_t& delta : deltas) delta = between(0, 1) != 0 ? -17 : between(-100000, 100000);
            for (int64_t& delta : deltas) delta += delta == 0;
            strided_tensor k = random_tensor(40, layout.kv_heads, layout.k_dim);
            append(shifted.view(), slots, k);
            page_memory wanted = shifted;
            strided_tensor stored = gathered(wanted.view(), slots);
            ASSERT_TRUE(rope_shift(table, deltas, stored.view(), options).ok());
            append(wanted.view(), slots, stored);
            const status s = kv_shift(shifted.view(), slots, deltas, table, options);
            ASSERT_TRUE(s.ok()) << s.text();
            ASSERT_EQ(shifted.image(), wanted.image()) << describe(layout);
        }
    }
}

// Patches of an image in consecutive slots: from one to the next, only the row of one axis is formed anew.
TEST_F(rope_cache, patches_of_an_image_turn_as_gathered_keys_do) {
    rope_spec nothing, spec = made(rope_spec::standard(32, 1e4));
    for (std::size_t i = 0; i < 16; ++i) spec.axis_of_pair.push_back(static_cast<uint8_t>(i % 3));
    nothing.inv_freq.assign(16, 0.0);
    nothing.axis_of_pair = spec.axis_of_pair;
    const rope_table still = table_of(nothing), table = table_of(spec);
    const numbers slots = counted(0, 64);
    numbers at(3 * 64, 7);  // t, then rows and columns of 8 x 8 patches
    for (std::size_t t = 0; t < 64; ++t) {
        at[64 + t] = 20 + static_cast<int64_t>(t / 8);
        at[128 + t] = 30 + static_cast<int64_t>(t % 8);
    }
    for (const bool shift : {false, true}) {
        page_memory turned(all_layouts[0], 2);
        strided_tensor k = random_tensor(64, 3, 40);
        append(turned.view(), slots, k);
        page_memory wanted = turned;
        strided_tensor stored = gathered(wanted.view(), slots);
        const status expected = shift ? rope_shift(table, at, stored.view()) : rope_apply(table, at, {}, stored.view());
        ASSERT_TRUE(expected.ok()) << expected.text();
        append(wanted.view(), slots, stored);
        const status s = shift ? kv_shift(turned.view(), slots, at, table) : kv_rerotate(turned.view(), slots, at, still, table);
        ASSERT_TRUE(s.ok()) << s.text();
        ASSERT_EQ(turned.image(), wanted.image()) << (shift ? "kv_shift" : "kv_rerotate");
    }
}

TEST_F(rope_cache, shifts_keep_the_norm_and_meet_keys_rotated_at_their_target) {
    const rope_table table = table_of(with_amplitude(made(rope_spec::yarn({.rotary_dim = 40, .factor = 4})), yarn_amplitude(4)));
    page_memory pages(all_layouts[0], 1), target(all_layouts[0], 1);
    strided_tensor k = random_tensor(32, 3, 40);
    const numbers slots = counted(0, 32), far = counted(164, 32), near = counted(100, 32), one_back(32, -1);
    append(pages.view(), slots, k, {&table, far, {}});
    for (int i = 0; i < 64; ++i) {
        const status s = kv_shift(pages.view(), slots, one_back, table);
        ASSERT_TRUE(s.ok()) << s.text();
    }
    append(target.view(), slots, k, {&table, near, {}});
    strided_tensor got = gathered(pages.view(), slots), wanted = gathered(target.view(), slots);
    for (int64_t t = 0; t < 32; ++t) {
        for (int32_t d = 0; d < 40; ++d) ASSERT_NEAR(got.value(t, 1, d), wanted.value(t, 1, d), 65 * 3 * 0x1p-24 * 12) << t << " " << d;
    }
}

// ---- what both keep ------------------------------------------------------------------------------------------------------------------------

TEST_F(rope_cache, nothing_but_the_named_keys_is_written) {
    const rope_table from = table_of(made(rope_spec::standard(32, 1e4))), to = table_of(made(rope_spec::standard(32, 5e5)));
    for (const kv_layout& layout : all_layouts) {
        page_memory pages(layout, 1);
        const int64_t tokens = layout.page_tokens;
        strided_tensor k = random_tensor(tokens, layout.kv_heads, layout.k_dim), v = random_tensor(tokens, layout.kv_heads, layout.v_dim);
        const numbers all = counted(0, tokens);
        ASSERT_TRUE(kv_append(pages.view(), all, k.view(), v.view()).ok());
        page_memory before = pages;
        ASSERT_TRUE(kv_shift(pages.view(), all, numbers(all.size(), 0), from).ok());
        ASSERT_TRUE(kv_shift(pages.view(), numbers{no_slot, no_slot}, numbers{5, 5}, from).ok());
        ASSERT_TRUE(kv_rerotate(pages.view(), {}, {}, from, to).ok());
        EXPECT_EQ(pages.image(), before.image()) << describe(layout);
        ASSERT_TRUE(kv_shift(pages.view(), numbers{3, no_slot, 5}, numbers{9, 9, 0}, from).ok());
        ASSERT_TRUE(kv_rerotate(pages.view(), numbers{7, no_slot}, numbers{1000, 5}, from, to).ok());
        strided_tensor k0(dtype::fp32, tokens, layout.kv_heads, layout.k_dim), v0(dtype::fp32, tokens, layout.kv_heads, layout.v_dim), k1 = k0,
                                                                                                                                       v1 = v0;
        ASSERT_TRUE(kv_gather(before.view(), all, k0.view(), v0.view()).ok());
        ASSERT_TRUE(kv_gather(pages.view(), all, k1.view(), v1.view()).ok());
        EXPECT_EQ(v1.memory, v0.memory) << describe(layout);
        for (int64_t t = 0; t < tokens; ++t) {
            const bool same = std::equal(k0.at(t, 0, 0), k0.at(t, 0, 0) + layout.kv_heads * layout.k_dim * 4, k1.at(t, 0, 0));
            EXPECT_EQ(same, t != 3 && t != 7) << describe(layout) << " token " << t;
        }
    }
}

TEST_F(rope_cache, any_number_of_threads_gives_the_same_bits) {
    const rope_table from = table_of(with_amplitude(made(rope_spec::standard(32, 1e4)), 1.2)), to = table_of(made(rope_spec::standard(32, 5e5)));
    for (const kv_layout& layout : all_layouts) {
        page_memory start(layout, 12);
        const int64_t limit = 12 * layout.page_tokens;
        const numbers slots = random_slots(limit, static_cast<std::size_t>(limit)), at = random_slots(100000, slots.size());
        strided_tensor k = random_tensor(limit, layout.kv_heads, layout.k_dim);
        append(start.view(), slots, k);
        const auto turned = [&](executor& on) {
            page_memory pages = start;
            EXPECT_TRUE(kv_rerotate(pages.view(), slots, at, from, to, {}, on).ok());
            EXPECT_TRUE(kv_shift(pages.view(), slots, at, from, {}, on).ok());
            return pages.image();
        };
        serial_executor serial;
        const std::vector<std::byte> wanted = turned(serial);
        for (const int32_t threads : {2, 5}) {
            thread_executor many(threads);
            ASSERT_EQ(turned(many), wanted) << describe(layout) << " " << threads;
        }
    }
}

TEST_F(rope_cache, turning_allocates_nothing) {
    const rope_table from = *rope_table::growing(made(rope_spec::standard(64, 1e4)), 512),
                     to = *rope_table::growing(made(rope_spec::standard(64, 5e5)), 512);
    page_memory pages(all_layouts[1], 8);
    const kv_pages view = pages.view();
    const numbers slots = counted(0, 512);
    serial_executor serial;
    const int64_t before = allocation_count();
    bool ok = kv_rerotate(view, slots, slots, from, to, {}, serial).ok();
    ok = kv_shift(view, slots, slots, to, {}, serial).ok() && ok;
    ok = !kv_shift(view, slots, {}, to, {}, serial).ok() && ok;  // refusing allocates nothing either
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(ok);
}

TEST_F(rope_cache, refused_calls_name_argument_value_and_rule_and_write_nothing) {
    const rope_table table = table_of(made(rope_spec::standard(64, 1e4))), narrow = table_of(made(rope_spec::standard(32, 1e4))),
                     fixed = *rope_table::fixed(made(rope_spec::standard(64, 1e4)), 100);
    rope_spec xpos = made(rope_spec::standard(64, 1e4));
    xpos.xpos.base = 512.0;
    EXPECT_EQ(std::string(kv_shift(page_memory(all_layouts[1], 1).view(), {}, {}, table_of(xpos)).text()),
              "table has xPos or FoPE; keys in pages are turned by pure rotations only");
    rope_spec three_axes = made(rope_spec::standard(64, 1e4));
    three_axes.axis_of_pair.assign(32, 2);
    page_memory pages(all_layouts[1], 2);
    strided_tensor k = random_tensor(128, 1, 64);
    append(pages.view(), counted(0, 128), k);
    const std::vector<std::byte> before = pages.image();
    const kv_pages view = pages.view();
    const numbers two = {0, 1};
    const auto shift = [&](const numbers& slots, const numbers& deltas, const rope_table& by, const rope_options& options = {}) {
        return std::string(kv_shift(view, slots, deltas, by, options).text());
    };
    const auto rerotate = [&](const numbers& at, const rope_table& from, const rope_table& to) {
        return std::string(kv_rerotate(view, two, at, from, to).text());
    };
    EXPECT_EQ(shift({0, 128}, two, table), "slots[1] is 128; must be no_slot (-1) or 0 .. 127");
    EXPECT_EQ(shift({4, 4}, two, table), "slots names 4 twice (again in the run at index 1); slots must differ");
    EXPECT_EQ(shift(two, {5}, table), "deltas has 1 entries; must be [axes][tokens] = 1 x 2");
    EXPECT_EQ(shift(two, {5, 100}, fixed), "deltas[1] is 100; must be within 99 of 0");
    EXPECT_EQ(shift(two, two, table, {.inverse = true}), "options.inverse is true; must be false");
    EXPECT_EQ(shift(two, two, table, {.first_dim = 1}), "k.dim is 64; must be at least first_dim + rotary_dim = 1 + 64");
    EXPECT_EQ(shift(two, two, table_of(three_axes)), "deltas has 2 entries; must be [axes][tokens] = 3 x 2");
    EXPECT_EQ(rerotate({5}, table, table), "positions has 1 entries; must be [axes][tokens] = 1 x 2");
    EXPECT_EQ(rerotate({5, -1}, table, table), "positions[1] is -1; must be 0 .. 2147483647");
    EXPECT_EQ(rerotate({5, 100}, table, fixed), "positions[1] is 100; must be 0 .. 99");
    EXPECT_EQ(rerotate({5, 6}, table, narrow), "to has 16 pairs; must be 32, as many as from");
    const rope_table faint = table_of(with_amplitude(table.spec(), 0x1p-90)), loud = table_of(with_amplitude(table.spec(), 0x1p90));
    EXPECT_EQ(rerotate({5, 6}, faint, loud), "the amplitude of to is 1.5325e+54 times that of from; must be 2^-100 .. 2^100");
    rope_table gone = table_of(table.spec());
    const rope_table moved = std::move(gone);
    EXPECT_EQ(rerotate({5, 6}, gone, moved), "table is empty; it must not have been moved from");
    EXPECT_EQ(rerotate({5, 6}, moved, gone), "table is empty; it must not have been moved from");
    kv_pages unaligned = view;
    ++unaligned.base;
    EXPECT_FALSE(kv_shift(unaligned, two, two, table).ok());
    EXPECT_EQ(pages.image(), before);
}

}  // namespace
}  // namespace ropewalk::test
