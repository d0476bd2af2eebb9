#include "tools/lib/decode/reference.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

namespace ropewalk::toolkit {
namespace {

constexpr double unit_fp32 = 0x1p-24;

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

// Rows times the orthonormal Hadamard matrix of kv_layout::hadamard, block by block.
void turn(std::vector<double>& rows, int64_t dim) {
    const int64_t block = dim & -dim;
    for (int64_t half = 1; half < block; half *= 2) {
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if ((static_cast<int64_t>(i) % dim & half) != 0) continue;
            double &a = rows[i], &b = rows[i + static_cast<std::size_t>(half)];
            std::tie(a, b) = std::pair((a + b) * std::sqrt(0.5), (a - b) * std::sqrt(0.5));
        }
    }
}

// What errors of a turned row can do to each value once it is turned back: all entries of the matrix have the same size.
void spread_errors(double* errors, int64_t dim) {
    const int64_t block = dim & -dim;
    for (double* x = errors; x < errors + dim; x += block) std::fill_n(x, block, std::accumulate(x, x + block, 0.0) / std::sqrt(double(block)));
}

// How far each value of a row may be from what a page of the type makes of it: half a step (kv_pages.hpp).
void storing_errors(dtype type, const double* x, int64_t dim, double* errors) {
    double largest = 0.0;
    for (int64_t d = 0; d < dim; ++d) largest = std::max(largest, std::fabs(x[d]));
    for (int64_t d = 0; d < dim; ++d) {
        const double size = std::fabs(x[d]);
        switch (type) {
            case dtype::fp32: errors[d] = 0.0; break;
            case dtype::bf16: errors[d] = size * 0x1p-8; break;  // 8 bits of significand, to nearest
            case dtype::fp16: errors[d] = std::max(size * 0x1p-11, 0x1p-25); break;
            case dtype::int8: errors[d] = largest / 127.0 * 0.50001; break;
            case dtype::fp8: errors[d] = std::max(size * 0x1p-4, largest / 448.0 * 0x1p-10) * 1.00001; break;
            case dtype::int4: {
                const auto [low, high] = std::minmax_element(x + d / 32 * 32, x + std::min<int64_t>(d / 32 * 32 + 32, dim));
                const double step = (*high - *low) / 15.0;
                // scale and mid are fp16: the codes are 8 steps away at most, and the last one may fall short by what the scale lost.
                errors[d] = step * 0.51 + 0x1p-11 * (16.0 * step + std::fabs(*low + 8.0 * step)) + 0x1p-20;
                break;
            }
        }
    }
}

std::vector<double> storing_errors(dtype type, const std::vector<double>& rows, int64_t dim) {
    std::vector<double> errors(rows.size());
    for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(dim)) storing_errors(type, rows.data() + at, dim, errors.data() + at);
    return errors;
}

// fp32 arithmetic. Scores, relative to scale * sum |q| |k|: rotation of q and k adds 3u each, the sum of head_dim products sqrt(head_dim) u (errors
// of either sign), scaling and the base-2 exponent 4u. Values, relative to sum p |v|: the sums over the tokens.
double score_rounding(int32_t head_dim) { return (10.0 + std::sqrt(head_dim)) * unit_fp32; }
double value_rounding(int64_t tokens) { return (4.0 + std::sqrt(static_cast<double>(tokens))) * unit_fp32; }

// One query row against keys 0 .. count - 1.
struct row_reference {
    std::vector<double> probability, score_error;
    double error = 0.0;   // sum p d
    double factor = 1.0;  // what second-order terms add

    row_reference(const double* q, const double* k, const double* k_errors, int64_t dim, int64_t count, double scale)
        : probability(static_cast<std::size_t>(count)), score_error(probability.size()) {
        double most = -INFINITY, sum = 0.0, largest = 0.0;
        for (std::size_t j = 0; j < probability.size(); ++j) {
            double dot = 0.0, size = 0.0, stored = 0.0;
            for (int64_t d = 0; d < dim; ++d) {
                const double product = q[d] * k[static_cast<int64_t>(j) * dim + d];
                dot += product;
                size += std::fabs(product);
                stored += std::fabs(q[d]) * k_errors[static_cast<int64_t>(j) * dim + d];
            }
            probability[j] = scale * dot;
            score_error[j] = scale * (stored + score_rounding(static_cast<int32_t>(dim)) * size);
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
void bound_row(const row_reference& row, const double* v, const double* v_errors, int64_t dim, double rounding, double* bounds) {
    for (int64_t d = 0; d < dim; ++d) {
        double out = 0.0, size = 0.0, stored = 0.0, moved = 0.0;
        const auto value = [&](std::size_t j) { return v[static_cast<int64_t>(j) * dim + d]; };
        for (std::size_t j = 0; j < row.probability.size(); ++j) {
            out += row.probability[j] * value(j);
            size += row.probability[j] * std::fabs(value(j));
            stored += row.probability[j] * v_errors[static_cast<int64_t>(j) * dim + d];
        }
        for (std::size_t j = 0; j < row.probability.size(); ++j) moved += row.probability[j] * row.score_error[j] * std::fabs(value(j) - out);
        bounds[d] = row.factor * (moved + stored) + rounding * size;
    }
}

}  // namespace

attention_bounds bounds_of(const trace& recorded, const trace_layer& layer, const kv_preset& kv) {
    const model_shape& model = recorded.model;
    const int64_t dim = model.head_dim, group = model.heads / model.kv_heads, tokens = recorded.tokens;
    const double scale = model.scale > 0.0f ? double{model.scale} : 1.0 / std::sqrt(static_cast<double>(dim));
    std::vector<double> q = rotated(layer.q, recorded), k = rotated(layer.k, recorded), v(layer.v.begin(), layer.v.end());
    if (kv.hadamard) {
        for (std::vector<double>* rows : {&q, &k, &v}) turn(*rows, dim);
    }
    const std::vector<double> k_errors = storing_errors(kv.k_type, k, dim), v_errors = storing_errors(kv.v_type, v, dim);
    attention_bounds bounds{std::vector<double>(layer.out.size()), std::vector<double>(layer.lse.size())};
    for (int64_t head = 0; head < model.heads; ++head) {
        const int64_t kv_first = head / group * tokens * dim;
        for (int64_t token = 0; token < tokens; ++token) {
            const int64_t at = head * tokens + token;
            const row_reference row(q.data() + at * dim, k.data() + kv_first, k_errors.data() + kv_first, dim, token + 1, scale);
            bound_row(row, v.data() + kv_first, v_errors.data() + kv_first, dim, value_rounding(tokens), bounds.out.data() + at * dim);
            if (kv.hadamard) spread_errors(bounds.out.data() + at * dim, dim);
            const auto index = static_cast<std::size_t>(at);
            bounds.lse[index] = row.factor * row.error + (4.0 + std::fabs(layer.lse[index])) * unit_fp32;
        }
    }
    return bounds;
}

}  // namespace ropewalk::toolkit
