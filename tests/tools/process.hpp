// Runs the tools that were built beside the tests.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/tools/temporary_file.hpp"

extern char** environ;

namespace ropewalk::test {

struct finished_process {
    int code = -1;  // -1: ended by a signal
    std::string out, err;

    [[nodiscard]] auto error_lines() const { return std::count(err.begin(), err.end(), '\n'); }
};

// <build>/bin/<name>, seen from this test binary.
inline std::string tool_path(const std::string& name) {
    std::error_code ignored;
    return (std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().parent_path() / "bin" / name).string();
}

// Nothing where the tool was not built or cannot be run: a test binary that runs in an emulator cannot start another one.
inline std::optional<finished_process> run_tool(const std::string& name, const std::vector<std::string>& arguments,
                                                const std::vector<std::string>& environment = {}) {
    std::vector<std::string> words{tool_path(name)};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv, envp;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    std::vector<std::string> settings = environment;
    for (char** setting = environ; *setting != nullptr; ++setting) {
        const std::string name_of = std::string(*setting).substr(0, std::string(*setting).find('=') + 1);
        if (std::none_of(environment.begin(), environment.end(), [&](const std::string& s) { return s.starts_with(name_of); })) {
            settings.emplace_back(*setting);
        }
    }
    for (std::string& setting : settings) envp.push_back(setting.data());
    envp.push_back(nullptr);

    const temporary_file out, err;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.path().c_str(), O_WRONLY | O_TRUNC, 0600);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.path().c_str(), O_WRONLY | O_TRUNC, 0600);
    pid_t child = 0;
    const int failed = ::posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (failed != 0) return std::nullopt;
    int how = 0;
    ::waitpid(child, &how, 0);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 127) return std::nullopt;  // some C libraries report a failed exec this way
    return finished_process{WIFEXITED(how) ? WEXITSTATUS(how) : -1, out.read(), err.read()};
}

}  // namespace ropewalk::test
