// Buckets of relative positions, by which T5 and DeBERTa look up their tables: filled once over a range of distances, exactly. A bucket's edge lies
// where two integer powers cross; near an edge they are compared as integers, so no rounding of a logarithm can move a distance across.
#pragma once

#include <cstdint>
#include <span>

#include <ropewalk/export.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

inline constexpr int32_t max_relative_buckets = 1024;

// T5, mT5, UMT5, MPNet, WavLM (Raffel et al., arXiv 1910.10683). With n = num_buckets, halved if bidirectional, e = n / 2 and r = the distance:
// r < e has bucket r, others min(n - 1, e + floor((n - e) ln(r / e) / ln(max_distance / e))).
struct t5_bucket_rule {
    int32_t num_buckets = 32;    // relative_attention_num_buckets: 2 .. max_relative_buckets; if bidirectional even and at least 4
    int32_t max_distance = 128;  // relative_attention_max_distance: more than e
    // Encoders: keys after the query have the upper half of the buckets. Otherwise (decoders) they all have bucket 0.
    bool bidirectional = true;
    bool operator==(const t5_bucket_rule&) const = default;
};

// buckets[i] receives the bucket of relative position first_relative_position + i, which is KEY position minus QUERY position: 0 .. num_buckets - 1.
// invalid_argument for a rule that is not legal; out_of_range if the last relative position does not fit int64_t. Nothing is written then.
// Thread-safe.
ROPEWALK_API status t5_buckets(std::span<int32_t> buckets, int64_t first_relative_position, const t5_bucket_rule& rule) noexcept;

// DeBERTa v2 and v3 (He et al., arXiv 2006.03654). With mid = position_buckets / 2 and r = |delta|: r <= mid has bucket delta, others
// sign(delta) * (mid + ceil((mid - 1) ln(r / mid) / ln((max_relative_positions - 1) / mid))).
struct deberta_bucket_rule {
    int32_t position_buckets = 256;        // 2 .. max_relative_buckets
    int32_t max_relative_positions = 512;  // more than mid + 1
};

// buckets[i] receives the bucket of relative position first_relative_position + i, which is QUERY position minus KEY position. Lookups clamp it to
// -position_buckets .. position_buckets - 1; here it goes on and stops at twice that. Errors as of t5_buckets(). Thread-safe.
ROPEWALK_API status deberta_buckets(std::span<int32_t> buckets, int64_t first_relative_position, const deberta_bucket_rule& rule) noexcept;

}  // namespace ropewalk
