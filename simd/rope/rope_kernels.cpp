// Rope kernels of a target.
#include "simd/rope/rope.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_rope(rope_kernels& table) {
    table.rotate[fp32][0] = rotate<half_layout<fp32>>;
    table.rotate[fp32][1] = rotate<interleaved_layout<fp32>>;
    table.rotate[bf16][0] = rotate_half_bf16;
    table.rotate[bf16][1] = rotate<interleaved_layout<bf16>>;
    table.rotate[fp16][0] = rotate<half_layout<fp16>>;
    table.rotate[fp16][1] = rotate<interleaved_layout<fp16>>;
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
