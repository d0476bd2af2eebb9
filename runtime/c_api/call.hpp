// What every function of the C ABI is made of: arguments are read through a `call`, which keeps the first fault, then one function of the C++ API
// runs. No logic lives here beyond that: whatever the C++ API refuses itself is left to it.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include <ropewalk/ropewalk.h>
#include <ropewalk/ropewalk.hpp>

namespace ropewalk::c_api {

// What handles begin with. In a build with NDEBUG nobody reads it.
struct handle_word {
    static constexpr uint32_t alive = 0x65706f72, destroyed = 0x64616564;  // "rope", "dead"
    uint32_t word = alive;
};

// The code of a status; its text becomes the thread's last error.
ropewalk_status report(const status& s) noexcept;

class call {
public:
    [[nodiscard]] bool ok() const noexcept { return code_ == ROPEWALK_OK; }
    void check(const status& s) noexcept {
        if (ok()) code_ = report(s);
    }

    void pointer(const char* name, const void* p) noexcept {
        if (p == nullptr) refuse_null(name);
    }

    void handle(const char* name, const handle_word* h) noexcept {
        pointer(name, h);
#ifndef NDEBUG
        if (h != nullptr && h->word != handle_word::alive) refuse_destroyed(name);
#endif
    }

    // A struct with struct_size, and with `reserved` where it has a hole to fill.
    template <class Struct>
    void sized(const char* name, const Struct* s) noexcept {
        if (s == nullptr) return refuse_null(name);
        if (s->struct_size != sizeof(Struct)) check_size(name, s, s->struct_size, sizeof(Struct));
        if constexpr (requires { s->reserved; }) {
            if (s->reserved != 0) refuse_reserved(name, s->reserved);
        }
    }

    // An array; null with count 0 only.
    template <class Element>
    std::span<Element> array(const char* name, Element* data, std::size_t count) noexcept {
        if (data == nullptr && count != 0) refuse_null_array(name, count);
        return {data, data == nullptr ? 0 : count};
    }

    // An array whose count the caller does not name: empty if null.
    template <class Element>
    static std::span<Element> optional_array(Element* data, std::size_t count) noexcept {
        return {data, data == nullptr ? 0 : count};
    }

    // Null: absent.
    head_view view(const char* name, const ropewalk_tensor* t) noexcept {
        if (t == nullptr) return {};
        sized(name, t);
        if (!ok()) return {};
        return {t->data, static_cast<dtype>(t->type), t->tokens, t->heads, t->dim, t->token_stride, t->head_stride, t->dim_stride};
    }

    // Runs body() -> status, unless an argument was refused. Conversions that allocate belong into it.
    template <class Body>
    ropewalk_status run(Body&& body) noexcept {
        if (!ok()) return code_;
        try {
            return report(body());
        } catch (const std::bad_alloc&) {
            return refuse_memory();
        }
    }

    // Runs body() -> result<T>; the value goes where out points.
    template <class Out, class Body>
    ropewalk_status get(const char* name, Out* out, Body&& body) noexcept {
        pointer(name, out);
        return run([&] {
            auto value = body();
            if (value.ok()) *out = static_cast<Out>(*value);
            return value.state();
        });
    }

    // Runs body() -> result<T>; the value becomes a new handle, `value` of which it is.
    template <class Handle, class Body>
    ropewalk_status create(const char* name, Handle** out, Body&& body) noexcept {
        pointer(name, out);
        return run([&] {
            auto value = body();
            if (value.ok()) *out = new Handle{{}, std::move(*value)};
            return value.state();
        });
    }

private:
    void refuse_null(const char* name) noexcept;
    void refuse_destroyed(const char* name) noexcept;
    void refuse_null_array(const char* name, std::size_t count) noexcept;
    void refuse_reserved(const char* name, uint32_t value) noexcept;
    void check_size(const char* name, const void* s, uint32_t given, std::size_t known) noexcept;
    ropewalk_status refuse_memory() noexcept;

    ropewalk_status code_ = ROPEWALK_OK;
};

// Keeps the memory of a destroyed handle reachable, with a word that says what it is.
void bury(handle_word* remains) noexcept;

template <class Handle>
ropewalk_status destroy(const char* name, Handle* h) noexcept {
    if (h == nullptr) return ROPEWALK_OK;
    call c;
    c.handle(name, h);
    return c.run([&] {
#ifdef NDEBUG
        delete h;
#else
        std::destroy_at(h);
        bury(h);
#endif
        return status();
    });
}

}  // namespace ropewalk::c_api
