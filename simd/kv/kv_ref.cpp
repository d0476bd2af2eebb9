// The reference packing: one element at a time, straight from the formulas of kv_pages.hpp.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "simd/core/kernels.hpp"
#include "simd/core/page_element.hpp"

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

// How the `n` values of a row or group become codes.
struct quantiser {
    float inverse = 1.0f;
    code_scale stored;
    bool finite = true;
};

template <int type>
quantiser quantiser_of(const float* x, int32_t n) {
    if constexpr (!quantised(type)) return {};
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    float lowest = x[0], highest = x[0], sum = 0.0f;
    for (int32_t i = 0; i < n; ++i) {
        lowest = std::min(lowest, x[i]);
        highest = std::max(highest, x[i]);
        sum += x[i] * 0.0f;
    }
    if (sum != sum) return {0.0f, {nan, nan}, false};
    if constexpr (type == int4) {
        const float scale = fp16_to_float(float_to_fp16((highest - lowest) / 15.0f));
        const float mid = fp16_to_float(float_to_fp16(std::fma(scale, 8.0f, lowest + 0.0f)));  // + 0: no negative zero
        if (!(scale + std::fabs(mid) < std::numeric_limits<float>::infinity())) return {0.0f, {nan, nan}, false};
        return {scale > 0.0f ? 1.0f / scale : 0.0f, {scale, mid}, true};
    } else {
        constexpr float most = largest_code(type);
        const float largest = std::max(highest, -lowest);
        if (largest < 0x1p-100f) return {0.0f, {0.0f, 0.0f}, true};
        return {most / largest, {largest / most, 0.0f}, true};
    }
}

// nearbyint in the default rounding mode: to nearest even.
template <int type>
float code_of(float x, const quantiser& q) {
    if constexpr (!quantised(type)) return x;
    if (!q.finite) x = 0.0f;
    if constexpr (type == int4) {
        const float mid = q.finite ? q.stored.mid : 0.0f;
        return std::clamp(std::nearbyint((x - mid) * q.inverse) + 8.0f, 0.0f, 15.0f);
    } else {
        return type == int8 ? std::nearbyint(x * q.inverse) : x * q.inverse;
    }
}

template <int type>
void store_scale(const code_scale& s, const place& at) {
    const auto put = [](const std::byte* target, auto bits) { std::memcpy(const_cast<std::byte*>(target), &bits, sizeof bits); };
    if constexpr (type == int4) {
        put(at.scale, float_to_fp16(s.scale));
        put(at.mid, float_to_fp16(s.mid));
    } else if constexpr (token_scaled(type)) {
        put(at.scale, s.scale);
    }
}

// One token of a part; place_of(d) says where its dim d lies.
template <int type, class Place>
void pack_token(const float* row, int32_t dim, int32_t stored, std::byte* elements, Place place_of) {
    const int32_t group = type == int4 ? scale_group : stored;
    for (int32_t first = 0; first < stored; first += group) {
        const quantiser q = quantiser_of<type>(row + first, std::min(group, dim - first));
        store_scale<type>(q.stored, place_of(first));
        for (int32_t d = first; d < first + group; ++d) {
            const place at = place_of(d);
            // Padding holds the code that is nearest to nothing: 0, in int4 the group's mid.
            const float code = d < dim ? code_of<type>(row[d], q) : type == int4 ? 8.0f : 0.0f;
            store_code<type>(code, elements + at.word, at.e);
        }
    }
}

template <int type>
void pack_k(const float* rows, int64_t row_stride, int32_t k_dim, const kv_part& part, int32_t first, int32_t count) {
    const int32_t stored = stored_k_dim(type, k_dim);
    for (int32_t row = 0; row < count; ++row) {
        pack_token<type>(rows + row * row_stride, k_dim, stored, part.elements,
                         [&](int32_t d) { return k_place<type>(part, stored, first + row, d); });
    }
}

template <int type>
void pack_v(const float* rows, int64_t row_stride, int32_t v_dim, const kv_part& part, int32_t first, int32_t count) {
    const int32_t stored = stored_v_dim(type, v_dim);
    for (int32_t row = 0; row < count; ++row) {
        pack_token<type>(rows + row * row_stride, v_dim, stored, part.elements,
                         [&](int32_t d) { return v_place<type>(part, stored, first + row, d); });
    }
}

// Entry (i, j) of the matrix is (-1)^(number of common bits of i and j) / sqrt(n).
void hadamard(float* row, int32_t dim) {
    const int32_t block = hadamard_block(dim);
    const double factor = 1.0 / std::sqrt(double(block));
    double turned[max_head_dim];
    for (float* x = row; x < row + dim; x += block) {
        for (int32_t i = 0; i < block; ++i) {
            double sum = 0.0;
            for (int32_t j = 0; j < block; ++j) sum += std::popcount(static_cast<uint32_t>(i & j)) % 2 == 0 ? double{x[j]} : -double{x[j]};
            turned[i] = sum * factor;
        }
        for (int32_t i = 0; i < block; ++i) x[i] = static_cast<float>(turned[i]);
    }
}

template <int type>
void k_to_v(const std::byte* k, int32_t k_dim, int32_t panels, int32_t v_dim, std::byte* v) {
    const kv_part from = read_only(k, nullptr, panels * panel), to{v, nullptr, panels * panel};
    for (int32_t t = 0; t < panels * panel; ++t) {
        for (int32_t d = 0; d < v_dim; ++d) {
            const float value = d < k_dim ? k_value<type>(from, k_dim, t, d) : 0.0f;
            const place at = v_place<type>(to, v_dim, t, d);
            store_code<type>(value, v + at.word, at.e);
        }
    }
}

template <int type>
void fill_tensor_type(kv_kernels& table) {
    table.k_to_v[type] = k_to_v<type>;
    table.load_row[type] = load_row<type>;
    table.store_row[type] = store_row<type>;
}

template <int type>
void fill_page_type(kv_kernels& table) {
    table.pack_k[type] = pack_k<type>;
    table.pack_v[type] = pack_v<type>;
}

}  // namespace

void fill_kv(kv_kernels& table) {
    fill_tensor_type<fp32>(table);
    fill_tensor_type<bf16>(table);
    fill_tensor_type<fp16>(table);
    fill_page_type<fp32>(table);
    fill_page_type<bf16>(table);
    fill_page_type<fp16>(table);
    fill_page_type<int8>(table);
    fill_page_type<int4>(table);
    fill_page_type<fp8>(table);
    table.hadamard = hadamard;
}

}  // namespace ropewalk::simd::scalar
