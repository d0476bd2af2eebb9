// CPU detection and the choice of the kernel table. Baseline code: nothing here may need more than the ABI's minimum.
#include "simd/core/dispatch.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>

#include <ropewalk/version.hpp>
#include "simd/core/refuse.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace ropewalk {
namespace simd {
namespace {

// In ascending order of preference: the last one that can run wins.
constexpr target all_targets[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};

// Bits by their names in the manuals. Numbers rather than the system's macros, so that every host can test every machine.
constexpr uint64_t bit(int number) { return uint64_t{1} << number; }
constexpr uint64_t leaf1_ecx_avx2 = bit(12) | bit(27) | bit(28) | bit(29);  // FMA OSXSAVE AVX F16C
constexpr uint64_t leaf1_ecx_osxsave = bit(27);
constexpr uint64_t leaf7_ebx_avx2 = bit(5);                                             // AVX2
constexpr uint64_t leaf7_ebx_avx512 = bit(16) | bit(17) | bit(28) | bit(30) | bit(31);  // AVX512 F DQ CD BW VL
constexpr uint64_t leaf7_ecx_avx512_bf16 = bit(11);                                     // AVX512_VNNI
constexpr uint64_t leaf7_1_eax_avx512_bf16 = bit(5);                                    // AVX512_BF16
constexpr uint64_t xcr0_ymm = bit(1) | bit(2);                                          // XMM, upper halves of YMM
constexpr uint64_t xcr0_zmm = xcr0_ymm | bit(5) | bit(6) | bit(7);                      // + mask registers, upper halves of ZMM0-15, ZMM16-31
constexpr uint64_t hwcap_neon = bit(1);                                                 // ASIMD
constexpr uint64_t hwcap_neon_bf16 = bit(20);                                           // ASIMDDP
constexpr uint64_t hwcap2_neon_bf16 = bit(13) | bit(14);                                // I8MM BF16

constexpr bool has(uint64_t word, uint64_t bits) { return (word & bits) == bits; }

struct fill_functions {
    void (*rope)(rope_kernels&);
    void (*kv)(kv_kernels&);
    void (*attention)(attention_kernels&);
    void (*math)(math_kernels&);
    void (*roof)(roof_kernels&);
};

// Null where the target is not part of this build. Addresses only: the functions themselves were compiled for the target and may use its
// instructions, so nobody calls them before can_run() said yes.
const fill_functions* fill_of(target t) noexcept {
#define ROPEWALK_TARGET_CASE(t)                                                                                        \
    case target::t: {                                                                                                  \
        static constexpr fill_functions fill{t::fill_rope, t::fill_kv, t::fill_attention, t::fill_math, t::fill_roof}; \
        return &fill;                                                                                                  \
    }
    switch (t) {
        ROPEWALK_TARGET_CASE(scalar)
#if defined(ROPEWALK_HAVE_TARGET_AVX2)
        ROPEWALK_TARGET_CASE(avx2)
#endif
#if defined(ROPEWALK_HAVE_TARGET_AVX512)
        ROPEWALK_TARGET_CASE(avx512)
#endif
#if defined(ROPEWALK_HAVE_TARGET_AVX512_BF16)
        ROPEWALK_TARGET_CASE(avx512_bf16)
#endif
#if defined(ROPEWALK_HAVE_TARGET_NEON)
        ROPEWALK_TARGET_CASE(neon)
#endif
#if defined(ROPEWALK_HAVE_TARGET_NEON_BF16)
        ROPEWALK_TARGET_CASE(neon_bf16)
#endif
        default: return nullptr;
    }
#undef ROPEWALK_TARGET_CASE
}

const cpu_words& host() noexcept {
    static const cpu_words words = read_cpu();
    return words;
}

struct entry {
    target id = target::scalar;
    kernel_table kernels{};
};

entry filled(target id, const fill_functions& fill) noexcept {
    entry e;
    e.id = id;
    e.kernels.target = name(id).data();  // a literal, hence terminated
    fill.rope(e.kernels.rope);
    fill.kv(e.kernels.kv);
    fill.attention(e.kernels.attention);
    fill.math(e.kernels.math);
    fill.roof(e.kernels.roof);
    return e;
}

// The tables of all targets that are compiled and can run on the host, filled at the first call. Null for any other.
const entry* entry_of(target t) noexcept {
    static const std::array<entry, std::size(all_targets)> entries = [] {
        std::array<entry, std::size(all_targets)> made;
        for (std::size_t i = 0; i < made.size(); ++i) {
            const target id = all_targets[i];
            const fill_functions* fill = fill_of(id);
            if (fill != nullptr && can_run(id, host())) made[i] = filled(id, *fill);
        }
        return made;
    }();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        if (all_targets[i] == t) return entries[i].kernels.target != nullptr ? &entries[i] : nullptr;
    }
    return nullptr;
}

// ok if t is part of this build and a machine that answers `words` can run it.
status check_target(target t, const cpu_words& words) noexcept {
    const std::string_view text = name(t);
    const int length = static_cast<int>(text.size());
    if (!target_compiled(t)) {
        return refuse(status_code::unsupported, "target is %.*s (%d); this build has no kernels for it", length, text.data(), static_cast<int>(t));
    }
    if (!can_run(t, words)) {
        return refuse(status_code::unsupported, "target is %.*s; the CPU or the operating system cannot run it", length, text.data());
    }
    return {};
}

// What ROPEWALK_ISA and the host say, formed at the first use and then fixed for the process.
struct choice {
    const entry* chosen = nullptr;
    status why;
};

const choice& choice_of_environment() noexcept {
    static const choice made = [] {
        const char* text = std::getenv("ROPEWALK_ISA");
        const result<target> t = choose_target(text != nullptr ? text : "", host());
        return t.ok() ? choice{entry_of(*t), {}} : choice{nullptr, t.state()};
    }();
    return made;
}

std::atomic<const entry*> in_force{nullptr};

const entry* active_entry(status* why) noexcept {
    if (const entry* e = in_force.load(std::memory_order_acquire)) return e;
    const choice& made = choice_of_environment();
    if (made.chosen == nullptr) {
        if (why != nullptr) *why = made.why;
        return nullptr;
    }
    // A limit_target() that came in between has the last word.
    const entry* expected = nullptr;
    return in_force.compare_exchange_strong(expected, made.chosen, std::memory_order_acq_rel) ? made.chosen : expected;
}

#if defined(__x86_64__)
uint64_t read_xcr0() noexcept {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}
#endif

}  // namespace

cpu_words read_cpu() noexcept {
    cpu_words words;
#if defined(__x86_64__)
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
        words.leaf1_ecx = ecx;
        words.leaf1_edx = edx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
        words.leaf7_ebx = ebx;
        words.leaf7_ecx = ecx;
        words.leaf7_edx = edx;
        const uint32_t last_subleaf = eax;
        if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) words.leaf7_1_eax = eax;
    }
    // XGETBV itself faults where the operating system has not set OSXSAVE.
    if (has(words.leaf1_ecx, leaf1_ecx_osxsave)) words.xcr0 = read_xcr0();
#elif defined(__aarch64__)
    words.hwcap = getauxval(AT_HWCAP);
    words.hwcap2 = getauxval(AT_HWCAP2);
#endif
    return words;
}

bool can_run(target t, const cpu_words& words) noexcept {
    switch (t) {
        case target::scalar: return true;
        case target::avx2: return has(words.leaf1_ecx, leaf1_ecx_avx2) && has(words.leaf7_ebx, leaf7_ebx_avx2) && has(words.xcr0, xcr0_ymm);
        case target::avx512: return can_run(target::avx2, words) && has(words.leaf7_ebx, leaf7_ebx_avx512) && has(words.xcr0, xcr0_zmm);
        case target::avx512_bf16:
            return can_run(target::avx512, words) && has(words.leaf7_ecx, leaf7_ecx_avx512_bf16) && has(words.leaf7_1_eax, leaf7_1_eax_avx512_bf16);
        case target::neon: return has(words.hwcap, hwcap_neon);
        case target::neon_bf16: return can_run(target::neon, words) && has(words.hwcap, hwcap_neon_bf16) && has(words.hwcap2, hwcap2_neon_bf16);
    }
    return false;
}

result<target> choose_target(std::string_view name, const cpu_words& words) noexcept {
    if (!name.empty()) {
        const result<target> named = target_from_name(name);
        if (!named.ok()) return refuse(named.state().code(), "ROPEWALK_ISA: %s", named.state().text());
        const status possible = check_target(*named, words);
        if (!possible.ok()) return refuse(possible.code(), "ROPEWALK_ISA: %s", possible.text());
        return named;
    }
    target best = target::scalar;
    for (const target t : all_targets) {
        if (target_compiled(t) && can_run(t, words)) best = t;
    }
    return best;
}

// Every target has its own copy, from the same headers; asking the lowest one is enough.
#if defined(ROPEWALK_HAVE_TARGET_AVX2)
namespace avx2 {
const char* xsimd_version() noexcept;
}
const char* xsimd_version() noexcept { return avx2::xsimd_version(); }
#elif defined(ROPEWALK_HAVE_TARGET_NEON)
namespace neon {
const char* xsimd_version() noexcept;
}
const char* xsimd_version() noexcept { return neon::xsimd_version(); }
#else
const char* xsimd_version() noexcept { return "none: this build has the scalar target only"; }
#endif

const kernel_table* active_kernels(status* why) noexcept {
    const entry* e = active_entry(why);
    return e != nullptr ? &e->kernels : nullptr;
}

const kernel_table* kernels_of(target t) noexcept {
    const entry* e = entry_of(t);
    return e != nullptr ? &e->kernels : nullptr;
}

}  // namespace simd

result<target> target_from_name(std::string_view text) noexcept {
    for (const target t : simd::all_targets) {
        if (name(t) == text) return t;
    }
    return refuse(status_code::invalid_argument, "target is \"%.*s\"; must be scalar, avx2, avx512, avx512_bf16, neon or neon_bf16",
                  static_cast<int>(text.size() < 64 ? text.size() : 64), text.data());
}

bool target_compiled(target t) noexcept { return simd::fill_of(t) != nullptr; }

bool target_supported(target t) noexcept { return simd::can_run(t, simd::host()); }

result<target> active_target() noexcept {
    status why;
    const simd::entry* e = simd::active_entry(&why);
    if (e == nullptr) return why;
    return e->id;
}

status limit_target(target t) noexcept {
    const status possible = simd::check_target(t, simd::host());
    if (!possible.ok()) return possible;
    simd::in_force.store(simd::entry_of(t), std::memory_order_release);
    return {};
}

#define ROPEWALK_TEXT_OF(value) #value
#define ROPEWALK_VERSION_TEXT(major, minor, patch) ROPEWALK_TEXT_OF(major) "." ROPEWALK_TEXT_OF(minor) "." ROPEWALK_TEXT_OF(patch)
const char* version() noexcept { return ROPEWALK_VERSION_TEXT(ROPEWALK_VERSION_MAJOR, ROPEWALK_VERSION_MINOR, ROPEWALK_VERSION_PATCH); }

}  // namespace ropewalk
