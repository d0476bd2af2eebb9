// The reference rotation: products and sum in double, rounded once. Products of two fp32 numbers are exact in double.
#include "simd/core/element.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {

namespace {

template <int type, bool interleaved>
void rotate(const rotate_args& args) {
    using cell = element<type>;
    auto* head = static_cast<typename cell::storage*>(args.x);
    const int32_t step = interleaved ? 2 : 1;
    const int32_t partner = interleaved ? 1 : args.pairs;
    for (int32_t h = 0; h < args.heads; ++h, head += args.head_stride) {
        for (int32_t i = 0; i < args.pairs; ++i) {
            auto& first = head[i * step];
            auto& second = head[i * step + partner];
            const double x0 = cell::load(first), x1 = cell::load(second);
            const double c = args.cos[i], s = args.sin[i];
            first = cell::store(static_cast<float>(x0 * c - x1 * s));
            second = cell::store(static_cast<float>(x1 * c + x0 * s));
        }
    }
}

}  // namespace

void fill_rope(rope_kernels& table) {
    table.rotate[fp32][0] = rotate<fp32, false>;
    table.rotate[fp32][1] = rotate<fp32, true>;
    table.rotate[bf16][0] = rotate<bf16, false>;
    table.rotate[bf16][1] = rotate<bf16, true>;
    table.rotate[fp16][0] = rotate<fp16, false>;
    table.rotate[fp16][1] = rotate<fp16, true>;
}

}  // namespace ropewalk::simd::scalar
