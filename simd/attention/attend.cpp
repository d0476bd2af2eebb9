#include "simd/attention/attend.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace ropewalk::simd {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr double ln2 = 0.6931471805599453;
constexpr float log2e = 1.4426950408889634f;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t round_down(int64_t value, int64_t multiple) { return value / multiple * multiple; }

constexpr int64_t bias_stride = tile_tokens + panel;  // runs of a grid are copied by fours and end up to three floats later
constexpr int32_t bias_rows = 8;                      // go through softmax at once: what is copied for them stays in L1

// Everything that one worker needs beside its inputs, carved out of the caller's scratch.
struct workspace {
    std::byte* q;                                                                 // [rows][k_pad] in 4 bytes each, or bf16 for its dot
    float* scores;                                                                // [rows][tile_tokens]
    std::byte* p;                                                                 // the scores again, or bf16
    float* o;                                                                     // [rows][v_pad] of the chunk
    float* total;                                                                 // [rows][v_pad]
    float* l;                                                                     // [rows][sum_lanes]
    float *m, *alpha, *total_m, *total_l, *slope, *distance, *exponent, *factor;  // [rows]
    int32_t *first, *last;                                                        // [rows] in the tile
    int64_t *position, *seen_first, *seen_last;                                   // [rows] in the sequence
    const float** bias_table;                                                     // [rows] of the row's head (and token, if each has values)
    const float** bias;                                                           // [bias_rows] of a tile: where their values are
    float* bias_values;                                                           // [bias_rows][bias_stride] for those that lie nowhere as they are
    uint32_t* bits;                                                               // [rows][tile_words] of a tile with drafted keys
    float* token_position;                                                        // [tile_tokens] of such a tile
    std::byte* k_tile;                                                            // plain K/V: the tile as panels
    std::byte* v_tile;                                                            //            and as V groups; that of pages without V
    float* rows16;                                                                // 16 rows in fp32 on their way into a panel
    std::byte* relative;
    std::byte* v_clean;  // V without masked slots when one holds Inf or NaN, or int4 scales without theirs

    int64_t bytes;  // of all of it
};

workspace carve(const attend_shape& shape, int64_t rows, std::byte* base) {
    workspace w{};
    int64_t offset = 0;
    const auto take = [&](int64_t bytes) {
        std::byte* at = base == nullptr ? nullptr : base + offset;
        offset += round_up(bytes, 64);
        return at;
    };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    const bool plain = shape.page_tokens == 0;
    w.q = take(rows * shape.k_pad * 4);
    w.scores = floats(rows * tile_tokens);
    w.p = shape.pv_arithmetic == dot_bf16 ? take(rows * tile_tokens * 2) : reinterpret_cast<std::byte*>(w.scores);
    w.o = floats(rows * shape.v_pad);
    w.total = floats(rows * shape.v_pad);
    w.l = floats(rows * sum_lanes);
    for (float** array : {&w.m, &w.alpha, &w.total_m, &w.total_l, &w.slope, &w.distance, &w.exponent, &w.factor}) *array = floats(2 * rows);
    w.first = reinterpret_cast<int32_t*>(take(rows * 4));
    w.last = reinterpret_cast<int32_t*>(take(rows * 4));
    for (int64_t** array : {&w.position, &w.seen_first, &w.seen_last}) *array = reinterpret_cast<int64_t*>(take(rows * 8));
    const bool biased = shape.bias != bias_kind::none;
    w.bias_table = reinterpret_cast<const float**>(take(biased ? rows * 8 : 0));
    w.bias = reinterpret_cast<const float**>(take(biased ? bias_rows * 8 : 0));
    w.bias_values = floats(biased ? bias_rows * bias_stride : 0);
    w.bits = reinterpret_cast<uint32_t*>(take(rows * tile_words * 4));
    w.token_position = floats(tile_tokens);
    w.k_tile = take(plain ? tile_tokens / panel * panel_bytes(shape.k_type, shape.k_pad) : 0);
    w.v_tile = take(plain || shape.v_in_k ? v_bytes(shape.v_type, shape.v_pad, tile_tokens) : 0);
    w.rows16 = floats(plain ? int64_t{panel} * std::max(shape.k_dim, shape.v_dim) : 0);
    w.relative = take(relative_scratch_bytes(shape, static_cast<int32_t>(rows)));
    w.v_clean = take(shape.v_type == int4 ? v_scale_bytes(shape.v_type, shape.v_pad, tile_tokens) : v_bytes(shape.v_type, shape.v_pad, tile_tokens));
    w.bytes = offset;
    return w;
}

// Position of a token of the block.
int64_t query_position(const attend_block& block, int32_t token) {
    const int64_t index = block.position + token;
    return block.tree_depths == nullptr ? index : first_drafted(block) + block.tree_depths[index - first_drafted(block)];
}

// 32 bits of a row of words from bit `from` on; zeros outside.
uint32_t bits_from(const uint64_t* row, int64_t words, int64_t from) {
    const auto word = [&](int64_t i) { return i >= 0 && i < words ? row[i] : 0; };
    const int64_t i = from >> 6;
    const int shift = static_cast<int>(from & 63);
    return static_cast<uint32_t>(word(i) >> shift | (shift == 0 ? 0 : word(i + 1) << (64 - shift)));
}

// The lowest n of 32 bits.
uint32_t low_bits(int64_t n) { return n <= 0 ? 0 : n >= 32 ? ~0u : (1u << n) - 1u; }

// One attend() call: the blocks, their inputs and where it stands.
struct walker {
    const kernel_table& kernels;
    const attend_shape& shape;
    const attend_tensors& tensors;
    const attend_block& block;  // the first: keys are read through it
    int32_t blocks;
    int32_t rows;  // of all blocks
    workspace w;
    key_range seen;         // by any row
    key_range seen_by_all;  // rows, but for the drafted keys of a tree
    relative_walker relative;

    void load_rows();
    void load_block(const attend_block& loaded, int32_t first_row);
    void run_chunk(int64_t chunk);
    void run_tile(int64_t tile_first, int64_t first, int64_t last, int64_t next_first);
    void scores(int64_t tile_first, int64_t begin, int64_t end, int64_t next, int64_t next_end);
    void add_relative(int64_t tile_first, int64_t begin, int64_t end);
    int32_t load_runs(int64_t tile_first, int64_t begin, int64_t end, int64_t next, int64_t next_end, v_run* runs) const;
    void values(int64_t tile_first, int64_t begin, const v_run* runs, int32_t pieces);
    prefetch_run fetch(int64_t& next, int64_t next_end, bool keys) const;
    void ask_again(prefetch_run& run, int64_t first, bool keys) const;
    void touch_scales(int64_t first, int64_t tokens, bool keys) const;
    bool non_finite(const v_run& run, int64_t from, int64_t to) const;
    bool masks_non_finite(const v_run& run, int64_t first) const;
    void values_row(const pv_args& all, int64_t begin, int32_t r);
    void pack_plain(int64_t tile_first, int64_t begin, int64_t end);
    void load_bias(int32_t first_row, int32_t count, int64_t begin, int32_t tokens);
    void grid_row(int32_t r, int64_t begin, int32_t tokens, float* out) const;
    void tree_row(int32_t r, int64_t begin, int32_t tokens, float* out) const;
    int64_t key_position(int64_t token) const;
    void turn_keys(int64_t tile_first, int64_t begin, int64_t end);
    void load_tree(int64_t begin, int32_t tokens);
    uint32_t tree_bits(int32_t r, int64_t token) const;
    bool sees(int32_t r, int64_t token) const;
    void fold(const attend_partial& part);
    void reduce_sums(float* l) const;
    void clear_total();
    void leave(const attend_partial& part, int64_t index) const;
    void write_rows();

    // Where a token's panel or V group begins; `token` is the first one of a panel or group.
    const std::byte* k_at(int64_t tile_first, int64_t token) const;
    const std::byte* v_at(int64_t tile_first, int64_t token) const;
    const float* k_scales_at(int64_t token) const;
    const std::byte* v_scales_at(int64_t token) const;
    // Tokens from `token` on that lie together in memory.
    int64_t piece_tokens(int64_t token) const {
        const int64_t unit = shape.page_tokens == 0 ? tile_tokens : std::min<int64_t>(shape.page_tokens, tile_tokens);
        return unit - token % unit;
    }
    // Decode: memory is the limit, not arithmetic.
    bool reads_once() const { return rows <= few_rows; }
    int64_t p_bytes() const { return shape.pv_arithmetic == dot_bf16 ? 2 : 4; }  // of one weight
    int64_t q_stride_bytes() const { return int64_t{shape.k_pad} * (shape.qk_arithmetic == dot_bf16 ? 2 : 4); }
    int64_t q_stride() const { return shape.qk_arithmetic == dot_integer ? q_stride_bytes() : shape.k_pad; }  // as qk_args has it
    int64_t k_bytes(int64_t tokens) const { return tokens / panel * panel_bytes(shape.k_type, shape.k_pad); }
    // Rows of scales in a page's V: one fp32 for each token, or scales and mids of each group of dims.
    int32_t scale_rows() const { return shape.v_type == int4 ? 2 * shape.v_pad / scale_group : token_scaled(shape.v_type) ? 1 : 0; }
    // Lines of V that are fetched during softmax: the share of the time that it takes of softmax and P.V.
    int64_t softmax_lines(int64_t tokens) const { return v_bytes(tokens) / 64 / 6; }
    int64_t v_bytes(int64_t tokens) const { return simd::v_bytes(shape.v_type, shape.v_pad, tokens); }
    const std::byte* record(int64_t token) const {
        return tensors.pages + int64_t{block.page_ids[token / shape.page_tokens]} * shape.page_stride + int64_t{block.kv_head} * shape.head_stride;
    }
};

const std::byte* walker::k_at(int64_t tile_first, int64_t token) const {
    if (shape.page_tokens == 0) return w.k_tile + k_bytes(token - tile_first);
    return record(token) + k_bytes(token % shape.page_tokens);
}

const std::byte* walker::v_at(int64_t tile_first, int64_t token) const {
    if (shape.page_tokens == 0 || shape.v_in_k) return w.v_tile + v_bytes(token - tile_first);
    return record(token) + shape.v_offset + v_bytes(token % shape.page_tokens);
}

// Only quantised types have scales, and only pages have quantised types.
const float* walker::k_scales_at(int64_t token) const {
    if (!token_scaled(shape.k_type)) return nullptr;
    return reinterpret_cast<const float*>(record(token) + shape.k_scale_offset) + token % shape.page_tokens;
}

const std::byte* walker::v_scales_at(int64_t token) const {
    if (!quantised(shape.v_type)) return nullptr;
    return record(token) + shape.v_scale_offset + token % shape.page_tokens * v_scale_step(shape.v_type);
}

void walker::load_rows() {
    seen = {std::numeric_limits<int64_t>::max(), 0};
    for (int32_t b = 0, row = 0; b < blocks; ++b) {
        const attend_block& loaded = (&block)[b];
        const key_range range = visible_keys(shape, loaded);
        seen = {std::min(seen.first, range.first), std::max(seen.last, range.last)};
        load_block(loaded, row);
        row += loaded.tokens * shape.group;
    }
    seen_by_all = {*std::max_element(w.seen_first, w.seen_first + rows), *std::min_element(w.seen_last, w.seen_last + rows)};
    relative.load_segments();
    clear_total();
}

// Q of a block's rows into scratch, and what each row sees.
void walker::load_block(const attend_block& loaded, int32_t first_row) {
    const int64_t q_bytes = type_bytes(shape.q_type);
    for (int32_t i = 0; i < loaded.tokens * shape.group; ++i) {
        const int32_t r = first_row + i, token = i / shape.group;
        const int32_t head = loaded.kv_head * shape.group + i % shape.group;
        const std::byte* source = tensors.q + ((loaded.q_row + token) * tensors.q_token_stride + head * tensors.q_head_stride) * q_bytes;
        alignas(64) float copy[max_head_dim];
        float* row = shape.qk_arithmetic == fma_fp32 ? reinterpret_cast<float*>(w.q + r * q_stride_bytes()) : copy;
        kernels.kv.load_row[shape.q_type](source, row, shape.k_dim);
        if (shape.relative.given) relative.load_row(r, head, row);
        if (shape.hadamard) kernels.kv.hadamard(row, shape.k_dim);
        for (int32_t d = shape.k_dim; d < shape.k_pad; ++d) row[d] = 0.0f;
        if (shape.qk_arithmetic == dot_bf16) kernels.kv.store_row[bf16](row, w.q + r * q_stride_bytes(), shape.k_pad);
        if (shape.qk_arithmetic == dot_integer) kernels.attention.quantise_q[shape.k_type](row, shape.k_pad, w.q + r * q_stride_bytes());
        const key_range range = visible_keys(shape, loaded, token);
        w.position[r] = query_position(loaded, token);
        w.seen_first[r] = range.first;
        w.seen_last[r] = range.last;
        if (shape.alibi) w.slope[r] = tensors.slopes[head];
        if (shape.bias != bias_kind::none) {
            w.bias_table[r] = tensors.bias.data + (loaded.q_row + token) * tensors.bias.token_stride + head * tensors.bias.head_stride;
        }
    }
}

void walker::clear_total() {
    for (int32_t r = 0; r < rows; ++r) {
        w.total_m[r] = -infinity;
        w.total_l[r] = 0.0f;
    }
    std::memset(w.total, 0, static_cast<std::size_t>(rows) * shape.v_pad * 4);
}

// Plain K/V rows of tokens [begin, end) become panels and groups. What lies beside them in the last panel is zero, so that nothing but what
// the caller gave is ever computed with.
void walker::pack_plain(int64_t tile_first, int64_t begin, int64_t end) {
    const int64_t k_element = type_bytes(shape.k_type), v_element = type_bytes(shape.v_type);
    for (int64_t token = begin; token < end; token += panel) {
        const auto count = static_cast<int32_t>(std::min<int64_t>(panel, end - token));
        const auto at = static_cast<int32_t>(token - tile_first);
        if (count < panel) {
            std::memset(w.k_tile + k_bytes(at), 0, static_cast<std::size_t>(k_bytes(panel)));
            std::memset(w.v_tile + v_bytes(at), 0, static_cast<std::size_t>(v_bytes(panel)));
        }
        const auto pack = [&](const std::byte* data, int64_t token_stride, int64_t head_stride, int type, int64_t bytes, int32_t dim, auto function,
                              std::byte* tile) {
            const kv_part part{tile, nullptr, tile_tokens};
            const std::byte* source = data + ((block.kv_row + token) * token_stride + block.kv_head * head_stride) * bytes;
            if (type == fp32) return function(reinterpret_cast<const float*>(source), token_stride, dim, part, at, count);
            for (int32_t i = 0; i < count; ++i) kernels.kv.load_row[type](source + i * token_stride * bytes, w.rows16 + int64_t{i} * dim, dim);
            function(w.rows16, dim, dim, part, at, count);
        };
        pack(tensors.k, tensors.k_token_stride, tensors.k_head_stride, shape.k_type, k_element, shape.k_dim, kernels.kv.pack_k[shape.k_type],
             w.k_tile);
        pack(tensors.v, tensors.v_token_stride, tensors.v_head_stride, shape.v_type, v_element, shape.v_dim, kernels.kv.pack_v[shape.v_type],
             w.v_tile);
    }
}

// The panels of [begin, end) become V groups.
void walker::turn_keys(int64_t tile_first, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end;) {
        const int64_t tokens = std::min(piece_tokens(token), end - token);
        kernels.kv.k_to_v[shape.k_type](k_at(tile_first, token), shape.k_pad, static_cast<int32_t>(tokens / panel), shape.v_pad,
                                        w.v_tile + v_bytes(token - tile_first));
        token += tokens;
    }
}

// What is fetched from `next` on while this tile is worked on; moves `next` behind the piece. Few rows read a line once: the next tile's K during
// Q.K, its V during P.V, scales at once; DRAM answers at its own pace, and what is asked for a half tile ahead comes too late (simd/README.md). Many
// rows work long on a line and need L2 for themselves: this tile's V during Q.K, the next one's K during P.V.
prefetch_run walker::fetch(int64_t& next, int64_t next_end, bool keys) const {
    if (shape.page_tokens == 0 || next >= next_end || (shape.v_in_k && !keys)) return {};
    const int64_t first = next, tokens = std::min(piece_tokens(next), next_end - next);
    next += tokens;
    touch_scales(first, tokens, keys);
    return {keys ? k_at(0, first) : v_at(0, first), static_cast<int32_t>((keys ? k_bytes(tokens) : v_bytes(tokens)) / 64)};
}

// What few rows ask for a second time: while K is read, V of the same tile, and while V is read, K of the next one. `first` is the token where it
// begins; what lies behind it in the page's record may be asked for too.
void walker::ask_again(prefetch_run& run, int64_t first, bool keys) const {
    if (run.lines == 0 || shape.v_in_k) return;
    const std::byte* from = keys ? k_at(0, first) : v_at(0, first);
    if (from + int64_t{run.lines} * 64 <= record(first) + shape.head_stride) run.again = from - run.next;
}

// Asks for the scales that lie apart from K or V.
void walker::touch_scales(int64_t first, int64_t tokens, bool keys) const {
    asm volatile("");  // or g++ takes this for a function without effects and drops the calls
    const auto touch = [](const void* scales, int64_t bytes) {
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const std::byte*>(scales) + at, 0, 2);
    };
    if (keys) {
        if (token_scaled(shape.k_type)) touch(k_scales_at(first), tokens * 4);
        return;
    }
    for (int32_t row = 0; row < scale_rows(); ++row) {
        touch(v_scales_at(first) + int64_t{row} * shape.page_tokens * v_scale_step(shape.v_type), tokens * v_scale_step(shape.v_type));
    }
}

// Q.K over the panels of [begin, end).
void walker::scores(int64_t tile_first, int64_t begin, int64_t end, int64_t next, int64_t next_end) {
    for (int64_t token = begin; token < end;) {
        const int64_t tokens = std::min(piece_tokens(token), end - token);
        prefetch_run ahead = fetch(next, next_end, reads_once());
        if (reads_once()) ask_again(ahead, token, false);
        kernels.attention.qk[shape.k_type][shape.qk_arithmetic]({w.q, q_stride(), rows, shape.k_pad, k_at(tile_first, token), k_scales_at(token),
                                                                 static_cast<int32_t>(tokens / panel), w.scores + (token - tile_first), tile_tokens,
                                                                 ahead});
        token += tokens;
    }
}

void walker::add_relative(int64_t tile_first, int64_t begin, int64_t end) {
    key_panel panels[tile_tokens / panel];
    const auto count = static_cast<int32_t>((end - begin) / panel);
    for (int32_t p = 0; p < count; ++p) panels[p] = {k_at(tile_first, begin + p * panel), k_scales_at(begin + p * panel)};
    relative.add(begin, panels, count, w.scores + (begin - tile_first));
}

// Where V of tokens [begin, end) lies, with what is to be fetched beside it.
int32_t walker::load_runs(int64_t tile_first, int64_t begin, int64_t end, int64_t next, int64_t next_end, v_run* runs) const {
    int32_t pieces = 0;
    for (int64_t token = begin; token < end; ++pieces) {
        const auto tokens = static_cast<int32_t>(std::min(piece_tokens(token), end - token));
        const int64_t next_token = next;
        runs[pieces] = {v_at(tile_first, token), v_scales_at(token), tokens, fetch(next, next_end, !reads_once())};
        if (reads_once() && next > next_token) ask_again(runs[pieces].prefetch, next_token, true);
        token += tokens;
    }
    return pieces;
}

// P.V over the groups of [begin, end), by integer dots over whole panels. A row's weight of a masked token is 0, and adding 0 * v changes nothing,
// unless v is Inf or NaN: then each row gets V with its masked tokens zeroed. Integers are numbers, and the kernels of integer dots look at scales.
void walker::values(int64_t tile_first, int64_t begin, const v_run* runs, int32_t pieces) {
    const bool integer = shape.pv_arithmetic == dot_integer;
    bool blemished = false;
    int64_t token = begin;
    for (const v_run* run = runs; run != runs + pieces; token += run++->tokens) {
        if (token_scaled(shape.v_type) && !integer) {
            kernels.attention.scale_weights(w.scores + (token - tile_first), tile_tokens, rows, run->tokens,
                                            reinterpret_cast<const float*>(run->scales), code_unit(shape.v_type));
        }
        blemished = blemished || (!integer && masks_non_finite(*run, token));
    }
    const pv_args args{
        w.p + (begin - tile_first) * p_bytes(), tile_tokens, rows, runs, pieces, shape.page_tokens, shape.v_pad, w.o, shape.v_pad, w.alpha};
    if (!blemished) return kernels.attention.pv[shape.v_type][shape.pv_arithmetic](args);
    for (int32_t r = 0; r < rows; ++r) values_row(args, begin, r);
}

// True if V or its scales hold Inf or NaN in tokens [from, to) of the run.
bool walker::non_finite(const v_run& run, int64_t from, int64_t to) const {
    const int64_t tokens = to - from;
    if (tokens <= 0) return false;
    const auto& check = kernels.attention.non_finite;
    if (token_scaled(shape.v_type)) return false;  // codes are numbers, and the scales have gone into the weights
    if (shape.v_type != int4) return check[shape.v_type](run.v + v_bytes(from), tokens * shape.v_pad);
    const std::byte* scales = run.scales + from * v_scale_step(shape.v_type);
    for (int32_t row = 0; row < scale_rows(); ++row) {
        if (check[fp16](scales + int64_t{row} * shape.page_tokens * 2, tokens)) return true;
    }
    return false;
}

// True if V holds Inf or NaN in the run's tokens that some row does not see; the run begins at token `first`.
bool walker::masks_non_finite(const v_run& run, int64_t first) const {
    const int64_t common_first = std::max(first, seen_by_all.first);
    const int64_t common_last = std::min({first + run.tokens, first_drafted(block), seen_by_all.last});
    const int64_t word = word_elements(shape.v_type);
    const int64_t from = std::min<int64_t>(round_up(common_first - first, word), run.tokens);
    const int64_t to = std::max(from, round_down(common_last - first, word));
    return non_finite(run, 0, from) || non_finite(run, to, run.tokens);
}

// P.V of row r of `all`, whose tokens begin at `begin`, over a copy with nothing but zeros in the tokens that the row does not see: of V, or of the
// scales and mids of int4.
void walker::values_row(const pv_args& all, int64_t begin, int32_t r) {
    const bool scaled = shape.v_type == int4;
    const int64_t step = v_scale_step(shape.v_type), scale_row = tile_tokens * step;
    v_run runs[tile_tokens / panel];
    int64_t tokens = 0;
    for (int32_t i = 0; i < all.pieces; ++i) {
        const v_run& from = all.runs[i];
        std::byte* copy = w.v_clean + (scaled ? tokens * step : v_bytes(tokens));
        if (scaled) {
            for (int32_t row = 0; row < scale_rows(); ++row) {
                std::memcpy(copy + row * scale_row, from.scales + row * shape.page_tokens * step, static_cast<std::size_t>(from.tokens * step));
            }
            runs[i] = {from.v, copy, from.tokens, {}};
        } else {
            std::memcpy(copy, from.v, static_cast<std::size_t>(v_bytes(from.tokens)));
            runs[i] = {copy, from.scales, from.tokens, {}};
        }
        tokens += from.tokens;
    }
    const int64_t word = word_elements(shape.v_type), bytes = type_bytes(shape.v_type);
    for (int64_t t = 0; t < tokens; ++t) {
        if (sees(r, begin + t)) continue;
        if (scaled) {
            for (int32_t row = 0; row < scale_rows(); ++row) std::memset(w.v_clean + row * scale_row + t * step, 0, static_cast<std::size_t>(step));
        } else {
            std::byte* group = w.v_clean + v_bytes(round_down(t, word)) + t % word * bytes;
            for (int32_t d = 0; d < shape.v_pad; ++d) std::memset(group + d * word * bytes, 0, static_cast<std::size_t>(bytes));
        }
    }
    pv_args own = all;
    own.p = static_cast<const std::byte*>(all.p) + r * tile_tokens * p_bytes();
    own.rows = 1;
    own.runs = runs;
    own.page_tokens = tile_tokens;
    own.o += int64_t{r} * shape.v_pad;
    own.alpha += r;
    kernels.attention.pv[shape.v_type][shape.pv_arithmetic](own);
}

// Which of 32 tokens row r sees.
uint32_t walker::tree_bits(int32_t r, int64_t token) const {
    const int64_t drafted = first_drafted(block), words = tree_words(block.drafted);
    const uint32_t bits = low_bits(drafted - token) | bits_from(block.tree_masks + r / shape.group * words, words, token - drafted);
    return bits & ~low_bits(w.seen_first[r] - token) & low_bits(w.seen_last[r] - token);
}

bool walker::sees(int32_t r, int64_t token) const {
    if (token < w.seen_first[r] || token >= w.seen_last[r]) return false;
    return token < first_drafted(block) || (tree_bits(r, token) & 1u) != 0;
}

// What the rows see of a tile with drafted keys, and the positions of its tokens relative to the first one's index. Several blocks never meet
// drafted keys at once: see attend().
void walker::load_tree(int64_t begin, int32_t tokens) {
    for (int32_t r = 0; r < rows; ++r) {
        for (int32_t i = 0; i < tile_words; ++i) w.bits[r * tile_words + i] = tree_bits(r, begin + i * 32);
    }
    for (int32_t t = 0; shape.alibi && t < tokens; ++t) w.token_position[t] = static_cast<float>(key_position(begin + t) - begin);
}

int64_t walker::key_position(int64_t token) const {
    const int64_t drafted = first_drafted(block), key = token - drafted;
    return block.tree_depths == nullptr || key < 0 || key >= block.drafted ? token : drafted + block.tree_depths[key];
}

// Points w.bias at the values of the tokens begin .. begin + tokens - 1 for rows first_row .. first_row + count - 1.
void walker::load_bias(int32_t first_row, int32_t count, int64_t begin, int32_t tokens) {
    const attend_bias& bias = tensors.bias;
    const bool tree = block.tree_depths != nullptr && begin + tokens > first_drafted(block);
    for (int32_t i = 0; i < count; ++i) {
        const int32_t r = first_row + i;
        float* values = w.bias_values + i * bias_stride;
        w.bias[i] = values;
        if (shape.bias == bias_kind::rows) {
            const int64_t given = std::clamp<int64_t>(bias.keys - begin, 0, tokens);
            std::copy_n(w.bias_table[r] + begin, given, values);
            std::fill(values + given, values + tokens, 0.0f);
        } else if (shape.bias == bias_kind::grid) {
            grid_row(r, begin, tokens, values);
        } else if (tree) {
            tree_row(r, begin, tokens, values);
        } else {
            w.bias[i] = w.bias_table[r] + tile_tokens + std::clamp<int64_t>(begin - w.position[r] - bias.first, -tile_tokens, bias.count);
        }
    }
}

// Runs of the table, one for each row of the grid.
void walker::grid_row(int32_t r, int64_t begin, int32_t tokens, float* out) const {
    const attend_bias& bias = tensors.bias;
    const float* table = w.bias_table[r];
    const int64_t height = bias.height, width = bias.width, line = 2 * width - 1;
    const int64_t class_tokens = bias.class_token ? 1 : 0, query = w.position[r] - class_tokens;
    const float* of_class = table + (2 * height - 1) * line;
    int32_t t = 0;
    if (begin < class_tokens) out[t++] = of_class[query < 0 ? 2 : 1];
    if (query < 0) return std::fill(out + t, out + tokens, of_class[0]);
    const int64_t key = begin + t - class_tokens;
    int64_t y = key / width, x = key % width;
    const float* from = table + (y - query / width + height - 1) * line + x - query % width + width - 1;
    for (; t < tokens && y < height; ++y, from += line - x, x = 0) {
        const auto run = static_cast<int32_t>(std::min<int64_t>(width - x, tokens - t));
        for (int32_t i = 0; i < run; i += 4) std::memcpy(out + t + i, from + i, 16);
        t += run;
    }
    std::fill(out + t, out + tokens, 0.0f);
}

// Positions of drafted keys follow their depth in the tree, not their order.
void walker::tree_row(int32_t r, int64_t begin, int32_t tokens, float* out) const {
    const attend_bias& bias = tensors.bias;
    const float* table = w.bias_table[r] + tile_tokens;
    for (int32_t t = 0; t < tokens; ++t) {
        out[t] = table[std::clamp<int64_t>(key_position(begin + t) - w.position[r] - bias.first, 0, bias.count - 1)];
    }
}

// The first `lines` lines of a run leave it.
prefetch_run take_lines(prefetch_run& run, int64_t lines) {
    const prefetch_run taken{run.next, static_cast<int32_t>(std::min<int64_t>(lines, run.lines)), run.again};
    run.next += int64_t{taken.lines} * 64;
    run.lines -= taken.lines;
    return taken;
}

// Tokens [first, last) of the tile that begins at tile_first; next_first is where the next tile's panels begin (for prefetch), or -1.
void walker::run_tile(int64_t tile_first, int64_t first, int64_t last, int64_t next_first) {
    const int64_t begin = round_down(first, panel), end = round_up(last, panel);
    if (shape.page_tokens == 0) pack_plain(tile_first, begin, last);
    const int64_t next_end =
        next_first < 0 ? -1 : std::min<int64_t>(round_down(next_first, tile_tokens) + tile_tokens, round_up(block.kv_len, panel));
    if (reads_once()) {
        scores(tile_first, begin, end, next_first, next_end);
    } else {
        scores(tile_first, begin, end, begin, end);
    }
    if (shape.relative.given) add_relative(tile_first, begin, end);
    if (shape.v_in_k) turn_keys(tile_first, begin, end);

    const auto tokens = static_cast<int32_t>(end - begin);
    if (seen_by_all.first <= begin && end <= seen_by_all.last) {
        std::fill_n(w.first, rows, 0);
        std::fill_n(w.last, rows, tokens);
    } else {
        for (int32_t r = 0; r < rows; ++r) {
            w.first[r] = static_cast<int32_t>(std::clamp<int64_t>(w.seen_first[r] - begin, 0, tokens));
            w.last[r] = static_cast<int32_t>(std::clamp<int64_t>(w.seen_last[r] - begin, 0, tokens));
        }
    }
    for (int32_t r = 0; shape.alibi && r < rows; ++r) w.distance[r] = static_cast<float>(w.position[r] - begin);
    const bool tree = last > first_drafted(block);
    if (tree) load_tree(begin, tokens);
    float* s = w.scores + (begin - tile_first);
    std::byte* p = w.p + (begin - tile_first) * p_bytes();
    const int64_t unit = shape.pv_arithmetic == dot_integer ? panel : word_elements(shape.v_type);
    const int64_t v_begin = round_down(first, unit), v_end = round_up(last, unit);
    v_run runs[tile_tokens / panel];
    const int32_t pieces = load_runs(tile_first, v_begin, v_end, next_first, next_end, runs);
    prefetch_run ahead;
    if (reads_once()) ahead = take_lines(runs[0].prefetch, softmax_lines(v_end - v_begin));
    const bool biased = shape.bias != bias_kind::none;
    for (int32_t r = 0, count; r < rows; r += count) {
        count = biased ? std::min(bias_rows, rows - r) : rows;
        if (biased) load_bias(r, count, begin, tokens);
        kernels.attention.softmax[shape.pv_arithmetic]({s + int64_t{r} * tile_tokens,
                                                        tile_tokens,
                                                        count,
                                                        tokens,
                                                        w.first + r,
                                                        w.last + r,
                                                        shape.scale,
                                                        shape.softcap,
                                                        shape.alibi ? w.slope : nullptr,
                                                        w.distance + r,
                                                        w.m + r,
                                                        w.alpha + r,
                                                        w.l + int64_t{r} * sum_lanes,
                                                        p + int64_t{r} * tile_tokens * p_bytes(),
                                                        tree ? w.bits + r * tile_words : nullptr,
                                                        w.token_position,
                                                        biased ? w.bias : nullptr,
                                                        shape.bias_factor,
                                                        shape.bias_before_softcap,
                                                        r == 0 ? ahead : prefetch_run{}});
    }
    values(tile_first, v_begin, runs, pieces);
}

void walker::run_chunk(int64_t chunk) {
    for (int32_t r = 0; r < rows; ++r) w.m[r] = -infinity;
    std::memset(w.l, 0, static_cast<std::size_t>(rows) * sum_lanes * 4);
    std::memset(w.o, 0, static_cast<std::size_t>(rows) * shape.v_pad * 4);
    const int64_t first = std::max(seen.first, chunk * chunk_tokens);
    const int64_t last = std::min(seen.last, (chunk + 1) * chunk_tokens);
    for (int64_t tile = round_down(first, tile_tokens); tile < last; tile += tile_tokens) {
        const int64_t next = tile + tile_tokens;
        run_tile(tile, std::max(first, tile), std::min(last, next), next < seen.last ? next : -1);
    }
}

// Sums the lanes of each row in one fixed order.
void walker::reduce_sums(float* l) const {
    for (int32_t r = 0; r < rows; ++r) {
        float lanes[sum_lanes];
        std::memcpy(lanes, w.l + int64_t{r} * sum_lanes, sizeof lanes);
        for (int32_t width = sum_lanes / 2; width > 0; width /= 2) {
            for (int32_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
        }
        l[r] = lanes[0];
    }
}

// total = total * 2^(M - M') + part * 2^(m - M') with M' = max(M, m). Folding into nothing (M = -inf) copies the part bit for bit.
void walker::fold(const attend_partial& part) {
    float *a = w.factor, *b = w.factor + rows;
    for (int32_t r = 0; r < rows; ++r) {
        const float m = std::max(w.total_m[r], part.m[r]);
        const float reference = m == -infinity ? 0.0f : m;
        w.exponent[r] = w.total_m[r] - reference;
        w.exponent[rows + r] = part.m[r] - reference;
        w.total_m[r] = m;
    }
    kernels.math.exp2(w.exponent, w.factor, int64_t{rows} * 2);
    for (int32_t r = 0; r < rows; ++r) {
        w.total_l[r] = w.total_l[r] * a[r] + part.l[r] * b[r];
        kernels.attention.fold(w.total + int64_t{r} * shape.v_pad, part.o + int64_t{r} * shape.v_pad, a[r], b[r], shape.v_pad);
    }
}

// Each block's rows of `part` into the block's partials.
void walker::leave(const attend_partial& part, int64_t index) const {
    for (int32_t b = 0, row = 0; b < blocks; ++b) {
        const attend_block& left = (&block)[b];
        const int32_t count = left.tokens * shape.group;
        const attend_partial to = partial_at(left.partials + index * partial_floats(count, shape.v_pad), count);
        std::memcpy(to.m, part.m + row, static_cast<std::size_t>(count) * 4);
        std::memcpy(to.l, part.l + row, static_cast<std::size_t>(count) * 4);
        std::memcpy(to.o, part.o + int64_t{row} * shape.v_pad, static_cast<std::size_t>(count) * shape.v_pad * 4);
        row += count;
    }
}

// out = total / sum, lse = ln(sum) in natural units; a sink joins the sum here, and only here.
void walker::write_rows() {
    for (int32_t r = 0; r < rows; ++r) {
        const int32_t head = block.kv_head * shape.group + r % shape.group;
        const int64_t token = block.q_row + r / shape.group;
        float m = w.total_m[r], l = w.total_l[r], scale = 1.0f;
        if (shape.sinks) {
            const float sink = tensors.sinks[head] * log2e;
            const float with_sink = std::max(m, sink);
            scale = m == -infinity ? 0.0f : std::exp2(m - with_sink);
            l = l * scale + std::exp2(sink - with_sink);
            m = with_sink;
        }
        const float factor = l == 0.0f ? 0.0f : scale / l;
        if (shape.hadamard) kernels.kv.hadamard(w.total + int64_t{r} * shape.v_pad, shape.v_dim);
        std::byte* out = tensors.out + (token * tensors.out_token_stride + head * tensors.out_head_stride) * type_bytes(shape.out_type);
        kernels.attention.finish[shape.out_type](w.total + int64_t{r} * shape.v_pad, factor, out, shape.v_dim);
        if (tensors.lse != nullptr) {
            tensors.lse[token * shape.heads + head] = l == 0.0f ? -infinity : static_cast<float>(ln2 * (double{m} + std::log2(double{l})));
        }
    }
}

walker make_walker(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block* blocks, int32_t count,
                   std::byte* scratch) {
    int32_t rows = 0;
    for (int32_t b = 0; b < count; ++b) rows += blocks[b].tokens * shape.group;
    const workspace w = carve(shape, rows, scratch);
    return {kernels, shape, tensors, *blocks, count, rows, w, {}, {}, relative_walker(kernels, shape, tensors, *blocks, rows, w.relative)};
}

}  // namespace

int choose_arithmetic(const attention_kernels& kernels, int kv_type, int q_type, bool fast) noexcept {
    const auto available = [&](int arithmetic) { return kernels.qk[kv_type][arithmetic] != nullptr; };
    if (kv_type == bf16 && (fast || q_type == bf16) && available(dot_bf16)) return dot_bf16;
    if (kv_type == int8 && (fast || q_type != fp32) && available(dot_integer)) return dot_integer;
    if (kv_type == int4 && fast && available(dot_integer)) return dot_integer;
    return fma_fp32;
}

int64_t first_position(const attend_shape& shape, int64_t position) noexcept {
    const int64_t first = shape.left >= position ? 0 : position - shape.left;
    return shape.chunk == 0 || position < 0 ? first : std::max(first, round_down(position, shape.chunk));
}

key_range visible_keys(const attend_shape& shape, const attend_block& block, int32_t token) noexcept {
    const int64_t position = query_position(block, token), kv_len = block.kv_len;
    key_range seen{first_position(shape, position), kv_len};
    if (block.tree_depths != nullptr) {
        // A token of a tree is the last one it sees. `first`, a position, bounds indices too: the index of a drafted key is at least its position.
        seen.last = block.position + token + 1;
    } else {
        if (shape.right < kv_len - position - 1) seen.last = position + shape.right + 1;
        if (shape.chunk != 0) seen.last = std::min(seen.last, position < 0 ? 0 : round_down(position, shape.chunk) + shape.chunk);
    }
    if (block.key_ranges != nullptr) {
        seen.first = std::max<int64_t>(seen.first, block.key_ranges[2 * token]);
        seen.last = std::min<int64_t>(seen.last, block.key_ranges[2 * token + 1]);
    }
    return {std::clamp<int64_t>(seen.first, 0, kv_len), std::clamp<int64_t>(seen.last, 0, kv_len)};
}

key_range visible_keys(const attend_shape& shape, const attend_block& block) noexcept {
    key_range seen{visible_keys(shape, block, 0).first, visible_keys(shape, block, block.tokens - 1).last};
    // But for trees and ranges, the first token sees the first key and the last token the last one.
    if (block.tree_depths == nullptr && block.key_ranges == nullptr) return seen;
    seen = {block.kv_len, 0};
    for (int32_t token = 0; token < block.tokens; ++token) {
        const key_range row = visible_keys(shape, block, token);
        if (row.first < row.last) seen = {std::min(seen.first, row.first), std::max(seen.last, row.last)};
    }
    return seen;
}

int64_t attend_scratch_bytes(const attend_shape& shape, int32_t rows) noexcept { return carve(shape, rows, nullptr).bytes; }

void attend(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block* blocks, int32_t count,
            int64_t chunk_first, int64_t chunk_last, chunk_results results, std::byte* scratch) noexcept {
    walker walk = make_walker(kernels, shape, tensors, blocks, count, scratch);
    workspace& w = walk.w;
    walk.load_rows();
    for (int64_t chunk = chunk_first; chunk < chunk_last; ++chunk) {
        walk.run_chunk(chunk);
        walk.reduce_sums(w.alpha);
        const attend_partial part{w.m, w.alpha, w.o};
        if (results == chunk_results::each) {
            walk.leave(part, chunk - chunk_first);
        } else {
            walk.fold(part);
        }
    }
    if (results == chunk_results::folded) walk.leave({w.total_m, w.total_l, w.total}, 0);
    if (results == chunk_results::finished) walk.write_rows();
}

void finish_block(const kernel_table& kernels, const attend_shape& shape, const attend_tensors& tensors, const attend_block& block, int64_t count,
                  std::byte* scratch) noexcept {
    walker walk = make_walker(kernels, shape, tensors, &block, 1, scratch);
    const int64_t one = partial_floats(walk.rows, shape.v_pad);
    const attend_partial first = partial_at(block.partials, walk.rows);  // copied: folding it into nothing would turn its -0 into +0
    std::memcpy(walk.w.total_m, first.m, static_cast<std::size_t>(walk.rows) * 4);
    std::memcpy(walk.w.total_l, first.l, static_cast<std::size_t>(walk.rows) * 4);
    std::memcpy(walk.w.total, first.o, static_cast<std::size_t>(walk.rows) * shape.v_pad * 4);
    for (int64_t i = 1; i < count; ++i) walk.fold(partial_at(block.partials + i * one, walk.rows));
    walk.write_rows();
}

}  // namespace ropewalk::simd
