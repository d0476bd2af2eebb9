// Pages: layout, kv_append and kv_gather. Names that begin with a letter and a number are rows of the field reports: faults that people met
// elsewhere. Expected bytes come from the formulas of kv_pages.hpp, element by element.
#include <ropewalk/kv_pages.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include "tests/allocations.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"
#include "tests/thread_executor.hpp"

namespace ropewalk::test {
namespace {

using numbers = std::vector<int64_t>;

int32_t word_elements(dtype type) { return type == dtype::bf16 ? 2 : 1; }
int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Byte offset of an element inside its record, by the formulas of kv_pages.hpp.
int64_t k_offset(const kv_layout& l, int64_t token, int64_t d) {
    const int64_t g = word_elements(l.k_type), steps = round_up(l.k_dim, g) / g;
    return (((token / 16 * steps + d / g) * 16 + token % 16) * g + d % g) * element_bytes(l.k_type);
}
int64_t v_offset(const kv_layout& l, int64_t token, int64_t d) {
    const int64_t g = word_elements(l.v_type), padded = round_up(l.v_dim, 16);
    const int64_t k_bytes = round_up(l.page_tokens * round_up(l.k_dim, word_elements(l.k_type)) * element_bytes(l.k_type), 64);
    return k_bytes + ((token / g * padded + d) * g + token % g) * element_bytes(l.v_type);
}

// Pages that end exactly at a page without access, and the image that they should have.
class page_pool {
public:
    page_pool(const kv_layout& layout, int32_t count, uint64_t seed)
        : memory_(static_cast<std::size_t>((count - 1) * layout.page_stride_bytes() + (layout.kv_heads - 1) * layout.head_stride_bytes() +
                                           layout.record_bytes())),
          pages_{memory_.data(), layout, count} {
        EXPECT_TRUE(layout.validate().ok()) << layout.validate().text();
        std::mt19937_64 random(seed);
        for (std::byte& b : memory_.bytes()) b = static_cast<std::byte>(random());
        wanted.assign(memory_.bytes().begin(), memory_.bytes().end());
    }

    [[nodiscard]] const kv_pages& view() const { return pages_; }

    // What appending row `token` of k and v (null: absent) to `slot` should write.
    void expect(int64_t slot, strided_tensor* k, strided_tensor* v, int64_t token) {
        const kv_layout& l = pages_.layout;
        for (int32_t h = 0; h < l.kv_heads; ++h) {
            std::byte* record = wanted.data() + slot / l.page_tokens * l.page_stride_bytes() + h * l.head_stride_bytes();
            const int64_t index = slot % l.page_tokens;
            for (int64_t d = 0; k != nullptr && d < round_up(l.k_dim, word_elements(l.k_type)); ++d) {
                set_element(l.k_type, record + k_offset(l, index, d), d < l.k_dim ? k->value(token, h, static_cast<int32_t>(d)) : 0.0);
            }
            for (int64_t d = 0; v != nullptr && d < round_up(l.v_dim, 16); ++d) {
                set_element(l.v_type, record + v_offset(l, index, d), d < l.v_dim ? v->value(token, h, static_cast<int32_t>(d)) : 0.0);
            }
        }
    }

    void check(const std::string& what) const {
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_EQ(memory_.data()[i], wanted[i]) << what << ": byte " << i << " of " << wanted.size();
        }
    }

    std::vector<std::byte> wanted;

private:
    guarded_buffer memory_;
    kv_pages pages_;
};

class kv_pages_test : public seeded {
protected:
    strided_tensor random_tensor(dtype type, int64_t tokens, int32_t heads, int32_t dim, int64_t head_gap = 0, int64_t token_gap = 0) {
        strided_tensor made(type, tokens, heads, dim, head_gap, token_gap);
        made.fill([this] { return normal(); });
        return made;
    }
    numbers random_slots(int64_t limit, std::size_t count) {
        numbers all(static_cast<std::size_t>(limit));
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), random);
        all.resize(count);
        return all;
    }
    static numbers slots_from(int64_t first, int64_t count) {
        numbers slots(static_cast<std::size_t>(count));
        std::iota(slots.begin(), slots.end(), first);
        return slots;
    }
    void append_and_check(const kv_layout& layout, int32_t page_count, const numbers& slots, dtype k_type, dtype v_type, executor& on);
};

void kv_pages_test::append_and_check(const kv_layout& layout, int32_t page_count, const numbers& slots, dtype k_type, dtype v_type, executor& on) {
    page_pool pool(layout, page_count, random());
    const auto tokens = static_cast<int64_t>(slots.size());
    strided_tensor k = random_tensor(k_type, tokens, layout.kv_heads, layout.k_dim, 1, 3),
                   v = random_tensor(v_type, tokens, layout.kv_heads, layout.v_dim, 0, 1);
    const status s = kv_append(pool.view(), slots, k.view(), v.view(), {}, on);
    ASSERT_TRUE(s.ok()) << s.text();
    for (int64_t t = 0; t < tokens; ++t) {
        if (slots[static_cast<std::size_t>(t)] != no_slot) pool.expect(slots[static_cast<std::size_t>(t)], &k, &v, t);
    }
    pool.check(describe(layout));
    // Back: the values of the page types, rounded to the types of k and v.
    strided_tensor k_back(k_type, tokens, layout.kv_heads, layout.k_dim, 2, 1), v_back(v_type, tokens, layout.kv_heads, layout.v_dim, 1, 1);
    strided_tensor k_wanted = k_back, v_wanted = v_back;
    const auto round_trip = [](strided_tensor& from, strided_tensor& to, dtype page_type, int64_t t) {
        for (int32_t h = 0; h < from.heads; ++h) {
            for (int32_t d = 0; d < from.dim; ++d) {
                uint32_t stored = 0;
                set_element(page_type, &stored, from.value(t, h, d));
                set_element(to.type, to.at(t, h, d), element_value(page_type, &stored));
            }
        }
    };
    for (int64_t t = 0; t < tokens; ++t) {
        if (slots[static_cast<std::size_t>(t)] == no_slot) continue;
        round_trip(k, k_wanted, layout.k_type, t);
        round_trip(v, v_wanted, layout.v_type, t);
    }
    const status back = kv_gather(pool.view(), slots, k_back.view(), v_back.view(), on);
    ASSERT_TRUE(back.ok()) << back.text();
    ASSERT_EQ(k_back.memory, k_wanted.memory) << describe(layout);
    ASSERT_EQ(v_back.memory, v_wanted.memory) << describe(layout);
}

// ---- layout --------------------------------------------------------------------------------------------------------------------------------

TEST_F(kv_pages_test, sizes) {
    const kv_layout bf16{.kv_heads = 8, .k_dim = 128, .v_dim = 128};
    EXPECT_EQ(bf16.k_part_bytes(), 64 * 128 * 2);
    EXPECT_EQ(bf16.record_bytes(), 64 * 256 * 2);
    EXPECT_EQ(bf16.page_stride_bytes(), 8 * 64 * 256 * 2);
    EXPECT_EQ(bf16.token_bytes(), 8 * 256 * 2);
    // Odd dims: K is padded to whole words, V to 16; an fp16 panel that ends in the middle of a line is followed by half a line of padding.
    const kv_layout odd{.k_type = dtype::fp16, .v_type = dtype::fp32, .kv_heads = 1, .k_dim = 5, .v_dim = 17, .page_tokens = 16};
    EXPECT_EQ(odd.k_part_bytes(), 192);
    EXPECT_EQ(odd.v_part_bytes(), 16 * 32 * 4);
    const kv_layout words{.k_type = dtype::bf16, .v_type = dtype::bf16, .kv_heads = 1, .k_dim = 5, .v_dim = 1, .page_tokens = 16};
    EXPECT_EQ(words.k_part_bytes(), 16 * 6 * 2);
    EXPECT_EQ(words.v_part_bytes(), 16 * 16 * 2);
    for (int32_t dim = 1; dim <= 70; ++dim) {
        for (const dtype type : all_types) {
            const kv_layout any{.k_type = type, .v_type = type, .kv_heads = 3, .k_dim = dim, .v_dim = dim, .page_tokens = 16};
            EXPECT_TRUE(any.validate().ok());
            EXPECT_EQ(any.k_part_bytes() % 64, 0);
            EXPECT_EQ(any.record_bytes() % 64, 0);
        }
    }
}

TEST_F(kv_pages_test, refused_layouts) {
    const kv_layout good{.kv_heads = 2, .k_dim = 64, .v_dim = 64};
    EXPECT_TRUE(good.validate().ok());
    const auto text = [&](auto change) {
        kv_layout layout = good;
        change(layout);
        return std::string(layout.validate().text());
    };
    EXPECT_EQ(text([](kv_layout& l) { l.k_type = static_cast<dtype>(9); }),
              "layout.k_type is 9; must be a dtype (0 fp32, 1 bf16, 2 fp16, 3 int8, 4 int4, 5 fp8)");
    EXPECT_EQ(text([](kv_layout& l) { l.v_type = static_cast<dtype>(-1); }),
              "layout.v_type is -1; must be a dtype (0 fp32, 1 bf16, 2 fp16, 3 int8, 4 int4, 5 fp8)");
    EXPECT_EQ(text([](kv_layout& l) { l.kv_heads = 0; }), "layout.kv_heads is 0; must be 1 .. 2147483647");
    EXPECT_EQ(text([](kv_layout& l) { l.k_dim = 0; }), "layout.k_dim is 0; must be 1 .. 1024");
    EXPECT_EQ(text([](kv_layout& l) { l.v_dim = 1025; }), "layout.v_dim is 1025; must be 1 .. 1024");
    for (const int32_t tokens : {0, -1, 1, 3, 8, 24, 48, 512, 768}) {  // G11
        EXPECT_EQ(text([=](kv_layout& l) { l.page_tokens = tokens; }),
                  "layout.page_tokens is " + std::to_string(tokens) + "; must be 16, 32, 64, 128 or 256");
    }
    EXPECT_EQ(text([](kv_layout& l) { l.head_stride = 16384 - 64; }),
              "layout.head_stride is 16320; must be 0 or a multiple of 64 and at least a record (16384 bytes)");
    EXPECT_FALSE(text([](kv_layout& l) { l.head_stride = 16385; }).empty());
    EXPECT_FALSE(text([](kv_layout& l) { l.page_stride = -64; }).empty());
    EXPECT_FALSE(text([](kv_layout& l) { l.head_stride = std::numeric_limits<int64_t>::max() - 63; }).empty());
}

// ---- append and gather -----------------------------------------------------------------------------------------------------------------------

TEST_F(kv_pages_test, every_type_and_dim) {
    const int32_t dims[] = {1, 2, 3, 7, 15, 16, 17, 31, 33, 40, 64, 72, 80, 96, 100, 112, 128, 257, 576, 1024};
    serial_executor serial;
    for (const dtype page_type : all_types) {
        for (const dtype type : all_types) {
            for (const int32_t dim : dims) {
                if (dim > 130 && type != page_type) continue;
                const kv_layout layout{.k_type = page_type,
                                       .v_type = all_types[(static_cast<int>(page_type) + dim) % 3],
                                       .kv_heads = 2,
                                       .k_dim = dim,
                                       .v_dim = dim % 5 == 0 ? dim : (dim + 3) / 2,
                                       .page_tokens = 16};
                append_and_check(layout, 3, slots_from(5, 37), type, all_types[(static_cast<int>(type) + 1) % 3], serial);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(kv_pages_test, slots_in_any_order) {
    for (const int32_t page_tokens : {16, 32, 64, 128, 256}) {
        for (const dtype type : all_types) {
            const kv_layout layout{.k_type = type, .v_type = type, .kv_heads = 3, .k_dim = 20, .v_dim = 12, .page_tokens = page_tokens};
            thread_executor threads(3);
            const int64_t limit = 2 * page_tokens;
            for (const std::size_t count : {std::size_t{1}, std::size_t{9}, static_cast<std::size_t>(limit)}) {
                numbers slots = random_slots(limit, count);
                append_and_check(layout, 2, slots, type, dtype::fp32, threads);
                if (HasFatalFailure()) return;
                if (count > 2) slots[1] = slots[count - 1] = no_slot;
                append_and_check(layout, 2, slots, dtype::bf16, type, threads);
                if (HasFatalFailure()) return;
            }
        }
    }
}

TEST_F(kv_pages_test, strides_of_an_engine) {
    for (const bool head_major : {false, true}) {
        kv_layout layout{.k_type = dtype::bf16, .v_type = dtype::fp16, .kv_heads = 4, .k_dim = 24, .v_dim = 8, .page_tokens = 16};
        const int64_t room = layout.record_bytes() + 192;
        layout.head_stride = head_major ? 3 * room : room;
        layout.page_stride = head_major ? room : 4 * room + 64;
        serial_executor serial;
        append_and_check(layout, 3, random_slots(48, 30), dtype::fp32, dtype::fp32, serial);
    }
}

// The bytes of the pages do not depend on the threads nor on how the tokens were cut into calls.
TEST_F(kv_pages_test, threads_and_chunks_give_the_same_bits) {
    const result<rope_spec> spec = rope_spec::standard(32, 1e4);
    const result<rope_table> table = rope_table::growing(*spec, 0, 700);
    ASSERT_TRUE(table.ok());
    const kv_layout layout{.kv_heads = 2, .k_dim = 48, .v_dim = 40, .page_tokens = 32};
    constexpr int64_t tokens = 1000;
    strided_tensor k = random_tensor(dtype::bf16, tokens, 2, 48), v = random_tensor(dtype::bf16, tokens, 2, 40);
    const numbers order = random_slots(40, 32);  // pages
    numbers slots, positions = slots_from(3, tokens);
    for (int64_t t = 0; t < tokens; ++t) slots.push_back(order[static_cast<std::size_t>(t / 32)] * 32 + t % 32);
    const kv_append_rope rope{&*table, positions, {.first_dim = 16}};
    const uint64_t pool_seed = random();
    page_pool one(layout, 40, pool_seed);
    serial_executor serial;
    ASSERT_TRUE(kv_append(one.view(), slots, k.view(), v.view(), rope, serial).ok());
    for (const int32_t threads : {0, 2, 3, 16, 64}) {
        page_pool many(layout, 40, pool_seed);
        thread_executor on(threads);
        ASSERT_TRUE(kv_append(many.view(), slots, k.view(), v.view(), rope, on).ok());
        many.wanted.assign(one.view().base, one.view().base + many.wanted.size());
        many.check(std::to_string(threads) + " threads");
    }
    page_pool chunked(layout, 40, pool_seed);
    for (int64_t first = 0, count; first < tokens; first += count) {
        count = std::min<int64_t>(between(1, 70), tokens - first);
        const auto part = [&](const numbers& all) {
            return std::span(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
        };
        const head_view k_part(k.at(first, 0, 0), k.type, count, 2, 48, k.token_stride, k.head_stride);
        const head_view v_part(v.at(first, 0, 0), v.type, count, 2, 40, v.token_stride, v.head_stride);
        ASSERT_TRUE(kv_append(chunked.view(), part(slots), k_part, v_part, {&*table, part(positions), {.first_dim = 16}}).ok());
    }
    chunked.wanted.assign(one.view().base, one.view().base + chunked.wanted.size());
    chunked.check("chunks");
}

TEST_F(kv_pages_test, A23_rotating_on_append_equals_appending_what_was_rotated) {
    constexpr double m = 1.13862944;  // YaRN, factor 4
    rope_spec spec = *rope_spec::standard(64, 1e4);
    spec.amplitude = m;
    for (const int64_t kept : {int64_t{100}, int64_t{0}}) {
        const result<rope_table> table = rope_table::growing(spec, 0, kept);
        ASSERT_TRUE(table.ok());
        for (const dtype type : all_types) {
            for (const rope_pairing pairing : {rope_pairing::half, rope_pairing::interleaved, rope_pairing::interleaved_in_half_out}) {
                for (const bool inverse : {false, true}) {
                    const kv_layout layout{.k_type = type, .v_type = type, .kv_heads = 2, .k_dim = 72, .v_dim = 16, .page_tokens = 16};
                    const rope_options options{.pairing = pairing, .inverse = inverse, .first_dim = 4};
                    strided_tensor k = random_tensor(dtype::fp32, 20, 2, 72), v = random_tensor(dtype::fp32, 20, 2, 16), rotated = k;
                    numbers positions(20, 7);
                    positions[3] = 100'000;
                    ASSERT_TRUE(rope_apply(*table, positions, rotated.view(), {}, options).ok());
                    page_pool inside(layout, 3, 1), before(layout, 3, 1);
                    const numbers slots = slots_from(11, 20);
                    ASSERT_TRUE(kv_append(inside.view(), slots, k.view(), v.view(), {&*table, positions, options}).ok());
                    ASSERT_TRUE(kv_append(before.view(), slots, rotated.view(), v.view()).ok());
                    inside.wanted.assign(before.view().base, before.view().base + inside.wanted.size());
                    inside.check(std::string(name(type)));
                    if (HasFatalFailure()) return;
                    if (type != dtype::fp32 || inverse) continue;
                    // Turned once: norm m, not m^2, and not R(14).
                    strided_tensor back(dtype::fp32, 20, 2, 72);
                    ASSERT_TRUE(kv_gather(inside.view(), slots, back.view(), {}).ok());
                    double norm = 0, raw = 0;
                    for (int32_t d = 4; d < 68; ++d) {
                        norm += back.value(0, 0, d) * back.value(0, 0, d);
                        raw += k.value(0, 0, d) * k.value(0, 0, d);
                    }
                    EXPECT_NEAR(std::sqrt(norm / raw), m, 4 * 0x1p-24 * m);
                    const int32_t partner = pairing == rope_pairing::half ? 36 : 5;
                    const double x0 = k.value(0, 0, 4), x1 = k.value(0, 0, partner);
                    EXPECT_NEAR(back.value(0, 0, 4), m * (x0 * std::cos(7.0) - x1 * std::sin(7.0)), 4 * 0x1p-24 * m * (std::abs(x0) + std::abs(x1)));
                }
            }
        }
    }
}

// D17: page offsets beyond 2^31 elements, in a mapping of which four pages are touched.
TEST_F(kv_pages_test, D17_offsets_beyond_32_bits) {
    const kv_layout layout{.k_type = dtype::fp16, .v_type = dtype::fp16, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 16};
    constexpr int32_t count = 131074;
    const auto bytes = static_cast<std::size_t>(count * layout.page_stride_bytes());
    ASSERT_GT(bytes / 2, std::size_t{1} << 31);
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) GTEST_SKIP() << "no address space for " << bytes << " bytes";
    const kv_pages large{static_cast<std::byte*>(map), layout, count};
    page_pool small(layout, 4, 1);
    std::memset(small.view().base, 0, small.wanted.size());
    numbers far, near;
    int64_t index = 0;
    for (const int64_t page : {0, 131071, 131072, 131073}) {
        for (int64_t t = 0; t < 16; ++t) {
            far.push_back(page * 16 + t);
            near.push_back(index++);
        }
    }
    strided_tensor k = random_tensor(dtype::fp16, 64, 8, 128), v = random_tensor(dtype::fp16, 64, 8, 128), k_back = k, v_back = v;
    ASSERT_TRUE(kv_append(large, far, k.view(), v.view()).ok());
    ASSERT_TRUE(kv_append(small.view(), near, k.view(), v.view()).ok());
    index = 0;
    for (const int64_t page : {0, 131071, 131072, 131073}) {
        const auto stride = static_cast<std::size_t>(layout.page_stride_bytes());
        EXPECT_EQ(
            std::memcmp(large.base + static_cast<std::size_t>(page) * stride, small.view().base + static_cast<std::size_t>(index++) * stride, stride),
            0)
            << page;
    }
    std::fill(k_back.memory.begin(), k_back.memory.end(), std::byte{0});
    std::fill(v_back.memory.begin(), v_back.memory.end(), std::byte{0});
    ASSERT_TRUE(kv_gather(large, far, k_back.view(), v_back.view()).ok());
    EXPECT_EQ(k_back.memory, k.memory);
    EXPECT_EQ(v_back.memory, v.memory);
    EXPECT_EQ(kv_append(large, numbers{int64_t{count} * 16}, random_tensor(dtype::fp16, 1, 8, 128).view(), {}).code(), status_code::out_of_range);
    munmap(map, bytes);
}

TEST_F(kv_pages_test, one_tensor_may_be_absent) {
    const kv_layout layout{.kv_heads = 2, .k_dim = 6, .v_dim = 10, .page_tokens = 16};
    page_pool pool(layout, 1, 5);
    strided_tensor k = random_tensor(dtype::fp32, 2, 2, 6), v = random_tensor(dtype::fp32, 2, 2, 10);
    ASSERT_TRUE(kv_append(pool.view(), numbers{3, 4}, k.view(), {}).ok());
    for (int64_t t = 0; t < 2; ++t) pool.expect(3 + t, &k, nullptr, t);
    pool.check("k only");
    ASSERT_TRUE(kv_append(pool.view(), numbers{9, 4}, {}, v.view()).ok());
    pool.expect(9, nullptr, &v, 0);
    pool.expect(4, nullptr, &v, 1);
    pool.check("v only");
    EXPECT_STREQ(kv_append(pool.view(), numbers{1}, {}, {}).text(), "k.heads and v.heads are both 0; one must be 2 (layout.kv_heads)");
    EXPECT_TRUE(kv_append(pool.view(), {}, {}, {}).ok());
    EXPECT_TRUE(kv_append({nullptr, layout, 0}, {}, {}, {}).ok());
    EXPECT_TRUE(kv_append(pool.view(), numbers{no_slot, no_slot}, k.view(), v.view()).ok());
    pool.check("nothing");
}

// Slots that differ by g or more may be written at the same time. Clean under the thread sanitizer.
TEST_F(kv_pages_test, two_threads_append_to_one_page) {
    const kv_layout layout{.kv_heads = 2, .k_dim = 16, .v_dim = 16, .page_tokens = 64};
    page_pool pool(layout, 1, 3);
    strided_tensor k = random_tensor(dtype::fp32, 32, 2, 16), v = random_tensor(dtype::fp32, 32, 2, 16);
    std::vector<std::thread> writers;
    numbers slots[2];
    for (int64_t t = 0; t < 64; ++t) slots[t / 2 % 2].push_back(t);
    for (const numbers& mine : slots) {
        writers.emplace_back([&] {
            serial_executor serial;
            EXPECT_TRUE(kv_append(pool.view(), mine, k.view(), v.view(), {}, serial).ok());
        });
    }
    for (std::thread& writer : writers) writer.join();
    for (int64_t t = 0; t < 32; ++t) {
        for (const numbers& mine : slots) pool.expect(mine[static_cast<std::size_t>(t)], &k, &v, t);
    }
    pool.check("two threads");
}

// ---- refused arguments -------------------------------------------------------------------------------------------------------------------------

class kv_refusals : public kv_pages_test {
protected:
    kv_layout layout{.k_type = dtype::bf16, .v_type = dtype::bf16, .kv_heads = 2, .k_dim = 8, .v_dim = 16, .page_tokens = 16};
    page_pool pool{layout, 2, 9};
    strided_tensor k = random_tensor(dtype::fp32, 3, 2, 8), v = random_tensor(dtype::fp16, 3, 2, 16), k0 = k, v0 = v;
    numbers slots{4, 5, 20};

    // Both calls refuse with this text and change neither pages nor tensors.
    void expect_refused(const kv_pages& pages, const numbers& at, head_view keys, head_view values, const std::string& start) {
        const status append = kv_append(pages, at, keys, values), gather = kv_gather(pages, at, keys, values);
        EXPECT_EQ(std::string(append.text()).substr(0, start.size()), start);
        EXPECT_EQ(std::string(gather.text()).substr(0, start.size()), start);
        unchanged();
    }
    void unchanged() {
        pool.check("refused");
        EXPECT_EQ(k.memory, k0.memory);
        EXPECT_EQ(v.memory, v0.memory);
    }
    template <class Change>
    head_view changed(strided_tensor& x, Change change) {
        head_view view = x.view();
        change(view);
        return view;
    }
};

TEST_F(kv_refusals, pages) {
    const auto with = [&](auto change) {
        kv_pages pages = pool.view();
        change(pages);
        return pages;
    };
    const auto expect = [&](auto change, const std::string& start) { expect_refused(with(change), slots, k.view(), v.view(), start); };
    expect([](kv_pages& p) { p.base = nullptr; }, "pages.base is null; must point to 2 pages");
    expect([](kv_pages& p) { p.base += 32; }, "pages.base is 0x");
    expect([](kv_pages& p) { p.count = -1; }, "pages.count is -1; must be at least 0");
    expect([](kv_pages& p) { p.count = 1; }, "slots[2] is 20; must be no_slot (-1) or 0 .. 15");
    expect([](kv_pages& p) { p.count = 0; }, "slots[0] is 4; must be no_slot (-1) or 0 .. -1");
    expect([](kv_pages& p) { p.layout.page_tokens = 20; }, "layout.page_tokens is 20; must be 16, 32, 64, 128 or 256");
    expect([](kv_pages& p) { p.layout.page_stride = p.layout.record_bytes(); }, "layout.page_stride is 768 and head_stride 768; records of 768");
    expect([](kv_pages& p) { p.layout.page_stride = std::numeric_limits<int64_t>::max() - 63, p.count = 3; }, "layout has strides");
}

TEST_F(kv_refusals, slots_outside_or_twice) {
    expect_refused(pool.view(), {4, 5, 32}, k.view(), v.view(), "slots[2] is 32; must be no_slot (-1) or 0 .. 31");
    expect_refused(pool.view(), {-2, 5, 6}, k.view(), v.view(), "slots[0] is -2; must be no_slot (-1) or 0 .. 31");
    expect_refused(pool.view(), {4, std::numeric_limits<int64_t>::max(), 6}, k.view(), v.view(), "slots[1] is 9223372036854775807");
    expect_refused(pool.view(), {std::numeric_limits<int64_t>::min(), 5, 6}, k.view(), v.view(), "slots[0] is -9223372036854775808");
    for (const numbers& twice : {numbers{4, 4, 20}, numbers{4, 20, 4}, numbers{4, 5, 5}, numbers{5, 4, 5}, numbers{-1, 0, 0}}) {
        const status s = kv_append(pool.view(), twice, k.view(), v.view());
        EXPECT_EQ(s.code(), status_code::invalid_argument);
        EXPECT_NE(std::string(s.text()).find("twice"), std::string::npos) << s.text();
        unchanged();
    }
    EXPECT_TRUE(kv_gather(pool.view(), numbers{4, 4, 4}, k.view(), {}).ok()) << "reading a slot twice is harmless";
}

TEST_F(kv_refusals, tensors) {
    const auto keys = [&](auto change, const std::string& start) { expect_refused(pool.view(), slots, changed(k, change), v.view(), start); };
    const auto values = [&](auto change, const std::string& start) { expect_refused(pool.view(), slots, k.view(), changed(v, change), start); };
    keys([](head_view& x) { x.data = nullptr; }, "k.data is null; must point to 3 tokens");
    values([](head_view& x) { x.data = nullptr; }, "v.data is null; must point to 3 tokens");
    keys([](head_view& x) { x.data = static_cast<std::byte*>(x.data) + 2; }, "k.data is 0x");
    values([](head_view& x) { x.data = static_cast<std::byte*>(x.data) + 1; }, "v.data is 0x");
    keys([](head_view& x) { x.dim_stride = 2; }, "k.dim_stride is 2; must be 1");  // D02
    values([](head_view& x) { x.dim_stride = -1; }, "v.dim_stride is -1; must be 1");
    keys([](head_view& x) { x.type = static_cast<dtype>(4); }, "k.type is 4; must be a dtype");
    keys([](head_view& x) { x.heads = 1; }, "k has shape [3, 1, 8]; must be [3, 2, 8]: one token per slot, heads and dim of the layout");
    values([](head_view& x) { x.heads = 1; }, "v has shape [3, 1, 16]; must be [3, 2, 16]");
    keys([](head_view& x) { x.tokens = 2; }, "k has shape [2, 2, 8]; must be [3, 2, 8]");
    values([](head_view& x) { x.dim = 8; }, "v has shape [3, 2, 8]; must be [3, 2, 16]");
    values([](head_view& x) { x.dim = 0; }, "v.dim is 0; must be at least 1");
    keys([](head_view& x) { x.tokens = -1; }, "k.tokens is -1; must be at least 0");
    keys([](head_view& x) { x.heads = -1; }, "k.heads is -1; must be at least 0");
    keys([](head_view& x) { x.token_stride = std::numeric_limits<int64_t>::max(); }, "k has strides");
    // Rows may be read twice, but not written twice.
    const head_view broadcast = changed(k, [](head_view& x) { x.head_stride = 0; });
    EXPECT_EQ(kv_gather(pool.view(), slots, broadcast, {}).code(), status_code::invalid_argument);
    unchanged();
    EXPECT_TRUE(kv_append(pool.view(), slots, broadcast, {}).ok());
}

TEST_F(kv_refusals, rotation) {
    const result<rope_table> table = rope_table::fixed(*rope_spec::standard(8, 1e4), 100);
    ASSERT_TRUE(table.ok());
    const auto expect = [&](const numbers& positions, const rope_options& options, const std::string& text) {
        EXPECT_EQ(std::string(kv_append(pool.view(), slots, k.view(), v.view(), {&*table, positions, options}).text()), text);
        unchanged();
    };
    expect({0, 1}, {}, "rope.positions has 2 entries; must be 3, one per slot");
    expect({0, 1, -1}, {}, "rope.positions[2] is -1; must be 0 .. 99");
    expect({0, 100, 1}, {}, "rope.positions[1] is 100; must be 0 .. 99");
    expect({0, 1, 2}, {.first_dim = 1}, "k.dim is 8; must be at least first_dim + rotary_dim = 1 + 8");
    expect({0, 1, 2}, {.first_dim = -1}, "options.first_dim is -1; must be at least 0");
    expect({0, 1, 2}, {.pairing = static_cast<rope_pairing>(-3)},
           "options.pairing is -3; must be 0 (half), 1 (interleaved) or 2 (interleaved in, half out)");
}

TEST_F(kv_pages_test, appending_allocates_nothing) {
    rope_spec spec = *rope_spec::standard(128, 1e4);
    spec.amplitude = 1.5;
    const result<rope_table> table = rope_table::growing(spec, 256, 256);
    ASSERT_TRUE(table.ok());
    const kv_layout layout{.kv_heads = 4, .k_dim = 576, .v_dim = 512, .page_tokens = 64};
    page_pool pool(layout, 8, 1);
    strided_tensor k = random_tensor(dtype::bf16, 300, 4, 576), v = random_tensor(dtype::fp32, 300, 4, 512);
    const numbers slots = slots_from(7, 300), positions = slots_from(0, 300);
    serial_executor serial;
    const int64_t before = allocation_count();
    bool ok = kv_append(pool.view(), slots, k.view(), v.view(), {&*table, positions, {.first_dim = 448}}, serial).ok();
    ok = kv_append(pool.view(), slots, k.view(), v.view(), {&*table, positions, {.inverse = true}}, serial).ok() && ok;
    ok = kv_gather(pool.view(), slots, k.view(), v.view(), serial).ok() && ok;
    EXPECT_EQ(allocation_count(), before);
    EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace ropewalk::test
