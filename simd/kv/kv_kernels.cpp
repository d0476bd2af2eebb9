// Conversion and packing kernels of a target.
#include "simd/kv/kv.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_kv(kv_kernels& table) {
    fill_tensor_type<fp32>(table);
    fill_tensor_type<bf16>(table);
    fill_tensor_type<fp16>(table);
    fill_page_type<int8>(table);
    fill_page_type<int4>(table);
    fill_page_type<fp8>(table);
    table.hadamard = hadamard;
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
