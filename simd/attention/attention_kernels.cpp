// Attention kernels of a target.
#include "simd/attention/attention.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

template <int Type>
static void fill_fma(attention_kernels& table) {
    table.qk[Type][fma_fp32] = qk_fma<Type>;
    table.pv[Type][fma_fp32] = pv_fma<Type>;
}

void fill_attention(attention_kernels& table) {
    table = {};
    fill_fma<fp32>(table);
    fill_fma<bf16>(table);
    fill_fma<fp16>(table);
    fill_fma<int8>(table);
    fill_fma<int4>(table);
    fill_fma<fp8>(table);
    table.softmax[fma_fp32] = softmax<fp32_probability>;
#if ROPEWALK_HAS_BF16_DOT
    table.qk[bf16][dot_bf16] = qk_dot;
    table.pv[bf16][dot_bf16] = pv_dot;
    table.softmax[dot_bf16] = softmax<bf16_probability>;
#endif
    table.non_finite[fp32] = non_finite<fp32>;
    table.non_finite[bf16] = non_finite<bf16>;
    table.non_finite[fp16] = non_finite<fp16>;
    table.softmax[dot_integer] = softmax<fp32_probability>;
    fill_integer_attention(table);
    fill_relative_attention(table.relative);
    table.scale_weights = scale_weights;
    table.fold = fold;
    table.finish[fp32] = finish<fp32>;
    table.finish[bf16] = finish<bf16>;
    table.finish[fp16] = finish<fp16>;
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
