// Biases of scores, buckets of distances, relative terms.
#include "runtime/c_api/handles.hpp"

namespace ropewalk::c_api {

t5_bucket_rule rule_of(call& c, const ropewalk_t5_bucket_rule* rule) noexcept {
    c.sized("rule", rule);
    if (!c.ok()) return {};
    return {rule->num_buckets, rule->max_distance, rule->bidirectional != 0};
}

}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

ropewalk_status ropewalk_alibi_slopes(float* slopes, size_t heads, ropewalk_alibi_rule rule, double max_exponent) {
    call c;
    const auto out = c.array("slopes", slopes, heads);
    return c.run([&] { return alibi_slopes(out, static_cast<alibi_rule>(rule), max_exponent); });
}

ropewalk_status ropewalk_t5_buckets(int32_t* buckets, size_t count, int64_t first_relative_position, const ropewalk_t5_bucket_rule* rule) {
    call c;
    const auto out = c.array("buckets", buckets, count);
    const t5_bucket_rule r = rule_of(c, rule);
    return c.run([&] { return t5_buckets(out, first_relative_position, r); });
}

ropewalk_status ropewalk_deberta_buckets(int32_t* buckets, size_t count, int64_t first_relative_position, const ropewalk_deberta_bucket_rule* rule) {
    call c;
    const auto out = c.array("buckets", buckets, count);
    c.sized("rule", rule);
    return c.run([&] { return deberta_buckets(out, first_relative_position, {rule->position_buckets, rule->max_relative_positions}); });
}

// ---- biases ---------------------------------------------------------------------------------------------------------------------------

ropewalk_status ropewalk_attention_bias_over_distance(const float* table, size_t table_count, int32_t heads, int64_t first_delta,
                                                      ropewalk_attention_bias** bias) {
    call c;
    const auto entries = c.array("table", table, table_count);
    return c.create("bias", bias, [&] { return attention_bias::over_distance(entries, heads, first_delta); });
}

ropewalk_status ropewalk_attention_bias_over_grid(const float* table, size_t table_count, int32_t heads, int32_t height, int32_t width,
                                                  int32_t class_token, ropewalk_attention_bias** bias) {
    call c;
    const auto entries = c.array("table", table, table_count);
    return c.create("bias", bias, [&] { return attention_bias::over_grid(entries, heads, height, width, class_token != 0); });
}

ropewalk_status ropewalk_attention_bias_of_rows(const float* values, int64_t tokens, int32_t heads, int64_t keys, int64_t token_stride,
                                                int64_t head_stride, ropewalk_attention_bias** bias) {
    return call().create("bias", bias, [&] { return attention_bias::of_rows(values, tokens, heads, keys, token_stride, head_stride); });
}

ropewalk_status ropewalk_attention_bias_t5(const float* weight, size_t weight_count, int32_t heads, const ropewalk_t5_bucket_rule* rule,
                                           ropewalk_attention_bias** bias) {
    call c;
    const auto entries = c.array("weight", weight, weight_count);
    const t5_bucket_rule r = rule_of(c, rule);
    return c.create("bias", bias, [&] { return t5_bias(entries, heads, r); });
}

ropewalk_status ropewalk_attention_bias_kerple(const float* r1, const float* r2, size_t heads, int64_t max_distance, ropewalk_attention_bias** bias) {
    call c;
    const auto first = c.array("r1", r1, heads), second = c.array("r2", r2, heads);
    return c.create("bias", bias, [&] { return kerple_bias(first, second, max_distance); });
}

ropewalk_status ropewalk_attention_bias_destroy(ropewalk_attention_bias* bias) { return destroy("bias", bias); }

ropewalk_status ropewalk_attention_bias_heads(const ropewalk_attention_bias* bias, int32_t* heads) {
    call c;
    c.handle("bias", bias);
    return c.get("heads", heads, [&]() -> result<int32_t> { return bias->value.heads(); });
}

// ---- relative terms -------------------------------------------------------------------------------------------------------------------

ropewalk_status ropewalk_relative_index_create(int64_t first_delta, const int32_t* rows, size_t count, ropewalk_relative_index** index) {
    call c;
    const auto given = c.array("rows", rows, count);
    return c.create("index", index, [&]() -> result<relative_index> { return relative_index{first_delta, {given.begin(), given.end()}}; });
}

ropewalk_status ropewalk_relative_index_deberta(int32_t span, ropewalk_relative_index** index) {
    return call().create("index", index, [&] { return relative_index::deberta(span); });
}

ropewalk_status ropewalk_relative_index_deberta_buckets(int32_t position_buckets, int32_t max_relative_positions, ropewalk_relative_index** index) {
    return call().create("index", index, [&] { return relative_index::deberta_buckets(position_buckets, max_relative_positions); });
}

ropewalk_status ropewalk_relative_index_shaw(int32_t left, int32_t right, ropewalk_relative_index** index) {
    return call().create("index", index, [&] { return relative_index::shaw(left, right); });
}

ropewalk_status ropewalk_relative_index_bert(int32_t max_position_embeddings, ropewalk_relative_index** index) {
    return call().create("index", index, [&] { return relative_index::bert(max_position_embeddings); });
}

ropewalk_status ropewalk_relative_index_xlnet(int64_t q_len, int64_t k_len, int32_t bidirectional, ropewalk_relative_index** index) {
    return call().create("index", index, [&] { return relative_index::xlnet(q_len, k_len, bidirectional != 0); });
}

ropewalk_status ropewalk_relative_index_destroy(ropewalk_relative_index* index) { return destroy("index", index); }

ropewalk_status ropewalk_relative_index_rows(const ropewalk_relative_index* index, int64_t* first_delta, const int32_t** rows, size_t* count) {
    call c;
    c.handle("index", index);
    c.pointer("first_delta", first_delta);
    c.pointer("rows", rows);
    c.pointer("count", count);
    return c.run([&] {
        *first_delta = index->value.first_delta;
        *rows = index->value.rows.data();
        *count = index->value.rows.size();
        return status();
    });
}

ropewalk_status ropewalk_relative_terms_create(int32_t rows, int32_t columns, int32_t segments, const ropewalk_relative_index* index,
                                               ropewalk_relative_terms** terms) {
    call c;
    if (index != nullptr || rows != 0 || columns != 0) c.handle("index", index);
    return c.create("terms", terms, [&]() -> result<relative_terms> {
        return relative_terms{rows != 0, columns != 0, segments != 0, index != nullptr ? index->value : relative_index{}};
    });
}

ropewalk_status ropewalk_relative_terms_destroy(ropewalk_relative_terms* terms) { return destroy("terms", terms); }
