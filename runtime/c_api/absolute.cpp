// Positions that are added to embeddings, and temperatures of queries.
#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {

void write_sinusoid(const sinusoid_spec& spec, ropewalk_sinusoid& out) noexcept {
    out.dim = spec.dim;
    out.columns = static_cast<ropewalk_sinusoid_columns>(spec.columns);
    out.zero_odd_column = spec.zero_odd_column;
    out.has_zero_row = spec.zero_row.has_value();
    out.denominator = spec.denominator;
    out.base = spec.base;
    out.offset = spec.offset;
    out.zero_row = spec.zero_row.value_or(0);
}

namespace {

sinusoid_spec sinusoid_of(call& c, const ropewalk_sinusoid* spec) noexcept {
    c.sized("spec", spec);
    if (!c.ok()) return {};
    return {.dim = spec->dim,
            .columns = static_cast<sinusoid_columns>(spec->columns),
            .denominator = spec->denominator,
            .base = spec->base,
            .zero_odd_column = spec->zero_odd_column != 0,
            .offset = spec->offset,
            .zero_row = spec->has_zero_row != 0 ? std::optional(spec->zero_row) : std::nullopt};
}

ropewalk_status fill_sinusoid(ropewalk_sinusoid* out, const sinusoid_spec& spec) noexcept {
    call c;
    c.sized("spec", out);
    return c.run([&] {
        const status valid = spec.validate();
        if (valid.ok()) write_sinusoid(spec, *out);
        return valid;
    });
}

learned_positions learned_of(call& c, const ropewalk_learned_positions* learned) noexcept {
    c.sized("learned", learned);
    if (!c.ok()) return {};
    return {c.view("learned.table", learned->table), learned->offset};
}

// Calls function(what, positions, rows, executor).
template <class Function, class What>
ropewalk_status on_rows(call& c, Function function, const What& what, const int64_t* positions, size_t count, const char* name,
                        const ropewalk_tensor* rows, ropewalk_executor* on) noexcept {
    const auto at = c.array("positions", positions, count);
    const head_view view = c.view(name, rows);
    executor& who = executor_of(c, on);
    return c.run([&] { return function(what, at, view, who); });
}

query_temperature temperature_of(call& c, const ropewalk_query_temperature* temperature) noexcept {
    c.sized("temperature", temperature);
    if (!c.ok()) return {};
    return {temperature->beta, temperature->floor_length, temperature->offset};
}

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

ropewalk_status ropewalk_sinusoid_vaswani(int32_t dim, ropewalk_sinusoid* spec) { return fill_sinusoid(spec, sinusoid_spec::vaswani(dim)); }
ropewalk_status ropewalk_sinusoid_marian(int32_t dim, ropewalk_sinusoid* spec) { return fill_sinusoid(spec, sinusoid_spec::marian(dim)); }
ropewalk_status ropewalk_sinusoid_whisper(int32_t dim, ropewalk_sinusoid* spec) { return fill_sinusoid(spec, sinusoid_spec::whisper(dim)); }
ropewalk_status ropewalk_sinusoid_fairseq(int32_t dim, int64_t padding_idx, ropewalk_sinusoid* spec) {
    return fill_sinusoid(spec, sinusoid_spec::fairseq(dim, padding_idx));
}

ropewalk_status ropewalk_sinusoid_rows(const ropewalk_sinusoid* spec, const int64_t* positions, size_t count, const ropewalk_tensor* rows,
                                       ropewalk_executor* on) {
    call c;
    return on_rows(c, sinusoid_rows, sinusoid_of(c, spec), positions, count, "rows", rows, on);
}

ropewalk_status ropewalk_sinusoid_add(const ropewalk_sinusoid* spec, const int64_t* positions, size_t count, const ropewalk_tensor* x,
                                      ropewalk_executor* on) {
    call c;
    return on_rows(c, sinusoid_add, sinusoid_of(c, spec), positions, count, "x", x, on);
}

ropewalk_status ropewalk_sinusoid_shift(const ropewalk_sinusoid* spec, int64_t k, const ropewalk_tensor* rows, ropewalk_executor* on) {
    call c;
    const sinusoid_spec s = sinusoid_of(c, spec);
    const head_view view = c.view("rows", rows);
    executor& who = executor_of(c, on);
    return c.run([&] { return sinusoid_shift(s, k, view, who); });
}

ropewalk_status ropewalk_xlnet_positions(int64_t* positions, size_t count, const ropewalk_xlnet_positions_rule* rule) {
    call c;
    const auto out = c.array("positions", positions, count);
    c.sized("rule", rule);
    return c.run([&] {
        return xlnet_positions(out, {rule->query_tokens, rule->key_tokens, rule->bidirectional != 0, rule->clamp_len, rule->negated != 0});
    });
}

ropewalk_status ropewalk_learned_rows(const ropewalk_learned_positions* learned, const int64_t* positions, size_t count, const ropewalk_tensor* rows,
                                      ropewalk_executor* on) {
    call c;
    return on_rows(c, learned_rows, learned_of(c, learned), positions, count, "rows", rows, on);
}

ropewalk_status ropewalk_learned_add(const ropewalk_learned_positions* learned, const int64_t* positions, size_t count, const ropewalk_tensor* x,
                                     ropewalk_executor* on) {
    call c;
    return on_rows(c, learned_add, learned_of(c, learned), positions, count, "x", x, on);
}

ropewalk_status ropewalk_positions_from_mask(int64_t* positions, const uint8_t* mask, size_t count) {
    call c;
    const auto out = c.array("positions", positions, count);
    const auto in = c.array("mask", mask, count);
    return c.run([&] { return positions_from_mask(out, in); });
}

ropewalk_status ropewalk_positions_from_tokens(int64_t* positions, const int64_t* tokens, size_t count, int64_t padding_idx, int64_t past) {
    call c;
    const auto out = c.array("positions", positions, count);
    const auto in = c.array("tokens", tokens, count);
    return c.run([&] { return positions_from_tokens(out, in, padding_idx, past); });
}

ropewalk_status ropewalk_query_temperature_at(const ropewalk_query_temperature* temperature, int64_t position, double* factor) {
    call c;
    const query_temperature t = temperature_of(c, temperature);
    return c.get("factor", factor, [&]() -> result<double> {
        if (const status valid = t.validate(); !valid.ok()) return valid;
        if (position < 0) return refuse(status_code::out_of_range, "position is %lld; must be >= 0", static_cast<long long>(position));
        return t.at(position);
    });
}

ropewalk_status ropewalk_scale_queries(const ropewalk_tensor* q, const int64_t* positions, size_t count,
                                       const ropewalk_query_temperature* temperature, ropewalk_executor* on) {
    call c;
    const head_view view = c.view("q", q);
    const auto at = c.array("positions", positions, count);
    const query_temperature t = temperature_of(c, temperature);
    executor& who = executor_of(c, on);
    return c.run([&] { return scale_queries(view, at, t, who); });
}
