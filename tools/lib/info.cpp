#include "tools/lib/info.hpp"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ropewalk/ropewalk.hpp>
#include "simd/attention/attend.hpp"
#include "simd/core/dispatch.hpp"
#include "tools/lib/cli.hpp"
#include "tools/lib/config_report.hpp"
#include "tools/lib/cpu_features.hpp"
#include "tools/lib/machine.hpp"
#include "tools/lib/table.hpp"

namespace ropewalk::toolkit {
namespace {

using nlohmann::ordered_json;

constexpr const char* tool = "ropewalk-info";
constexpr target all_targets[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};

// Which code stands behind an operation, for each element type of K and V (of the tensor itself for rope and conversion).
struct operation {
    std::string name;
    std::string kernel[simd::kv_type_count];
};

// The target's name, "scalar" where the target left the reference in its place, "-" where there is nothing.
template <class Function>
std::string origin(Function function, Function reference, const simd::kernel_table& table) {
    if (function == nullptr) return "-";
    return function == reference ? "scalar" : table.target;
}

// The arithmetic that attention_plan chooses for queries over K and V of the type.
std::string arithmetic_of(const simd::attention_kernels& kernels, int type, dtype query, attention_precision precision) {
    const char* names[] = {" fma", " bf16 dot", " integer dot"};
    return names[simd::choose_arithmetic(kernels, type, static_cast<int>(query), precision == attention_precision::fast)];
}

std::vector<operation> operations_of(const simd::kernel_table& table, const simd::kernel_table& reference) {
    std::vector<operation> operations = {{"rope, half pairs", {}},
                                         {"rope, interleaved pairs", {}},
                                         {"rope, interleaved to half", {}},
                                         {"rope, half to interleaved", {}},
                                         {"gather, convert", {}},
                                         {"output", {}},
                                         {"append K", {}},
                                         {"append V", {}},
                                         {"attention, fp32 queries", {}},
                                         {"attention, 16-bit queries", {}},
                                         {"attention, fast precision", {}}};
    const auto& attention = table.attention;
    for (int type = 0; type < simd::kv_type_count; ++type) {
        const auto page_origin = origin(attention.qk[type][simd::fma_fp32], reference.attention.qk[type][simd::fma_fp32], table);
        const auto with = [&](dtype query, attention_precision precision) { return page_origin + arithmetic_of(attention, type, query, precision); };
        const bool tensor = type < simd::dtype_count;
        const auto rotation = [&](simd::rotate_layout layout) {
            return tensor ? origin(table.rope.rotate[type][layout], reference.rope.rotate[type][layout], table) : "-";
        };
        const std::string kernels[] = {
            rotation(simd::half_pairs),
            rotation(simd::interleaved_pairs),
            rotation(simd::interleaved_to_half),
            rotation(simd::half_to_interleaved),
            tensor ? origin(table.kv.load_row[type], reference.kv.load_row[type], table) : "-",
            tensor ? origin(attention.finish[type], reference.attention.finish[type], table) : "-",
            origin(table.kv.pack_k[type], reference.kv.pack_k[type], table),
            origin(table.kv.pack_v[type], reference.kv.pack_v[type], table),
            with(dtype::fp32, attention_precision::standard),
            with(dtype::bf16, attention_precision::standard),
            with(dtype::fp32, attention_precision::fast),
        };
        for (std::size_t i = 0; i < operations.size(); ++i) operations[i].kernel[type] = kernels[i];
    }
    return operations;
}

std::string reason(const std::string& requested, target used) {
    const char* environment = std::getenv("ROPEWALK_ISA");
    if (!requested.empty()) return "--target " + requested;
    if (environment != nullptr && environment[0] != '\0') return fmt::format("ROPEWALK_ISA={}", environment);
    for (const target t : all_targets) {
        if (static_cast<int>(t) > static_cast<int>(used) && target_supported(t) && !target_compiled(t)) {
            return fmt::format("the best one compiled; this host could also run {}", name(t));
        }
    }
    return "the best one that was compiled and that this host can run";
}

ordered_json gather(const std::string& requested, target used, const std::string& executor, int32_t concurrency) {
    ordered_json info = {{"version", version()},
                         {"active", name(used)},
                         {"reason", reason(requested, used)},
                         {"xsimd", simd::xsimd_version()},
                         {"concurrency", concurrency},
                         {"executor", executor},
                         {"available_memory", available_memory()},
                         {"cpu_features", cpu_features(simd::read_cpu())}};
    for (const target t : all_targets) {
        info["targets"].push_back({{"name", name(t)}, {"compiled", target_compiled(t)}, {"supported", target_supported(t)}, {"active", t == used}});
    }
    const simd::kernel_table* table = simd::kernels_of(used);
    const simd::kernel_table* reference = simd::kernels_of(target::scalar);
    if (table == nullptr || reference == nullptr) return info;
    for (const operation& o : operations_of(*table, *reference)) {
        ordered_json row = {{"name", o.name}};
        for (int type = 0; type < simd::kv_type_count; ++type) row[std::string(name(static_cast<dtype>(type)))] = o.kernel[type];
        info["operations"].push_back(row);
    }
    return info;
}

void print_text(const ordered_json& info) {
    const auto text = [](const ordered_json& value) { return value.get<std::string>(); };
    const auto yes = [](const ordered_json& value) { return value.get<bool>() ? "yes" : "no"; };
    using align = table::align;
    fmt::print("ropewalk {}\n", text(info["version"]));
    fmt::print("target       {}: {}\n", text(info["active"]), text(info["reason"]));
    fmt::print("xsimd        {}\n", text(info["xsimd"]));
    fmt::print("executor     {}, {} threads\n", text(info["executor"]), info["concurrency"].get<int>());
    fmt::print("memory free  {}\n", bytes_text(info["available_memory"].get<double>()));
    fmt::print("cpu          {}\n\n", fmt::join(info["cpu_features"].get<std::vector<std::string>>(), " "));

    table targets(stdout, {{"target", align::left, 11}, {"compiled", align::left}, {"supported", align::left}, {"active", align::left}});
    targets.header();
    for (const ordered_json& t : info["targets"]) targets.row({text(t["name"]), yes(t["compiled"]), yes(t["supported"]), t["active"] ? "*" : ""});
    fmt::print("\n");

    std::vector<table::column> columns = {{"operation, by KV type", align::left, 25}};
    for (int type = 0; type < simd::kv_type_count; ++type) columns.push_back({std::string(name(static_cast<dtype>(type))), align::left, 16});
    table operations(stdout, columns);
    operations.header();
    for (const ordered_json& o : info["operations"]) {
        std::vector<std::string> cells;
        for (const ordered_json& cell : o) cells.push_back(text(cell));
        operations.row(cells);
    }
}

int show_config(const std::string& path, bool as_json) {
    const result<position_config> config = read_config_file(path);
    if (!config.ok()) return bad_input(tool, config.state().text());
    fmt::print("{}", as_json ? config_json(*config).dump(2) + "\n" : config_text(*config));
    return exit_ok;
}

}  // namespace

int info_main(int argc, const char* const* argv, const std::string& executor, int32_t concurrency) {
    std::string requested, config;
    bool as_json = false;
    CLI::App app("Shows the instruction sets that were compiled in, what this host has, and which kernel each operation uses.", tool);
    add_target_option(app, requested);
    app.add_option("--config", config, "A model's config.json or GGUF file: shows what it does with positions instead");
    app.add_flag("--json", as_json, "As JSON");
    if (const std::optional<int> ended = parse(app, argc, argv)) return *ended;
    const result<target> used = use_target(requested);
    if (!used.ok()) return bad_input(tool, used.state().text());
    if (!config.empty()) return show_config(config, as_json);
    const ordered_json info = gather(requested, *used, executor, concurrency);
    if (as_json) {
        fmt::print("{}\n", info.dump(2));
    } else {
        print_text(info);
    }
    return exit_ok;
}

}  // namespace ropewalk::toolkit
