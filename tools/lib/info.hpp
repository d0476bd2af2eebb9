// ropewalk-info, which Python has as `python -m ropewalk`.
#pragma once

#include <cstdint>
#include <string>

namespace ropewalk::toolkit {

// The whole program: parses, prints, returns the exit code. `executor` and `concurrency` are those that the caller's calls run on.
int info_main(int argc, const char* const* argv, const std::string& executor, int32_t concurrency);

}  // namespace ropewalk::toolkit
