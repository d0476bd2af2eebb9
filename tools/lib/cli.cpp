#include "tools/lib/cli.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace ropewalk::toolkit {

void complain(std::string_view tool, std::string_view text) {
    std::string line(text);
    for (char& c : line) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    fmt::print(stderr, "{}: {}\n", tool, line);
}

int bad_input(std::string_view tool, std::string_view text) {
    complain(tool, text);
    return exit_bad_input;
}

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
    app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), version()));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // help or version, on stdout
        return bad_input(app.get_name(), error.what());
    }
    return std::nullopt;
}

void add_target_option(CLI::App& app, std::string& name) {
    app.add_option("--target", name, "Use this instruction set: scalar, avx2, avx512, avx512_bf16, neon, neon_bf16 (as ROPEWALK_ISA)");
}

result<target> use_target(const std::string& name) {
    if (!name.empty()) {
        const result<target> named = target_from_name(name);
        if (!named.ok()) return named;
        const status limited = limit_target(*named);
        if (!limited.ok()) return limited;
    }
    return active_target();
}

std::string bytes_text(double bytes) {
    static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
    std::size_t unit = 0;
    for (; bytes >= 1000.0 && unit + 1 < std::size(units); ++unit) bytes /= 1000.0;
    return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

}  // namespace ropewalk::toolkit
