// The C interface through which bench/peers calls ropewalk, and the roofs, in the process of the peer. Only for that benchmark: not installed, no
// stable names. It uses the public API at level 1 (pages in the caller's memory) and the roof loops of tools/lib. Types are passed as the numbers
// of ropewalk::dtype, so a type that the library learns later needs no change here; a refused call returns null, -1 or 1, and
// ropewalk_peers_error() is the status text. Pages are dense; page_tokens is the library's default.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ropewalk/ropewalk.hpp>
#include "simd/core/dispatch.hpp"
#include "tools/lib/roof.hpp"
#include "tools/lib/workers.hpp"

#define PEERS_API extern "C" __attribute__((visibility("default")))

namespace ropewalk::bench {
namespace {

thread_local std::string error_text;

int32_t refused(const status& state) {
    if (state.ok()) return 0;
    error_text = std::string(name(state.code())) + ": " + state.text();
    return 1;
}

// Cache geometry as the caller gives it.
struct pool {
    int32_t k_type, v_type, kv_heads, dim, page_count;

    [[nodiscard]] kv_layout layout() const {
        kv_layout made;
        made.k_type = static_cast<dtype>(k_type);
        made.v_type = static_cast<dtype>(v_type);
        made.kv_heads = kv_heads;
        made.k_dim = made.v_dim = dim;
        return made;
    }
    [[nodiscard]] kv_pages pages(void* base) const { return {static_cast<std::byte*>(base), layout(), page_count}; }
};

struct session {
    toolkit::workers workers;
    const simd::roof_kernels* roof;
};

struct attention {
    const session& owner;
    pool geometry;
    attention_problem problem;
    attention_plan plan;
    std::vector<std::byte> workspace;

    [[nodiscard]] std::span<std::byte> aligned_workspace() {
        void* start = workspace.data();
        std::size_t room = workspace.size();
        std::align(page_alignment, plan.workspace_bytes(), start, room);
        return {static_cast<std::byte*>(start), plan.workspace_bytes()};
    }
};

struct rotation {
    const session& owner;
    rope_table table;
    std::vector<int64_t> positions;
    dtype type;
    int32_t heads, dim;
};

}  // namespace

// ---- the library ------------------------------------------------------------------------------------------------------------------------

PEERS_API const char* ropewalk_peers_error() { return error_text.c_str(); }
PEERS_API const char* ropewalk_peers_version() { return version(); }
PEERS_API int32_t ropewalk_peers_page_tokens() { return kv_layout{}.page_tokens; }
PEERS_API int32_t ropewalk_peers_threads() { return toolkit::workers::available(); }

// The name of the target in force, or null.
PEERS_API const char* ropewalk_peers_target() {
    const auto active = active_target();
    return refused(active.state()) != 0 ? nullptr : name(*active).data();
}

PEERS_API session* ropewalk_peers_open(int32_t threads) {
    const auto active = active_target();
    if (refused(active.state()) != 0) return nullptr;
    auto made = toolkit::workers::create(threads);
    if (refused(made.state()) != 0) return nullptr;
    return new session{std::move(made).value(), &simd::kernels_of(*active)->roof};
}
PEERS_API void ropewalk_peers_close(session* s) { delete s; }

// ---- cache ------------------------------------------------------------------------------------------------------------------------------

// Bytes of the pool, or -1.
PEERS_API int64_t ropewalk_peers_pool_bytes(const pool* geometry) {
    if (refused(geometry->layout().validate()) != 0) return -1;
    return geometry->page_count * geometry->layout().page_stride_bytes();
}

// k and v [tokens, kv_heads, dim] of the type into slots [tokens] of the pool at base (64-byte aligned).
PEERS_API int32_t ropewalk_peers_append(session* s, const pool* geometry, void* base, const int64_t* slots, int64_t tokens, int32_t type,
                                        const void* k, const void* v) {
    const auto view = [&](const void* data) { return dense_view(data, static_cast<dtype>(type), tokens, geometry->kv_heads, geometry->dim); };
    return refused(kv_append(geometry->pages(base), {slots, static_cast<std::size_t>(tokens)}, view(k), view(v), {}, s->workers.on()));
}

// ---- attention --------------------------------------------------------------------------------------------------------------------------

// Causal attention: sequence i brings queries q_indptr[i] .. q_indptr[i + 1] at the end of kv_lens[i] keys, whose pages are
// page_ids[page_indptr[i] .. page_indptr[i + 1]). slopes [heads] or null.
PEERS_API attention* ropewalk_peers_plan(const session* s, const pool* geometry, int32_t heads, int32_t q_type, const float* slopes,
                                         int32_t sequences, const int64_t* q_indptr, const int64_t* kv_lens, const int64_t* page_indptr,
                                         const int32_t* page_ids) {
    auto made = std::make_unique<attention>(attention{*s, *geometry, {}, {}, {}});
    attention_problem& p = made->problem;
    p.heads = heads;
    p.kv_heads = geometry->kv_heads;
    p.k_dim = p.v_dim = geometry->dim;
    p.q_type = p.out_type = static_cast<dtype>(q_type);
    // As the peers do with int8 and int4: queries are fp32 and may be rounded to integers.
    if (geometry->k_type == static_cast<int32_t>(dtype::int8) || geometry->k_type == static_cast<int32_t>(dtype::int4)) {
        p.precision = attention_precision::fast;
    }
    p.alibi_slopes = slopes;
    const auto n = static_cast<std::size_t>(sequences);
    const auto ids = static_cast<std::size_t>(page_indptr[n]);
    const attention_batch batch{{q_indptr, n + 1}, {kv_lens, n}, {}, {page_indptr, n + 1}, {page_ids, ids}, {}};
    if (refused(made->plan.build(p, batch, geometry->layout(), geometry->page_count, s->workers.on().concurrency())) != 0) return nullptr;
    made->workspace.resize(made->plan.workspace_bytes() + page_alignment);
    return made.release();
}
PEERS_API void ropewalk_peers_plan_free(attention* a) { delete a; }
PEERS_API int64_t ropewalk_peers_plan_kv_bytes(const attention* a) { return a->plan.kv_bytes(); }

PEERS_API int32_t ropewalk_peers_attend(attention* a, const void* q, void* base, void* out) {
    const attention_problem& p = a->problem;
    return refused(run(a->plan, dense_view(q, p.q_type, a->plan.q_tokens(), p.heads, p.k_dim), a->geometry.pages(base),
                       dense_view(out, p.out_type, a->plan.q_tokens(), p.heads, p.v_dim), {}, a->aligned_workspace(), a->owner.workers.on()));
}

// ---- rope -------------------------------------------------------------------------------------------------------------------------------

PEERS_API rotation* ropewalk_peers_rope(const session* s, int32_t type, int32_t heads, int32_t dim, double theta, const int64_t* positions,
                                        int64_t tokens) {
    const auto spec = rope_spec::standard(dim, theta);
    if (refused(spec.state()) != 0) return nullptr;
    auto table = rope_table::growing(*spec);
    if (refused(table.state()) != 0) return nullptr;
    return new rotation{*s, std::move(table).value(), {positions, positions + tokens}, static_cast<dtype>(type), heads, dim};
}
PEERS_API void ropewalk_peers_rope_free(rotation* r) { delete r; }

// Rotates data [tokens, heads, dim] in place, half-split.
PEERS_API int32_t ropewalk_peers_rotate(const rotation* r, void* data) {
    const head_view q = dense_view(data, r->type, static_cast<int64_t>(r->positions.size()), r->heads, r->dim);
    return refused(rope_apply(r->table, r->positions, q, {}, {}, r->owner.workers.on()));
}

// ---- roofs ------------------------------------------------------------------------------------------------------------------------------

// GB/s of reading the buffer, of scaling it in place; GFLOP/s of multiply-adds, in bf16 pair dots where `bf16` is asked for and the target has them.
PEERS_API double ropewalk_peers_read_roof(const session* s, const void* data, int64_t bytes) {
    return toolkit::read_roof(*s->roof, {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)}, s->workers.on());
}
PEERS_API double ropewalk_peers_scale_roof(const session* s, float* data, int64_t count) {
    return toolkit::scale_roof(*s->roof, {data, static_cast<std::size_t>(count)}, s->workers.on());
}
PEERS_API double ropewalk_peers_arithmetic_roof(const session* s, int32_t bf16) {
    if (bf16 != 0 && s->roof->bf16_dot != nullptr) return toolkit::bf16_dot_roof(*s->roof, s->workers.on());
    return toolkit::fma_roof(*s->roof, s->workers.on());
}

}  // namespace ropewalk::bench
