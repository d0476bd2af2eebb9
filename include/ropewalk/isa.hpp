// Which instruction set the kernels use, and how to limit it.
//
// The choice is made once, at the first call that needs a kernel: the best target that was compiled in and that the host (CPU and operating
// system) supports, limited by the environment variable ROPEWALK_ISA or by limit_target(). Asking for more than the host has is refused.
#pragma once

#include <cstdint>
#include <string_view>

#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// In ascending order within an architecture. The feature sets are cumulative.
enum class target : int32_t {
    scalar = 0,       // portable C++, double precision where it matters: the reference
    avx2 = 1,         // AVX2 FMA F16C
    avx512 = 2,       // + AVX-512 F CD DQ BW VL
    avx512_bf16 = 3,  // + AVX512_VNNI AVX512_BF16
    neon = 16,        // Armv8-A Advanced SIMD
    neon_bf16 = 17,   // + dotprod i8mm bf16
};

// The name as ROPEWALK_ISA has it, e.g. "avx2".
constexpr std::string_view name(target t) noexcept {
    switch (t) {
        case target::scalar: return "scalar";
        case target::avx2: return "avx2";
        case target::avx512: return "avx512";
        case target::avx512_bf16: return "avx512_bf16";
        case target::neon: return "neon";
        case target::neon_bf16: return "neon_bf16";
    }
    return "unknown";
}

// The target of that name; invalid_argument if there is none.
ROPEWALK_API result<target> target_from_name(std::string_view text) noexcept;

// Kernels for t are part of this build / may run on this host (instructions present and enabled by the operating system).
ROPEWALK_API bool target_compiled(target t) noexcept;
ROPEWALK_API bool target_supported(target t) noexcept;

// The target in force. invalid_argument or unsupported where ROPEWALK_ISA names no target or one that cannot run here; every operation of the
// library then returns the same status.
ROPEWALK_API result<target> active_target() noexcept;

// Uses t from now on. For start-up and tests: calls that are running keep the kernels they began with, and plans and results of different
// targets must not be mixed where equal bits matter. Thread-safe.
ROPEWALK_API status limit_target(target t) noexcept;

// Version of the linked library, "major.minor.patch".
ROPEWALK_API const char* version() noexcept;

}  // namespace ropewalk
