// Rope kernels of a target.
#include "simd/rope/rope.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

template <int type>
static void fill_type(rope_kernels& table) {
    table.rotate[type][half_pairs] = rotate<half_layout<type>>;
    table.rotate[type][interleaved_pairs] = rotate<interleaved_layout<type>>;
    table.rotate[type][interleaved_to_half] = rotate_moved<type, true>;
    table.rotate[type][half_to_interleaved] = rotate_moved<type, false>;
}

void fill_rope(rope_kernels& table) {
    fill_type<fp32>(table);
    fill_type<bf16>(table);
    fill_type<fp16>(table);
    table.rotate[bf16][half_pairs] = rotate_half_bf16;
    table.compose = compose;
}

}  // namespace ropewalk::simd::ROPEWALK_TARGET
