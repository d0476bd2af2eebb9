// What the tests of rope's application share: tables, tensors, the rotation by its formula, and pages that read back what was appended.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ropewalk/kv_pages.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/rope_axes.hpp>
#include "runtime/pages_memory.hpp"
#include "tests/elements.hpp"
#include "tests/results.hpp"
#include "tests/runtime/tensors.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {

using positions = std::vector<int64_t>;

inline rope_spec standard(int32_t rotary_dim, double theta = 1e4) { return made(rope_spec::standard(rotary_dim, theta)); }
inline rope_table table_of(const rope_spec& spec, int64_t kept = rope_table::default_cached_positions) {
    return made(rope_table::growing(spec, 0, kept));
}

class rope_tensors : public seeded {
protected:
    strided_tensor random_tensor(dtype type, int64_t tokens, int32_t heads, int32_t dim, int64_t head_gap = 0, int64_t token_gap = 0) {
        strided_tensor x(type, tokens, heads, dim, head_gap, token_gap);
        x.fill([this] { return normal(); });
        return x;
    }

    // What comes back from pages of the tensor's type after kv_append with `rope`.
    static strided_tensor through_pages(strided_tensor& k, const kv_append_rope& rope) {
        const kv_layout layout{.k_type = k.type, .v_type = k.type, .kv_heads = k.heads, .k_dim = k.dim, .v_dim = 16, .page_tokens = 16};
        const auto count = static_cast<int32_t>(k.tokens / 16 + 2);
        const auto memory = made(runtime::mapped_memory::create(count * layout.page_stride_bytes()));
        const kv_pages pages{memory.data(), layout, count};
        positions slots(static_cast<std::size_t>(k.tokens));
        for (std::size_t t = 0; t < slots.size(); ++t) slots[t] = static_cast<int64_t>(t) + 5;  // across panels
        const status appended = kv_append(pages, slots, k.view(), {}, rope);
        EXPECT_TRUE(appended.ok()) << appended.text();
        strided_tensor back(k.type, k.tokens, k.heads, k.dim);
        const status gathered = kv_gather(pages, slots, back.view(), {});
        EXPECT_TRUE(gathered.ok()) << gathered.text();
        return back;
    }
};

// a and b hold the same bits, whatever their strides.
inline bool same_bits(strided_tensor& a, strided_tensor& b) {
    for (int64_t t = 0; t < a.tokens; ++t) {
        for (int32_t h = 0; h < a.heads; ++h) {
            if (std::memcmp(a.at(t, h, 0), b.at(t, h, 0), static_cast<std::size_t>(a.dim * element_bytes(a.type))) != 0) return false;
        }
    }
    return true;
}

}  // namespace ropewalk::test
