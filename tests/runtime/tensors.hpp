// Tensors for tests of operations on the caller's memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ropewalk/kv_pages.hpp>
#include <ropewalk/types.hpp>
#include "tests/elements.hpp"

namespace ropewalk::test {

// A tensor [tokens, heads, dim] in memory of its own, with gaps of NaN between heads and tokens where asked for.
struct strided_tensor {
    dtype type;
    int64_t tokens;
    int32_t heads, dim;
    int64_t token_stride, head_stride;
    std::vector<std::byte> memory;

    strided_tensor(dtype type_, int64_t tokens_, int32_t heads_, int32_t dim_, int64_t head_gap = 0, int64_t token_gap = 0)
        : type(type_),
          tokens(tokens_),
          heads(heads_),
          dim(dim_),
          token_stride(heads_ * (dim_ + head_gap) + token_gap),
          head_stride(dim_ + head_gap),
          memory(static_cast<std::size_t>(std::max<int64_t>(tokens_ * token_stride, 1) * element_bytes(type_)), std::byte{0xff}) {}

    [[nodiscard]] head_view view() { return {memory.data(), type, tokens, heads, dim, token_stride, head_stride}; }
    [[nodiscard]] std::byte* at(int64_t token, int32_t head, int32_t d) {
        return memory.data() + (token * token_stride + head * head_stride + d) * element_bytes(type);
    }
    [[nodiscard]] double value(int64_t token, int32_t head, int32_t d) { return element_value(type, at(token, head, d)); }
    template <class Next>
    void fill(Next next) {
        for (int64_t t = 0; t < tokens; ++t) {
            for (int32_t h = 0; h < heads; ++h) {
                for (int32_t d = 0; d < dim; ++d) set_element(type, at(t, h, d), next());
            }
        }
    }
};

inline std::string describe(const kv_layout& l) {
    return std::string(name(l.k_type)) + " " + std::to_string(l.k_dim) + " / " + std::string(name(l.v_type)) + " " + std::to_string(l.v_dim) + ", " +
           std::to_string(l.kv_heads) + " heads, pages of " + std::to_string(l.page_tokens) + (l.hadamard ? ", hadamard" : "");
}

}  // namespace ropewalk::test
