// Absolute positions, buckets of relative ones, and frequencies that follow the length of a sequence.
#include "bind.hpp"

namespace ropewalk::python {
namespace {

// A new array [count] of int64 or int32, filled by `fill`.
template <class T, class Fill>
nb::object filled(int64_t count, const char* name, Fill fill) {
    if (count < 0) wrong_value(name, std::to_string(count), "at least 0");
    std::span<T> content;
    nb::object made = new_array<T>({static_cast<std::size_t>(count)}, content);
    check(fill(content));
    return made;
}

void bind_sinusoids(nb::module_& m) {
    nb::class_<sinusoid_spec>(m, "SinusoidSpec", "Which sines and cosines make the row of a position.")
        .def_static("vaswani", &sinusoid_spec::vaswani, "dim"_a, "The paper's, as XLM has it.")
        .def_static("marian", &sinusoid_spec::marian, "dim"_a, "Marian; the relative table of XLNet and Transformer-XL.")
        .def_static("whisper", &sinusoid_spec::whisper, "dim"_a, "Whisper's encoder, tensor2tensor.")
        .def_static("fairseq", &sinusoid_spec::fairseq, "dim"_a, "padding_idx"_a, "fairseq, M2M100, XGLM.")
        .def_ro("dim", &sinusoid_spec::dim);
    const auto with = [&m](const char* name, auto operation, const char* doc) {
        m.def(
            name,
            [operation](const sinusoid_spec& spec, array positions, array rows, executor* on) {
                const numbers<int64_t> p(positions, "positions");
                const tensor view(rows, "rows", access::write);
                perform(on, [&](executor& e) { return operation(spec, p, view, e); });
            },
            "spec"_a, "positions"_a, "rows"_a, nb::kw_only(), "executor"_a.none() = nb::none(), doc);
    };
    with("sinusoid_rows", &sinusoid_rows, "rows [tokens, 1, dim] become the rows of positions [tokens] int64.");
    with("sinusoid_add", &sinusoid_add, "rows [tokens, 1, dim] += the rows of positions [tokens] int64.");
    m.def(
        "sinusoid_shift",
        [](const sinusoid_spec& spec, int64_t shift, array rows, executor* on) {
            const tensor view(rows, "rows", access::write);
            perform(on, [&](executor& e) { return sinusoid_shift(spec, shift, view, e); });
        },
        "spec"_a, "shift"_a, "rows"_a, nb::kw_only(), "executor"_a.none() = nb::none(),
        "rows [tokens, 1, dim], those of some positions, become those of positions + shift, by the linear map that this is.");
}

void bind_learned(nb::module_& m) {
    const auto with = [&m](const char* name, auto operation, const char* doc) {
        m.def(
            name,
            [operation](array table, array positions, array rows, int64_t offset, executor* on) {
                const numbers<int64_t> p(positions, "positions");
                const tensor table_view(table, "table", access::read), view(rows, "rows", access::write);
                perform(on, [&](executor& e) { return operation(learned_positions{table_view, offset}, p, view, e); });
            },
            "table"_a, "positions"_a, "rows"_a, nb::kw_only(), "offset"_a = 0, "executor"_a.none() = nb::none(), doc);
    };
    with("learned_rows", &learned_rows, "rows [tokens, 1, dim] become rows positions + offset of table [rows, 1, dim].");
    with("learned_add", &learned_add, "rows [tokens, 1, dim] += rows positions + offset of table [rows, 1, dim].");
}

void bind_positions(nb::module_& m) {
    m.def(
        "positions_from_mask",
        [](array mask) {
            const numbers<uint8_t> m(mask, "mask");
            const auto count = static_cast<int64_t>(m.span().size());
            return filled<int64_t>(count, "mask", [&](std::span<int64_t> p) { return positions_from_mask(p, m); });
        },
        "mask"_a, "OPT: positions [tokens] of a mask [tokens] uint8; -1 where it is 0.");
    m.def(
        "positions_from_tokens",
        [](array tokens, int64_t padding_idx, int64_t past) {
            const numbers<int64_t> t(tokens, "tokens");
            const auto count = static_cast<int64_t>(t.span().size());
            return filled<int64_t>(count, "tokens", [&](std::span<int64_t> p) { return positions_from_tokens(p, t, padding_idx, past); });
        },
        "tokens"_a, "padding_idx"_a, "past"_a = 0, "fairseq: positions [tokens] of tokens [tokens] int64.");
    m.def(
        "xlnet_positions",
        [](int64_t query_tokens, int64_t key_tokens, bool bidirectional, int64_t clamp_len, bool negated) {
            const xlnet_positions_rule rule{query_tokens, key_tokens, bidirectional, clamp_len, negated};
            return filled<int64_t>(rule.rows(), "query_tokens + key_tokens", [&](std::span<int64_t> p) { return xlnet_positions(p, rule); });
        },
        "query_tokens"_a, "key_tokens"_a, nb::kw_only(), "bidirectional"_a = true, "clamp_len"_a = -1, "negated"_a = false,
        "Positions int64 of the rows of XLNet's relative table: key_tokens, key_tokens - 1, .. down to 1 - query_tokens, or to 0.");
    m.def(
        "t5_buckets",
        [](int64_t first, int64_t count, int32_t num_buckets, int32_t max_distance, bool bidirectional) {
            return filled<int32_t>(count, "count", [&](std::span<int32_t> b) {
                return t5_buckets(b, first, {num_buckets, max_distance, bidirectional});
            });
        },
        "first_relative_position"_a, "count"_a, nb::kw_only(), "num_buckets"_a = 32, "max_distance"_a = 128, "bidirectional"_a = true,
        "Buckets [count] int32 of relative positions (key - query) from the first on.");
    m.def(
        "deberta_buckets",
        [](int64_t first, int64_t count, int32_t position_buckets, int32_t max_relative_positions) {
            return filled<int32_t>(count, "count", [&](std::span<int32_t> b) {
                return deberta_buckets(b, first, {position_buckets, max_relative_positions});
            });
        },
        "first_relative_position"_a, "count"_a, nb::kw_only(), "position_buckets"_a = 256, "max_relative_positions"_a = 512,
        "Buckets [count] int32 of relative positions (query - key) from the first on.");
}

void bind_schedule(nb::module_& m) {
    nb::class_<rope_schedule>(m, "RopeSchedule", "A RopeSpec for every length of a sequence: LongRoPE and dynamic NTK change theirs.")
        .def(nb::init<rope_spec>(), "constant"_a, "The same at every length.")
        .def_static(
            "longrope",
            [](int32_t dim, double theta, array short_factor, array long_factor, double factor, double original, double attention_factor) {
                const numbers<double> shorts(short_factor, "short_factor"), longs(long_factor, "long_factor");
                return take(rope_schedule::longrope({dim, theta, shorts, longs, factor, original, attention_factor}));
            },
            "rotary_dim"_a, "theta"_a, "short_factor"_a, "long_factor"_a, "factor"_a, "original_max_position"_a, "attention_factor"_a = 0.0)
        .def_static(
            "dynamic_ntk",
            [](int32_t dim, double theta, double factor, double max_position) {
                return take(rope_schedule::dynamic_ntk(dim, theta, factor, max_position));
            },
            "rotary_dim"_a, "theta"_a, "factor"_a, "max_position"_a)
        .def(
            "spec_at", [](const rope_schedule& s, int64_t length) { return take(s.spec_at(length)); }, "length"_a)
        .def(
            "check_growth", [](const rope_schedule& s, int64_t from, int64_t to) { check(s.check_growth(from, to)); }, "from_length"_a, "to_length"_a,
            "Raises NeedsRerotation where keys of one length do not fit the other: kv_rerotate() them first.");
}

}  // namespace

void bind_absolute(nb::module_& m) {
    bind_sinusoids(m);
    bind_learned(m);
    bind_positions(m);
    bind_schedule(m);
}

}  // namespace ropewalk::python
