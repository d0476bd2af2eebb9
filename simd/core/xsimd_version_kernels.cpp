#include "simd/core/xsimd_compat.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {

const char* xsimd_version() noexcept;
const char* xsimd_version() noexcept { return xsimd_version_text; }

}  // namespace ropewalk::simd::ROPEWALK_TARGET
