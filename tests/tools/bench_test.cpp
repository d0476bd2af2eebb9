// ropewalk-bench: a benchmark of each operation runs and gives the counters that bench/README.md names.
#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/process.hpp"

namespace ropewalk::test {
namespace {

using nlohmann::json;

TEST(bench, every_operation_gives_its_counters) {
    // Operation, which of its benchmarks (of bf16, any target), counters. Left out for their time: prefill_chunk and windows in prefill.
    const struct {
        const char *operation, *size;
        std::vector<const char*> counters;
    } rows[] = {{"decode", "bf16/h28x4x128/n4096", {"GB/s", "roof_GB/s", "roof_share", "bound_share", "memory_bound"}},
                {"decode_one_core", "bf16/h28x4x128/n4096", {"roof_share"}},
                {"decode_ratio", "k8v8/h28x4x128/n4096", {"ratio_to_bf16", "low", "high"}},
                {"verify", "bf16/h32x8x128/n8192q2", {"bound_share", "memory_bound"}},
                {"cascade", "bf16/h32x8x128/s32p4096", {"bound_share", "memory_bound"}},
                {"decode_alibi", "bf16/h32x8x128/n4096", {"overhead"}},
                {"decode_t5", "bf16/h32x8x128/n4096", {"overhead"}},
                {"decode_softcap", "bf16/h32x8x128/n4096", {"overhead"}},
                {"decode_sink", "bf16/h32x8x128/n4096", {"overhead"}},
                {"decode_window1024", "bf16/h32x8x128/n16384", {"time_share", "work_share"}},
                {"prefill", "bf16/h32x8x64/n512", {"GFLOP/s", "roof_share"}},
                {"prefill_sink", "bf16/h32x8x128/n512", {"overhead"}},
                {"encoder_deberta", "fp32/h12x12x64/n512", {"ratio", "workspace_MiB", "plain_workspace_MiB", "peak_growth_MiB"}},
                {"encoder_xlnet", "fp32/h12x12x64/n512", {"ratio"}},
                {"decode_resident", "bf16/h9x3x64/n256", {"over_kernels", "to_one_thread"}},
                {"decode_gap", "bf16/h9x3x64/n256", {"over_back_to_back", "to_one_thread"}},
                {"decode_threads", "bf16/h32x8x128/n16384t1", {"speedup", "roof_speedup"}},
                {"plan_build", "bf16/h32x8x128/n4096b1", {}},
                {"rope_inplace", "bf16/h40x128/n4096", {"roof_share"}},
                {"rope_ratio_mrope", "bf16/h32x8x128/l2", {"to_half"}},
                {"rope_append", "bf16/l32h8x128/n1", {"roof_share"}},
                {"append_share", "bf16/h32x8x128/n1024", {"share_of_step"}},
                {"exp2", "fp32/n2048", {"roof_share"}}};
    std::string filter = "^(";
    for (const auto& row : rows) filter += std::string(filter.size() > 2 ? "|" : "") + row.operation + "/[^/]+/" + row.size;
    const std::optional<finished_process> p =
        run_tool("ropewalk-bench", {"--benchmark_filter=" + filter + ")/", "--benchmark_min_time=0.0001", "--benchmark_format=json"});
    if (!p || p->out.empty()) GTEST_SKIP() << "ropewalk-bench is not built, cannot be run from here, or has no target here";
    ASSERT_EQ(p->code, 0) << p->err;
    std::map<std::string, json> runs;
    const json report = json::parse(p->out);
    for (const json& run : report.at("benchmarks")) {
        const std::string name = run.at("name");
        runs[name.substr(0, name.find('/'))] = run;
    }
    for (const auto& row : rows) {
        const auto found = runs.find(row.operation);
        ASSERT_NE(found, runs.end()) << row.operation;
        EXPECT_GT(found->second.at("real_time"), 0.0) << row.operation;
        for (const char* counter : row.counters) {
            ASSERT_TRUE(found->second.contains(counter)) << row.operation << ": " << counter;
            EXPECT_TRUE(std::isfinite(found->second.at(counter).get<double>())) << row.operation << ": " << counter;
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
