// The tools as their users run them: exit codes, one line on stderr for bad input, reports.
#include <algorithm>
#include <cctype>
#include <set>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/process.hpp"

namespace ropewalk::test {
namespace {

using nlohmann::json;

const std::string golden = ROPEWALK_SOURCE_DIR "/tests/golden/";
const std::string small_golden = golden + "attention/sliding16_mistral_decode_d64.safetensors";

#define ROPEWALK_RUN(variable, ...)                                                           \
    const std::optional<finished_process> variable##_ran = run_tool(__VA_ARGS__);             \
    if (!variable##_ran) GTEST_SKIP() << "the tool is not built, or cannot be run from here"; \
    const finished_process& variable = *variable##_ran

// One line on stderr that holds `text`, exit 2, no output.
void expect_bad_input(const std::string& tool, const std::vector<std::string>& arguments, const std::string& text,
                      const std::vector<std::string>& environment = {}) {
    ROPEWALK_RUN(p, tool, arguments, environment);
    EXPECT_EQ(p.code, 2) << p.err;
    EXPECT_EQ(p.error_lines(), 1) << p.err;
    EXPECT_EQ(p.err.rfind(tool + ": ", 0), 0u) << p.err;
    EXPECT_NE(p.err.find(text), std::string::npos) << p.err;
}

TEST(cli, help_and_version) {
    for (const char* tool : {"ropewalk-check", "ropewalk-info", "ropewalk-decode", "ropewalk-roofline"}) {
        ROPEWALK_RUN(help, tool, {"--help"});
        EXPECT_EQ(help.code, 0);
        EXPECT_NE(help.out.find("--target"), std::string::npos);
        ROPEWALK_RUN(version, tool, {"--version"});
        EXPECT_EQ(version.code, 0);
        EXPECT_EQ(version.out.rfind(std::string(tool) + " 0.", 0), 0u) << version.out;
    }
}

TEST(cli, bad_options_and_targets) {
    for (const char* tool : {"ropewalk-check", "ropewalk-info", "ropewalk-decode", "ropewalk-roofline"}) {
        expect_bad_input(tool, {"--nonsense"}, "--nonsense");
        expect_bad_input(tool, {"--target", "sse9", small_golden}, tool == std::string("ropewalk-check") ? "sse9" : "");
        if (tool != std::string("ropewalk-check")) expect_bad_input(tool, {}, "ROPEWALK_ISA", {"ROPEWALK_ISA=sse9"});
    }
    expect_bad_input("ropewalk-check", {small_golden}, "sse9", {"ROPEWALK_ISA=sse9"});
}

TEST(cli, check_reports_one_line_a_file) {
    std::string whole = read_file(golden + "learned/gpt2.safetensors");
    const size_t kind = whole.find(R"("kind":"learned")");
    ASSERT_NE(kind, std::string::npos);
    const temporary_file unknown(whole.replace(kind + 8, 7, "earned!"));
    ROPEWALK_RUN(p, "ropewalk-check", {small_golden, unknown.path()});
    EXPECT_EQ(p.code, 0) << p.err;
    EXPECT_EQ(std::count(p.out.begin(), p.out.end(), '\n'), 4) << p.out;  // header, two files, summary
    EXPECT_NE(p.out.find("1 ok, 0 failed, 1 unsupported on "), std::string::npos) << p.out;
    EXPECT_EQ(p.out.find('\x1b'), std::string::npos);  // plain when it is no terminal
    ROPEWALK_RUN(strict, "ropewalk-check", {"--strict", unknown.path()});
    EXPECT_EQ(strict.code, 3);
    ROPEWALK_RUN(kinds, "ropewalk-check", {"--list-kinds"});
    EXPECT_EQ(kinds.code, 0);
    EXPECT_NE(kinds.out.find("attention_ragged"), std::string::npos);
}

TEST(cli, check_tells_wrong_from_unreadable) {
    std::string bent = read_file(small_golden);
    const size_t scale = bent.find(R"(\"scale\": 0.125)");
    ASSERT_NE(scale, std::string::npos);
    bent[scale + 14] = '9';
    const temporary_file wrong(bent), truncated(bent.substr(0, bent.size() - 1));
    ROPEWALK_RUN(failed, "ropewalk-check", {wrong.path(), small_golden});
    EXPECT_EQ(failed.code, 1) << failed.out;
    EXPECT_NE(failed.out.find("FAILED"), std::string::npos);
    ROPEWALK_RUN(unreadable, "ropewalk-check", {truncated.path(), small_golden});
    EXPECT_EQ(unreadable.code, 2);
    EXPECT_EQ(unreadable.error_lines(), 1);
    EXPECT_NE(unreadable.out.find("1 ok"), std::string::npos);  // the others are checked all the same
    expect_bad_input("ropewalk-check", {}, "FILE is missing");
    expect_bad_input("ropewalk-check", {golden}, "not a regular file");
}

TEST(cli, info_as_text_and_json) {
    ROPEWALK_RUN(text, "ropewalk-info", {});
    EXPECT_EQ(text.code, 0) << text.err;
    ROPEWALK_RUN(p, "ropewalk-info", {"--json"});
    const json info = json::parse(p.out);
    EXPECT_EQ(info.at("targets").size(), 6u);
    EXPECT_FALSE(info.at("operations").empty());
    const bool has_kernels = std::ranges::count_if(info.at("targets"), [](const json& t) { return t.at("compiled").get<bool>(); }) > 1;
    EXPECT_EQ(std::isdigit(info.at("xsimd").get<std::string>().front()) != 0, has_kernels) << info.at("xsimd");
    EXPECT_NE(text.out.find(info.at("active").get<std::string>()), std::string::npos);
    if (const char* isa = std::getenv("ROPEWALK_ISA"); isa != nullptr) {
        EXPECT_EQ(info.at("active"), isa);
    }
    for (const json& o : info.at("operations")) EXPECT_EQ(o.at("bf16").get<std::string>().rfind(info.at("active").get<std::string>(), 0), 0u) << o;
}

TEST(cli, decode_replays_the_trace_of_the_repository) {
    const temporary_file report, sheet;
    ROPEWALK_RUN(p, "ropewalk-decode", {"--repetitions", "1", "--prefill", "250", "--threads", "1", "--json", report.path(), "--csv", sheet.path()});
    EXPECT_EQ(p.code, 0) << p.out << p.err;
    EXPECT_TRUE(p.err.empty()) << p.err;  // no progress bar without a terminal
    const json rows = json::parse(report.read());
    ASSERT_EQ(rows.size(), 2u);
    for (const json& row : rows) {
        for (const char* key : {"mode", "target", "kv_type", "heads", "kv_heads", "head_dim", "layers", "context", "batch", "threads", "tokens_per_s",
                                "us_per_layer", "kv_gb_per_s", "roof_gb_per_s", "roof_share", "max_error"}) {
            EXPECT_TRUE(row.contains(key) && !row.at(key).is_null()) << key;
        }
        EXPECT_EQ(row.at("mode"), "replay");
        EXPECT_LE(row.at("tolerance_used"), 1.0);
        EXPECT_GT(row.at("tokens_per_s"), 0.0);
    }
    EXPECT_EQ(rows[0].at("kv_type"), "fp32");
    EXPECT_LT(rows[0].at("max_error"), 2e-5);
    EXPECT_EQ(rows[1].at("kv_type"), "bf16");
    const std::string csv = sheet.read();
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
    EXPECT_EQ(csv.rfind("mode,model,target,", 0), 0u) << csv;
}

TEST(cli, decode_notices_a_wrong_trace) {
    std::string bent = read_file(golden + "trace/smollm2_l4_f32.safetensors");
    for (size_t at = bent.size() - 4; at > bent.size() - 4000; at -= 4) bent[at + 3] = '\x41';  // values of the last layer: about 10
    const temporary_file file(bent);
    ROPEWALK_RUN(p, "ropewalk-decode", {"--trace", file.path(), "--repetitions", "1", "--kv-type", "fp32", "--threads", "1"});
    EXPECT_EQ(p.code, 1) << p.out << p.err;
    EXPECT_NE(p.out.find("FAILED: layer"), std::string::npos) << p.out;
}

TEST(cli, decode_sweeps_shapes) {
    const std::vector<std::string> shape{"--heads", "6", "--kv-heads", "2", "--head-dim", "40", "--layers", "3"};
    std::vector<std::string> arguments = shape;
    arguments.insert(arguments.end(), {"--context", "1,65", "--batch", "1,3", "--kv-type", "bf16,fp32", "--threads", "1", "--repetitions", "1",
                                       "--min-cache", "1", "--window", "40", "--softcap", "30", "--json", "-"});
    ROPEWALK_RUN(p, "ropewalk-decode", arguments);
    ASSERT_EQ(p.code, 0) << p.err;
    const json rows = json::parse(p.out);
    ASSERT_EQ(rows.size(), 8u);
    EXPECT_EQ(rows[7].at("mode"), "synthetic");
    EXPECT_EQ(rows[7].at("context"), 65);
    EXPECT_EQ(rows[7].at("batch"), 3);
    EXPECT_EQ(rows[7].at("kv_type"), "fp32");
    EXPECT_TRUE(rows[7].at("max_error").is_null());
    for (const json& row : rows) EXPECT_GT(row.at("roof_share"), 0.0);
    arguments = shape;
    arguments.insert(arguments.end(), {"--context", "100", "--threads", "1", "--repetitions", "1", "--min-cache", "1", "--alibi"});
    ROPEWALK_RUN(alibi, "ropewalk-decode", arguments);
    EXPECT_EQ(alibi.code, 0) << alibi.err;
}

TEST(cli, decode_skips_what_does_not_fit) {
    ROPEWALK_RUN(p, "ropewalk-decode", {"--model", "llama-3.1-8b", "--context", "1000000000", "--json", "-"});
    EXPECT_EQ(p.code, 0);
    EXPECT_EQ(p.error_lines(), 1);
    EXPECT_NE(p.err.find("its KV cache takes 131.1 TB"), std::string::npos) << p.err;
    EXPECT_EQ(json::parse(p.out), json::array());
}

TEST(cli, decode_refuses_bad_input) {
    const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
        expect_bad_input("ropewalk-decode", arguments, text);
    };
    refused({"--model", "gpt-9"}, "--model is gpt-9; must be one of llama-3.1-8b");
    refused({"--heads", "8"}, "--kv-heads is missing");
    refused({"--heads", "8", "--kv-heads", "3", "--head-dim", "64", "--layers", "1"}, "--heads is 8; must be a multiple of --kv-heads, 3");
    refused({"--heads", "8", "--kv-heads", "8", "--head-dim", "1025", "--layers", "1"}, "1025");
    refused({"--model", "mpt-7b", "--page-tokens", "48"}, "page_tokens is 48");
    refused({"--model", "mpt-7b", "--context", "0"}, "--context");
    refused({"--model", "mpt-7b", "--context", "12x"}, "--context");
    refused({"--model", "mpt-7b", "--trace", "f"}, "--trace is for the replay");
    refused({"--model", "mpt-7b", "--layers", "3"}, "--layers gives an explicit shape");
    refused({"--context", "16"}, "--context is for a synthetic sweep");
    refused({"--threads", "0"}, "--threads is 0; must be 1 to ");
    refused({"--kv-type", "int3"}, "--kv-type is int3; must be one of fp32, bf16, fp16, fp8, k8v8, k8v4, k8v4h, k4v4, k4v4h");
    refused({"--model", "mpt-7b", "--q-type", "fp8"}, "--q-type is fp8");
    refused({"--prefill", "256"}, "--prefill is 256; must be 0 to 255");
    refused({"--trace", "/nonexistent\nfile"}, "No such file");
    refused({"--trace", small_golden}, "kind is attention; must be trace");
    refused({"--json", "/nonexistent/report.json"}, "--json: cannot write /nonexistent/report.json");
    refused({"--json"}, "--json");
    const std::string trace = read_file(golden + "trace/smollm2_l4_f32.safetensors");
    const temporary_file truncated(trace.substr(0, trace.size() / 2));
    refused({"--trace", truncated.path()}, "truncated");
}

TEST(cli, roofline_as_json_and_table) {
    const std::vector<std::string> brief{"--quick", "--threads", "1", "--dram", "4"};
    std::vector<std::string> arguments = brief;
    arguments.insert(arguments.end(), {"--targets", "scalar", "--json", "-"});
    ROPEWALK_RUN(p, "ropewalk-roofline", arguments);
    ASSERT_EQ(p.code, 0) << p.err;
    const json report = json::parse(p.out);
    EXPECT_GE(report.at("machine").at("processors"), 1);
    std::set<std::string> operations;
    for (const json& row : report.at("roofs")) {
        operations.insert(row.at("operation"));
        EXPECT_EQ(row.at("target"), "scalar");
        EXPECT_EQ(row.at("threads"), 1);
        EXPECT_GT(row.at("lowest"), 0.0);
        EXPECT_LE(row.at("lowest"), row.at("median"));
        EXPECT_LE(row.at("median"), row.at("highest"));
        EXPECT_EQ(row.at("level").is_null(), row.at("bytes") == 0);
        EXPECT_EQ(row.at("level").is_null(), row.at("pages").is_null());
    }
    EXPECT_EQ(operations, (std::set<std::string>{"read", "copy", "scale", "fma_fp32", "exp2"}));
    ROPEWALK_RUN(text, "ropewalk-roofline", brief);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_NE(text.out.find("fma_fp32 GFLOP/s"), std::string::npos);
    if (const char* isa = std::getenv("ROPEWALK_ISA"); isa != nullptr) {
        EXPECT_NE(text.out.find(isa), std::string::npos) << text.out;
    }
}

TEST(cli, roofline_refuses_bad_input) {
    const auto refused = [](const std::vector<std::string>& arguments, const std::string& text) {
        expect_bad_input("ropewalk-roofline", arguments, text);
    };
    refused({"--targets", "sse9"}, "--targets: ");
    refused({"--targets", "scalar,neon,avx2"}, "--targets has ");  // no host has both
    refused({"--threads", "0"}, "--threads is 0; must be 1 to ");
    refused({"--dram", "0"}, "--dram");
    refused({"--dram", "1000000"}, "--dram is 1000000 MiB, twice; ");
    refused({"--repetitions", "0"}, "--repetitions");
    refused({"--json", "/nonexistent/report.json"}, "--json: cannot write /nonexistent/report.json");
}

}  // namespace
}  // namespace ropewalk::test
