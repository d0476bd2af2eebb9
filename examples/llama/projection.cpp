#include "projection.hpp"

namespace llama {

namespace {

using dnnl::memory;

memory::desc rows(int64_t count, int64_t width, memory::format_tag order = memory::format_tag::ab) {
    return {{count, width}, memory::data_type::f32, order};
}

// One primitive serves steps of every size: with the number of tokens known in advance oneDNN 2.6 is no faster on AVX2 (576 x 960 to 576 x 49152, 1
// to 256 tokens), nor is it with weights in an order of its own choice.
dnnl::matmul make_product(const dnnl::engine& engine, int64_t in, int64_t out, bool accumulate) {
    dnnl::primitive_attr attributes;
    if (accumulate) {
        dnnl::post_ops after;
        after.append_sum(1.0f);
        attributes.set_post_ops(after);
    }
    const auto x = rows(DNNL_RUNTIME_DIM_VAL, in), transposed = rows(in, out, memory::format_tag::ba), y = rows(DNNL_RUNTIME_DIM_VAL, out);
    return dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(x, transposed, y), attributes, engine));
}

}  // namespace

projection::projection(int64_t in, int64_t out, bool accumulate) : in_(in), out_(out), product_(make_product(engine_, in, out, accumulate)) {}

void projection::run(const float* x, const float* weights, float* y, int64_t tokens) {
    // oneDNN takes pointers to what it only reads without const.
    memory source(rows(tokens, in_), engine_, const_cast<float*>(x));
    memory matrix(rows(in_, out_, memory::format_tag::ba), engine_, const_cast<float*>(weights));
    memory target(rows(tokens, out_), engine_, y);
    product_.execute(stream_, {{DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, matrix}, {DNNL_ARG_DST, target}});
    stream_.wait();
}

}  // namespace llama
