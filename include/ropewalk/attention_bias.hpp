// Biases that attention adds to its scores: functions of where query and key stand, one for each query head. They are made once, when a model is
// loaded, and act on the score tile: no tensor of queries x keys is ever formed. Slopes alone (ALiBi) need none of this: see alibi.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// What is added where.
//   after_softcap   softcap(scale * q.k) + bias     most models; without softcap: after the scale
//   before_softcap  softcap(scale * q.k + bias)     FlashInfer's ALiBi
//   before_scale    softcap(scale * (q.k + bias))   Falcon
enum class bias_place : int32_t { after_softcap = 0, before_softcap = 1, before_scale = 2 };

// A bias of some heads; an empty one adds nothing. Copies share what they hold, which never changes: any thread may use them.
class ROPEWALK_API attention_bias {
public:
    attention_bias() noexcept;
    ~attention_bias();
    attention_bias(const attention_bias&) noexcept;
    attention_bias& operator=(const attention_bias&) noexcept;
    attention_bias(attention_bias&&) noexcept;
    attention_bias& operator=(attention_bias&&) noexcept;

    // table [heads][count]: what head h adds at delta = position of the key - position of the query is entry delta - first_delta, at smaller and
    // larger deltas the first and the last entry. Copied; the copy has 256 floats a head more. T5 and KERPLE: relative_bias.hpp. invalid_argument for
    // a table that does not have at least one entry for each head, or an entry that is not finite; out_of_range for a first_delta beyond 2^31;
    // out_of_memory.
    [[nodiscard]] static result<attention_bias> over_distance(std::span<const float> table, int32_t heads, int64_t first_delta) noexcept;

    // Tokens on a grid of height x width, row by row (Swin, BEiT): table [(2 height - 1) (2 width - 1)][heads] as these models store it; query (y, x)
    // and key (y', x') add entry (y - y' + height - 1) (2 width - 1) + x - x' + width - 1. With a class token, which stands before the grid, three
    // more entries follow, as in BEiT: the query is the class token, the key is, both are. A sequence has at most the grid's (and the class token's)
    // positions. Copied. invalid_argument for extents outside 1 to 4096, a table of another size, or an entry that is not finite; out_of_memory.
    [[nodiscard]] static result<attention_bias> over_grid(std::span<const float> table, int32_t heads, int32_t height, int32_t width,
                                                          bool class_token = false) noexcept;

    // For what is no function of distance: values in the caller's memory, [tokens, heads, keys] by row of q, query head and index of the key in its
    // sequence; strides in elements, 0 where rows share values. They must live as long as plans and runs that use the bias, may change between runs,
    // and are read once a run: 4 bytes a score and head. -inf hides a key, whose V must then be finite; other values must be finite, unchecked.
    // invalid_argument for null values or extents and strides that are negative; out_of_memory.
    [[nodiscard]] static result<attention_bias> of_rows(const float* values, int64_t tokens, int32_t heads, int64_t keys, int64_t token_stride,
                                                        int64_t head_stride) noexcept;

    // Of an empty bias: true, and 0 heads.
    [[nodiscard]] bool empty() const noexcept { return state_ == nullptr; }
    [[nodiscard]] int32_t heads() const noexcept;

    struct state;
    // Internal.
    [[nodiscard]] const state* internals() const noexcept { return state_.get(); }

private:
    explicit attention_bias(std::shared_ptr<const state> s) noexcept;
    std::shared_ptr<const state> state_;
};

}  // namespace ropewalk
