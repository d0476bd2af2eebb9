// Conversion and packing kernels of a target.
#include "simd/kv/kv.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_kv(kv_kernels& table) {
    fill_type<fp32>(table);
    fill_type<bf16>(table);
    fill_type<fp16>(table);
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
