// The small parts of the toolkit.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
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

TEST(machine, caches_as_the_kernel_describes_them) {
    const auto folder = std::filesystem::temp_directory_path() / ("ropewalk_caches_" + std::to_string(::getpid()));
    const auto describe = [&](const std::string& index, const std::vector<std::pair<std::string, std::string>>& files) {
        std::filesystem::create_directories(folder / index);
        for (const auto& [name, text] : files) std::ofstream(folder / index / name) << text << "\n";
    };
    describe("index0", {{"type", "Data"}, {"level", "1"}, {"size", "48K"}, {"shared_cpu_list", "0"}});
    describe("index1", {{"type", "Instruction"}, {"level", "1"}, {"size", "32K"}, {"shared_cpu_list", "0"}});
    describe("index2", {{"type", "Unified"}, {"level", "2"}, {"size", "2M"}, {"shared_cpu_list", "0-1"}});
    describe("index3", {{"type", "Unified"}, {"level", "3"}, {"size", "32768K"}, {"shared_cpu_list", "0-3,64-67"}});
    const cache_sizes caches = read_caches(folder.string());
    std::filesystem::remove_all(folder);
    EXPECT_EQ(caches.l1, 48 << 10);
    EXPECT_EQ(caches.l2, 2 << 20);
    EXPECT_EQ(caches.l3, 32 << 20);
    EXPECT_EQ(caches.l3_sharers, 8);
    EXPECT_EQ(read_caches("/nonexistent").l3_sharers, 1);
    EXPECT_EQ(processors_in("0-1,64"), 3);
    EXPECT_EQ(processors_in(""), 0);
}

TEST(machine, huge_pages_are_seen) {
    using runtime::mapped_memory;
    result<mapped_memory> small = mapped_memory::create(int64_t{8} << 20, mapped_memory::pages::small);
    ASSERT_TRUE(small.ok());
    std::fill(small->bytes().begin(), small->bytes().end(), std::byte{1});
    const double share = huge_page_share(small->bytes());
    EXPECT_TRUE(share == 0.0 || share == -1.0) << share;
    EXPECT_EQ(huge_page_share({}), -1.0);
}

TEST(roof, working_sets_fit_their_levels) {
    const cache_sizes caches{32 << 10, 512 << 10, 32 << 20, 8};
    const std::vector<cached_level> alone = cached_levels(caches, 1, int64_t{1} << 30), all = cached_levels(caches, 16, int64_t{1} << 30);
    ASSERT_EQ(alone.size(), 3u);
    EXPECT_EQ(alone[0].bytes_each, 16 << 10);
    EXPECT_EQ(alone[1].bytes_each, 256 << 10);
    EXPECT_EQ(alone[2].bytes_each, 8 << 20);
    EXPECT_EQ(all[2].bytes_each, 1 << 20);  // eight share an L3
    EXPECT_EQ(cached_levels(caches, 1, 100'000)[2].bytes_each, 12 * 8192);
    EXPECT_EQ(cached_levels({0, 1 << 20, 2 << 20, 2}, 2, int64_t{1} << 30).back().bytes_each, 2 << 20);  // more than an L2
    EXPECT_EQ(cached_levels({}, 2, int64_t{1} << 30).size(), 0u);
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
    EXPECT_EQ(int16_madd_roof(kernels->roof, default_executor(), 1e-3) > 0.0, kernels->roof.int16_madd != nullptr);
    EXPECT_EQ(int8_dot_roof(kernels->roof, default_executor(), 1e-3) > 0.0, kernels->roof.int8_dot != nullptr);
    EXPECT_GT(exp2_roof(kernels->math, default_executor(), 1e-3), 0.0);
}

TEST(roof, copies_and_goes_over_caches) {
    const simd::kernel_table* kernels = simd::active_kernels(nullptr);
    ASSERT_NE(kernels, nullptr);
    serial_executor serial;
    std::vector<float> floats(5 * 2048);
    std::iota(floats.begin(), floats.end(), 0.0f);
    const std::vector<float> before = floats;
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(floats));
    EXPECT_GT(cached_roof(kernels->roof, traffic::read, bytes, 16384, serial, 1e-4), 0.0);
    EXPECT_GT(cached_roof(kernels->roof, traffic::scale, bytes, 16384, serial, 1e-4), 0.0);
    EXPECT_EQ(floats, before);
    EXPECT_GT(cached_roof(kernels->roof, traffic::copy, bytes, 16384, serial, 1e-4), 0.0);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 2048, floats.begin() + 2048));
    EXPECT_TRUE(std::equal(before.begin() + 4096, before.end(), floats.begin() + 4096));  // beyond what it was given
    EXPECT_GT(copy_roof(kernels->roof, bytes, serial), 0.0);
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + 2048, floats.begin() + 5120));  // halves of 20 KiB
    EXPECT_EQ(copy_roof(kernels->roof, bytes.first(8191), serial), 0.0);
    EXPECT_EQ(cached_roof(kernels->roof, traffic::read, bytes, 4096, serial, 1e-4), 0.0);      // no room for two halves
    EXPECT_EQ(cached_roof(kernels->roof, traffic::read, bytes, 6 * 8192, serial, 1e-4), 0.0);  // more than there is
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
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"yarn"})"), status_code::corrupt_data);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"yarn","factor":4,"original_max_position_embeddings":4096})"), status_code::ok);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"dynamic","factor":4,"max_position_embeddings":4096,"seq_len":9000})"), status_code::ok);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"dynamic","factor":4,"max_position_embeddings":4096,"seq_len":9e3})"), status_code::corrupt_data);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"longrope","short_factor":[1],"long_factor":["1"]})"), status_code::corrupt_data);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"proportional","partial_rotary_factor":0.25})"), status_code::ok);
    EXPECT_EQ(code(R"({"rope_theta":1e4,"rope_type":"spiral","factor":4,"original_max_position_embeddings":1})"), status_code::unsupported);
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
