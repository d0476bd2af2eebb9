// Tells tokens apart in a cache: every token gets a tag, which is written into K and V of all layers and read back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include <ropewalk/kv_cache.hpp>

namespace ropewalk::test {

// Elements are digits of the tag in base 128 (exact in every type) shifted by layer, head and side, so that a byte in the wrong place shows.
inline float element_of(int64_t tag, int32_t layer, bool is_v, int32_t head, int32_t dim) {
    const int64_t digit = tag >> (dim % 4 * 7) & 127;
    return static_cast<float>((digit + 3 * layer + 5 * head + (is_v ? 64 : 0)) % 128);
}

inline std::vector<float> rows_of(std::span<const int64_t> tags, int32_t layer, bool is_v, int32_t heads, int32_t dim) {
    std::vector<float> rows;
    rows.reserve(tags.size() * static_cast<std::size_t>(heads) * static_cast<std::size_t>(dim));
    for (const int64_t tag : tags) {
        for (int32_t head = 0; head < heads; ++head) {
            for (int32_t d = 0; d < dim; ++d) rows.push_back(element_of(tag, layer, is_v, head, d));
        }
    }
    return rows;
}

// Writes token i of tags into slots[i], all layers.
inline void store_tokens(const kv_cache& cache, std::span<const int64_t> slots, std::span<const int64_t> tags) {
    const kv_layout& layout = cache.layout();
    const int64_t count = static_cast<int64_t>(tags.size());
    serial_executor serial;
    for (int32_t layer = 0; layer < cache.layers(); ++layer) {
        const std::vector<float> k = rows_of(tags, layer, false, layout.kv_heads, layout.k_dim);
        const std::vector<float> v = rows_of(tags, layer, true, layout.kv_heads, layout.v_dim);
        const status stored = kv_append(cache.pages(layer), slots, dense_view(k.data(), dtype::fp32, count, layout.kv_heads, layout.k_dim),
                                        dense_view(v.data(), dtype::fp32, count, layout.kv_heads, layout.v_dim), {}, serial);
        ASSERT_TRUE(stored.ok()) << stored.text();
    }
}

// The sequence holds exactly these tokens, in all layers.
inline void expect_tokens(const kv_cache& cache, sequence_id sequence, std::span<const int64_t> tags) {
    const kv_layout& layout = cache.layout();
    const int64_t count = static_cast<int64_t>(tags.size());
    ASSERT_TRUE(cache.length(sequence).ok());
    ASSERT_EQ(*cache.length(sequence), count);
    std::vector<int64_t> slots(tags.size());
    const status listed = cache.slots(sequence, 0, slots);
    ASSERT_TRUE(listed.ok()) << listed.text();
    serial_executor serial;
    for (int32_t layer = 0; layer < cache.layers(); ++layer) {
        std::vector<float> k(tags.size() * static_cast<std::size_t>(layout.kv_heads * layout.k_dim), -1.0f);
        std::vector<float> v(tags.size() * static_cast<std::size_t>(layout.kv_heads * layout.v_dim), -1.0f);
        const status gathered = kv_gather(cache.pages(layer), slots, dense_view(k.data(), dtype::fp32, count, layout.kv_heads, layout.k_dim),
                                          dense_view(v.data(), dtype::fp32, count, layout.kv_heads, layout.v_dim), serial);
        ASSERT_TRUE(gathered.ok()) << gathered.text();
        ASSERT_EQ(k, rows_of(tags, layer, false, layout.kv_heads, layout.k_dim)) << "K of layer " << layer;
        ASSERT_EQ(v, rows_of(tags, layer, true, layout.kv_heads, layout.v_dim)) << "V of layer " << layer;
    }
}

}  // namespace ropewalk::test
