// CPU detection, the choice of a target and the kernel tables. F.. are rows of the field reports: faults that people met in other libraries.
#include "simd/core/dispatch.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ropewalk/version.hpp>

namespace ropewalk::simd {
namespace {

constexpr target all_targets[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};

constexpr uint32_t osxsave = 1u << 27;
constexpr uint64_t xcr0_ymm = 0x6, xcr0_zmm = 0xe6;

// A processor with everything that an x86 target asks for (Zen 4, Sapphire Rapids) under an operating system that saves all registers.
cpu_words large_x86() {
    cpu_words words;
    words.leaf1_ecx = 1u << 12 | osxsave | 1u << 28 | 1u << 29;
    words.leaf7_ebx = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
    words.leaf7_ecx = 1u << 11;
    words.leaf7_1_eax = 1u << 5;
    words.xcr0 = xcr0_zmm;
    return words;
}

cpu_words large_arm() {
    cpu_words words;
    words.hwcap = 1u << 1 | 1u << 20;
    words.hwcap2 = 1u << 13 | 1u << 14;
    return words;
}

std::vector<target> runnable(const cpu_words& words) {
    std::vector<target> found;
    for (const target t : all_targets) {
        if (can_run(t, words)) found.push_back(t);
    }
    return found;
}

using targets = std::vector<target>;

TEST(dispatch, can_run_reads_the_feature_bits) {
    EXPECT_EQ(runnable(cpu_words{}), targets{target::scalar});
    EXPECT_EQ(runnable(large_x86()), (targets{target::scalar, target::avx2, target::avx512, target::avx512_bf16}));
    EXPECT_EQ(runnable(large_arm()), (targets{target::scalar, target::neon, target::neon_bf16}));
    EXPECT_FALSE(can_run(static_cast<target>(99), large_x86()));
}

// Every single bit that a target needs, when missing, takes that target away and those that build on it, and nothing else.
TEST(dispatch, each_missing_bit_counts) {
    const auto without = [](uint32_t cpu_words::*word, int bit) {
        cpu_words words = large_x86();
        words.*word &= ~(1u << bit);
        return runnable(words);
    };
    for (const int bit : {12, 27, 28, 29}) EXPECT_EQ(without(&cpu_words::leaf1_ecx, bit), targets{target::scalar}) << bit;
    EXPECT_EQ(without(&cpu_words::leaf7_ebx, 5), targets{target::scalar});
    for (const int bit : {16, 17, 28, 30, 31}) {
        EXPECT_EQ(without(&cpu_words::leaf7_ebx, bit), (targets{target::scalar, target::avx2})) << bit;
    }
    const targets no_bf16{target::scalar, target::avx2, target::avx512};
    EXPECT_EQ(without(&cpu_words::leaf7_ecx, 11), no_bf16);
    EXPECT_EQ(without(&cpu_words::leaf7_1_eax, 5), no_bf16);

    for (const uint64_t bit : {uint64_t{1} << 13, uint64_t{1} << 14}) {
        cpu_words words = large_arm();
        words.hwcap2 &= ~bit;
        EXPECT_EQ(runnable(words), (targets{target::scalar, target::neon})) << bit;
    }
    cpu_words words = large_arm();
    words.hwcap &= ~(uint64_t{1} << 20);
    EXPECT_EQ(runnable(words), (targets{target::scalar, target::neon}));
}

// F01: the processor has the instructions, the operating system does not save the registers.
TEST(dispatch, F01_registers_disabled_by_the_operating_system) {
    cpu_words words = large_x86();
    for (const uint64_t lost : {uint64_t{0xe0}, uint64_t{0x20}, uint64_t{0x40}, uint64_t{0x80}}) {
        words.xcr0 = xcr0_zmm & ~lost;
        EXPECT_EQ(runnable(words), (targets{target::scalar, target::avx2})) << lost;
    }
    words.xcr0 = xcr0_ymm & ~uint64_t{0x4};
    EXPECT_EQ(runnable(words), targets{target::scalar});
    words = large_x86();
    words.leaf1_ecx &= ~osxsave;
    words.xcr0 = 0;
    EXPECT_EQ(runnable(words), targets{target::scalar});

    if (!target_compiled(target::avx2)) GTEST_SKIP() << "this build has no x86 targets to choose from";
    words = large_x86();
    words.xcr0 = xcr0_ymm;
    EXPECT_EQ(*choose_target("", words), target::avx2);
    words.xcr0 = 0;
    EXPECT_EQ(*choose_target("", words), target::scalar);
    EXPECT_EQ(choose_target("avx2", words).state().code(), status_code::unsupported);
}

TEST(dispatch, best_compiled_target_is_chosen) {
    for (const cpu_words& words : {cpu_words{}, large_x86(), large_arm(), read_cpu()}) {
        target best = target::scalar;
        for (const target t : runnable(words)) {
            if (target_compiled(t)) best = t;
        }
        ASSERT_TRUE(choose_target("", words).ok());
        EXPECT_EQ(*choose_target("", words), best);
        EXPECT_EQ(*choose_target("scalar", words), target::scalar);
    }
}

// F03: a forced level that does not exist, is not in the build or is above the host is a status, never an illegal instruction.
TEST(dispatch, F03_names_that_cannot_be_chosen) {
    for (const char* text : {"sse2", "AVX2", "avx2 ", "native", "avx512_bf16x", "0"}) {
        const result<target> chosen = choose_target(text, large_x86());
        ASSERT_FALSE(chosen.ok()) << text;
        EXPECT_EQ(chosen.state().code(), status_code::invalid_argument);
        EXPECT_NE(std::string(chosen.state().text()).find("ROPEWALK_ISA"), std::string::npos) << chosen.state().text();
        EXPECT_NE(std::string(chosen.state().text()).find(text), std::string::npos) << chosen.state().text();
    }
    const std::string endless(100000, 'x');
    EXPECT_EQ(choose_target(endless, large_x86()).state().code(), status_code::invalid_argument);
    for (const target t : all_targets) {
        if (t == target::scalar) continue;
        const result<target> chosen = choose_target(name(t), cpu_words{});
        ASSERT_FALSE(chosen.ok()) << name(t);
        EXPECT_EQ(chosen.state().code(), status_code::unsupported);
        EXPECT_NE(std::string(chosen.state().text()).find(name(t)), std::string::npos) << chosen.state().text();
    }
}

TEST(dispatch, names_round_trip) {
    for (const target t : all_targets) {
        ASSERT_TRUE(target_from_name(name(t)).ok());
        EXPECT_EQ(*target_from_name(name(t)), t);
    }
    EXPECT_EQ(target_from_name("").state().code(), status_code::invalid_argument);
    EXPECT_FALSE(target_compiled(static_cast<target>(99)));
    EXPECT_FALSE(target_supported(static_cast<target>(99)));
    EXPECT_EQ(name(static_cast<target>(99)), "unknown");
}

class limited_target : public testing::Test {
protected:
    void SetUp() override {
        ASSERT_TRUE(active_target().ok()) << active_target().state().text();
        before = *active_target();
    }
    void TearDown() override { EXPECT_TRUE(limit_target(before).ok()); }
    target before = target::scalar;
};

TEST_F(limited_target, is_in_force_or_refused) {
    for (const target t : all_targets) {
        const target previous = *active_target();
        const status limited = limit_target(t);
        if (target_compiled(t) && target_supported(t)) {
            ASSERT_TRUE(limited.ok()) << limited.text();
            EXPECT_EQ(*active_target(), t);
            EXPECT_EQ(active_kernels(nullptr), kernels_of(t));
            EXPECT_EQ(active_kernels(nullptr)->target, name(t));
        } else {
            EXPECT_EQ(limited.code(), status_code::unsupported);
            EXPECT_EQ(*active_target(), previous);
            EXPECT_EQ(kernels_of(t), nullptr);
        }
    }
    EXPECT_EQ(limit_target(static_cast<target>(99)).code(), status_code::unsupported);
}

TEST_F(limited_target, may_change_while_others_read) {
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) {
        readers.emplace_back([] {
            for (int round = 0; round < 1000; ++round) {
                const kernel_table* table = active_kernels(nullptr);
                ASSERT_NE(table, nullptr);
                ASSERT_NE(table->math.exp2, nullptr);
            }
        });
    }
    for (int round = 0; round < 1000; ++round) ASSERT_TRUE(limit_target(round % 2 == 0 ? target::scalar : before).ok());
    for (std::thread& reader : readers) reader.join();
}

// Which pointers of a table must be there; the others depend on the target's instructions.
void expect_complete(const kernel_table& table, bool has_bf16_dot) {
    for (int type = 0; type < dtype_count; ++type) {
        SCOPED_TRACE(type);
        for (const auto rotate : table.rope.rotate[type]) EXPECT_NE(rotate, nullptr);
        EXPECT_NE(table.kv.load_row[type], nullptr);
        EXPECT_NE(table.kv.store_row[type], nullptr);
        EXPECT_NE(table.attention.non_finite[type], nullptr);
    }
    for (int type = 0; type < kv_type_count; ++type) {
        SCOPED_TRACE(type);
        EXPECT_NE(table.kv.pack_k[type], nullptr);
        EXPECT_NE(table.kv.pack_v[type], nullptr);
        EXPECT_NE(table.attention.qk[type][fma_fp32], nullptr);
        EXPECT_NE(table.attention.pv[type][fma_fp32], nullptr);
    }
    EXPECT_NE(table.kv.hadamard, nullptr);
    EXPECT_NE(table.attention.scale_weights, nullptr);
    EXPECT_NE(table.attention.softmax[fma_fp32], nullptr);
    EXPECT_NE(table.attention.fold, nullptr);
    EXPECT_NE(table.attention.finish[fp32], nullptr);
    EXPECT_NE(table.attention.finish[bf16], nullptr);
    EXPECT_NE(table.math.exp2, nullptr);
    EXPECT_NE(table.math.tanh, nullptr);
    EXPECT_NE(table.roof.read, nullptr);
    EXPECT_NE(table.roof.read_cached, nullptr);
    EXPECT_NE(table.roof.copy, nullptr);
    EXPECT_NE(table.roof.scale, nullptr);
    EXPECT_NE(table.roof.fma, nullptr);
    // The bf16 dot is there as a whole or not at all, and only for bf16 elements.
    EXPECT_EQ(table.attention.qk[fp32][dot_bf16], nullptr);
    EXPECT_EQ(table.attention.pv[fp16][dot_bf16], nullptr);
    const bool has_qk = table.attention.qk[bf16][dot_bf16] != nullptr;
    EXPECT_EQ(table.attention.pv[bf16][dot_bf16] != nullptr, has_qk);
    EXPECT_EQ(table.attention.softmax[dot_bf16] != nullptr, has_qk);
    if (has_bf16_dot) {
        EXPECT_TRUE(has_qk);
        EXPECT_NE(table.roof.bf16_dot, nullptr);
        EXPECT_NE(table.roof.int8_dot, nullptr);
    }
}

TEST(dispatch, tables_are_complete) {
    for (const target t : all_targets) {
        SCOPED_TRACE(name(t));
        const kernel_table* table = kernels_of(t);
        ASSERT_EQ(table != nullptr, target_compiled(t) && target_supported(t));
        if (table == nullptr) continue;
        EXPECT_EQ(table->target, name(t));
        expect_complete(*table, t == target::avx512_bf16 || t == target::neon_bf16);
    }
    EXPECT_NE(kernels_of(target::scalar), nullptr);
}

// Prints what the first use of the library finds; run by the test below in a process of its own.
TEST(dispatch_child, DISABLED_reports_the_active_target) {
    status why;
    const kernel_table* table = active_kernels(&why);
    const result<target> active = active_target();
    if (active.ok() != (table != nullptr)) std::printf("disagreement ");
    if (active.ok()) {
        std::printf("active=%s\n", table->target);
    } else {
        std::printf("code=%s same=%d\n", name(active.state().code()).data(), std::string(active.state().text()) == why.text());
        // The limit by API still works, and has the last word.
        const bool limited = limit_target(target::scalar).ok();
        std::printf("then=%d active=%s\n", limited, name(*active_target()).data());
    }
}

// What the child above prints under ROPEWALK_ISA=value; "no exec" where the system cannot start this file (emulation without binfmt).
std::string run_child(const char* value) {
    int ends[2];
    if (pipe(ends) != 0) return "no pipe";
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        setenv("ROPEWALK_ISA", value, 1);
        unsetenv("GTEST_TOTAL_SHARDS");  // the one test of the child belongs to no shard
        unsetenv("GTEST_SHARD_INDEX");
        execl("/proc/self/exe", "dispatch_child", "--gtest_filter=dispatch_child.*", "--gtest_also_run_disabled_tests", nullptr);
        _exit(126);
    }
    close(ends[1]);
    std::string output;
    char buffer[4096];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) output.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    int exit_status = 0;
    waitpid(child, &exit_status, 0);
    if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 126) return "no exec";
    return WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0 ? output : output + "\nabnormal exit";
}

std::string active_line(target t) { return std::string("active=").append(name(t)).append("\n"); }

TEST(dispatch, F03_environment_variable) {
    const std::string unlimited = run_child("");
    if (unlimited == "no exec") GTEST_SKIP() << "cannot start another process of this file here";
    EXPECT_NE(unlimited.find(active_line(*choose_target("", read_cpu()))), std::string::npos) << unlimited;
    for (const target t : all_targets) {
        const bool possible = target_compiled(t) && target_supported(t);
        const std::string output = run_child(name(t).data());
        const std::string expected = possible ? active_line(t) : "code=unsupported same=1\nthen=1 active=scalar\n";
        EXPECT_NE(output.find(expected), std::string::npos) << name(t) << ": " << output;
        EXPECT_EQ(output.find("abnormal"), std::string::npos) << output;
    }
    const std::string unknown = run_child("sse2");
    EXPECT_NE(unknown.find("code=invalid_argument same=1\nthen=1 active=scalar\n"), std::string::npos) << unknown;
}

TEST(version, matches_the_headers) {
    EXPECT_EQ(std::string(version()),
              std::to_string(ROPEWALK_VERSION_MAJOR) + "." + std::to_string(ROPEWALK_VERSION_MINOR) + "." + std::to_string(ROPEWALK_VERSION_PATCH));
}

}  // namespace
}  // namespace ropewalk::simd
