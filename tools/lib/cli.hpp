// What the command lines of all tools have in common: exit codes, one-line errors, parsing.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ropewalk/isa.hpp>
#include <ropewalk/status.hpp>

namespace CLI {
class App;
}

namespace ropewalk::toolkit {

enum exit_code : int {
    exit_ok = 0,
    exit_failed = 1,       // a result is wrong
    exit_bad_input = 2,    // an option, a file or the environment breaks a rule; one line on stderr says which
    exit_unsupported = 3,  // asked to be strict about what this build cannot do
};

// Prints "tool: text" on stderr, always as one line whatever bytes the text has (file and tensor names come from outside).
void complain(std::string_view tool, std::string_view text);
int bad_input(std::string_view tool, std::string_view text);

// Parses; an exit code where the tool should end now (help, version, or a command line that breaks a rule).
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

// Adds --target, the ISA limit as an option, and its description.
void add_target_option(CLI::App& app, std::string& name);
// Puts the limit in force (an empty name leaves what ROPEWALK_ISA or the host say) and returns what is used from now on.
result<target> use_target(const std::string& name);

// Decimal units as benchmarks use them: "13.4 GB".
std::string bytes_text(double bytes);

}  // namespace ropewalk::toolkit
