// Integer dots of a target, where it has them.
#include "simd/core/kernels.hpp"
#include "simd/core/vec.hpp"

#if ROPEWALK_HAS_INTEGER_DOT
#include "simd/attention/integer.kernel.hpp"
#endif

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_integer_attention(attention_kernels& table) {
#if ROPEWALK_HAS_INTEGER_DOT
    table.quantise_q[int8] = quantise_q<int8>;
    table.quantise_q[int4] = quantise_q<int4>;
    table.qk[int8][dot_integer] = qk_int8;
    table.qk[int4][dot_integer] = qk_int4;
    table.pv[int8][dot_integer] = pv_integer<int8>;
    table.pv[int4][dot_integer] = pv_integer<int4>;
#else
    (void)table;
#endif
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
