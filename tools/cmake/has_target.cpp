// has_target TARGET: exit 0 if this processor (and its operating system) can run code of that ISA target, 1 if not, 2 if the name is unknown.
// Deliberately shares no code with the library's own detection: the tests use it to tell "skipped" from "wrongly refused".
#include <cstring>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace {

int has(const char* target) {
    const auto is = [target](const char* name) { return std::strcmp(target, name) == 0; };
    if (is("scalar") || is("default")) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();  // asks CPUID, and XGETBV for the state that the system saves
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (is("avx2")) return avx2;
    if (is("avx512")) return avx512;
    if (is("avx512_bf16")) return avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
#elif defined(__aarch64__)
    constexpr unsigned long asimd = 1ul << 1, asimddp = 1ul << 20;  // AT_HWCAP
    constexpr unsigned long i8mm = 1ul << 13, bf16 = 1ul << 14;     // AT_HWCAP2
    const unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
    if (is("neon")) return (hwcap & asimd) != 0;
    if (is("neon_bf16")) return (hwcap & asimddp) != 0 && (hwcap2 & i8mm) != 0 && (hwcap2 & bf16) != 0;
#endif
    return -1;
}

}  // namespace

int main(int argc, char** argv) {
    const int answer = argc == 2 ? has(argv[1]) : -1;
    return answer < 0 ? 2 : answer == 0;
}
