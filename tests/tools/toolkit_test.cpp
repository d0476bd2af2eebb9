// The small parts of the toolkit.
#include <cmath>
#include <cstdio>
#include <numeric>

#include <gtest/gtest.h>

#include "runtime/pages_memory.hpp"
#include "simd/core/dispatch.hpp"
#include "tests/tools/temporary_file.hpp"
#include "tools/lib/cli.hpp"
#include "tools/lib/decode/model.hpp"
#include "tools/lib/golden/comparison.hpp"
#include "tools/lib/golden/rope_parameters.hpp"
#include "tools/lib/machine.hpp"
#include "tools/lib/parallel.hpp"
#include "tools/lib/report.hpp"
#include "tools/lib/roof.hpp"
#include "tools/lib/statistics.hpp"
#include "tools/lib/table.hpp"
#include "tools/lib/workers.hpp"

namespace ropewalk::test {
namespace {

using namespace toolkit;

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(statistics, median_and_spread) {
    EXPECT_EQ(median(std::vector<double>{3, 1, 2}), 2.0);
    EXPECT_EQ(median(std::vector<double>{4, 1, 2, 3}), 2.5);
    const spread s = spread_of(std::vector<double>{5, -1, 2});
    EXPECT_EQ(s.lowest, -1.0);
    EXPECT_EQ(s.highest, 5.0);
}

TEST(statistics, shares_pair_neighbours_in_time) {
    paired_rates rates;  // the machine halves its speed in the middle: the share does not move
    rates.add(8.0, 10.0);
    rates.add(4.0, 5.0);
    rates.add(8.0, 10.0);
    EXPECT_DOUBLE_EQ(rates.share().median, 0.8);
    EXPECT_DOUBLE_EQ(rates.share().lowest, 0.8);
    EXPECT_EQ(rates.roof().median, 10.0);
}

TEST(comparison, keeps_what_comes_closest_to_its_tolerance) {
    comparison checks;
    checks.absolute("a", std::vector<float>{1.0f, 2.5f}, std::vector<double>{1.0, 2.0}, 1.0);
    checks.absolute("b", std::vector<float>{1.25f}, std::vector<double>{1.0}, 0.3);
    EXPECT_TRUE(checks.passed());
    EXPECT_EQ(checks.quantity(), "b");
    EXPECT_DOUBLE_EQ(checks.error(), 0.25);
    EXPECT_DOUBLE_EQ(checks.largest().error, 0.5);
    EXPECT_DOUBLE_EQ(checks.largest().tolerance, 1.0);
}

TEST(comparison, nothing_slips_through) {
    const auto passed = [](auto&& compare) {
        comparison checks;
        compare(checks);
        const bool before = checks.passed();
        checks.absolute("good", std::vector<float>{1.0f}, std::vector<double>{1.0}, 1.0);  // must not cover a failure up
        return before && checks.passed();
    };
    const float nan = NAN, inf = INFINITY;
    EXPECT_FALSE(passed([&](comparison& c) { c.absolute("nan", std::vector<float>{nan}, std::vector<double>{1.0}, 1e300); }));
    EXPECT_FALSE(passed([&](comparison& c) { c.absolute("no tolerance", std::vector<float>{1.0f}, std::vector<double>{1.0}, infinity); }));
    EXPECT_FALSE(passed([&](comparison& c) { c.absolute("sizes", std::vector<float>{1.0f}, std::vector<double>{}, 1.0); }));
    EXPECT_FALSE(passed([&](comparison& c) { c.absolute("inf", std::vector<float>{inf}, std::vector<double>{1e300}, 1.0); }));
    EXPECT_TRUE(passed([&](comparison& c) { c.absolute("same inf", std::vector<float>{-inf}, std::vector<double>{-infinity}, 0.0); }));
    EXPECT_FALSE(
        passed([&](comparison& c) { c.bounded("nan bound", std::vector<float>{1.0f}, std::vector<double>{1.5}, std::vector<double>{NAN}); }));
    EXPECT_FALSE(
        passed([&](comparison& c) { c.bounded("exact", std::vector<float>{1.0f}, std::vector<double>{1.0 + 1e-12}, std::vector<double>{0.0}); }));
    EXPECT_FALSE(passed([&](comparison& c) { c.same_bits("zeros", std::vector<float>{0.0f}, std::vector<float>{-0.0f}); }));
    EXPECT_TRUE(passed([&](comparison& c) { c.same_bits("nan", std::vector<float>{nan}, std::vector<float>{nan}); }));
    EXPECT_FALSE(passed([&](comparison& c) { c.relative("zero", std::vector<double>{1e-300}, std::vector<double>{0.0}, 1e-3); }));
}

TEST(report, csv_quotes_and_orders) {
    const temporary_file file;
    result<report_file> report = report_file::open(file.path(), "--csv");
    ASSERT_TRUE(report.ok());
    const nlohmann::ordered_json rows = {{{"name", "a,\"b\""}, {"empty", nullptr}, {"n", 1.5}}, {{"n", 2}, {"name", "plain"}}};
    EXPECT_TRUE(report->write_csv(rows).ok());
    EXPECT_EQ(file.read(), "name,empty,n\n\"a,\"\"b\"\"\",,1.5\nplain,,2\n");
}

TEST(report, says_what_it_cannot_write) {
    EXPECT_EQ(report_file::open("/nonexistent/x", "--json").state().code(), status_code::invalid_argument);
    result<report_file> full = report_file::open("/dev/full", "--json");
    ASSERT_TRUE(full.ok());
    EXPECT_FALSE(full->write_json(nlohmann::ordered_json::array()).ok());
    result<report_file> none = report_file::open("", "--json");
    ASSERT_TRUE(none.ok());
    EXPECT_TRUE(none->write_json(nlohmann::ordered_json::array()).ok());
    EXPECT_FALSE(none->takes_stdout());
}

TEST(table, aligns_and_stays_plain_in_files) {
    const temporary_file file;
    std::FILE* out = std::fopen(file.path().c_str(), "w");
    ASSERT_NE(out, nullptr);
    table rows(out, {{"name", table::align::left, 6}, {"n", table::align::right, 4}, {"note", table::align::left}});
    rows.header();
    rows.row({"a", "12", ""});
    rows.row({"longer than that", "3", "x"});
    std::fclose(out);
    EXPECT_EQ(file.read(), "name       n  note\na         12\nlonger than that     3  x\n");
}

TEST(cli, bytes_are_readable) {
    EXPECT_EQ(bytes_text(999.0), "999 B");
    EXPECT_EQ(bytes_text(13.4e9), "13.4 GB");
    EXPECT_EQ(bytes_text(2e15), "2000.0 TB");
}

TEST(workers, run_every_item_once) {
    EXPECT_FALSE(workers::create(0).ok());
    EXPECT_FALSE(workers::create(workers::available() + 1).ok());
    for (int32_t threads = 1; threads <= std::min(workers::available(), 3); ++threads) {
        const result<workers> team = workers::create(threads);
        ASSERT_TRUE(team.ok());
        EXPECT_EQ(team->on().concurrency(), threads);
        std::vector<int> done(50, 0);
        team->enter([&] { parallel(team->on(), 50, [&](int32_t i) { ++done[static_cast<size_t>(i)]; }); });
        EXPECT_EQ(done, std::vector<int>(50, 1));
    }
}

TEST(machine, memory_is_plausible) {
    EXPECT_GT(available_memory(), int64_t{16} << 20);
    EXPECT_GE(beyond_cache_bytes(), int64_t{256} << 20);
    EXPECT_LE(beyond_cache_bytes(), int64_t{1} << 30);
}

TEST(roof, measures_something) {
    const simd::kernel_table* kernels = simd::active_kernels(nullptr);
    ASSERT_NE(kernels, nullptr);
    result<runtime::mapped_memory> memory = runtime::mapped_memory::create(int64_t{5} << 20);
    ASSERT_TRUE(memory.ok());
    const auto floats = std::span(reinterpret_cast<float*>(memory->data()), 100'000);
    std::iota(floats.begin(), floats.end(), 0.0f);
    EXPECT_GT(read_roof(kernels->roof, memory->bytes(), default_executor()), 0.0);
    EXPECT_EQ(read_roof(kernels->roof, memory->bytes().first(100), default_executor()), 0.0);
    EXPECT_GT(scale_roof(kernels->roof, floats, default_executor()), 0.0);
    EXPECT_EQ(floats[99'999], 99'999.0f);
    EXPECT_GT(fma_roof(kernels->roof, default_executor(), 1e-3), 0.0);
    EXPECT_EQ(bf16_dot_roof(kernels->roof, default_executor(), 1e-3) > 0.0, kernels->roof.bf16_dot != nullptr);
}

TEST(model, presets_have_the_published_shapes) {
    for (const model_shape& model : model_presets()) {
        EXPECT_EQ(model.heads % model.kv_heads, 0) << model.name;
        if (model.encoding == model_shape::position::rope) {
            EXPECT_EQ(model.rope.rotary_dim(), model.head_dim) << model.name;
        }
    }
    ASSERT_NE(find_preset("qwen2.5-7b"), nullptr);
    EXPECT_EQ(find_preset("qwen2.5-7b")->heads / find_preset("qwen2.5-7b")->kv_heads, 7);
    const model_shape* gemma = find_preset("gemma-2-9b");
    ASSERT_NE(gemma, nullptr);
    EXPECT_TRUE(gemma->windowed(0));
    EXPECT_FALSE(gemma->windowed(1));
    EXPECT_EQ(find_preset("gpt-9"), nullptr);
}

TEST(rope_parameters, families_and_refusals) {
    const auto code = [](const char* text) { return rope_spec_of(nlohmann::json::parse(text), 64).state().code(); };
    EXPECT_EQ(code(R"({"rope_theta":1e4})"), status_code::ok);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"linear","factor":4})"), status_code::ok);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"linear"})"), status_code::corrupt_data);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"linear","factor":0.5})"), status_code::invalid_argument);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"yarn"})"), status_code::unsupported);
    EXPECT_EQ(code(R"({"rope_theta":"1e4"})"), status_code::corrupt_data);
    EXPECT_EQ(code("[]"), status_code::corrupt_data);
    const result<rope_spec> llama3 = rope_spec_of(nlohmann::json::parse(R"({"rope_theta":5e5,"rope_type":"llama3","factor":8,"low_freq_factor":1,
        "high_freq_factor":4,"original_max_position_embeddings":8192})"),
                                                  128);
    ASSERT_TRUE(llama3.ok());
    EXPECT_EQ(llama3->inv_freq, rope_spec::llama3({})->inv_freq);
}

}  // namespace
}  // namespace ropewalk::test
