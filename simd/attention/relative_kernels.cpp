// Vector relative terms of a target.
#include "simd/attention/relative.kernel.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

void fill_relative_attention(relative_kernels& table) { table = {add_rows, add_diagonals, add_pairs}; }

}  // namespace ropewalk::simd::ROPEWALK_TARGET
