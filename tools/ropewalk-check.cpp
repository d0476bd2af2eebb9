// ropewalk-check FILE...: runs the library against golden files, one line a file.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ropewalk/ropewalk.hpp>
#include "tools/lib/cli.hpp"
#include "tools/lib/golden/check.hpp"
#include "tools/lib/table.hpp"

namespace {

using namespace ropewalk;
using namespace ropewalk::toolkit;

constexpr const char* tool = "ropewalk-check";

struct options {
    std::vector<std::string> files;
    std::string target;
    bool strict = false;
    bool list_kinds = false;
};

struct counts {
    int64_t passed = 0, failed = 0, unsupported = 0, unreadable = 0;
};

const char* verdict_text(verdict outcome) {
    switch (outcome) {
        case verdict::passed: return "ok";
        case verdict::failed: return "FAILED";
        case verdict::unsupported: return "unsupported";
    }
    return "";
}

void list_kinds() {
    table kinds(stdout, {{"kind", table::align::left, 18}, {"contents", table::align::left}});
    kinds.header();
    for (const golden_kind& kind : golden_kinds()) kinds.row({std::string(kind.name), std::string(kind.contents)});
}

table result_table(const std::vector<std::string>& files) {
    std::size_t longest = 0;
    for (const std::string& file : files) longest = std::max(longest, file.size());
    return table(stdout, {{"file", table::align::left, longest},
                          {"kind", table::align::left, 17},
                          {"result", table::align::left, 11},
                          {"error", table::align::right, 8},
                          {"tolerance", table::align::right, 9},
                          {"of", table::align::left}});
}

void count(counts& seen, verdict outcome) {
    seen.passed += outcome == verdict::passed;
    seen.failed += outcome == verdict::failed;
    seen.unsupported += outcome == verdict::unsupported;
}

counts check_files(const std::vector<std::string>& files) {
    counts seen;
    table results = result_table(files);
    results.header();
    for (const std::string& file : files) {
        const result<check_result> checked = check_golden_file(file, default_executor());
        if (!checked.ok()) {
            ++seen.unreadable;
            std::fflush(stdout);
            complain(tool, fmt::format("{}: {}", file, checked.state().text()));
            continue;
        }
        count(seen, checked->outcome);
        const bool compared = checked->outcome != verdict::unsupported;
        results.row({file, checked->kind, verdict_text(checked->outcome), compared ? fmt::format("{:.1e}", checked->error) : "-",
                     compared ? fmt::format("{:.1e}", checked->tolerance) : "-", checked->note});
    }
    return seen;
}

int run(const options& chosen) {
    if (chosen.list_kinds) {
        list_kinds();
        return exit_ok;
    }
    if (chosen.files.empty()) return bad_input(tool, "FILE is missing; give at least one golden file");
    const result<target> used = use_target(chosen.target);
    if (!used.ok()) return bad_input(tool, used.state().text());
    const counts seen = check_files(chosen.files);
    fmt::print("{} ok, {} failed, {} unsupported on {}\n", seen.passed, seen.failed, seen.unsupported, name(*used));
    if (seen.unreadable != 0) return exit_bad_input;
    if (seen.failed != 0) return exit_failed;
    return chosen.strict && seen.unsupported != 0 ? exit_unsupported : exit_ok;
}

}  // namespace

int main(int argc, char** argv) {
    options chosen;
    CLI::App app(
        "Checks the library against golden files (safetensors; the format is described beside them).\n"
        "Exit code: 0 all passed, 1 a check failed, 2 bad input, 3 with --strict if a file is unsupported.",
        tool);
    app.add_option("FILE", chosen.files, "Golden files");
    app.add_flag("--strict", chosen.strict, "Exit with 3 if a file is unsupported");
    app.add_flag("--list-kinds", chosen.list_kinds, "List the kinds of files");
    add_target_option(app, chosen.target);
    if (const std::optional<int> ended = parse(app, argc, argv)) return *ended;
    return run(chosen);
}
