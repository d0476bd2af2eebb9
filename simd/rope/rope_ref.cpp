// The reference rotation: products and sum in double, rounded once. Products of two fp32 numbers are exact in double.
#include "simd/core/element.hpp"
#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {

namespace {

// Element `side` of pair i in a head.
int32_t index_of(bool interleaved, int32_t distance, int32_t i, int32_t side) { return interleaved ? 2 * i + side : i + side * distance; }

template <int type, rotate_layout layout>
void rotate(const rotate_args& args) {
    using cell = element<type>;
    constexpr bool from = layout == interleaved_pairs || layout == interleaved_to_half;
    constexpr bool to = layout == interleaved_pairs || layout == half_to_interleaved;
    const int32_t distance = args.distance != 0 ? args.distance : args.pairs;
    auto* head = static_cast<typename cell::storage*>(args.x);
    for (int32_t h = 0; h < args.heads; ++h, head += args.head_stride) {
        float turned[2][max_rope_pairs];
        for (int32_t i = 0; i < args.pairs; ++i) {
            const double x0 = cell::load(head[index_of(from, distance, i, 0)]), x1 = cell::load(head[index_of(from, distance, i, 1)]);
            const double c = args.cos[i], s = args.sin[i];
            turned[0][i] = static_cast<float>(x0 * c - x1 * s);
            turned[1][i] = static_cast<float>(x1 * c + x0 * s);
        }
        for (int32_t i = 0; i < args.pairs; ++i) {
            for (int32_t side = 0; side < 2; ++side) head[index_of(to, distance, i, side)] = cell::store(turned[side][i]);
        }
    }
}

void compose(const compose_args& args) {
    for (int32_t i = 0; i < args.pairs; ++i) {
        if (args.axis_of_pair[i] != args.axis) continue;
        args.row[i] = args.from[i];
        args.row[args.pairs + i] = args.from[args.pairs + i];
    }
}

template <int type>
void fill_type(rope_kernels& table) {
    table.rotate[type][half_pairs] = rotate<type, half_pairs>;
    table.rotate[type][interleaved_pairs] = rotate<type, interleaved_pairs>;
    table.rotate[type][interleaved_to_half] = rotate<type, interleaved_to_half>;
    table.rotate[type][half_to_interleaved] = rotate<type, half_to_interleaved>;
}

}  // namespace

void fill_rope(rope_kernels& table) {
    fill_type<fp32>(table);
    fill_type<bf16>(table);
    fill_type<fp16>(table);
    table.compose = compose;
}

}  // namespace ropewalk::simd::scalar
