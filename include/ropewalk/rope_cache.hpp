// RoPE over a live KV cache: frequencies that depend on the length of the sequence, and keys that move after they were rotated.
//
// With LongRoPE and dynamic NTK a sequence that grows past a certain length is rotated by other frequencies. Keys of one set of frequencies and
// queries of another do not belong together, so that before an append there is a choice:
//
//   check_growth(length, length + tokens)  says, before anything is written, whether the frequencies change (status needs_rerotation);
//   rotate anew                            kv_rerotate() of all layers, from the table in use to the table of spec_at(length + tokens);
//   pin                                    keep the table in use. A sequence that is pinned from its first token to the spec of the longest that it
//                                          may become never has to ask; one that is pinned later keeps the quality of its shorter context.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <ropewalk/executor.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/kv_pages.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// A rope_spec for every length of a sequence. A value: copy it freely; any number of threads may read it.
class ROPEWALK_API rope_schedule {
public:
    // The same frequencies at every length: all families but the two below.
    rope_schedule(rope_spec constant) noexcept;

    // rope_spec::longrope and rope_spec::dynamic_ntk, and what these refuse. The lists of factors are not kept.
    static result<rope_schedule> longrope(const rope_spec::longrope_parameters& parameters, phase_mode phases = phase_mode::exact) noexcept;
    static result<rope_schedule> dynamic_ntk(int32_t rotary_dim, double theta, double factor, double max_position,
                                             phase_mode phases = phase_mode::exact) noexcept;

    // The frequencies of a sequence of `length` tokens (transformers: largest position + 1). Refuses a negative length.
    [[nodiscard]] result<rope_spec> spec_at(int64_t length) const noexcept;

    // ok if keys that were rotated at length `from` stay valid at length `to`, needs_rerotation if not. From length 0 it is always ok. Either may be
    // the longer one: with dynamic NTK and LongRoPE a sequence that is cut crosses back.
    [[nodiscard]] status check_growth(int64_t from, int64_t to) const noexcept;

private:
    friend struct rope_parameters;  // schedule(): with explicit divisors and axes

    rope_spec short_, long_;  // up to and including limit_ tokens, and beyond
    double limit_ = std::numeric_limits<double>::infinity();
    double theta_ = 0.0, factor_ = 0.0;  // of dynamic NTK, which has no long_ but a spec for each length; else 0
    std::vector<double> divisors_;       // likewise, of each of these specs, or empty
};

// Rotates keys that lie in pages anew: K of slots [tokens], turned by `from` at positions [axes][tokens], becomes what `to` makes of it: the turn and
// the amplitude of `from` are taken out, those of `to` are put in, by one rotation in fp32 that is rounded once to the type of the pages (quantised
// types: the whole row gets a new scale; each call costs one more rounding). One layer a call. Pages of all types, with kv_layout::hadamard too; V is
// not touched.
//
// Slots are as in kv_append (no_slot is skipped) and must differ: one that is named twice is recognised as there, and is else turned twice. A page
// that several sequences share is rotated for all of them: fork it first, or name it once. Both tables have as many pairs and axes, and are pure
// rotations (no xPos, no FoPE); options say which slice of the head and pairing they turn, inverse is refused. Everything is validated before the
// first write. Allocates nothing. Same bits for any number of threads. Thread-safe for different slots.
ROPEWALK_API status kv_rerotate(const kv_pages& pages, std::span<const int64_t> slots, std::span<const int64_t> positions, const rope_table& from,
                                const rope_table& to, const rope_options& options = {}, executor& on = default_executor()) noexcept;

// Moves keys that lie in pages by deltas [axes][tokens] positions (either sign, |delta| < 2^31): R(p + delta) from R(p), for instance after tokens
// before them were evicted. The amplitude is not applied again; a key whose delta is 0 is not written. All else as kv_rerotate.
ROPEWALK_API status kv_shift(const kv_pages& pages, std::span<const int64_t> slots, std::span<const int64_t> deltas, const rope_table& table,
                             const rope_options& options = {}, executor& on = default_executor()) noexcept;

}  // namespace ropewalk
