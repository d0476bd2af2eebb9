#include "runtime/c_api/call.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "runtime/refuse.hpp"

namespace ropewalk::c_api {
namespace {

constinit thread_local char last_error[status::max_text + 1] = "";

// Sizes beyond this are garbage, not a later version.
constexpr std::size_t largest_struct = 4096;

// What is left of a handle in a build that recognises destroyed ones.
struct grave : handle_word {
    grave* next = nullptr;
};

}  // namespace

ropewalk_status report(const status& s) noexcept {
    if (!s.ok()) std::strcpy(last_error, s.text());
    return static_cast<ropewalk_status>(s.code());
}

void call::refuse_null(const char* name) noexcept { check(refuse(status_code::invalid_argument, "%s is null; must be given", name)); }

void call::refuse_destroyed(const char* name) noexcept {
    check(refuse(status_code::invalid_argument, "%s is no handle, or one that was destroyed", name));
}

void call::refuse_null_array(const char* name, std::size_t count) noexcept {
    check(refuse(status_code::invalid_argument, "%s is null; its count is %zu, must be 0", name, count));
}

void call::refuse_reserved(const char* name, uint32_t value) noexcept {
    check(refuse(status_code::invalid_argument, "%s.reserved is %u; must be 0", name, value));
}

void call::check_size(const char* name, const void* s, uint32_t given, std::size_t known) noexcept {
    if (given < known || given > largest_struct) {
        return check(
            refuse(status_code::invalid_argument, "%s.struct_size is %u; must be %zu, its size in ropewalk %s", name, given, known, version()));
    }
    const auto* const bytes = static_cast<const unsigned char*>(s);
    if (std::any_of(bytes + known, bytes + given, [](unsigned char byte) { return byte != 0; })) {
        check(refuse(status_code::unsupported, "%s.struct_size is %u and something is set beyond %zu, its size in ropewalk %s; must be 0 there", name,
                     given, known, version()));
    }
}

ropewalk_status call::refuse_memory() noexcept { return report(status(status_code::out_of_memory, "the host has no memory left")); }

void bury(handle_word* remains) noexcept {
    static std::atomic<grave*> graves = nullptr;
    grave* const made = ::new (static_cast<void*>(remains)) grave{{handle_word::destroyed}, graves.load()};
    while (!graves.compare_exchange_weak(made->next, made)) {
    }
}

}  // namespace ropewalk::c_api

using namespace ropewalk;
using c_api::call;
using c_api::report;

const char* ropewalk_last_error(void) { return c_api::last_error; }
const char* ropewalk_status_name(ropewalk_status status) { return name(static_cast<status_code>(status)).data(); }
const char* ropewalk_version(void) { return version(); }

ropewalk_status ropewalk_check_version(int32_t major, int32_t minor) {
    constexpr int32_t here_major = ROPEWALK_VERSION_MAJOR, here_minor = ROPEWALK_VERSION_MINOR;
    if (major == here_major && (minor == here_minor || (major > 0 && minor < here_minor))) return ROPEWALK_OK;
    return report(refuse(status_code::unsupported, "version is %d.%d, that of the header; the library is %s", major, minor, version()));
}

const char* ropewalk_target_name(ropewalk_target t) { return name(static_cast<target>(t)).data(); }

ropewalk_status ropewalk_target_from_name(const char* text, ropewalk_target* t) {
    call c;
    c.pointer("name", text);
    return c.get("target", t, [&] { return target_from_name(text); });
}

int32_t ropewalk_target_compiled(ropewalk_target t) { return target_compiled(static_cast<target>(t)); }
int32_t ropewalk_target_supported(ropewalk_target t) { return target_supported(static_cast<target>(t)); }

ropewalk_status ropewalk_active_target(ropewalk_target* t) {
    return call().get("target", t, [] { return active_target(); });
}
ropewalk_status ropewalk_limit_target(ropewalk_target t) { return report(limit_target(static_cast<target>(t))); }

const char* ropewalk_dtype_name(ropewalk_dtype type) { return name(static_cast<dtype>(type)).data(); }
int32_t ropewalk_element_bytes(ropewalk_dtype type) { return element_bytes(static_cast<dtype>(type)); }
