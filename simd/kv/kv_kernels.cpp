// Conversion and packing kernels of a target.
#include "simd/kv/k_to_v.kernel.hpp"
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
    table.k_to_v[fp32] = k_to_v<fp32>;
    table.k_to_v[bf16] = k_to_v<bf16>;
    table.k_to_v[fp16] = k_to_v<fp16>;
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
