#include "tools/lib/golden/check.hpp"

namespace ropewalk::toolkit {
namespace {

constexpr golden_kind kinds[] = {
    {"rope", check_rope, "rotary tables and rotated q, k of every frequency family, exact and in fp32 as transformers has them"},
    {"alibi_slopes", check_alibi_slopes, "slopes of 1 to 128 heads by both rules"},
    {"alibi_attention", check_alibi_attention, "causal attention with ALiBi, prefill and decode rows"},
    {"attention", check_attention, "causal, windowed, softcapped, with sinks; any head dims"},
    {"attention_chunked", check_attention_chunked, "chunked prefill and merge of partial results"},
    {"attention_ragged", check_attention_ragged, "sequences of different lengths in one batch"},
    {"attention_mask", check_attention_mask, "tree masks of speculative decoding"},
    {"attention_mla", check_attention_mla, "multi-head latent attention, absorbed and expanded"},
    {"trace", check_trace, "activations of a real model, replayed token by token"},
    {"attention_bias", nullptr, "arbitrary additive bias"},
    {"deberta_attention", nullptr, "disentangled attention"},
    {"deberta_buckets", nullptr, "log buckets"},
    {"learned", nullptr, "learned absolute positions"},
    {"sinusoidal", nullptr, "sinusoidal absolute positions"},
    {"sinusoidal_shift", nullptr, "sinusoidal shift matrices"},
    {"t5_attention", nullptr, "T5 relative bias"},
    {"t5_buckets", nullptr, "T5 buckets"},
    {"xlnet_attention", nullptr, "Transformer-XL relative attention"},
    {"xlnet_pos_enc", nullptr, "XLNet relative encodings"},
};

check_result finished(const std::string& kind, const comparison& checks, const status& done) {
    if (done.code() == status_code::unsupported) return {kind, verdict::unsupported, 0.0, 0.0, done.text()};
    if (!done.ok()) return {kind, verdict::failed, 0.0, 0.0, done.text()};
    return {kind, checks.passed() ? verdict::passed : verdict::failed, checks.error(), checks.tolerance(), checks.quantity()};
}

}  // namespace

std::span<const golden_kind> golden_kinds() { return kinds; }

result<check_result> check_golden_file(const std::string& path, executor& on) {
    const result<safetensors_file> file = safetensors_file::open(path);
    if (!file.ok()) return file.state();
    golden_reader golden(*file);
    if (!golden.state().ok()) return golden.state();
    for (const golden_kind& kind : kinds) {
        if (kind.name != golden.kind()) continue;
        if (kind.check == nullptr) return check_result{golden.kind(), verdict::unsupported, 0.0, 0.0, std::string(kind.contents)};
        comparison checks;
        const status done = kind.check(golden, checks, on);
        if (!golden.state().ok()) return golden.state();
        return finished(golden.kind(), checks, done);
    }
    return check_result{golden.kind(), verdict::unsupported, 0.0, 0.0, "unknown kind"};
}

}  // namespace ropewalk::toolkit
