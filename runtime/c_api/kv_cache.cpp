// Level 2 of the KV cache: sequences over pages of its own.
#include "runtime/c_api/handles.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk::c_api {
namespace {

kv_cache_config config_of(call& c, const ropewalk_kv_cache_config* config) noexcept {
    c.sized("config", config);
    if (!c.ok()) return {};
    return {layout_of(c, "config.layout", config->layout), config->layers, config->page_count,
            c.array("config.memory", static_cast<std::byte*>(config->memory), config->memory_bytes)};
}

sequence_id id_of(ropewalk_sequence sequence) noexcept { return static_cast<sequence_id>(sequence); }

}  // namespace
}  // namespace ropewalk::c_api

using namespace ropewalk;
using namespace ropewalk::c_api;

ropewalk_status ropewalk_kv_cache_required_bytes(const ropewalk_kv_cache_config* config, int64_t* bytes) {
    call c;
    const kv_cache_config wanted = config_of(c, config);
    return c.get("bytes", bytes, [&] { return kv_cache::required_bytes(wanted); });
}

ropewalk_status ropewalk_kv_cache_create(const ropewalk_kv_cache_config* config, ropewalk_kv_cache** cache) {
    call c;
    kv_cache_config wanted = config_of(c, config);
    c.pointer("cache", cache);
    const bool from_allocator = c.ok() && config->allocator != nullptr;
    allocated pool(allocator_of(c, "config.allocator", from_allocator ? config->allocator : nullptr));
    return c.run([&]() -> status {
        if (config->memory != nullptr && wanted.memory.empty()) {
            return status(status_code::invalid_argument, "config.memory_bytes is 0; must be the size of config.memory");
        }
        if (from_allocator) {
            if (!wanted.memory.empty()) return status(status_code::invalid_argument, "config.memory is given beside allocator; one must be null");
            const result<int64_t> bytes = kv_cache::required_bytes(wanted);
            if (!bytes.ok()) return bytes.state();
            if (const status grown = pool.grow(static_cast<std::size_t>(*bytes)); !grown.ok()) return grown;
            wanted.memory = pool.memory();
        }
        result<kv_cache> made = kv_cache::create(wanted);
        if (!made.ok()) return made.state();
        ropewalk_kv_layout layout = ropewalk_kv_layout_init();
        write_layout(wanted.layout, layout);
        *cache = new ropewalk_kv_cache{{}, std::move(pool), std::move(*made), layout, {}};
        return {};
    });
}

ropewalk_status ropewalk_kv_cache_destroy(ropewalk_kv_cache* cache) { return destroy("cache", cache); }

ropewalk_status ropewalk_kv_cache_create_sequence(ropewalk_kv_cache* cache, int64_t first_position, ropewalk_sequence* sequence) {
    call c;
    c.handle("cache", cache);
    return c.get("sequence", sequence, [&] { return cache->value.create_sequence(first_position); });
}

ropewalk_status ropewalk_kv_cache_fork(ropewalk_kv_cache* cache, ropewalk_sequence parent, ropewalk_sequence* sequence) {
    call c;
    c.handle("cache", cache);
    return c.get("sequence", sequence, [&] { return cache->value.fork(id_of(parent)); });
}

ropewalk_status ropewalk_kv_cache_free(ropewalk_kv_cache* cache, ropewalk_sequence sequence) {
    call c;
    c.handle("cache", cache);
    return c.run([&] { return cache->value.free(id_of(sequence)); });
}

ropewalk_status ropewalk_kv_cache_reserve(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t tokens) {
    call c;
    c.handle("cache", cache);
    return c.run([&] { return cache->value.reserve(id_of(sequence), tokens); });
}

ropewalk_status ropewalk_kv_cache_append(ropewalk_kv_cache* cache, const ropewalk_sequence* sequences, const int64_t* tokens, size_t count,
                                         int64_t* slots, size_t slots_count, int64_t* positions, size_t positions_count) {
    call c;
    c.handle("cache", cache);
    const auto ids = c.array("sequences", sequences, count), wanted = c.array("tokens", tokens, count);
    const auto slots_out = c.array("slots", slots, slots_count), positions_out = c.array("positions", positions, positions_count);
    return c.run([&] {
        cache->requests.clear();
        for (std::size_t i = 0; i < count; ++i) cache->requests.push_back({id_of(ids[i]), wanted[i]});
        return cache->value.append(cache->requests, slots_out, positions_out);
    });
}

ropewalk_status ropewalk_kv_cache_truncate(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t length) {
    call c;
    c.handle("cache", cache);
    return c.run([&] { return cache->value.truncate(id_of(sequence), length); });
}

ropewalk_status ropewalk_kv_cache_trim_front(ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t tokens, int64_t* gone) {
    call c;
    c.handle("cache", cache);
    return c.get("gone", gone, [&] { return cache->value.trim_front(id_of(sequence), tokens); });
}

ropewalk_status ropewalk_kv_cache_sequence_info(const ropewalk_kv_cache* cache, ropewalk_sequence sequence, ropewalk_sequence_info* info) {
    call c;
    c.handle("cache", cache);
    c.sized("info", info);
    return c.run([&] {
        const sequence_id id = id_of(sequence);
        const auto length = cache->value.length(id), next = cache->value.next_position(id);
        const auto pages = cache->value.page_table(id);
        if (!pages.ok()) return pages.state();
        info->length = *length;
        info->next_position = *next;
        info->page_table = pages->data();
        info->page_count = pages->size();
        return status();
    });
}

ropewalk_status ropewalk_kv_cache_slots(const ropewalk_kv_cache* cache, ropewalk_sequence sequence, int64_t first, int64_t* slots, size_t count) {
    call c;
    c.handle("cache", cache);
    const auto out = c.array("slots", slots, count);
    return c.run([&] { return cache->value.slots(id_of(sequence), first, out); });
}

ropewalk_status ropewalk_kv_cache_pages(const ropewalk_kv_cache* cache, int32_t layer, ropewalk_kv_pages* pages) {
    call c;
    c.handle("cache", cache);
    c.sized("pages", pages);
    return c.run([&] {
        const status valid = runtime::check_range("layer", layer, 0, cache->value.layers() - 1);
        if (!valid.ok()) return valid;
        const kv_pages of_layer = cache->value.pages(layer);
        pages->count = of_layer.count;
        pages->base = of_layer.base;
        pages->layout = &cache->layout;
        return valid;
    });
}

ropewalk_status ropewalk_kv_cache_get_stats(const ropewalk_kv_cache* cache, ropewalk_kv_cache_stats* stats) {
    call c;
    c.handle("cache", cache);
    c.sized("stats", stats);
    return c.run([&] {
        const kv_cache_stats now = cache->value.stats();
        stats->layers = cache->value.layers();
        stats->total_pages = now.total_pages;
        stats->free_pages = now.free_pages;
        stats->shared_pages = now.shared_pages;
        stats->sequences = now.sequences;
        stats->tokens = now.tokens;
        stats->used_bytes = now.used_bytes;
        stats->total_bytes = now.total_bytes;
        return status();
    });
}
