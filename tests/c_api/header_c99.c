/* The header alone, as C99 without a warning; a struct with padding would be one: later versions put fields at the end, not into holes. */
#pragma GCC diagnostic error "-Wpadded"
#include <ropewalk/ropewalk.h>
#pragma GCC diagnostic ignored "-Wpadded"

#if !defined(__STDC_VERSION__) || __STDC_VERSION__ != 199901L
#error "this file is to be compiled as C99"
#endif

/* What a caller that was compiled as C99 takes for the sizes and the defaults of some structs. */
void ropewalk_test_c99_inits(ropewalk_tensor* tensor, ropewalk_kv_layout* layout, ropewalk_attention_problem* problem,
                             ropewalk_attention_batch* batch, ropewalk_position_layer* layer);
void ropewalk_test_c99_inits(ropewalk_tensor* tensor, ropewalk_kv_layout* layout, ropewalk_attention_problem* problem,
                             ropewalk_attention_batch* batch, ropewalk_position_layer* layer) {
    *tensor = ropewalk_tensor_init();
    *layout = ropewalk_kv_layout_init();
    *problem = ropewalk_attention_problem_init();
    *batch = ropewalk_attention_batch_init();
    *layer = ropewalk_position_layer_init();
}
