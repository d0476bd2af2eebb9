// xPos and FoPE: tables whose rows are no plain rotations. Expected values come from the formulas in double.
#include "tests/runtime/rope_fixture.hpp"

namespace ropewalk::test {
namespace {

constexpr double u = 0x1p-24;

rope_spec xpos_spec(int32_t rotary_dim, double center = 0.0, double base = 512.0) {
    rope_spec spec = standard(rotary_dim);
    spec.xpos = {base, center};
    return spec;
}

double xpos_amplitude(int32_t rotary_dim, int32_t pair, double power) {
    return std::pow((2.0 * pair + 0.4 * rotary_dim) / (1.4 * rotary_dim), power);
}

class rope_mix : public rope_tensors {
protected:
    rope_spec fope_spec(int32_t rotary_dim, int32_t heads, int32_t frequencies) {
        rope_spec spec = standard(rotary_dim);
        spec.fope.heads = heads;
        spec.fope.frequencies = frequencies;
        for (std::vector<float>* mix : {&spec.fope.cos_mix, &spec.fope.sin_mix}) {
            mix->resize(static_cast<std::size_t>(heads * frequencies * frequencies));
            for (float& x : *mix) x = 0.3f * normal();
        }
        return spec;
    }
};

TEST_F(rope_mix, xpos_grows_queries_and_shrinks_keys) {
    constexpr int32_t dim = 24, pairs = 12;
    for (const int64_t kept : {int64_t{4096}, int64_t{0}}) {
        const rope_table table = table_of(xpos_spec(dim, 1000.0), kept);
        const positions at = {0, 1, 1000, 3000, 20'000};
        strided_tensor q = random_tensor(dtype::fp32, 5, 4, dim), k = random_tensor(dtype::fp32, 5, 2, dim), q0 = q, k0 = k;
        ASSERT_TRUE(rope_apply(table, at, q.view(), k.view()).ok());
        for (std::size_t t = 0; t < 5; ++t) {
            for (int32_t i = 0; i < pairs; ++i) {
                const double p = static_cast<double>(at[t]), angle = p * table.spec().inv_freq[static_cast<std::size_t>(i)];
                const double c = std::cos(angle), s = std::sin(angle), grown = xpos_amplitude(dim, i, (p - 1000.0) / 512.0);
                for (int side = 0; side < 2; ++side) {
                    strided_tensor &x = side == 0 ? q : k, &before = side == 0 ? q0 : k0;
                    const auto token = static_cast<int64_t>(t);
                    const double amplitude = side == 0 ? grown : 1.0 / grown, x0 = before.value(token, 1, i), x1 = before.value(token, 1, i + pairs);
                    // The row is rounded twice, before and after the amplitude; product and sum once.
                    const double tolerance = 4 * u * amplitude * (std::abs(x0) + std::abs(x1));
                    ASSERT_NEAR(x.value(token, 1, i), amplitude * (x0 * c - x1 * s), tolerance) << t << " " << i << " " << side;
                    ASSERT_NEAR(x.value(token, 1, i + pairs), amplitude * (x1 * c + x0 * s), tolerance) << t << " " << i << " " << side;
                }
            }
        }
    }
}

TEST_F(rope_mix, xpos_scores_depend_on_the_distance_only) {
    constexpr int32_t dim = 32, pairs = 16;
    const rope_table table = table_of(xpos_spec(dim));
    strided_tensor q1 = random_tensor(dtype::fp32, 1, 1, dim), k1 = random_tensor(dtype::fp32, 1, 1, dim);
    double score[3] = {}, size = 0;
    const int64_t queries[3] = {700, 5700, 20'700}, distance = 600;
    for (int n = 0; n < 3; ++n) {
        strided_tensor q = q1, k = k1;
        ASSERT_TRUE(rope_apply(table, positions{queries[n]}, q.view(), {}).ok());
        ASSERT_TRUE(rope_apply(table, positions{queries[n] - distance}, {}, k.view()).ok());
        for (int32_t d = 0; d < dim; ++d) score[n] += q.value(0, 0, d) * k.value(0, 0, d);
    }
    for (int32_t i = 0; i < pairs; ++i) {
        size += 2 * xpos_amplitude(dim, i, static_cast<double>(distance) / 512.0) *
                (std::abs(q1.value(0, 0, i)) + std::abs(q1.value(0, 0, i + pairs))) *
                (std::abs(k1.value(0, 0, i)) + std::abs(k1.value(0, 0, i + pairs)));
    }
    // Both factors err by 4 u of their size.
    EXPECT_NEAR(score[1], score[0], 2 * 8 * u * size);
    EXPECT_NEAR(score[2], score[0], 2 * 8 * u * size);
}

TEST_F(rope_mix, xpos_ends_where_its_amplitudes_leave_fp32) {
    // 100 / log2(3.5) bases
    const auto reach = static_cast<int64_t>(512.0 * 100.0 / std::log2(3.5));
    EXPECT_EQ(table_of(xpos_spec(16)).max_position(), reach);
    EXPECT_EQ(table_of(xpos_spec(16, 100.0)).max_position(), reach + 100);
    EXPECT_EQ(table_of(xpos_spec(16, 0.0, 1e300)).max_position(), (int64_t{1} << 31) - 1);
    EXPECT_EQ(refusal_of(rope_table::fixed(xpos_spec(16), reach + 2)),
              "max_position is " + std::to_string(reach + 2) + "; must be at most " + std::to_string(reach + 1) + ", where xPos leaves fp32");
    const rope_table table = made(rope_table::fixed(xpos_spec(16), reach + 1));
    strided_tensor k = random_tensor(dtype::fp32, 1, 1, 16);
    EXPECT_EQ(rope_apply(table, positions{reach + 1}, k.view(), {}).code(), status_code::out_of_range);
    ASSERT_TRUE(rope_apply(table, positions{reach}, {}, k.view()).ok());
    for (int32_t d = 0; d < 16; ++d) EXPECT_TRUE(std::isfinite(k.value(0, 0, d)));
}

TEST_F(rope_mix, fope_mixes_frequencies_by_head) {
    constexpr int32_t dim = 24, pairs = 12, mixed = 9, tables = 2;
    for (const int64_t kept : {int64_t{4096}, int64_t{0}}) {
        const rope_spec spec = fope_spec(dim, tables, mixed);
        const rope_table table = table_of(spec, kept);
        const positions at = {0, 1, 700, 4000};
        strided_tensor q = random_tensor(dtype::fp32, 4, 6, dim), k = random_tensor(dtype::fp32, 4, 2, dim), q0 = q, k0 = k;
        ASSERT_TRUE(rope_apply(table, at, q.view(), k.view()).ok());
        for (int64_t t = 0; t < 4; ++t) {
            for (int32_t head = 0; head < 8; ++head) {
                const bool query = head < 6;
                const int32_t own = query ? head : head - 6, h = query ? own / 3 : own;  // three query heads a KV head
                strided_tensor &x = query ? q : k, &before = query ? q0 : k0;
                for (int32_t o = 0; o < pairs; ++o) {
                    const double x0 = before.value(t, own, o), x1 = before.value(t, own, o + pairs);
                    if (o >= mixed) {  // bits kept
                        ASSERT_EQ(x.value(t, own, o), x0);
                        ASSERT_EQ(x.value(t, own, o + pairs), x1);
                        continue;
                    }
                    double c = 0, s = 0, c_size = 0, s_size = 0;
                    for (int32_t i = 0; i < mixed; ++i) {
                        const auto at_mix = static_cast<std::size_t>((h * mixed + i) * mixed + o);
                        const double angle = static_cast<double>(at[static_cast<std::size_t>(t)]) * spec.inv_freq[static_cast<std::size_t>(i)];
                        c += std::cos(angle) * spec.fope.cos_mix[at_mix];
                        s += std::sin(angle) * spec.fope.sin_mix[at_mix];
                        c_size += std::abs(spec.fope.cos_mix[at_mix]);
                        s_size += std::abs(spec.fope.sin_mix[at_mix]);
                    }
                    // Each cos and sin is rounded by u / 2 before it is mixed; the mixed ones, product and sum once.
                    const auto bound = [&](double a, double b) {
                        return std::abs(a) * (c_size / 2 + 3 * std::abs(c)) * u + std::abs(b) * (s_size / 2 + 3 * std::abs(s)) * u + 1e-12;
                    };
                    ASSERT_NEAR(x.value(t, own, o), x0 * c - x1 * s, bound(x0, x1)) << t << " " << head << " " << o;
                    ASSERT_NEAR(x.value(t, own, o + pairs), x1 * c + x0 * s, bound(x1, x0)) << t << " " << head << " " << o;
                }
            }
        }
    }
}

TEST_F(rope_mix, one_table_of_fope_serves_any_number_of_heads) {
    const rope_table table = table_of(fope_spec(16, 1, 8));
    strided_tensor x = random_tensor(dtype::fp32, 2, 3, 16), y = x;
    const positions at = {3, 90};
    ASSERT_TRUE(rope_apply(table, at, x.view(), {}).ok());
    for (int32_t h = 0; h < 3; ++h) {
        const head_view one(y.at(0, h, 0), dtype::fp32, 2, 1, 16, y.token_stride, y.head_stride);
        ASSERT_TRUE(rope_apply(table, at, {}, one).ok());
    }
    EXPECT_EQ(x.memory, y.memory);
}

TEST_F(rope_mix, appending_turns_keys_as_in_place) {
    for (const rope_spec& spec : {xpos_spec(32, 50.0), fope_spec(32, 4, 11), fope_spec(32, 2, 16), fope_spec(64, 64, 20)}) {
        for (const int64_t kept : {int64_t{1000}, int64_t{0}}) {
            const rope_table table = table_of(spec, kept);
            positions at(40);
            for (int64_t& p : at) p = between(0, 2000);
            for (const bool conjugate : {false, true}) {
                const rope_options options{.first_dim = 3, .conjugate = conjugate};
                strided_tensor k = random_tensor(dtype::fp32, 40, std::max(spec.fope.heads, 4), 70), in_place = k;
                ASSERT_TRUE(rope_apply(table, at, {}, in_place.view(), options).ok());
                strided_tensor appended = through_pages(k, {&table, at, options});
                ASSERT_TRUE(same_bits(appended, in_place));
            }
        }
    }
}

TEST_F(rope_mix, what_is_no_pure_rotation_is_neither_shifted_nor_undone) {
    for (const rope_spec& spec : {xpos_spec(8), fope_spec(8, 1, 4)}) {
        EXPECT_FALSE(spec.pure_rotation());
        const rope_table table = table_of(spec);
        strided_tensor k = random_tensor(dtype::fp32, 1, 1, 8), before = k;
        EXPECT_STREQ(rope_shift(table, positions{1}, k.view()).text(), "table has xPos or FoPE; a shift needs a pure rotation");
        const std::string text = "options.inverse is true; must be false with xPos and FoPE, which are no pure rotations";
        EXPECT_EQ(std::string(rope_apply(table, positions{1}, k.view(), {}, {.inverse = true}).text()), text);
        const kv_layout layout{.kv_heads = 1, .k_dim = 8, .v_dim = 16, .page_tokens = 16};
        const auto memory = made(runtime::mapped_memory::create(layout.page_stride_bytes()));
        const positions slots = {0}, at = {1};
        EXPECT_EQ(std::string(kv_append({memory.data(), layout, 1}, slots, k.view(), {}, {&table, at, {.inverse = true}}).text()), text);
        EXPECT_EQ(k.memory, before.memory);
    }
}

TEST_F(rope_mix, refused_specs) {
    const auto text = [](rope_spec spec, auto change) {
        change(spec);
        return refusal_of(rope_table::growing(spec));
    };
    const double nan = std::nan("");
    EXPECT_EQ(text(xpos_spec(8), [](rope_spec& s) { s.xpos.base = -1; }), "xpos.base is -1; must be finite and positive, or 0: no xPos");
    EXPECT_NE(text(xpos_spec(8), [&](rope_spec& s) { s.xpos.base = nan; }), "accepted");
    EXPECT_NE(text(xpos_spec(8), [&](rope_spec& s) { s.xpos.center = nan; }), "accepted");
    EXPECT_EQ(text(xpos_spec(8), [](rope_spec& s) { s.xpos.center = -2; }), "xpos.center is -2; must be 0 .. 28328.7, which is 55 bases");
    EXPECT_NE(text(xpos_spec(8), [](rope_spec& s) { s.xpos.center = 28330; }), "accepted");
    EXPECT_EQ(text(xpos_spec(8), [](rope_spec& s) { s.amplitude = 2; }), "amplitude is 2; must be 1 with xPos or FoPE");
    EXPECT_EQ(text(xpos_spec(8), [](rope_spec& s) { s.axis_of_pair = {0, 1, 0, 1}; }), "axis_of_pair has 4 entries; must be empty with xPos or FoPE");
    const rope_spec fope = fope_spec(8, 2, 3);
    EXPECT_EQ(text(fope, [](rope_spec& s) { s.xpos.base = 512; }), "fope.heads is 2; must be 0 with xPos (xpos.base 512)");
    EXPECT_EQ(text(fope, [](rope_spec& s) { s.fope.heads = -1; }), "fope.heads is -1; must be at least 0, and times rotary_dim (8) at most 8192");
    EXPECT_NE(text(fope, [](rope_spec& s) { s.fope.heads = 1025; }), "accepted");
    EXPECT_EQ(text(fope, [](rope_spec& s) { s.fope.frequencies = 5; }), "fope.frequencies is 5; must be 0 .. 4, the pairs");
    EXPECT_EQ(text(fope, [](rope_spec& s) { s.fope.sin_mix.pop_back(); }),
              "fope.sin_mix has 17 entries; must be heads x frequencies x frequencies = 18");
    EXPECT_EQ(text(fope, [](rope_spec& s) { s.fope.cos_mix[5] = INFINITY; }), "fope.cos_mix[5] is inf; must be finite");
    const rope_table table = table_of(fope);
    strided_tensor x = random_tensor(dtype::fp32, 1, 3, 8);
    EXPECT_STREQ(rope_apply(table, positions{1}, x.view(), {}).text(), "q.heads is 3; must be a multiple of the table's 2 (FoPE)");
    EXPECT_STREQ(rope_apply(table, positions{1}, {}, x.view()).text(), "k.heads is 3; must be a multiple of the table's 2 (FoPE)");
}

}  // namespace
}  // namespace ropewalk::test
