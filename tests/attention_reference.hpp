// Attention straight from its definition, in double and over dense arrays: what every path of the library is compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ropewalk::test {

// What a query head adds to the score of a query and a key, by their positions.
using bias_function = std::function<double(int32_t head, int64_t query, int64_t key)>;

// One sequence. q [q_len][heads][k_dim], k [kv_len][kv_heads][k_dim], v [kv_len][kv_heads][v_dim].
struct reference_problem {
    int32_t heads = 1, kv_heads = 1, k_dim = 1, v_dim = 1;
    int64_t q_len = 0, kv_len = 0;
    int64_t q_start = 0;  // position of the first query
    double scale = 1.0, softcap = 0.0;
    int64_t left = std::numeric_limits<int64_t>::max(), right = 0, chunk = 0;
    std::vector<double> slopes;                // [heads] or empty
    std::vector<double> sinks;                 // [heads] or empty
    std::vector<uint64_t> tree;                // [q_len][ceil(q_len / 64)] or empty: attention_batch::tree_masks
    std::vector<uint64_t> mask;                // [q_len][ceil(kv_len / 64)] or empty: attention_batch::key_masks
    std::vector<int64_t> key_first, key_last;  // [q_len] or empty
    bias_function bias;                        // beside the slopes, or none
    int place = 0;                             // of slopes and bias: after softcap, before softcap, before scale

    std::function<double(int64_t i, int32_t h, int64_t j)> term;  // beside q.k, before the scale; or none

    bool drafted(int64_t j) const { return !tree.empty() && j >= kv_len - q_len; }
    bool tree_bit(int64_t i, int64_t j) const { return (tree[static_cast<std::size_t>(i * ((q_len + 63) / 64) + j / 64)] >> (j % 64) & 1) != 0; }
    bool hidden(int64_t i, int64_t j) const {
        const auto row = static_cast<std::size_t>(i);
        if (!key_first.empty() && j < key_first[row]) return true;
        if (!key_last.empty() && j >= key_last[row]) return true;
        return !mask.empty() && (mask[static_cast<std::size_t>(i * ((kv_len + 63) / 64) + j / 64)] >> (j % 64) & 1) == 0;
    }
    double added(int32_t h, int64_t position, int64_t key_position) const {
        double x = bias ? bias(h, position, key_position) : 0.0;
        if (!slopes.empty()) x -= slopes[static_cast<std::size_t>(h)] * std::fabs(double(position - key_position));
        return x;
    }
    int64_t tree_position(int64_t i) const {
        int64_t seen = 0;
        for (int64_t j = 0; j < q_len; ++j) seen += tree_bit(i, j);
        return kv_len - q_len + seen - 1;
    }
};

struct reference_result {
    std::vector<double> out;  // [q_len][heads][v_dim]
    std::vector<double> lse;  // [q_len][heads]
};

template <class Q, class K, class V>
reference_result reference_attention(const reference_problem& p, const std::vector<Q>& q, const std::vector<K>& k, const std::vector<V>& v) {
    reference_result result;
    result.out.assign(static_cast<std::size_t>(p.q_len * p.heads * p.v_dim), 0.0);
    result.lse.assign(static_cast<std::size_t>(p.q_len * p.heads), -std::numeric_limits<double>::infinity());
    for (int64_t i = 0; i < p.q_len; ++i) {
        for (int32_t h = 0; h < p.heads; ++h) {
            const int32_t kv_head = h / (p.heads / p.kv_heads);
            const int64_t position = p.tree.empty() ? p.q_start + i : p.tree_position(i);
            std::vector<double> scores;
            std::vector<int64_t> keys;
            for (int64_t j = 0; j < p.kv_len; ++j) {
                const int64_t key_position = p.drafted(j) ? p.tree_position(j - (p.kv_len - p.q_len)) : j;
                if (position - key_position > p.left || key_position - position > p.right) continue;
                if (p.drafted(j) && !p.tree_bit(i, j - (p.kv_len - p.q_len))) continue;
                if (p.chunk != 0 && (position < 0 || position / p.chunk != key_position / p.chunk)) continue;
                if (p.hidden(i, j)) continue;
                double s = 0.0;
                for (int32_t d = 0; d < p.k_dim; ++d) {
                    s += double(q[static_cast<std::size_t>((i * p.heads + h) * p.k_dim + d)]) *
                         double(k[static_cast<std::size_t>((j * p.kv_heads + kv_head) * p.k_dim + d)]);
                }
                if (p.term) s += p.term(i, h, j);
                const double added = p.added(h, position, key_position);
                s = p.place == 2 ? (s + added) * p.scale : p.place == 1 ? s * p.scale + added : s * p.scale;
                if (p.softcap != 0.0) s = p.softcap * std::tanh(s / p.softcap);
                if (p.place == 0) s += added;
                scores.push_back(s);
                keys.push_back(j);
            }
            double m = -std::numeric_limits<double>::infinity();
            for (const double s : scores) m = std::max(m, s);
            if (!p.sinks.empty()) m = std::max(m, p.sinks[static_cast<std::size_t>(h)]);
            double sum = p.sinks.empty() ? 0.0 : std::exp(p.sinks[static_cast<std::size_t>(h)] - m);
            for (const double s : scores) sum += std::exp(s - m);
            if (sum == 0.0) continue;
            double* out = result.out.data() + (i * p.heads + h) * p.v_dim;
            for (std::size_t n = 0; n < keys.size(); ++n) {
                const double weight = std::exp(scores[n] - m) / sum;
                for (int32_t d = 0; d < p.v_dim; ++d) {
                    out[d] += weight * double(v[static_cast<std::size_t>((keys[n] * p.kv_heads + kv_head) * p.v_dim + d)]);
                }
            }
            result.lse[static_cast<std::size_t>(i * p.heads + h)] = m + std::log(sum);
        }
    }
    return result;
}

}  // namespace ropewalk::test
