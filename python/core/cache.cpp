#include "bind.hpp"

namespace ropewalk::python {
namespace {

sequence_id id(int64_t sequence) { return static_cast<sequence_id>(sequence); }

// Level 1: pages in anybody's memory.
kv_pages pages_in(array memory, const kv_layout& layout, int32_t count) {
    const array_view view(memory, "memory", access::write);
    if (view.type() != nb::dtype<uint8_t>()) wrong_type("memory", view.type_name(), "uint8");
    if (!view.contiguous()) wrong_value("memory", "strides with gaps", "a contiguous array");
    const int64_t bytes = view.elements();
    if (count < 1 || bytes / layout.page_stride_bytes() < count) {
        wrong_value("memory", std::to_string(bytes) + " bytes",
                    std::to_string(count) + " pages (at least 1) of " + std::to_string(layout.page_stride_bytes()));
    }
    return {static_cast<std::byte*>(view.data()), layout, count};
}

std::string preset_names() {
    std::string names;
    for (const kv_preset& preset : kv_presets) names.append(names.empty() ? "" : ", ").append(preset.name);
    return names;
}

void bind_layout(nb::module_& m) {
    nb::class_<kv_layout>(m, "KvLayout", "How a page stores page_tokens tokens of all KV heads of one layer.")
        .def(
            "__init__",
            [](kv_layout* self, int32_t kv_heads, int32_t k_dim, std::optional<int32_t> v_dim, std::string_view k_type, std::string_view v_type,
               int32_t page_tokens, bool hadamard, bool v_in_k, int64_t head_stride, int64_t page_stride) {
                new (self) kv_layout{dtype_of(k_type, "k_type"),
                                     dtype_of(v_type, "v_type"),
                                     kv_heads,
                                     k_dim,
                                     v_dim.value_or(k_dim),
                                     page_tokens,
                                     hadamard,
                                     v_in_k,
                                     head_stride,
                                     page_stride};
                check(self->validate());
            },
            nb::kw_only(), "kv_heads"_a, "k_dim"_a, "v_dim"_a = nb::none(), "k_type"_a = "bf16", "v_type"_a = "bf16", "page_tokens"_a = 64,
            "hadamard"_a = false, "v_in_k"_a = false, "head_stride"_a = 0, "page_stride"_a = 0,
            "Types: fp32, bf16, fp16, int8, int4, fp8. Strides in bytes, 0: packed. v_in_k: V is the first v_dim dims of K (latent attention).")
        .def_static(
            "preset",
            [](std::string_view name, int32_t kv_heads, int32_t k_dim, std::optional<int32_t> v_dim, int32_t page_tokens) {
                const kv_preset* preset = find_kv_preset(name);
                if (preset == nullptr) wrong_value("preset", "name '" + std::string(name) + "'", "one of " + preset_names());
                const kv_layout layout{preset->k_type, preset->v_type, kv_heads, k_dim, v_dim.value_or(k_dim), page_tokens, preset->hadamard};
                check(layout.validate());
                return layout;
            },
            "name"_a, nb::kw_only(), "kv_heads"_a, "k_dim"_a, "v_dim"_a = nb::none(), "page_tokens"_a = 64,
            ("A pair of types by name: " + preset_names() + " (h: hadamard).").c_str())
        .def_prop_ro("k_type", [](const kv_layout& l) { return name(l.k_type); })
        .def_prop_ro("v_type", [](const kv_layout& l) { return name(l.v_type); })
        .def_ro("kv_heads", &kv_layout::kv_heads)
        .def_ro("k_dim", &kv_layout::k_dim)
        .def_ro("v_dim", &kv_layout::v_dim)
        .def_ro("page_tokens", &kv_layout::page_tokens)
        .def_ro("hadamard", &kv_layout::hadamard)
        .def_ro("v_in_k", &kv_layout::v_in_k)
        .def_prop_ro("record_bytes", &kv_layout::record_bytes)
        .def_prop_ro("page_bytes", &kv_layout::page_stride_bytes)
        .def_prop_ro("token_bytes", &kv_layout::token_bytes);
    nb::class_<kv_pages>(m, "KvPages", "Pages of one layer; page ids index them, a slot is page id * page_tokens + index in the page.")
        .def(
            "__init__",
            [](kv_pages* self, array memory, const kv_layout& layout, int32_t count) { new (self) kv_pages(pages_in(memory, layout, count)); },
            "memory"_a, "layout"_a, "count"_a, nb::keep_alive<1, 2>(), "memory [>= count * layout.page_bytes] uint8, 64-byte aligned, yours.")
        .def_ro("layout", &kv_pages::layout)
        .def_ro("count", &kv_pages::count);
}

void bind_pages(nb::module_& m) {
    m.attr("NO_SLOT") = no_slot;
    m.def(
        "kv_append",
        [](const kv_pages& pages, array slots, array k, array v, const rope_table* rope, array positions, std::string_view pairing, int32_t first_dim,
           int32_t pair_distance, executor* on) {
            const numbers<int64_t> s(slots, "slots"), p(positions, "positions");
            const tensor k_view(k, "k", access::read), v_view(v, "v", access::read);
            const kv_append_rope rotation{rope, p, options_of(pairing, false, first_dim, pair_distance, false)};
            perform(on, [&](executor& e) { return kv_append(pages, s, k_view, v_view, rotation, e); });
        },
        "pages"_a, "slots"_a, "k"_a.none(), "v"_a.none(), nb::kw_only(), "rope"_a.none() = nb::none(), "positions"_a.none() = nb::none(),
        "pairing"_a = "half", "first_dim"_a = 0, "pair_distance"_a = 0, "executor"_a.none() = nb::none(),
        "Writes k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim] (one may be None) into slots [tokens] int64; NO_SLOT skips a token.\n"
        "rope and positions rotate k on the way; values are rounded or quantised to the types of the pages.");
    m.def(
        "kv_gather",
        [](const kv_pages& pages, array slots, array k, array v, executor* on) {
            const numbers<int64_t> s(slots, "slots");
            const tensor k_view(k, "k", access::write), v_view(v, "v", access::write);
            perform(on, [&](executor& e) { return kv_gather(pages, s, k_view, v_view, e); });
        },
        "pages"_a, "slots"_a, "k"_a.none(), "v"_a.none() = nb::none(), nb::kw_only(), "executor"_a.none() = nb::none(),
        "Reads slots [tokens] int64 back into k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim]; one may be None.");
    m.def(
        "kv_shift",
        [](const kv_pages& pages, array slots, array deltas, const rope_table& table, std::string_view pairing, int32_t first_dim,
           int32_t pair_distance, executor* on) {
            const numbers<int64_t> s(slots, "slots"), d(deltas, "deltas");
            const rope_options options = options_of(pairing, false, first_dim, pair_distance, false);
            perform(on, [&](executor& e) { return kv_shift(pages, s, d, table, options, e); });
        },
        "pages"_a, "slots"_a, "deltas"_a, "table"_a, nb::kw_only(), "pairing"_a = "half", "first_dim"_a = 0, "pair_distance"_a = 0,
        "executor"_a.none() = nb::none(), "Moves the keys of slots [tokens] by deltas [tokens] or [axes, tokens] positions, in the pages.");
    m.def(
        "kv_rerotate",
        [](const kv_pages& pages, array slots, array positions, const rope_table& from, const rope_table& to, std::string_view pairing,
           int32_t first_dim, int32_t pair_distance, executor* on) {
            const numbers<int64_t> s(slots, "slots"), p(positions, "positions");
            const rope_options options = options_of(pairing, false, first_dim, pair_distance, false);
            perform(on, [&](executor& e) { return kv_rerotate(pages, s, p, from, to, options, e); });
        },
        "pages"_a, "slots"_a, "positions"_a, "from_table"_a, "to_table"_a, nb::kw_only(), "pairing"_a = "half", "first_dim"_a = 0,
        "pair_distance"_a = 0, "executor"_a.none() = nb::none(), "Turns the keys of slots [tokens] from one table's frequencies to another's.");
}

std::vector<sequence_id> ids(const std::vector<int64_t>& sequences) {
    std::vector<sequence_id> all;
    for (const int64_t s : sequences) all.push_back(id(s));
    return all;
}

nb::tuple append(kv_cache& cache, const std::vector<int64_t>& sequences, const std::vector<int64_t>& tokens) {
    if (sequences.size() != tokens.size()) wrong_value("tokens", std::to_string(tokens.size()) + " entries", "one for each of the sequences");
    std::vector<kv_cache::append_request> requests;
    int64_t sum = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] > INT32_MAX) wrong_value("tokens", std::to_string(tokens[i]), "counts of 0 to 2^31 - 1");
        requests.push_back({id(sequences[i]), tokens[i]});
        sum += tokens[i];
    }
    std::span<int64_t> slots, positions;
    nb::object slot_array = new_array<int64_t>({static_cast<std::size_t>(sum)}, slots);
    nb::object position_array = new_array<int64_t>({static_cast<std::size_t>(sum)}, positions);
    check(cache.append(requests, slots, positions));
    return nb::make_tuple(slot_array, position_array);
}

batch_object batch(const kv_cache& cache, const std::vector<int64_t>& sequences, const std::vector<int64_t>& q_lens) {
    kv_cache::batch_storage storage;
    take(cache.batch(ids(sequences), q_lens, storage));
    batch_object made;
    made.q_indptr = std::move(storage.q_indptr);
    made.kv_lens = std::move(storage.kv_lens);
    made.q_starts = std::move(storage.q_starts);
    made.page_indptr = std::move(storage.page_indptr);
    made.page_ids = std::move(storage.page_ids);
    return made;
}

void bind_stats(nb::module_& m) {
    nb::class_<kv_cache_stats>(m, "KvCacheStats")
        .def_ro("total_pages", &kv_cache_stats::total_pages)
        .def_ro("free_pages", &kv_cache_stats::free_pages)
        .def_ro("shared_pages", &kv_cache_stats::shared_pages)
        .def_ro("sequences", &kv_cache_stats::sequences)
        .def_ro("tokens", &kv_cache_stats::tokens)
        .def_ro("used_bytes", &kv_cache_stats::used_bytes)
        .def_ro("total_bytes", &kv_cache_stats::total_bytes);
}

// The caller's memory of a cache; empty where there is none.
std::span<std::byte> memory_of(array memory) {
    const std::span<uint8_t> bytes = written<uint8_t>(memory, "memory");
    return {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

void bind_cache(nb::module_& m) {
    bind_layout(m);
    bind_pages(m);
    bind_stats(m);
    nb::class_<kv_cache>(m, "KvCache", "Pages, page tables and positions of sequences over all layers. One thread at a time may change a cache.")
        .def(
            "__init__",
            [](kv_cache* self, const kv_layout& layout, int32_t layers, int32_t page_count, array memory) {
                new (self) kv_cache(take(kv_cache::create({layout, layers, page_count, memory_of(memory)})));
            },
            "layout"_a, nb::kw_only(), "layers"_a, "page_count"_a, "memory"_a.none() = nb::none(), nb::keep_alive<1, 5>(),
            "A pool of page_count pages, each of page_tokens tokens of every layer. memory uint8, 64-byte aligned, of required_bytes(); None: its "
            "own.")
        .def_static(
            "required_bytes",
            [](const kv_layout& layout, int32_t layers, int32_t page_count) {
                return take(kv_cache::required_bytes({layout, layers, page_count, {}}));
            },
            "layout"_a, nb::kw_only(), "layers"_a, "page_count"_a)
        .def(
            "create_sequence", [](kv_cache& c, int64_t first) { return static_cast<int64_t>(take(c.create_sequence(first))); },
            "first_position"_a = 0, "The id of a new, empty sequence.")
        .def(
            "fork", [](kv_cache& c, int64_t parent) { return static_cast<int64_t>(take(c.fork(id(parent)))); }, "parent"_a,
            "A sequence with the same tokens that shares all pages; copied on write.")
        .def(
            "free", [](kv_cache& c, int64_t s) { check(c.free(id(s))); }, "sequence"_a, "Returns the pages that nobody else holds.")
        .def(
            "reserve", [](kv_cache& c, int64_t s, int64_t tokens) { check(c.reserve(id(s), tokens)); }, "sequence"_a, "tokens"_a,
            "Sets pages aside for `tokens` more tokens.")
        .def("append", &append, "sequences"_a, "tokens"_a,
             "Reserves tokens[i] slots of sequences[i], all or nothing (OutOfPages). Returns (slots, positions) [sum of tokens] int64, in order.")
        .def(
            "truncate", [](kv_cache& c, int64_t s, int64_t length) { check(c.truncate(id(s), length)); }, "sequence"_a, "length"_a,
            "Forgets all tokens from `length` on.")
        .def(
            "trim_front", [](kv_cache& c, int64_t s, int64_t tokens) { return take(c.trim_front(id(s), tokens)); }, "sequence"_a, "tokens"_a,
            "Forgets the whole pages within the first `tokens`, which no later query sees; returns how many tokens went.")
        .def(
            "length", [](const kv_cache& c, int64_t s) { return take(c.length(id(s))); }, "sequence"_a)
        .def(
            "next_position", [](const kv_cache& c, int64_t s) { return take(c.next_position(id(s))); }, "sequence"_a)
        .def(
            "page_table",
            [](const kv_cache& c, int64_t s) {
                const auto table = take(c.page_table(id(s)));
                return std::vector<int32_t>(table.begin(), table.end());
            },
            "sequence"_a, "Page ids that hold tokens, in order.")
        .def(
            "slots",
            [](const kv_cache& c, int64_t s, int64_t first, int64_t count) {
                if (count < 0 || count > take(c.length(id(s)))) wrong_value("count", std::to_string(count), "0 to the sequence's length");
                std::span<int64_t> slots;
                nb::object made = new_array<int64_t>({static_cast<std::size_t>(count)}, slots);
                check(c.slots(id(s), first, slots));
                return made;
            },
            "sequence"_a, "first"_a, "count"_a, "Slots of tokens first .. first + count - 1, int64.")
        .def(
            "pages",
            [](const kv_cache& c, int32_t layer) {
                if (layer < 0 || layer >= c.layers()) wrong_value("layer", std::to_string(layer), "0 to " + std::to_string(c.layers() - 1));
                return c.pages(layer);
            },
            "layer"_a, nb::keep_alive<0, 1>(), "The pages of a layer, for kv_append and AttentionPlan.run.")
        .def("batch", &batch, "sequences"_a, "q_lens"_a,
             "Describes sequences to AttentionPlan.build: the last q_lens[i] tokens of sequences[i] are its query tokens.")
        .def_prop_ro("layout", &kv_cache::layout)
        .def_prop_ro("layers", &kv_cache::layers)
        .def("stats", &kv_cache::stats);
}

}  // namespace ropewalk::python
