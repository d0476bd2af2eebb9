// The reference packing: one element at a time, straight from the formulas of kv_pages.hpp.
#include "simd/core/element.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {

namespace {

template <int type>
void load_row(const void* source, float* row, int64_t n) {
    const auto* in = static_cast<const typename element<type>::storage*>(source);
    for (int64_t i = 0; i < n; ++i) row[i] = element<type>::load(in[i]);
}

template <int type>
void store_row(const float* row, void* target, int64_t n) {
    auto* out = static_cast<typename element<type>::storage*>(target);
    for (int64_t i = 0; i < n; ++i) out[i] = element<type>::store(row[i]);
}

// K part [page_tokens / 16][k_dim / g][16][g].
template <int type>
void pack_k(const float* rows, int64_t row_stride, int32_t k_dim, std::byte* k_part, int32_t first, int32_t count) {
    constexpr int32_t g = word_elements(type);
    const int32_t steps = (k_dim + g - 1) / g;
    auto* out = reinterpret_cast<typename element<type>::storage*>(k_part);
    for (int32_t row = 0; row < count; ++row) {
        const int32_t token = first + row;
        for (int32_t d = 0; d < steps * g; ++d) {
            const int64_t line = (int64_t{token / panel} * steps + d / g) * panel + token % panel;
            out[line * g + d % g] = element<type>::store(d < k_dim ? rows[row * row_stride + d] : 0.0f);
        }
    }
}

// V part [page_tokens / g][v_dim][g], v_dim padded to 16.
template <int type>
void pack_v(const float* rows, int64_t row_stride, int32_t v_dim, std::byte* v_part, int32_t first, int32_t count) {
    constexpr int32_t g = word_elements(type);
    const int32_t padded = (v_dim + panel - 1) / panel * panel;
    auto* out = reinterpret_cast<typename element<type>::storage*>(v_part);
    for (int32_t row = 0; row < count; ++row) {
        const int32_t token = first + row;
        for (int32_t d = 0; d < padded; ++d) {
            const int64_t word = int64_t{token / g} * padded + d;
            out[word * g + token % g] = element<type>::store(d < v_dim ? rows[row * row_stride + d] : 0.0f);
        }
    }
}

template <int type>
void fill(kv_kernels& table) {
    table.load_row[type] = load_row<type>;
    table.store_row[type] = store_row<type>;
    table.pack_k[type] = pack_k<type>;
    table.pack_v[type] = pack_v<type>;
}

}  // namespace

void fill_kv(kv_kernels& table) {
    fill<fp32>(table);
    fill<bf16>(table);
    fill<fp16>(table);
}

}  // namespace ropewalk::simd::scalar
