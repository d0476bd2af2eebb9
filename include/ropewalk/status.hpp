// How every call at the border of ropewalk reports what happened: `status`, or `result` where there is a value to return.
//
// Nothing in ropewalk throws, prints or aborts. A refused call changes nothing, and its text names the argument, the value it had and the
// rule it broke. Both types are safe to copy between threads; neither allocates.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace ropewalk {

// What kind of rule was broken; programs act on it, people read the text.
enum class status_code : int32_t {
    ok = 0,
    invalid_argument = 1,  // an argument breaks a rule; the text says which
    out_of_range = 2,      // a position, page, slot or length lies outside what exists
    unsupported = 3,       // legal, but this build or this host cannot do it
    out_of_pages = 4,      // the page pool cannot satisfy the request; nothing was changed
    out_of_memory = 5,     // the host has no memory left
    workspace_too_small = 6,
    not_found = 7,         // no such sequence, file or tensor
    corrupt_data = 8,      // a file or blob does not hold what it claims
    needs_rerotation = 9,  // the keys of a sequence have to be rotated anew first (rope_schedule); nothing was changed
};

// The field's name of a code, e.g. "invalid_argument".
constexpr std::string_view name(status_code code) noexcept {
    switch (code) {
        case status_code::ok: return "ok";
        case status_code::invalid_argument: return "invalid_argument";
        case status_code::out_of_range: return "out_of_range";
        case status_code::unsupported: return "unsupported";
        case status_code::out_of_pages: return "out_of_pages";
        case status_code::out_of_memory: return "out_of_memory";
        case status_code::workspace_too_small: return "workspace_too_small";
        case status_code::not_found: return "not_found";
        case status_code::corrupt_data: return "corrupt_data";
        case status_code::needs_rerotation: return "needs_rerotation";
    }
    return "unknown";
}

// Success, or a code and a text.
class [[nodiscard]] status {
public:
    static constexpr std::size_t max_text = 231;  // with the code and the terminator a status is 240 bytes

    status() noexcept { text_[0] = '\0'; }

    // Longer texts are cut at max_text bytes.
    status(status_code code, std::string_view text) noexcept : code_(code) {
        const std::size_t length = text.size() < max_text ? text.size() : max_text;
        if (length != 0) std::memcpy(text_, text.data(), length);
        text_[length] = '\0';
    }

    // Whether the call did what it was asked for.
    [[nodiscard]] bool ok() const noexcept { return code_ == status_code::ok; }
    explicit operator bool() const noexcept { return ok(); }
    // status_code::ok, or why not.
    [[nodiscard]] status_code code() const noexcept { return code_; }
    // Zero-terminated; empty when ok.
    [[nodiscard]] const char* text() const noexcept { return text_; }

private:
    status_code code_ = status_code::ok;
    char text_[max_text + 1];
};

// A value, or the status that says why there is none.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) noexcept : value_(std::move(value)) {}
    result(const status& failure) noexcept : status_(failure) {}

    // Whether there is a value.
    [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
    explicit operator bool() const noexcept { return ok(); }
    // Why there is none; ok if there is one.
    [[nodiscard]] const status& state() const noexcept { return status_; }

    // Precondition of the four: ok().
    [[nodiscard]] T& value() & noexcept { return *value_; }
    [[nodiscard]] const T& value() const& noexcept { return *value_; }
    [[nodiscard]] T&& value() && noexcept { return std::move(*value_); }
    T* operator->() noexcept { return &*value_; }
    const T* operator->() const noexcept { return &*value_; }
    T& operator*() & noexcept { return *value_; }
    const T& operator*() const& noexcept { return *value_; }
    T&& operator*() && noexcept { return std::move(*value_); }

private:
    std::optional<T> value_;
    status status_;
};

}  // namespace ropewalk
