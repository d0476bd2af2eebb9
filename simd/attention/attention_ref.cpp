// Attention kernels of the scalar target: the plain formulas, element by element, with double sums. The reference that the vector kernels are tested
// against and the fallback of hosts without a vector target.
#include <cmath>
#include <cstring>

#include "simd/core/kernels.hpp"
#include "simd/core/page_element.hpp"

namespace ropewalk::simd::scalar {

void fill_relative_attention(relative_kernels& table);

namespace {

template <int type>
void qk(const qk_args& args) {
    const auto* q = static_cast<const float*>(args.q);
    const kv_part part = read_only(args.k, args.k_scales, args.panels * panel);
    for (int32_t r = 0; r < args.rows; ++r) {
        for (int32_t t = 0; t < args.panels * panel; ++t) {
            double sum = 0.0;
            for (int32_t d = 0; d < args.k_dim; ++d) sum += double{q[r * args.q_stride + d]} * k_value<type>(part, args.k_dim, t, d);
            args.scores[r * args.score_stride + t] = static_cast<float>(sum);
        }
    }
}

void softmax(const softmax_args& args) {
    const auto bias = [&](int32_t r, int32_t t) {
        if (args.bias != nullptr) return double{args.bias[r][t]} * args.bias_factor;
        if (args.slope == nullptr) return 0.0;
        const double position = args.bits != nullptr ? double{args.token_position[t]} : t;
        return double{-args.slope[r]} * std::fabs(double{args.distance[r]} - position);
    };
    for (int32_t r = 0; r < args.rows; ++r) {
        float* s = args.scores + r * args.score_stride;
        float* p = static_cast<float*>(args.p) + r * args.score_stride;
        float* l = args.l + r * sum_lanes;
        const auto seen = [&](int32_t t) {
            if (args.bits != nullptr) return (args.bits[r * tile_words + t / 32] >> t % 32 & 1u) != 0;
            return t >= args.first[r] && t < args.last[r];
        };
        const float before = args.m[r];
        float m = before;
        for (int32_t t = 0; t < args.tokens; ++t) {
            if (!seen(t)) continue;
            double x = double{s[t]} * args.scale;
            if (args.bias_before_softcap) x += bias(r, t);
            if (args.softcap != 0.0f) x = args.softcap * std::tanh(x / args.softcap);
            if (!args.bias_before_softcap) x += bias(r, t);
            s[t] = static_cast<float>(x);
            if (s[t] > m) m = s[t];
        }
        const double reference = std::isinf(m) && m < 0.0f ? 0.0 : double{m};
        args.m[r] = m;
        args.alpha[r] = m == before ? 1.0f : static_cast<float>(std::exp2(before - reference));
        for (int32_t lane = 0; lane < sum_lanes; ++lane) l[lane] *= args.alpha[r];
        for (int32_t t = 0; t < args.tokens; ++t) {
            p[t] = seen(t) ? static_cast<float>(std::exp2(s[t] - reference)) : 0.0f;
            l[t % sum_lanes] += p[t];
        }
    }
}

template <int type>
void pv(const pv_args& args) {
    constexpr int32_t g = word_elements(type);
    const auto value = [&](const v_run& run, int32_t t, int32_t d) {
        if constexpr (!token_scaled(type)) return v_value<type>(read_only(run.v, run.scales, args.page_tokens), args.v_dim, t, d);
        return load_code<type>(run.v + (int64_t{t / g} * args.v_dim + d) * (g * type_bits(type) / 8), t % g) / code_unit(type);
    };
    for (int32_t r = 0; r < args.rows; ++r) {
        for (int32_t d = 0; d < args.v_dim; ++d) {
            const float* p = static_cast<const float*>(args.p) + r * args.p_stride;
            // Rounded to fp32 at every token, as on the vector targets: how the tokens are cut into pages must not show.
            float sum = args.o[r * args.o_stride + d] * args.alpha[r];
            for (int32_t i = 0; i < args.pieces; ++i) {
                for (int32_t t = 0; t < args.runs[i].tokens; ++t) sum = static_cast<float>(double{*p++} * value(args.runs[i], t, d) + sum);
            }
            args.o[r * args.o_stride + d] = sum;
        }
    }
}

void scale_weights(float* p, int64_t p_stride, int32_t rows, int32_t tokens, const float* scale, float unit) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t t = 0; t < tokens; ++t) {
            if (p[r * p_stride + t] != 0.0f) p[r * p_stride + t] *= scale[t] * unit;
        }
    }
}

template <int type>
bool non_finite(const std::byte* values, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        if (!std::isfinite(load_code<type>(values, static_cast<int32_t>(i)))) return true;
    }
    return false;
}

void fold(float* total, const float* part, float a, float b, int64_t n) {
    for (int64_t i = 0; i < n; ++i) total[i] = static_cast<float>(double{total[i]} * a + double{part[i]} * b);
}

template <int type>
void finish(const float* total, float factor, void* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        const auto bits = element<type>::store(total[i] * factor);
        std::memcpy(static_cast<std::byte*>(out) + i * type_bytes(type), &bits, sizeof bits);
    }
}

template <int type>
void fill_page_type(attention_kernels& table) {
    table.qk[type][fma_fp32] = qk<type>;
    table.pv[type][fma_fp32] = pv<type>;
}

template <int type>
void fill_tensor_type(attention_kernels& table) {
    fill_page_type<type>(table);
    table.non_finite[type] = non_finite<type>;
    table.finish[type] = finish<type>;
}

}  // namespace

void fill_attention(attention_kernels& table) {
    table = {};
    fill_tensor_type<fp32>(table);
    fill_tensor_type<bf16>(table);
    fill_tensor_type<fp16>(table);
    fill_page_type<int8>(table);
    fill_page_type<int4>(table);
    fill_page_type<fp8>(table);
    table.softmax[fma_fp32] = softmax;
    table.scale_weights = scale_weights;
    table.fold = fold;
    fill_relative_attention(table.relative);
}

}  // namespace ropewalk::simd::scalar
