// Tables of biases in the order in which the walk over a tile reads them.
#include "runtime/attention_bias.hpp"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "runtime/refuse.hpp"

namespace ropewalk {
namespace {

using runtime::refuse;

constexpr int32_t most_heads = 1 << 16;
constexpr int32_t most_extent = 4096;
constexpr int64_t most_delta = int64_t{1} << 31;

status check_heads(int32_t heads) { return runtime::check_range("heads", heads, 1, most_heads); }

status check_finite(std::span<const float> table) {
    const auto bad = std::ranges::find_if(table, [](float x) { return !std::isfinite(x); });
    if (bad == table.end()) return {};
    return refuse(status_code::invalid_argument, "table[%lld] is %g; must be finite", static_cast<long long>(bad - table.begin()), double{*bad});
}

status no_memory() noexcept { return {status_code::out_of_memory, "no memory for the bias"}; }

}  // namespace

attention_bias::attention_bias() noexcept = default;
attention_bias::~attention_bias() = default;
attention_bias::attention_bias(const attention_bias&) noexcept = default;
attention_bias& attention_bias::operator=(const attention_bias&) noexcept = default;
attention_bias::attention_bias(attention_bias&&) noexcept = default;
attention_bias& attention_bias::operator=(attention_bias&&) noexcept = default;
attention_bias::attention_bias(std::shared_ptr<const state> s) noexcept : state_(std::move(s)) {}

int32_t attention_bias::heads() const noexcept { return state_ ? state_->heads : 0; }

result<attention_bias> attention_bias::over_distance(std::span<const float> table, int32_t heads, int64_t first_delta) noexcept try {
    if (auto s = check_heads(heads); !s) return s;
    if (table.empty() || table.size() % static_cast<std::size_t>(heads) != 0) {
        return refuse(status_code::invalid_argument, "table has %zu entries; must have as many, at least one, for each of %d heads", table.size(),
                      heads);
    }
    const auto count = static_cast<int64_t>(table.size()) / heads;
    if (first_delta < -most_delta || first_delta > most_delta || count > most_delta) {
        return refuse(status_code::out_of_range, "first_delta is %lld, with %lld entries a head; must be within 2^31",
                      static_cast<long long>(first_delta), static_cast<long long>(count));
    }
    if (auto s = check_finite(table); !s) return s;
    auto made = std::make_shared<state>();
    made->kind = simd::bias_kind::distance;
    made->heads = heads;
    made->values.first = first_delta;
    made->values.count = count;
    made->values.head_stride = count + 2 * simd::tile_tokens;
    made->table.resize(static_cast<std::size_t>(made->values.head_stride * heads));
    for (int32_t h = 0; h < heads; ++h) {
        const float* from = table.data() + h * count;
        float* to = made->table.data() + h * made->values.head_stride;
        std::fill_n(to, simd::tile_tokens, from[0]);
        std::copy_n(from, count, to + simd::tile_tokens);
        std::fill_n(to + simd::tile_tokens + count, simd::tile_tokens, from[count - 1]);
    }
    made->values.data = made->table.data();
    return attention_bias(std::move(made));
} catch (const std::bad_alloc&) {
    return no_memory();
}

result<attention_bias> attention_bias::over_grid(std::span<const float> table, int32_t heads, int32_t height, int32_t width,
                                                 bool class_token) noexcept try {
    if (auto s = check_heads(heads); !s) return s;
    for (const auto& [argument, extent] : {std::pair{"height", height}, {"width", width}}) {
        if (auto s = runtime::check_range(argument, extent, 1, most_extent); !s) return s;
    }
    const int64_t differences = (2 * int64_t{height} - 1) * (2 * int64_t{width} - 1), entries = differences + (class_token ? 3 : 0);
    if (static_cast<int64_t>(table.size()) != entries * heads) {
        return refuse(status_code::invalid_argument, "table has %zu entries; a grid of %d x %d%s has %lld for each of %d heads", table.size(), height,
                      width, class_token ? " with a class token" : "", static_cast<long long>(entries), heads);
    }
    if (auto s = check_finite(table); !s) return s;
    auto made = std::make_shared<state>();
    made->kind = simd::bias_kind::grid;
    made->heads = heads;
    made->values.height = height;
    made->values.width = width;
    made->values.class_token = class_token;
    made->values.head_stride = differences + 4;
    made->table.resize(static_cast<std::size_t>(made->values.head_stride * heads));
    for (int32_t h = 0; h < heads; ++h) {
        float* to = made->table.data() + h * made->values.head_stride;
        // The models' differences are query - key: the other way round they are in the order of keys.
        for (int64_t i = 0; i < entries; ++i) to[i] = table[static_cast<std::size_t>((i < differences ? differences - 1 - i : i) * heads + h)];
    }
    made->values.data = made->table.data();
    return attention_bias(std::move(made));
} catch (const std::bad_alloc&) {
    return no_memory();
}

result<attention_bias> attention_bias::of_rows(const float* values, int64_t tokens, int32_t heads, int64_t keys, int64_t token_stride,
                                               int64_t head_stride) noexcept try {
    if (auto s = check_heads(heads); !s) return s;
    if (values == nullptr) return refuse(status_code::invalid_argument, "values is null; must point to tokens * heads rows of keys floats");
    for (const auto& [argument, number] :
         {std::pair{"tokens", tokens}, {"keys", keys}, {"token_stride", token_stride}, {"head_stride", head_stride}}) {
        if (number < 0) return refuse(status_code::invalid_argument, "%s is %lld; must be >= 0", argument, static_cast<long long>(number));
    }
    auto made = std::make_shared<state>();
    made->kind = simd::bias_kind::rows;
    made->heads = heads;
    made->tokens = tokens;
    made->values.data = values;
    made->values.head_stride = head_stride;
    made->values.token_stride = token_stride;
    made->values.keys = keys;
    return attention_bias(std::move(made));
} catch (const std::bad_alloc&) {
    return no_memory();
}

}  // namespace ropewalk
