// A status whose text is formatted with fmt.
#pragma once

#include <fmt/format.h>
#include <ropewalk/status.hpp>

namespace ropewalk::toolkit {

template <class... Values>
status refusal(status_code code, fmt::format_string<const Values&...> text, const Values&... values) {
    return {code, fmt::vformat(text, fmt::make_format_args(values...))};
}

}  // namespace ropewalk::toolkit
