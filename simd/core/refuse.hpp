// Builds the status of a refused call. One place for the formatting, so that every text is cut and terminated the same way.
#pragma once

#include <cstdarg>
#include <cstdio>

#include <ropewalk/status.hpp>

namespace ropewalk {

// printf-style. The text names the argument, the value it had and the rule it broke: "q.dim_stride is 2; must be 1".
[[gnu::format(printf, 2, 3)]] inline status refuse(status_code code, const char* format, ...) noexcept {
    char text[status::max_text + 1];
    std::va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return status(code, text);
}

}  // namespace ropewalk
