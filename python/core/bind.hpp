// What the files of bindings share: errors, names of enumerators, running without the GIL.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <ropewalk/ropewalk.hpp>

#include "arrays.hpp"

namespace ropewalk::python {

namespace nb = nanobind;
using namespace nb::literals;

// A status that is not ok, on its way to becoming the exception of its code.
struct refused {
    status state;
};
inline void check(const status& s) {
    if (!s.ok()) throw refused{s};
}
template <class T>
T take(result<T>&& r) {
    check(r.state());
    return std::move(*r);
}

// Enumerators go by their C++ names. `names[i]` names enumerator i.
template <class Enum, std::size_t Count>
Enum parse_enum(std::string_view text, const char* name, const char* const (&names)[Count]) {
    std::string expected;
    for (std::size_t i = 0; i < Count; ++i) {
        if (text == names[i]) return static_cast<Enum>(i);
        expected += (i == 0 ? "" : ", ") + std::string(names[i]);
    }
    throw nb::value_error((std::string(name) + " is '" + std::string(text) + "'; expected one of: " + expected).c_str());
}

inline constexpr const char* dtype_names[] = {"fp32", "bf16", "fp16", "int8", "int4", "fp8"};
inline constexpr const char* phase_names[] = {"exact", "hf_f32"};
inline constexpr const char* pairing_names[] = {"half", "interleaved", "interleaved_in_half_out"};
inline constexpr const char* place_names[] = {"after_softcap", "before_softcap", "before_scale"};
inline constexpr const char* alibi_names[] = {"press", "mpt", "falcon"};

inline dtype dtype_of(std::string_view text, const char* name) { return parse_enum<dtype>(text, name, dtype_names); }

// The executor of calls that name none: what set_default_executor() said, else the process's OpenMP pool, else serial.
executor& default_executor_of_package();
inline executor& chosen(executor* given) { return given != nullptr ? *given : default_executor_of_package(); }
// Throws what a callback executor's Python code raised during the last run on this thread.
void rethrow_callback_error();

// Runs work(executor&) -> status without the GIL.
template <class Work>
void perform(executor* given, Work work) {
    executor& on = chosen(given);
    status state;
    {
        const nb::gil_scoped_release released;
        state = work(on);
    }
    rethrow_callback_error();
    check(state);
}

// The keyword arguments of every function that takes rope options.
inline rope_options options_of(std::string_view pairing, bool inverse, int32_t first_dim, int32_t pair_distance, bool conjugate) {
    return {parse_enum<rope_pairing>(pairing, "pairing", pairing_names), inverse, first_dim, pair_distance, conjugate};
}

void bind_errors(nb::module_& m);
void bind_executors(nb::module_& m);
void bind_rope(nb::module_& m);
void bind_absolute(nb::module_& m);
void bind_biases(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_config(nb::module_& m);

// A bias with the array that it reads, if it reads one.
struct bias_object {
    attention_bias bias;
    nb::object owner;
};

// The spans of an attention_batch with their content.
struct batch_object {
    std::vector<int64_t> q_indptr, kv_lens, q_starts, page_indptr, kv_indptr, tree_indptr, key_first, key_last, key_mask_indptr;
    std::vector<int32_t> page_ids;
    std::vector<uint64_t> tree_masks, key_masks;
    std::vector<uint8_t> q_segments, k_segments;

    [[nodiscard]] attention_batch view() const;
};

}  // namespace ropewalk::python
