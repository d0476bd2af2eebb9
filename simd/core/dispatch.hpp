// Chooses the kernel table once, from what was compiled, what the host can run and what the user allows.
#pragma once

#include <cstdint>
#include <string_view>

#include <ropewalk/isa.hpp>
#include <ropewalk/status.hpp>
#include "simd/core/kernels.hpp"

namespace ropewalk::simd {

// The table in force, or null with *why set. Thread-safe; one atomic load after the first call.
const kernel_table* active_kernels(status* why) noexcept;

// The table of a target that is compiled and supported; null otherwise. For tests and benchmarks that compare targets.
const kernel_table* kernels_of(target t) noexcept;

// What CPU detection reads, so that tests can inject machines. Words that the architecture does not have are 0.
struct cpu_words {
    uint32_t leaf1_ecx = 0, leaf1_edx = 0, leaf7_ebx = 0, leaf7_ecx = 0, leaf7_edx = 0, leaf7_1_eax = 0;
    uint64_t xcr0 = 0;               // 0 where OSXSAVE is off
    uint64_t hwcap = 0, hwcap2 = 0;  // Linux on Arm
};
cpu_words read_cpu() noexcept;
// True if a machine that answers `words` can run the target: instructions present AND registers enabled by the operating system.
bool can_run(target t, const cpu_words& words) noexcept;

// The choice that active_kernels makes: `name` is the value of ROPEWALK_ISA (empty: the best target) on a machine that answers `words`.
// invalid_argument if `name` is no target, unsupported if this build or that machine cannot run it.
result<target> choose_target(std::string_view name, const cpu_words& words) noexcept;

// Which xsimd the kernels of this build were compiled with, for people who read reports.
const char* xsimd_version() noexcept;

}  // namespace ropewalk::simd
