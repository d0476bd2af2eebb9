/* One sequence, one layer, a prompt of 100 tokens and 20 decoded ones: what a server does between its matrix products. C99. */
#include <ropewalk/ropewalk.h>

#include <stdio.h>
#include <stdlib.h>

enum { heads = 32, kv_heads = 8, dim = 128, pages = 64, prompt = 100, steps = 20, layer = 0 };

/* Stops with the text of the last error. */
static void check(ropewalk_status status) {
    if (status == ROPEWALK_OK) return;
    fprintf(stderr, "decode_step: %s\n", ropewalk_last_error());
    exit(1);
}

/* What the server's projections would have produced: n values in [-1, 1]. */
static void fill(float* x, size_t n) {
    for (size_t i = 0; i < n; ++i) x[i] = (float)(rand() % 2001 - 1000) / 1000.0f;
}

int main(void) {
    check(ropewalk_check_version(ROPEWALK_VERSION_MAJOR, ROPEWALK_VERSION_MINOR));

    /* Once: frequencies, a table of them, a cache, a plan, a workspace. */
    ropewalk_rope_spec* spec = NULL;
    ropewalk_rope_table* rope = NULL;
    ropewalk_llama3_parameters llama = ropewalk_llama3_parameters_init();
    check(ropewalk_rope_spec_llama3(&llama, ROPEWALK_PHASES_EXACT, &spec));
    check(ropewalk_rope_table_growing(spec, 0, ROPEWALK_DEFAULT_CACHED_POSITIONS, &rope));

    ropewalk_kv_layout layout = ropewalk_kv_layout_init(); /* bf16, pages of 64 tokens */
    layout.kv_heads = kv_heads;
    layout.k_dim = layout.v_dim = dim;
    ropewalk_kv_cache_config config = ropewalk_kv_cache_config_init();
    config.layers = 1;
    config.page_count = pages;
    config.layout = &layout;
    ropewalk_kv_cache* cache = NULL;
    check(ropewalk_kv_cache_create(&config, &cache));
    ropewalk_sequence sequence = 0;
    check(ropewalk_kv_cache_create_sequence(cache, 0, &sequence));

    ropewalk_attention_plan* plan = NULL;
    ropewalk_workspace* workspace = NULL;
    check(ropewalk_attention_plan_create(&plan));
    check(ropewalk_workspace_create(NULL, &workspace));

    static float q[prompt * heads * dim], k[prompt * kv_heads * dim], v[prompt * kv_heads * dim], out[prompt * heads * dim];
    for (int step = 0; step <= steps; ++step) {
        const int64_t tokens = step == 0 ? prompt : 1;
        const size_t count = (size_t)tokens;
        fill(q, count * heads * dim);
        fill(k, count * kv_heads * dim);
        fill(v, count * kv_heads * dim);
        const ropewalk_tensor q_view = ropewalk_tensor_dense(q, ROPEWALK_FP32, tokens, heads, dim);
        const ropewalk_tensor k_view = ropewalk_tensor_dense(k, ROPEWALK_FP32, tokens, kv_heads, dim);
        const ropewalk_tensor v_view = ropewalk_tensor_dense(v, ROPEWALK_FP32, tokens, kv_heads, dim);
        const ropewalk_tensor out_view = ropewalk_tensor_dense(out, ROPEWALK_FP32, tokens, heads, dim);

        /* Once a step: slots for the new tokens, and the plan. */
        int64_t slots[prompt], positions[prompt];
        check(ropewalk_kv_cache_append(cache, &sequence, &tokens, 1, slots, count, positions, count));
        ropewalk_attention_problem problem = ropewalk_attention_problem_init(); /* causal, 1 / sqrt(k_dim) */
        problem.heads = heads;
        problem.kv_heads = kv_heads;
        problem.k_dim = problem.v_dim = dim;
        check(ropewalk_attention_plan_build_sequences(plan, &problem, cache, &sequence, &tokens, 1, NULL, 0));
        ropewalk_attention_plan_info info = ropewalk_attention_plan_info_init();
        check(ropewalk_attention_plan_get_info(plan, &info));
        void* memory = NULL;
        check(ropewalk_workspace_reserve(workspace, info.workspace_bytes, &memory));

        /* Once a layer: rotate q, write k and v (k rotated on the way), attend. */
        ropewalk_kv_pages of_layer = ropewalk_kv_pages_init();
        check(ropewalk_kv_cache_pages(cache, layer, &of_layer));
        ropewalk_kv_append_rope turn = ropewalk_kv_append_rope_init();
        turn.table = rope;
        turn.positions = positions;
        turn.positions_count = count;
        check(ropewalk_rope_apply(rope, positions, count, &q_view, NULL, NULL, NULL));
        check(ropewalk_kv_append(&of_layer, slots, count, &k_view, &v_view, &turn, NULL));
        check(ropewalk_run_paged(plan, &q_view, &of_layer, &out_view, NULL, 0, memory, info.workspace_bytes, NULL, NULL));
    }

    ropewalk_kv_cache_stats stats = ropewalk_kv_cache_stats_init();
    ropewalk_target target = 0;
    check(ropewalk_kv_cache_get_stats(cache, &stats));
    check(ropewalk_active_target(&target));
    printf("%lld tokens in %d of %d pages on target %s\n", (long long)stats.tokens, stats.total_pages - stats.free_pages, stats.total_pages,
           ropewalk_target_name(target));

    check(ropewalk_workspace_destroy(workspace));
    check(ropewalk_attention_plan_destroy(plan));
    check(ropewalk_kv_cache_destroy(cache));
    check(ropewalk_rope_table_destroy(rope));
    check(ropewalk_rope_spec_destroy(spec));
    return stats.tokens == prompt + steps ? 0 : 1;
}
