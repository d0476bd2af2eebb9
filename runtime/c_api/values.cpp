// Constants of the C header are those of the C++ headers.
#include "runtime/c_api/call.hpp"

namespace ropewalk {
namespace {

template <class Enum>
constexpr bool is(int32_t c, Enum value) {
    static_assert(std::is_same_v<std::underlying_type_t<Enum>, int32_t>);
    return c == static_cast<int32_t>(value);
}

static_assert(is(ROPEWALK_OK, status_code::ok) && is(ROPEWALK_INVALID_ARGUMENT, status_code::invalid_argument) &&
              is(ROPEWALK_OUT_OF_RANGE, status_code::out_of_range) && is(ROPEWALK_UNSUPPORTED, status_code::unsupported) &&
              is(ROPEWALK_OUT_OF_PAGES, status_code::out_of_pages) && is(ROPEWALK_OUT_OF_MEMORY, status_code::out_of_memory) &&
              is(ROPEWALK_WORKSPACE_TOO_SMALL, status_code::workspace_too_small) && is(ROPEWALK_NOT_FOUND, status_code::not_found) &&
              is(ROPEWALK_CORRUPT_DATA, status_code::corrupt_data) && is(ROPEWALK_NEEDS_REROTATION, status_code::needs_rerotation));
static_assert(is(ROPEWALK_TARGET_SCALAR, target::scalar) && is(ROPEWALK_TARGET_AVX2, target::avx2) && is(ROPEWALK_TARGET_AVX512, target::avx512) &&
              is(ROPEWALK_TARGET_AVX512_BF16, target::avx512_bf16) && is(ROPEWALK_TARGET_NEON, target::neon) &&
              is(ROPEWALK_TARGET_NEON_BF16, target::neon_bf16));
static_assert(is(ROPEWALK_FP32, dtype::fp32) && is(ROPEWALK_BF16, dtype::bf16) && is(ROPEWALK_FP16, dtype::fp16) && is(ROPEWALK_INT8, dtype::int8) &&
              is(ROPEWALK_INT4, dtype::int4) && is(ROPEWALK_FP8, dtype::fp8));
static_assert(is(ROPEWALK_PAIRING_HALF, rope_pairing::half) && is(ROPEWALK_PAIRING_INTERLEAVED, rope_pairing::interleaved) &&
              is(ROPEWALK_PAIRING_INTERLEAVED_IN_HALF_OUT, rope_pairing::interleaved_in_half_out));
static_assert(is(ROPEWALK_PHASES_EXACT, phase_mode::exact) && is(ROPEWALK_PHASES_HF_F32, phase_mode::hf_f32));
static_assert(is(ROPEWALK_AXES_CONTIGUOUS, axis_order::contiguous) && is(ROPEWALK_AXES_INTERLEAVED, axis_order::interleaved) &&
              is(ROPEWALK_AXES_CYCLIC, axis_order::cyclic) && is(ROPEWALK_AXES_ALTERNATING, axis_order::alternating));
static_assert(is(ROPEWALK_COLUMNS_INTERLEAVED, sinusoid_columns::interleaved) && is(ROPEWALK_COLUMNS_CONCATENATED, sinusoid_columns::concatenated));
static_assert(is(ROPEWALK_ALIBI_PRESS, alibi_rule::press) && is(ROPEWALK_ALIBI_MPT, alibi_rule::mpt) &&
              is(ROPEWALK_ALIBI_FALCON, alibi_rule::falcon));
static_assert(is(ROPEWALK_BIAS_AFTER_SOFTCAP, bias_place::after_softcap) && is(ROPEWALK_BIAS_BEFORE_SOFTCAP, bias_place::before_softcap) &&
              is(ROPEWALK_BIAS_BEFORE_SCALE, bias_place::before_scale));
static_assert(is(ROPEWALK_PRECISION_STANDARD, attention_precision::standard) && is(ROPEWALK_PRECISION_FAST, attention_precision::fast));
static_assert(is(ROPEWALK_POSITIONS_NONE, position_encoding::none) && is(ROPEWALK_POSITIONS_ROPE, position_encoding::rope) &&
              is(ROPEWALK_POSITIONS_ALIBI, position_encoding::alibi) && is(ROPEWALK_POSITIONS_T5_BUCKETS, position_encoding::t5_buckets) &&
              is(ROPEWALK_POSITIONS_XLNET, position_encoding::xlnet) && is(ROPEWALK_POSITIONS_DEBERTA, position_encoding::deberta) &&
              is(ROPEWALK_POSITIONS_RELATIVE_KEY, position_encoding::relative_key) &&
              is(ROPEWALK_POSITIONS_RELATIVE_KEY_QUERY, position_encoding::relative_key_query) &&
              is(ROPEWALK_POSITIONS_LEARNED, position_encoding::learned) && is(ROPEWALK_POSITIONS_SINUSOIDAL, position_encoding::sinusoidal));
static_assert(is(ROPEWALK_QK_NORM_NONE, qk_norm_order::none) && is(ROPEWALK_QK_NORM_BEFORE_ROPE, qk_norm_order::before_rope) &&
              is(ROPEWALK_QK_NORM_AFTER_ROPE, qk_norm_order::after_rope));
static_assert(is(ROPEWALK_ROPE_STANDARD, rope_family::standard) && is(ROPEWALK_ROPE_LINEAR, rope_family::linear) &&
              is(ROPEWALK_ROPE_NTK, rope_family::ntk) && is(ROPEWALK_ROPE_NTK_MIXED, rope_family::ntk_mixed) &&
              is(ROPEWALK_ROPE_NTK_ALPHA, rope_family::ntk_alpha) && is(ROPEWALK_ROPE_DYNAMIC_NTK, rope_family::dynamic_ntk) &&
              is(ROPEWALK_ROPE_YARN, rope_family::yarn) && is(ROPEWALK_ROPE_LONGROPE, rope_family::longrope) &&
              is(ROPEWALK_ROPE_LLAMA3, rope_family::llama3) && is(ROPEWALK_ROPE_PROPORTIONAL, rope_family::proportional));
static_assert(ROPEWALK_DEFAULT_CACHED_POSITIONS == rope_table::default_cached_positions && ROPEWALK_NO_SLOT == no_slot &&
              ROPEWALK_UNLIMITED == attention_span::unlimited);
static_assert(std::is_same_v<ropewalk_task, executor::task> && std::is_same_v<ropewalk_sequence, std::underlying_type_t<sequence_id>>);

}  // namespace
}  // namespace ropewalk
