// Panels of K turned into groups of V, against the page format.
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "simd/core/dispatch.hpp"
#include "simd/core/kernels.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

class k_to_v : public seeded {
protected:
    void check(target t, dtype type, int32_t k_dim, int32_t v_dim, int32_t panels);
};

// Dims as stored. Element d of token t of K lies at [t / 16][d / g][t % 16][d % g], of V at [t / g][d][t % g].
void k_to_v::check(target t, dtype type, int32_t k_dim, int32_t v_dim, int32_t panels) {
    const auto bytes = static_cast<std::size_t>(element_bytes(type));
    const int64_t g = type == dtype::bf16 ? 2 : 1, tokens = int64_t{panels} * 16;
    const guarded_buffer k(static_cast<std::size_t>(tokens * k_dim) * bytes), v(static_cast<std::size_t>(tokens * v_dim) * bytes);
    for (int64_t i = 0; i < tokens * k_dim; ++i) set_element(type, k.data() + static_cast<std::size_t>(i) * bytes, normal());
    v.fill(0xff);
    simd::kernels_of(t)->kv.k_to_v[static_cast<int>(type)](k.data(), k_dim, panels, v_dim, v.data());
    const std::vector<std::byte> zero(bytes);
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t d = 0; d < v_dim; ++d) {
            const int64_t from = token / 16 * 16 * k_dim + d / g * 16 * g + token % 16 * g + d % g, to = (token / g * v_dim + d) * g + token % g;
            const std::byte* wanted = d < k_dim ? k.data() + static_cast<std::size_t>(from) * bytes : zero.data();
            ASSERT_EQ(std::memcmp(v.data() + static_cast<std::size_t>(to) * bytes, wanted, bytes), 0)
                << name(t) << " " << name(type) << " " << k_dim << " " << v_dim << " token " << token << " dim " << d;
        }
    }
}

TEST_F(k_to_v, moves_every_element_to_its_place) {
    for (const target t : available_targets()) {
        for (const dtype type : all_types) {
            for (const auto& [k_dim, v_dim] : {std::pair{576, 512}, {16, 16}, {40, 48}, {72, 80}, {80, 48}, {112, 112}, {34, 32}, {2, 16}}) {
                for (const int32_t panels : {1, 4}) {
                    check(t, type, k_dim, v_dim, panels);
                    if (HasFatalFailure()) return;
                }
            }
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
