#include "runtime/config/gguf_types.hpp"

namespace ropewalk::runtime {
namespace {

constexpr rope_pairing interleaved = rope_pairing::interleaved;
constexpr qk_norm_order before = qk_norm_order::before_rope;
using encoding = position_encoding;

constexpr gguf_type types[] = {
    {.name = "llama", .pairing = interleaved},
    {.name = "llama4", .pairing = interleaved, .pattern = 4, .nope_each_fourth = true, .norm = qk_norm_order::after_rope},
    {.name = "mistral3", .pairing = interleaved, .log_multiplier = 1.0},
    {.name = "qwen2"},
    {.name = "qwen2moe"},
    {.name = "qwen3", .norm = before},
    {.name = "qwen3moe", .norm = before},
    {.name = "qwen2vl", .axes = axes_rule::contiguous},
    {.name = "qwen3vl", .axes = axes_rule::interleaved, .norm = before},
    {.name = "qwen3vlmoe", .axes = axes_rule::interleaved, .norm = before},
    {.name = "gemma"},
    {.name = "gemma2", .pattern = 2, .softcap = 50.0},
    {.name = "gemma3", .pattern = 6, .local = local_rope::own_base, .norm = before},
    {.name = "gemma4", .pattern = 6, .local = local_rope::own_base, .norm = before},
    {.name = "phi2"},
    {.name = "phi3"},
    {.name = "gptneox"},
    {.name = "falcon"},
    {.name = "stablelm"},
    {.name = "command-r", .pairing = interleaved},
    {.name = "cohere2", .pairing = interleaved, .pattern = 4, .nope_without_window = true},
    {.name = "chatglm", .pairing = interleaved},
    {.name = "glm4", .pairing = interleaved},
    {.name = "deepseek2", .pairing = interleaved, .log_multiplier = 0.1},
    {.name = "gpt-oss", .pattern = 2, .sinks = true, .truncate = false},
    {.name = "smollm3", .pairing = interleaved, .nope_each_fourth = true},
    {.name = "granite", .pairing = interleaved},
    {.name = "granitemoe", .pairing = interleaved},
    {.name = "olmo", .pairing = interleaved},
    {.name = "olmo2", .pattern = 4, .local = local_rope::unscaled, .norm = before},
    {.name = "baichuan", .pairing = interleaved},
    {.name = "bloom", .encoding = encoding::alibi},
    {.name = "mpt", .encoding = encoding::alibi},
    {.name = "jina-bert-v2", .encoding = encoding::alibi, .bidirectional = true},
    {.name = "gpt2", .encoding = encoding::learned},
    {.name = "bert", .encoding = encoding::learned, .bidirectional = true},
    {.name = "t5", .encoding = encoding::t5_buckets},
    {.name = "t5encoder", .encoding = encoding::t5_buckets},
};

}  // namespace

const gguf_type* find_gguf_type(std::string_view name) noexcept {
    for (const gguf_type& type : types) {
        if (type.name == name) return &type;
    }
    return nullptr;
}

}  // namespace ropewalk::runtime
