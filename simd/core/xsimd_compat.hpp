// The only file that looks at the version of xsimd: it must build with 8.1.0 (Debian 12) and with the newest release.
//
// ISA objects define `xsimd` as a macro that renames the namespace (ropewalk_xsimd_<target>), so that the linker cannot pick an inline function
// that was compiled for a wider instruction set.
#pragma once

#include <xsimd/xsimd.hpp>

#include <cstdint>

namespace ropewalk::simd::ROPEWALK_TARGET {

#if defined(ROPEWALK_TARGET_AVX2)
using arch = xsimd::fma3<xsimd::avx2>;
#elif defined(ROPEWALK_TARGET_AVX512) || defined(ROPEWALK_TARGET_AVX512_BF16)
using arch = xsimd::avx512bw;
#elif defined(ROPEWALK_TARGET_NEON) || defined(ROPEWALK_TARGET_NEON_BF16)
using arch = xsimd::neon64;
#else
#error "compile kernels for one of the targets of isa.hpp"
#endif

using vf = xsimd::batch<float, arch>;
using vi = xsimd::batch<int32_t, arch>;
using vmask = xsimd::batch_bool<float, arch>;

#define ROPEWALK_TEXT_OF(value) #value
#define ROPEWALK_XSIMD_VERSION_TEXT(major, minor, patch) ROPEWALK_TEXT_OF(major) "." ROPEWALK_TEXT_OF(minor) "." ROPEWALK_TEXT_OF(patch)
inline constexpr const char* xsimd_version_text = ROPEWALK_XSIMD_VERSION_TEXT(XSIMD_VERSION_MAJOR, XSIMD_VERSION_MINOR, XSIMD_VERSION_PATCH);
#undef ROPEWALK_XSIMD_VERSION_TEXT
#undef ROPEWALK_TEXT_OF

// bitwise_cast takes the batch type up to version 10 and the element type from 11 on.
#if XSIMD_VERSION_MAJOR >= 11
inline vi as_int(vf x) { return xsimd::bitwise_cast<int32_t>(x); }
inline vf as_float(vi x) { return xsimd::bitwise_cast<float>(x); }
#else
inline vi as_int(vf x) { return xsimd::bitwise_cast<vi>(x); }
inline vf as_float(vi x) { return xsimd::bitwise_cast<vf>(x); }
#endif

}  // namespace ropewalk::simd::ROPEWALK_TARGET
