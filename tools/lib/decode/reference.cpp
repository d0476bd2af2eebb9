#include "tools/lib/decode/reference.hpp"

#include <algorithm>
#include <cmath>

namespace ropewalk::toolkit {
namespace {

constexpr double unit_fp32 = 0x1p-24;
constexpr double unit_bf16 = 0x1p-8;  // 8 bits of significand, to nearest

// Rows [heads, tokens, dim] rotated in double.
std::vector<double> rotated(const std::vector<float>& rows, const trace& recorded) {
    const model_shape& model = recorded.model;
    const std::size_t dim = static_cast<std::size_t>(model.head_dim), pairs = model.rope.inv_freq.size();
    const bool half = model.pairing == rope_pairing::half;
    std::vector<double> turned(rows.begin(), rows.end());
    for (std::size_t row = 0; row * dim < rows.size(); ++row) {
        const double position = static_cast<double>(row % static_cast<std::size_t>(recorded.tokens));
        for (std::size_t i = 0; i < pairs; ++i) {
            double& x0 = turned[row * dim + (half ? i : 2 * i)];
            double& x1 = turned[row * dim + (half ? i + pairs : 2 * i + 1)];
            const double angle = position * model.rope.inv_freq[i], c = std::cos(angle), s = std::sin(angle);
            const double y0 = x0 * c - x1 * s, y1 = x1 * c + x0 * s;
            x0 = y0 * model.rope.amplitude;
            x1 = y1 * model.rope.amplitude;
        }
    }
    return turned;
}

struct rounding {
    double score;  // relative to scale * sum |q| |k|
    double value;  // relative to sum p |v|
};

// Scores: k is rounded to the stored type; rotation of q and k adds 3u each, the sum of head_dim products sqrt(head_dim) u (errors of either sign),
// scaling and the base-2 exponent 4u. Values: rounding to the stored type, and the sums over the tokens.
rounding rounding_of(dtype kv_type, int32_t head_dim, int64_t tokens) {
    const double stored = kv_type == dtype::bf16 ? unit_bf16 : 0.0;
    return {stored + (10.0 + std::sqrt(head_dim)) * unit_fp32, stored + (4.0 + std::sqrt(static_cast<double>(tokens))) * unit_fp32};
}

// One query row against keys 0 .. count - 1.
struct row_reference {
    std::vector<double> probability, score_error;
    double error = 0.0;   // sum p d
    double factor = 1.0;  // what second-order terms add

    row_reference(const double* q, const double* k, int64_t dim, int64_t count, double scale, double relative)
        : probability(static_cast<std::size_t>(count)), score_error(probability.size()) {
        double most = -INFINITY, sum = 0.0, largest = 0.0;
        for (std::size_t j = 0; j < probability.size(); ++j) {
            double dot = 0.0, size = 0.0;
            for (int64_t d = 0; d < dim; ++d) {
                const double product = q[d] * k[static_cast<int64_t>(j) * dim + d];
                dot += product;
                size += std::fabs(product);
            }
            probability[j] = scale * dot;
            score_error[j] = relative * scale * size;
            most = std::max(most, probability[j]);
            largest = std::max(largest, score_error[j]);
        }
        for (double& p : probability) sum += p = std::exp(p - most);
        for (std::size_t j = 0; j < probability.size(); ++j) {
            probability[j] /= sum;
            error += probability[j] * score_error[j];
        }
        factor = std::exp(2.0 * largest);
    }
};

// Bounds of the outputs of one row: v points to [tokens, dim] of the KV head.
void bound_row(const row_reference& row, const float* v, int64_t dim, double value_error, double* bounds) {
    for (int64_t d = 0; d < dim; ++d) {
        double out = 0.0, size = 0.0, moved = 0.0;
        const auto value = [&](std::size_t j) { return double{v[static_cast<int64_t>(j) * dim + d]}; };
        for (std::size_t j = 0; j < row.probability.size(); ++j) {
            out += row.probability[j] * value(j);
            size += row.probability[j] * std::fabs(value(j));
        }
        for (std::size_t j = 0; j < row.probability.size(); ++j) moved += row.probability[j] * row.score_error[j] * std::fabs(value(j) - out);
        bounds[d] = row.factor * moved + value_error * size;
    }
}

}  // namespace

attention_bounds bounds_of(const trace& recorded, const trace_layer& layer, dtype kv_type) {
    const model_shape& model = recorded.model;
    const int64_t dim = model.head_dim, group = model.heads / model.kv_heads, tokens = recorded.tokens;
    const double scale = model.scale > 0.0f ? double{model.scale} : 1.0 / std::sqrt(static_cast<double>(dim));
    const rounding errors = rounding_of(kv_type, model.head_dim, tokens);
    const std::vector<double> q = rotated(layer.q, recorded), k = rotated(layer.k, recorded);
    attention_bounds bounds{std::vector<double>(layer.out.size()), std::vector<double>(layer.lse.size())};
    for (int64_t head = 0; head < model.heads; ++head) {
        const int64_t kv_first = head / group * tokens * dim;
        for (int64_t token = 0; token < tokens; ++token) {
            const int64_t at = head * tokens + token;
            const row_reference row(q.data() + at * dim, k.data() + kv_first, dim, token + 1, scale, errors.score);
            bound_row(row, layer.v.data() + kv_first, dim, errors.value, bounds.out.data() + at * dim);
            const auto index = static_cast<std::size_t>(at);
            bounds.lse[index] = row.factor * row.error + (4.0 + std::fabs(layer.lse[index])) * unit_fp32;
        }
    }
    return bounds;
}

}  // namespace ropewalk::toolkit
