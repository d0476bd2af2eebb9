#include "tools/lib/cpu_features.hpp"

#include <cstdint>

namespace ropewalk::toolkit {
namespace {

struct feature {
    const char* name;
    uint64_t word;
    uint64_t bits;
};

constexpr uint64_t bit(int number) { return uint64_t{1} << number; }

std::vector<std::string> present(const std::vector<feature>& features) {
    std::vector<std::string> names;
    for (const feature& f : features) {
        if ((f.word & f.bits) == f.bits) names.emplace_back(f.name);
    }
    return names;
}

}  // namespace

#if defined(__x86_64__)

// Bits of CPUID leaves 1 and 7 and of XCR0: Intel SDM volume 2, CPUID; volume 1, 13.3.
std::vector<std::string> cpu_features(const simd::cpu_words& words) {
    return present({
        {"sse4.2", words.leaf1_ecx, bit(20)},
        {"avx", words.leaf1_ecx, bit(28)},
        {"fma", words.leaf1_ecx, bit(12)},
        {"f16c", words.leaf1_ecx, bit(29)},
        {"avx2", words.leaf7_ebx, bit(5)},
        {"avx512f", words.leaf7_ebx, bit(16)},
        {"avx512dq", words.leaf7_ebx, bit(17)},
        {"avx512cd", words.leaf7_ebx, bit(28)},
        {"avx512bw", words.leaf7_ebx, bit(30)},
        {"avx512vl", words.leaf7_ebx, bit(31)},
        {"avx512_vnni", words.leaf7_ecx, bit(11)},
        {"avx512_bf16", words.leaf7_1_eax, bit(5)},
        {"avx_vnni", words.leaf7_1_eax, bit(4)},
        {"avx512_fp16", words.leaf7_edx, bit(23)},
        {"amx_bf16", words.leaf7_edx, bit(22)},
        {"amx_int8", words.leaf7_edx, bit(25)},
        {"os:ymm", words.xcr0, bit(1) | bit(2)},
        {"os:zmm", words.xcr0, bit(5) | bit(6) | bit(7)},
    });
}

#else

// Bits of AT_HWCAP and AT_HWCAP2: arch/arm64/include/uapi/asm/hwcap.h of Linux.
std::vector<std::string> cpu_features(const simd::cpu_words& words) {
    return present({
        {"asimd", words.hwcap, bit(1)},
        {"asimdhp", words.hwcap, bit(10)},
        {"asimddp", words.hwcap, bit(20)},
        {"sve", words.hwcap, bit(22)},
        {"i8mm", words.hwcap2, bit(13)},
        {"bf16", words.hwcap2, bit(14)},
        {"sve2", words.hwcap2, bit(1)},
    });
}

#endif

}  // namespace ropewalk::toolkit
