// What a call answered: the value that it must have given, or the refusal.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <ropewalk/status.hpp>

namespace ropewalk::test {

// The value. Where there is none the test fails by the exception.
template <class T>
T made(result<T> r) {
    if (!r.ok()) throw std::runtime_error(r.state().text());
    return *std::move(r);
}

template <class T>
std::string refusal_of(const result<T>& r) {
    return r.ok() ? "accepted" : r.state().text();
}

inline void expect_refused(const status& s, status_code code, const std::string& words) {
    EXPECT_EQ(s.code(), code) << s.text();
    EXPECT_NE(std::string(s.text()).find(words), std::string::npos) << "\"" << s.text() << "\" lacks \"" << words << "\"";
}

}  // namespace ropewalk::test
