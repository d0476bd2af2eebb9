// Which xsimd the kernels of this build were compiled with, for people who read reports.
#pragma once

namespace ropewalk::simd {

// Every ISA target has its own copy, from the same headers; asking the lowest one is enough.
#if defined(ROPEWALK_HAVE_TARGET_AVX2)
#define ROPEWALK_XSIMD_WITNESS avx2
#elif defined(ROPEWALK_HAVE_TARGET_NEON)
#define ROPEWALK_XSIMD_WITNESS neon
#endif

#if defined(ROPEWALK_XSIMD_WITNESS)
namespace ROPEWALK_XSIMD_WITNESS {
const char* xsimd_version() noexcept;
}
inline const char* xsimd_version() noexcept { return ROPEWALK_XSIMD_WITNESS::xsimd_version(); }
#undef ROPEWALK_XSIMD_WITNESS
#else
inline const char* xsimd_version() noexcept { return "none: this build has the scalar target only"; }
#endif

}  // namespace ropewalk::simd
