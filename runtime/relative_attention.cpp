// Indices of relative distances; validation of relative terms and their tensors.
#include "runtime/relative_attention.hpp"

#include <algorithm>
#include <new>

#include <ropewalk/relative_buckets.hpp>
#include "runtime/refuse.hpp"
#include "runtime/views.hpp"

namespace ropewalk {
namespace {

using runtime::refuse;

constexpr int32_t most_span = 1 << 24;
constexpr int64_t most_rows = int64_t{1} << 30;

// Rows row_of(delta) of distances first .. last.
template <class F>
result<relative_index> index_over(int64_t first, int64_t last, F row_of) noexcept try {
    relative_index index;
    index.first_delta = first;
    index.rows.reserve(static_cast<std::size_t>(last - first + 1));
    for (int64_t delta = first; delta <= last; ++delta) index.rows.push_back(static_cast<int32_t>(row_of(delta)));
    return index;
} catch (const std::bad_alloc&) {
    return status(status_code::out_of_memory, "no memory for the index of relative distances");
}

}  // namespace

result<relative_index> relative_index::deberta(int32_t span) noexcept {
    if (auto s = runtime::check_range("span", span, 1, most_span); !s) return s;
    return index_over(-int64_t{span}, span - 1, [=](int64_t delta) { return delta + span; });
}

result<relative_index> relative_index::deberta_buckets(int32_t position_buckets, int32_t max_relative_positions) noexcept {
    if (auto s = runtime::check_range("max_relative_positions", max_relative_positions, 1, most_span); !s) return s;
    if (position_buckets % 2 != 0) return refuse(status_code::invalid_argument, "position_buckets is %d; must be even", position_buckets);
    const deberta_bucket_rule rule{position_buckets, max_relative_positions};
    // The bucket of max_relative_positions is the first one beyond both tables' ends: from there on all distances have the last row.
    const int64_t limit = max_relative_positions;
    result<relative_index> index = index_over(-limit, limit, [](int64_t) { return 0; });
    if (!index.ok()) return index;
    if (auto s = ropewalk::deberta_buckets(index->rows, -limit, rule); !s) return s;
    for (int32_t& row : index->rows) row = std::clamp(row + position_buckets, 0, 2 * position_buckets - 1);
    return index;
}

result<relative_index> relative_index::shaw(int32_t left, int32_t right) noexcept {
    if (auto s = runtime::check_range("left", left, 0, most_span); !s) return s;
    if (auto s = runtime::check_range("right", right, 0, most_span); !s) return s;
    return index_over(-int64_t{right}, left, [=](int64_t delta) { return left - delta; });
}

result<relative_index> relative_index::bert(int32_t max_position_embeddings) noexcept {
    if (auto s = runtime::check_range("max_position_embeddings", max_position_embeddings, 1, most_span); !s) return s;
    const int64_t most = max_position_embeddings - 1;
    return index_over(-most, most, [=](int64_t delta) { return delta + most; });
}

result<relative_index> relative_index::xlnet(int64_t q_len, int64_t k_len, bool bidirectional) noexcept {
    if (auto s = runtime::check_range("q_len", q_len, 1, most_rows); !s) return s;
    if (auto s = runtime::check_range("k_len", k_len, 0, most_rows - q_len); !s) return s;
    return index_over(bidirectional ? 1 - q_len : -1, k_len, [=](int64_t delta) { return !bidirectional && delta < 0 ? -1 : k_len - delta; });
}

namespace runtime {
namespace {

status check_segments(const char* argument, std::span<const uint8_t> segments, bool needed, int64_t count) {
    const int64_t expected = needed ? count : 0;
    if (static_cast<int64_t>(segments.size()) == expected) return {};
    return refuse(status_code::invalid_argument, "batch.%s has %zu entries; must have %lld%s", argument, segments.size(),
                  static_cast<long long>(expected), needed ? "" : ", as the problem has no segment terms");
}

// A tensor of relative terms: there if `needed`, absent if not; either if it may be left out.
status check_tensor(const char* argument, const const_head_view& view, const attention_plan::state& plan, int64_t rows, bool needed, bool optional) {
    if (view.heads == 0)
        return needed && !optional ? refuse(status_code::invalid_argument, "%s is absent; the plan has its term", argument) : status();
    if (!needed) return refuse(status_code::invalid_argument, "%s is given; the plan has no such term", argument);
    if (view.heads != 1 && view.heads != plan.shape.heads) {
        return refuse(status_code::invalid_argument, "%s.heads is %d; must be 1 or the plan's heads, %d", argument, view.heads, plan.shape.heads);
    }
    if (auto s = check_shape(argument, view, {any_extent, any_extent, plan.shape.k_dim}, "the plan's k_dim"); !s) return s;
    if (view.tokens < rows) {
        return refuse(status_code::out_of_range, "%s.tokens is %lld; must be at least %lld", argument, static_cast<long long>(view.tokens),
                      static_cast<long long>(rows));
    }
    return check_view(argument, view, view_use::read);
}

simd::relative_table table_of(const const_head_view& view) {
    if (view.heads == 0) return {};
    return {static_cast<const std::byte*>(view.data), static_cast<int>(view.type), view.token_stride, view.heads == 1 ? 0 : view.head_stride};
}

}  // namespace

status check_relative(const attention_problem& problem, const attention_batch& batch, int32_t page_tokens) noexcept {
    const relative_terms* terms = problem.relative;
    const bool segments = terms != nullptr && terms->segments;
    const int64_t keys = page_tokens == 0 ? batch.kv_indptr.back() : static_cast<int64_t>(batch.page_ids.size()) * page_tokens;
    if (auto s = check_segments("q_segments", batch.q_segments, segments, batch.q_indptr.back()); !s) return s;
    if (auto s = check_segments("k_segments", batch.k_segments, segments, keys); !s) return s;
    if (terms == nullptr) return {};
    if (!batch.tree_masks.empty()) {
        return refuse(status_code::unsupported, "batch.tree_masks has %zu words; must be empty where problem.relative is given",
                      batch.tree_masks.size());
    }
    if (!terms->rows && !terms->columns) return {};
    const relative_index& index = terms->index;
    if (index.rows.empty()) return refuse(status_code::invalid_argument, "problem.relative.index.rows has 0 entries; must have at least 1");
    constexpr int64_t most = int64_t{1} << 32;
    if (index.first_delta < -most || index.first_delta > most) {
        return refuse(status_code::invalid_argument, "problem.relative.index.first_delta is %lld; must be within 2^32 of 0",
                      static_cast<long long>(index.first_delta));
    }
    for (std::size_t i = 0; i < index.rows.size(); ++i) {
        if (index.rows[i] < -1) {
            return refuse(status_code::invalid_argument, "problem.relative.index.rows[%zu] is %d; must be a row, or -1", i, index.rows[i]);
        }
    }
    return {};
}

void set_relative(attention_plan::state& plan, const attention_problem& problem, const attention_batch& batch) {
    const relative_terms* terms = problem.relative;
    plan.shape.relative = terms == nullptr ? simd::relative_shape{} : simd::relative_shape{true, terms->rows, terms->columns, terms->segments};
    plan.relative_index.clear();
    plan.relative_rows = 0;
    plan.q_segments.assign(batch.q_segments.begin(), batch.q_segments.end());
    plan.k_segments.assign(batch.k_segments.begin(), batch.k_segments.end());
    if (terms == nullptr || (!terms->rows && !terms->columns)) return;
    plan.relative_index = terms->index.rows;
    plan.relative_first = terms->index.first_delta;
    plan.relative_rows = int64_t{*std::max_element(plan.relative_index.begin(), plan.relative_index.end())} + 1;
}

status check_relative_tensors(const attention_plan::state& plan, const relative_tensors* relative) noexcept {
    const simd::relative_shape& terms = plan.shape.relative;
    if ((relative != nullptr) != terms.given) {
        return refuse(status_code::invalid_argument, terms.given ? "plan has relative terms; run() must be given their tensors"
                                                                 : "plan has no relative terms; run() was given relative tensors");
    }
    if (relative == nullptr) return {};
    if (auto s = check_tensor("relative.rows", relative->rows, plan, plan.relative_rows, terms.rows, false); !s) return s;
    if (auto s = check_tensor("relative.columns", relative->columns, plan, plan.relative_rows, terms.columns, false); !s) return s;
    if (auto s = check_tensor("relative.segments", relative->segments, plan, 2, terms.segments, false); !s) return s;
    if (auto s = check_tensor("relative.content_bias", relative->content_bias, plan, 1, true, true); !s) return s;
    if (auto s = check_tensor("relative.position_bias", relative->position_bias, plan, 1, terms.rows, true); !s) return s;
    return check_tensor("relative.segment_bias", relative->segment_bias, plan, 1, terms.segments, true);
}

simd::relative_inputs relative_inputs_of(const attention_plan::state& plan, const relative_tensors* relative) noexcept {
    simd::relative_inputs inputs;
    if (relative == nullptr) return inputs;
    inputs.rows = table_of(relative->rows);
    inputs.columns = table_of(relative->columns);
    inputs.segments = table_of(relative->segments);
    inputs.content_bias = table_of(relative->content_bias);
    inputs.position_bias = table_of(relative->position_bias);
    inputs.segment_bias = table_of(relative->segment_bias);
    inputs.index = plan.relative_index.data();
    inputs.index_count = static_cast<int64_t>(plan.relative_index.size());
    inputs.first_delta = plan.relative_first;
    inputs.q_segments = plan.q_segments.data();
    inputs.k_segments = plan.k_segments.data();
    return inputs;
}

}  // namespace runtime
}  // namespace ropewalk
