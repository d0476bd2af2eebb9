// Vector relative terms inside blocked attention: Transformer-XL and XLNet, DeBERTa, Shaw, BERT's relative_key(_query). Nothing of the size queries x
// keys exists: a tile computes with the table rows of its own distances.
//
//   x(i, j) = (q_i + u_h) . k_j + (q_i + v_h) . R_h[idx(delta)] + k_j . C_h[idx(delta)] + (q_i + s_h) . E_h[segment_i != segment_j]
//   delta   = position_i - j;      score = softcap(scale * x) and biases as in attention.hpp
//
// h is the query head. What depends on the layer (R, C, E, u, v, s) goes to run() in attention_layer; which terms there are, idx and the segments go
// to the plan. Q.K is fp32 arithmetic where a plan has relative terms, whatever the types. A step with relative terms shares no prefixes between
// sequences (attention_batch, "cascade") and has no token trees. attention_plan::flops() counts plain attention.
#pragma once

#include <cstdint>
#include <vector>

#include <ropewalk/attention.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>
#include <ropewalk/types.hpp>

namespace ropewalk {

// idx: rows[delta - first_delta] is the row of R and C for delta; distances before the first and behind the last have the row of the first and the
// last. -1 stands for no row: the terms are 0.
struct ROPEWALK_API relative_index {
    int64_t first_delta = 0;
    std::vector<int32_t> rows;

    // The tables have 2 * span rows, row clamp(bucket(delta) + span, 0, 2 * span - 1) (He et al., arXiv 2006.03654).
    // DeBERTa v1, and v2 without position_buckets: bucket(delta) = delta. v1 has span = min(sequence length, max_relative_positions) and takes rows
    // max_relative_positions - span .. + 2 * span of its table. span 1 .. 2^24.
    static result<relative_index> deberta(int32_t span) noexcept;
    // DeBERTa v2 and v3: the log buckets of relative_buckets.hpp, span = position_buckets. c2p is R = pos_key, p2c is C = pos_query (its index
    // clamp(-bucket(-delta) + span) is the same, buckets being odd); scale is 1 / sqrt(k_dim * (1 + number of terms)). position_buckets is even.
    static result<relative_index> deberta_buckets(int32_t position_buckets, int32_t max_relative_positions) noexcept;
    // Row clamp(j - position_i, -left, right) + left of left + right + 1 rows (Shaw et al., arXiv 1803.02155: left = right; wav2vec2-bert
    // relative_key: left_max_position_embeddings, right_max_position_embeddings). 0 .. 2^24 each.
    static result<relative_index> shaw(int32_t left, int32_t right) noexcept;
    // BERT relative_key (R) and relative_key_query (R and C, the same table): row delta + max_position_embeddings - 1 of 2 * max_position_embeddings
    // - 1 (Huang et al., arXiv 2009.13658). There is no clamp in BERT, as sequences are shorter. 1 .. 2^24.
    static result<relative_index> bert(int32_t max_position_embeddings) noexcept;
    // XLNet (Yang et al., arXiv 1906.08237) and Transformer-XL (1901.02860): row k_len - delta of the table of relative positions k_len, k_len - 1,
    // .. (clamp_len is the table's matter). Bidirectional: down to -q_len + 1. Unidirectional: down to 0, the term of a later key is 0. For a batch
    // the longest sequence's lengths do. q_len >= 1, k_len >= 0, together at most 2^30.
    static result<relative_index> xlnet(int64_t q_len, int64_t k_len, bool bidirectional) noexcept;
};

// Which terms there are beside q.k; attention_problem::relative. Copied by the plan.
struct relative_terms {
    bool rows = false;      // (q + v) . R
    bool columns = false;   // k . C
    bool segments = false;  // (q + s) . E, by attention_batch::q_segments and k_segments
    relative_index index;   // for rows and columns; without them it is not looked at
};

// The tensors of a layer, fp32, bf16 or fp16; R, C and E are given exactly if the plan has their terms. `heads` is heads (query heads) or 1: all
// heads share. Of R and C only rows that idx names for distances of the batch's tiles are read.
struct relative_tensors {
    const_head_view rows;           // R [more than the largest index, heads or 1, k_dim]
    const_head_view columns;        // C, likewise
    const_head_view segments;       // E [2, heads or 1, k_dim]
    const_head_view content_bias;   // u [1, heads or 1, k_dim] or absent (XLNet r_w_bias)
    const_head_view position_bias;  // v likewise (r_r_bias); not without R
    const_head_view segment_bias;   // s likewise (r_s_bias); not without E
};

}  // namespace ropewalk
