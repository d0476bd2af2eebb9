// Level 1 of the KV cache: the page, its layout, and writing keys and values into pages that anybody may own.
//
// A page holds page_tokens tokens of all KV heads of one layer. Per KV head it is one contiguous, 64-byte-aligned record: K part, V part, scales of
// K, scales of V. With g = elements of a type in 32 bits (fp32 1, bf16 2, int8 4, int4 8; fp16 and fp8 count as 1: no instruction multiplies pairs of
// them):
//
//   K part  [page_tokens / 16][k_dim / g][16 tokens][g]   tokens lie in lanes: a step of Q.K reads one 64-byte line, or a part of one
//   V part  [page_tokens / g][v_dim][g]                   dims lie in lanes: a step of P.V reads 16 dims of g tokens
//
// k_dim is padded to a multiple of g and v_dim to a multiple of 16 (int4: both to 32), and each part to 64 bytes, so that a line never holds two
// parts. With v_in_k there is no V part. The layout does not depend on the instruction set: a page written on one machine can be read on any other.
//
// Quantised types. K and V of one token and head are quantised by themselves when they are appended, K after rope:
//   int8    value = scale * code,  scale = max|x| / 127, codes -127 .. 127 to nearest even; scales [page_tokens] fp32
//   fp8     value = scale * code,  scale = max|x| / 448, codes OCP E4M3 to nearest even;    scales [page_tokens] fp32
//   int4    value = scale * (code - 8) + mid for every 32 dims,  scale = (max x - min x) / 15, mid = min x + 8 scale, both rounded to fp16, codes
//           0 .. 15. Element e of a word is the low (e < 4) or high nibble of byte e % 4. Scales of K lie inside its part: behind the 4 words of a
//           group of 32 dims one more line, [16 tokens] of scales, then of mids. Scales of V: [2: scale, mid][v_dim / 32][page_tokens] fp16
// A row (int4: a group of 32 dims) that holds Inf or NaN reads back as NaN, with kv_layout::hadamard the whole block of dims; rows below 2^-100 as 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

inline constexpr int32_t panel_tokens = 16;
inline constexpr int64_t page_alignment = 64;  // bytes, of pages and records

// Types and extents of a page.
struct ROPEWALK_API kv_layout {
    dtype k_type = dtype::bf16;  // any; K and V independently
    dtype v_type = dtype::bf16;
    int32_t kv_heads = 0;
    int32_t k_dim = 0;         // 1 .. 1024
    int32_t v_dim = 0;         // 1 .. 1024
    int32_t page_tokens = 64;  // 16, 32, 64, 128 or 256
    // Rows of K and V are stored multiplied by an orthonormal Hadamard matrix over blocks of the largest power of two that divides the dim, at
    // least 16. It spreads outliers over the block, so that few bits lose less (QuaRot, arXiv 2404.00456). Attention turns q alike and the result
    // back.
    bool hadamard = false;
    // V is the first v_dim dims of K and is not stored: multi-head latent attention in absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2),
    // where K is the latent vector with the rotated key that all heads share behind it. The V part has 0 bytes; attention turns the panels of K into
    // groups of V for each tile, once for all rows, and gives the bits of pages that store V as well. Needs k_type fp32, bf16 or fp16, v_type equal
    // to it, v_dim <= k_dim and no hadamard.
    bool v_in_k = false;
    // Bytes from one head's record to the next and from one page to the next; 0 means tightly packed. Multiples of 64. An engine that has its
    // own blocks sets them to place records inside its memory.
    int64_t head_stride = 0;
    int64_t page_stride = 0;

    // invalid_argument for a field that breaks a rule above.
    [[nodiscard]] status validate() const noexcept;

    // The rest requires a valid layout. All in bytes.
    [[nodiscard]] int64_t k_part_bytes() const noexcept;
    [[nodiscard]] int64_t v_part_bytes() const noexcept;
    [[nodiscard]] int64_t k_scale_bytes() const noexcept;  // 0 for types without scales, and for int4, whose scales lie inside the K part
    [[nodiscard]] int64_t v_scale_bytes() const noexcept;
    [[nodiscard]] int64_t record_bytes() const noexcept { return k_part_bytes() + v_part_bytes() + k_scale_bytes() + v_scale_bytes(); }
    [[nodiscard]] int64_t head_stride_bytes() const noexcept { return head_stride != 0 ? head_stride : record_bytes(); }
    [[nodiscard]] int64_t page_stride_bytes() const noexcept { return page_stride != 0 ? page_stride : kv_heads * head_stride_bytes(); }
    // Bytes that one token of one layer takes.
    [[nodiscard]] int64_t token_bytes() const noexcept { return kv_heads * record_bytes() / page_tokens; }
};

// Pairs of types that go well together, by name: 16 bits and more alike for K and V; 8 and 4 bits as k8v8, k8v4 and k4v4, h with kv_layout::hadamard.
struct kv_preset {
    std::string_view name;
    dtype k_type, v_type;
    bool hadamard = false;
};
inline constexpr kv_preset kv_presets[] = {
    {"fp32", dtype::fp32, dtype::fp32},        {"bf16", dtype::bf16, dtype::bf16}, {"fp16", dtype::fp16, dtype::fp16},
    {"fp8", dtype::fp8, dtype::fp8},           {"k8v8", dtype::int8, dtype::int8}, {"k8v4", dtype::int8, dtype::int4},
    {"k8v4h", dtype::int8, dtype::int4, true}, {"k4v4", dtype::int4, dtype::int4}, {"k4v4h", dtype::int4, dtype::int4, true},
};
// Null if no preset has that name.
constexpr const kv_preset* find_kv_preset(std::string_view name) noexcept {
    for (const kv_preset& preset : kv_presets) {
        if (preset.name == name) return &preset;
    }
    return nullptr;
}

// One layer of absorbed latent attention: 64 tokens of bf16 take 72 KiB, whatever the number of query heads.
//
//   const kv_layout latent{.kv_heads = 1, .k_dim = 576, .v_dim = 512, .v_in_k = true};          // 512 latent dims, 64 of the rotated key
//   attention_problem problem{.heads = 128, .kv_heads = 1, .k_dim = 576, .v_dim = 512, .q_type = dtype::bf16};
//   problem.scale = softmax_scale;                                                              // of the expanded head: 1 / sqrt(192) times mscale^2
//   kv_append(pages, slots, latent_and_key, {}, {&rope, positions, {.first_dim = 512}});        // rotates the key's 64 dims
//   run(plan, q, pages, out, {}, workspace);   // q [tokens, 128, 576]: W_uk^T q_nope, rotated q_rope; out [tokens, 128, 512] awaits W_uv

// A view of count pages; page ids index it. base is 64-byte aligned. Plain data: copy it freely.
struct kv_pages {
    std::byte* base = nullptr;
    kv_layout layout;
    int32_t count = 0;
};

// A slot is page id * page_tokens + index in the page. Tokens with this slot are skipped (padding rows of a batch).
inline constexpr int64_t no_slot = -1;

// Rotation of K on its way into the pages. table == nullptr: K is stored as it comes (already rotated, or no rope in this layer).
struct kv_append_rope {
    const rope_table* table = nullptr;
    std::span<const int64_t> positions;  // [axes][tokens], as for rope_apply
    rope_options options;
};

// Writes k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim] into slots [tokens], rotating K and converting both to the page's types (to
// nearest even, or quantised) on the way. k and v are fp32, bf16 or fp16; one of them may be absent (heads == 0): its part of the slots stays as it
// is. With kv_layout::v_in_k v must be absent. Slots must differ from each other; one that is named twice is recognised as long as the slots form at
// most 64 runs of consecutive ones, else the last token wins. Allocates nothing. Everything is validated before the first write: on any error nothing
// has changed. Thread-safe for different slots, also in one page if the slots differ by g or more (V keeps g tokens in a word).
ROPEWALK_API status kv_append(const kv_pages& pages, std::span<const int64_t> slots, const_head_view k, const_head_view v,
                              const kv_append_rope& rope = {}, executor& on = default_executor()) noexcept;

// The reverse: reads the values of slots [tokens] back into k and v (fp32, bf16 or fp16; rounded to nearest even), of which one may be absent; with
// kv_layout::v_in_k v receives the first v_dim dims of K. Rows
// of skipped slots stay untouched; rows may not overlap; a slot may be read more than once.
ROPEWALK_API status kv_gather(const kv_pages& pages, std::span<const int64_t> slots, head_view k, head_view v,
                              executor& on = default_executor()) noexcept;

}  // namespace ropewalk
