// ropewalk-roofline: the roofs of this machine, for each instruction set and number of threads: memory by level and page size, and arithmetic.
//
// Repetitions go round all figures of a target and a number of threads, so that a slow second of a shared machine hits one repetition of each, not
// all of one. Benchmarks that want a share of a roof measure the roof themselves, right after their own work; these figures are for planning.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <ropewalk/ropewalk.hpp>
#include "runtime/pages_memory.hpp"
#include "simd/core/dispatch.hpp"
#include "tools/lib/cli.hpp"
#include "tools/lib/machine.hpp"
#include "tools/lib/parallel.hpp"
#include "tools/lib/refusal.hpp"
#include "tools/lib/report.hpp"
#include "tools/lib/roof.hpp"
#include "tools/lib/statistics.hpp"
#include "tools/lib/table.hpp"
#include "tools/lib/workers.hpp"

namespace {

using namespace ropewalk;
using namespace ropewalk::toolkit;
using nlohmann::ordered_json;
using runtime::mapped_memory;

constexpr const char* tool = "ropewalk-roofline";
constexpr target all_targets[] = {target::scalar, target::avx2, target::avx512, target::avx512_bf16, target::neon, target::neon_bf16};

struct options {
    std::vector<std::string> targets;
    std::vector<int32_t> threads;
    int32_t repetitions = 7;
    int64_t dram_megabytes = beyond_cache_bytes() >> 20;
    bool quick = false;
    std::string json, target;
};

// Memory of one page size, larger than the caches.
struct paged_memory {
    std::string pages;  // "huge", "small"
    mapped_memory memory;
    [[nodiscard]] std::span<float> floats() const { return {reinterpret_cast<float*>(memory.data()), static_cast<std::size_t>(memory.size()) / 4}; }
};

struct session {
    std::vector<const simd::kernel_table*> targets;
    std::vector<workers> teams;
    cache_sizes caches;
    std::vector<paged_memory> memories;
    int32_t repetitions = 0;
    double seconds = 0.03;  // that one figure takes, where it does not read DRAM
    report_file json;
    ordered_json rows = ordered_json::array();

    [[nodiscard]] bool shows_table() const { return !json.takes_stdout(); }
};

// One roof: what it is, how it is measured, what came out.
struct figure {
    std::string operation, level, pages;  // level and pages are empty where the work is in registers
    std::string unit;
    int64_t bytes = 0;  // that all workers together go over
    std::function<double()> measure;
    std::vector<double> values;
};

// ---- what is measured ---------------------------------------------------------------------------------------------------------------------

std::vector<figure> memory_figures(const session& s, const simd::kernel_table& kernels, executor& on) {
    std::vector<figure> figures;
    constexpr std::pair<const char*, traffic> operations[] = {{"read", traffic::read}, {"copy", traffic::copy}, {"scale", traffic::scale}};
    for (const auto& [operation, what] : operations) {
        for (const paged_memory& m : s.memories) {
            const auto add = [&](const std::string& level, int64_t bytes, std::function<double()> measure) {
                figures.push_back({operation, level, m.pages, "GB/s", bytes, std::move(measure), {}});
            };
            for (const cached_level& level : cached_levels(s.caches, on.concurrency(), m.memory.size() / on.concurrency())) {
                add(level.name, level.bytes_each * on.concurrency(), [&s, &kernels, &m, &on, what = what, each = level.bytes_each] {
                    return cached_roof(kernels.roof, what, m.memory.bytes(), each, on, s.seconds);
                });
            }
            add("DRAM", m.memory.size(), [&kernels, &m, &on, what = what] {
                switch (what) {
                    case traffic::read: return read_roof(kernels.roof, m.memory.bytes(), on);
                    case traffic::copy: return copy_roof(kernels.roof, m.memory.bytes(), on);
                    default: return scale_roof(kernels.roof, m.floats(), on);
                }
            });
        }
    }
    return figures;
}

// What the target has no instruction for gives 0.
std::vector<figure> arithmetic_figures(const session& s, const simd::kernel_table& kernels, executor& on) {
    const auto in_registers = [&](const char* operation, const char* unit, auto roof, const auto& loops) {
        return figure{operation, "", "", unit, 0, [&s, &on, &loops, roof] { return roof(loops, on, s.seconds); }, {}};
    };
    return {in_registers("fma_fp32", "GFLOP/s", fma_roof, kernels.roof), in_registers("bf16_dot", "GFLOP/s", bf16_dot_roof, kernels.roof),
            in_registers("int16_madd", "GOP/s", int16_madd_roof, kernels.roof), in_registers("int8_dot", "GOP/s", int8_dot_roof, kernels.roof),
            in_registers("exp2", "Gvalue/s", exp2_roof, kernels.math)};
}

void run_all(const session& s, const workers& team, std::vector<figure>& figures, const std::function<void()>& progress) {
    for (int32_t repetition = 0; repetition < s.repetitions; ++repetition) {
        for (figure& f : figures) {
            team.enter([&] { f.values.push_back(f.measure()); });
        }
        progress();
    }
}

// ---- output -------------------------------------------------------------------------------------------------------------------------------

bool measured(const figure& f) { return median(f.values) > 0.0; }

// The median, and half the distance between lowest and highest in percent of it.
std::string cell(const figure& f) {
    const spread s = spread_of(f.values);
    return measured(f) ? fmt::format("{:.1f} ±{:2.0f}%", s.median, 50.0 * (s.highest - s.lowest) / s.median) : "-";
}

ordered_json to_json(const figure& f, const simd::kernel_table& kernels, int32_t threads) {
    const spread s = spread_of(f.values);
    const auto text_or_null = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
    return {{"target", kernels.target},
            {"threads", threads},
            {"operation", f.operation},
            {"level", text_or_null(f.level)},
            {"pages", text_or_null(f.pages)},
            {"bytes", f.bytes},
            {"unit", f.unit},
            {"median", s.median},
            {"lowest", s.lowest},
            {"highest", s.highest},
            {"repetitions", f.values.size()}};
}

std::vector<table::column> memory_columns(const session& s) {
    using align = table::align;
    std::vector<table::column> columns{{"target", align::left, 11}, {"threads", align::right}, {"GB/s", align::left, 5}, {"pages", align::left}};
    for (const cached_level& level : cached_levels(s.caches, 1, s.memories[0].memory.size())) columns.push_back({level.name, align::right, 11});
    columns.push_back({"DRAM", align::right, 11});
    return columns;
}

// Figures come in the order of the rows: all levels of an operation and page size one after the other.
void print_memory(table& rows, const std::vector<figure>& figures, const std::vector<std::string>& head) {
    for (std::size_t i = 0; i < figures.size();) {
        std::vector<std::string> cells = head;
        const figure& first = figures[i];
        cells.insert(cells.end(), {first.operation, first.pages});
        for (; i < figures.size() && figures[i].operation == first.operation && figures[i].pages == first.pages; ++i)
            cells.push_back(cell(figures[i]));
        rows.row(cells);
    }
}

void print_arithmetic(table& rows, const std::vector<figure>& figures, const std::vector<std::string>& head) {
    std::vector<std::string> cells = head;
    for (const figure& f : figures) cells.push_back(cell(f));
    rows.row(cells);
}

using list_figures = std::vector<figure> (*)(const session&, const simd::kernel_table&, executor&);
using print_figures = void (*)(table&, const std::vector<figure>&, const std::vector<std::string>&);

void run_table(session& s, const std::vector<table::column>& columns, list_figures list, print_figures print) {
    table rows(stdout, columns);
    if (s.shows_table()) rows.header();
    progress_bar bar(static_cast<int64_t>(s.targets.size() * s.teams.size()) * s.repetitions);
    int64_t done = 0;
    for (const simd::kernel_table* kernels : s.targets) {
        for (const workers& team : s.teams) {
            const int32_t threads = team.on().concurrency();
            std::vector<figure> figures = list(s, *kernels, team.on());
            run_all(s, team, figures, [&] { bar.show(++done, fmt::format("{}, {} threads", kernels->target, threads)); });
            bar.clear();
            if (s.shows_table()) print(rows, figures, {kernels->target, std::to_string(threads)});
            for (const figure& f : figures) {
                if (measured(f)) s.rows.push_back(to_json(f, *kernels, threads));
            }
        }
    }
}

ordered_json describe(const session& s) {
    ordered_json machine = {{"processor", processor_name()}, {"processors", workers::available()},
                            {"l1_bytes", s.caches.l1},       {"l2_bytes", s.caches.l2},
                            {"l3_bytes", s.caches.l3},       {"l3_sharers", s.caches.l3_sharers}};
    for (const paged_memory& m : s.memories) machine["huge_share_of_" + m.pages] = huge_page_share(m.memory.bytes());
    return machine;
}

void print_machine(const session& s) {
    const auto kib = [](int64_t bytes) { return bytes > 0 ? fmt::format("{} KiB", bytes >> 10) : std::string("unknown"); };
    const double huge = huge_page_share(s.memories[0].memory.bytes());
    fmt::print("{}, {} processors: L1 {}, L2 {}, L3 {} for {}; DRAM: {} MiB\n", processor_name(), workers::available(), kib(s.caches.l1),
               kib(s.caches.l2), kib(s.caches.l3), s.caches.l3_sharers, s.memories[0].memory.size() >> 20);
    fmt::print("medians of {} repetitions ± half their range; copy and scale count bytes read plus written\n", s.repetitions);
    if (huge < 0.9) fmt::print("only {:.0f} % of the memory that asked for huge pages got them\n", 100.0 * std::max(huge, 0.0));
    fmt::print("\n");
}

// ---- set-up -------------------------------------------------------------------------------------------------------------------------------

// Those named, or all that this host has and the limit in force (--target, ROPEWALK_ISA) allows.
result<std::vector<const simd::kernel_table*>> targets_of(const options& chosen, target limit) {
    std::vector<const simd::kernel_table*> kernels;
    for (const std::string& text : chosen.targets) {
        const result<target> t = target_from_name(text);
        if (!t.ok()) return refusal(status_code::invalid_argument, "--targets: {}", std::string_view(t.state().text()));
        kernels.push_back(simd::kernels_of(*t));
        if (kernels.back() == nullptr) return refusal(status_code::unsupported, "--targets has {}; not compiled, or this host cannot run it", text);
    }
    for (const target t : all_targets) {
        const simd::kernel_table* found = chosen.targets.empty() && static_cast<int>(t) <= static_cast<int>(limit) ? simd::kernels_of(t) : nullptr;
        if (found != nullptr) kernels.push_back(found);
    }
    return kernels;
}

// 1, 2, 4 and so on, and all.
std::vector<int32_t> default_threads() {
    std::vector<int32_t> threads;
    for (int32_t count = 1; count < workers::available(); count *= 2) threads.push_back(count);
    threads.push_back(workers::available());
    return threads;
}

// Filled by many threads with ones: a scale by 1 changes nothing, and no value is subnormal.
result<paged_memory> make_memory(const char* pages, mapped_memory::pages wanted, int64_t bytes, executor& on) {
    result<mapped_memory> memory = mapped_memory::create(bytes, wanted);
    if (!memory.ok()) return memory.state();
    paged_memory made{pages, std::move(*memory)};
    constexpr std::size_t block = (std::size_t{2} << 20) / sizeof(float);
    const std::span<float> floats = made.floats();
    parallel(on, static_cast<int32_t>((floats.size() + block - 1) / block), [&](int32_t b) {
        const std::size_t first = static_cast<std::size_t>(b) * block;
        std::fill_n(floats.begin() + static_cast<std::ptrdiff_t>(first), std::min(block, floats.size() - first), 1.0f);
    });
    return made;
}

result<session> open_session(const options& chosen) {
    session s;
    const result<target> limit = use_target(chosen.target);
    if (!limit.ok()) return limit.state();
    result<std::vector<const simd::kernel_table*>> targets = targets_of(chosen, *limit);
    if (!targets.ok()) return targets.state();
    s.targets = std::move(*targets);
    for (const int32_t threads : chosen.threads.empty() ? default_threads() : chosen.threads) {
        result<workers> team = workers::create(threads);
        if (!team.ok()) return refusal(status_code::invalid_argument, "--{}", std::string_view(team.state().text()));
        s.teams.push_back(std::move(*team));
    }
    result<report_file> report = report_file::open(chosen.json, "--json");
    if (!report.ok()) return report.state();
    s.json = std::move(*report);
    s.repetitions = chosen.quick ? 3 : chosen.repetitions;
    if (chosen.quick) s.seconds = 0.005;
    s.caches = read_caches();
    const int64_t bytes = chosen.dram_megabytes << 20, free = available_memory();
    if (free >= 0 && 3 * bytes > free) {
        return refusal(status_code::invalid_argument, "--dram is {} MiB, twice; {} MiB are free, a third of it must stay", chosen.dram_megabytes,
                       free >> 20);
    }
    for (const auto& [name, wanted] : {std::pair{"huge", mapped_memory::pages::huge}, std::pair{"small", mapped_memory::pages::small}}) {
        result<paged_memory> memory = make_memory(name, wanted, bytes, s.teams.back().on());
        if (!memory.ok()) return memory.state();
        s.memories.push_back(std::move(*memory));
    }
    return s;
}

void add_options(CLI::App& app, options& chosen) {
    add_target_option(app, chosen.target);
    app.add_option("--targets", chosen.targets, "Instruction sets to measure; default: all that this host has")->delimiter(',');
    app.add_option("--threads", chosen.threads, "Numbers of threads; default: 1, 2, 4 .. and all")->delimiter(',');
    app.add_option("--repetitions", chosen.repetitions, "Repetitions of each figure")->capture_default_str()->check(CLI::Range(1, 1000));
    app.add_option("--dram", chosen.dram_megabytes, "MiB that count as DRAM: more than the caches hold; needed twice")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 20));
    app.add_flag("--quick", chosen.quick, "3 repetitions of 5 ms");
    app.add_option("--json", chosen.json, "Write the figures to this file (-: standard output)");
}

}  // namespace

int main(int argc, char** argv) {
    options chosen;
    CLI::App app("The roofs of this machine: read, copy and scale by level of memory and page size, and arithmetic.", tool);
    add_options(app, chosen);
    if (const std::optional<int> ended = parse(app, argc, argv)) return *ended;
    result<session> s = open_session(chosen);
    if (!s.ok()) return bad_input(tool, s.state().text());
    if (s->shows_table()) print_machine(*s);
    run_table(*s, memory_columns(*s), memory_figures, print_memory);
    if (s->shows_table()) fmt::print("\n");
    using align = table::align;
    run_table(*s,
              {{"target", align::left, 11},
               {"threads", align::right},
               {"fma_fp32 GFLOP/s", align::right},
               {"bf16_dot GFLOP/s", align::right},
               {"int16_madd GOP/s", align::right},
               {"int8_dot GOP/s", align::right},
               {"exp2 Gvalue/s", align::right}},
              arithmetic_figures, print_arithmetic);
    const status written = s->json.write_json({{"version", version()}, {"machine", describe(*s)}, {"roofs", s->rows}});
    return written.ok() ? exit_ok : bad_input(tool, written.text());
}
