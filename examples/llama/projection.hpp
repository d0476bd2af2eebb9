// y = x W^T for weights of one shape, by oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>

#include <oneapi/dnnl/dnnl.hpp>

namespace llama {

class projection {
public:
    // W [out, in] as checkpoints store it; oneDNN packs it as it goes. accumulate: y += x W^T, which adds the residual on the way.
    projection(int64_t in, int64_t out, bool accumulate = false);

    [[nodiscard]] std::size_t width() const noexcept { return static_cast<std::size_t>(out_); }

    // x [tokens, in], weights [out, in], y [tokens, out], all dense. One thread at a time.
    void run(const float* x, const float* weights, float* y, int64_t tokens);

private:
    int64_t in_, out_;
    dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream_{engine_};
    dnnl::matmul product_;
};

}  // namespace llama
