// This program has nothing left to do after an error but to say what it was: it throws the text of a status. ropewalk itself never throws.
#pragma once

#include <stdexcept>
#include <utility>

#include <ropewalk/status.hpp>

namespace llama {

inline void check(const ropewalk::status& s) {
    if (!s) throw std::runtime_error(s.text());
}

template <class T>
T value(ropewalk::result<T>&& r) {
    check(r.state());
    return std::move(*r);
}

}  // namespace llama
