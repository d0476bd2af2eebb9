// Rotation kernels of every target that runs here, against the formula in double and against its exact fused form.
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "simd/core/dispatch.hpp"
#include "tests/elements.hpp"
#include "tests/guarded.hpp"
#include "tests/seeded.hpp"

namespace ropewalk::test {
namespace {

using simd::rotate_args;

std::vector<int32_t> rotary_dims() {
    std::vector<int32_t> dims;
    for (int32_t dim = 0; dim <= 40; dim += 2) dims.push_back(dim);
    for (const int32_t dim : {50, 62, 64, 66, 72, 80, 96, 100, 112, 126, 128, 192, 256, 576}) dims.push_back(dim);
    return dims;
}

// A token of `heads` heads in memory that ends (or begins) exactly with the last (first) rotated element. Gaps between heads hold NaN.
struct case_shape {
    dtype type;
    simd::rotate_layout layout;
    int32_t pairs;
    int32_t heads;
    int32_t gap;      // elements between heads
    bool misaligned;  // base is one element off a vector's alignment
    guard edge;
    int32_t apart = 0;  // elements between the halves
    [[nodiscard]] int32_t slice() const { return 2 * pairs + apart; }
    [[nodiscard]] int64_t stride() const { return slice() + gap; }
    [[nodiscard]] int64_t elements() const { return heads * stride() - gap; }
    // Where a pair is read, and where it is written.
    [[nodiscard]] int64_t from(int32_t head, int32_t pair, int32_t side) const {
        return index(layout == simd::interleaved_pairs || layout == simd::interleaved_to_half, head, pair, side);
    }
    [[nodiscard]] int64_t to(int32_t head, int32_t pair, int32_t side) const {
        return index(layout == simd::interleaved_pairs || layout == simd::half_to_interleaved, head, pair, side);
    }

private:
    [[nodiscard]] int64_t index(bool interleaved, int32_t head, int32_t pair, int32_t side) const {
        return head * stride() + (interleaved ? 2 * pair + side : pair + side * (pairs + apart));
    }
};

constexpr simd::rotate_layout all_layouts[] = {simd::half_pairs, simd::interleaved_pairs, simd::interleaved_to_half, simd::half_to_interleaved};

class rope_kernels : public seeded {
protected:
    void check(target t, const case_shape& shape);
    void expect_pair(target t, const case_shape& shape, int32_t pair, const double* before, const double* after, float c, float s);
};

// |error| <= one rounding of x cos (fp32) + one of the result (fp32) + one to the type; the reference rounds only at the end.
void rope_kernels::expect_pair(target t, const case_shape& shape, int32_t pair, const double* before, const double* after, float c, float s) {
    const auto x0 = static_cast<float>(before[0]), x1 = static_cast<float>(before[1]);
    const double exact[2] = {before[0] * c - before[1] * s, before[1] * c + before[0] * s};
    const float fused[2] = {std::fmaf(-x1, s, x0 * c), std::fmaf(x0, s, x1 * c)};
    for (int side = 0; side < 2; ++side) {
        const double u = unit_roundoff(dtype::fp32), product = std::abs(before[side] * c);
        const double tolerance = u * product + (u + unit_roundoff(shape.type)) * std::abs(exact[side]) * 1.001 + subnormal_error(shape.type);
        ASSERT_LE(std::abs(after[side] - exact[side]), tolerance)
            << name(t) << " " << name(shape.type) << " layout " << shape.layout << " pairs " << shape.pairs << " pair " << pair << " side " << side
            << ": " << after[side] << " instead of " << exact[side];
        if (t == target::scalar) continue;
        // The same bits on every vector target: fused in the same place, rounded to nearest even.
        uint32_t wanted_bits = 0;
        set_element(shape.type, &wanted_bits, fused[side]);
        ASSERT_EQ(after[side], element_value(shape.type, &wanted_bits))
            << name(t) << " " << name(shape.type) << " layout " << shape.layout << " pairs " << shape.pairs << " pair " << pair << " side " << side
            << ": not the bits of fma(" << x0 << ", " << x1 << ")";
    }
}

void rope_kernels::check(target t, const case_shape& shape) {
    const auto bytes = static_cast<std::size_t>(element_bytes(shape.type));
    const std::size_t offset = shape.misaligned ? bytes : 0;
    const auto elements = static_cast<std::size_t>(shape.elements());
    // Misaligned: one spare element, at the guarded edge's other side, shifts the base away from the page's end.
    const guarded_buffer memory(elements * bytes + (shape.misaligned && shape.edge == guard::front ? bytes : 0), shape.edge);
    memory.fill(0xff);  // NaN in every type
    std::byte* x = memory.data() + (shape.edge == guard::front ? offset : 0);
    const auto pairs = static_cast<std::size_t>(shape.pairs);
    const guarded_buffer cos(pairs * sizeof(float)), sin(pairs * sizeof(float));
    for (std::size_t i = 0; i < pairs; ++i) {
        const float angle = normal() * 3.0f;
        cos.as<float>()[i] = std::cos(angle) * 1.25f;
        sin.as<float>()[i] = std::sin(angle) * 1.25f;
    }
    for (int32_t h = 0; h < shape.heads; ++h) {
        for (int32_t i = 0; i < shape.slice(); ++i) {
            set_element(shape.type, x + static_cast<std::size_t>(h * shape.stride() + i) * bytes, normal());
        }
    }
    std::vector<std::byte> before(memory.bytes().begin(), memory.bytes().end());
    const std::byte* old = before.data() + (x - memory.data());
    const simd::kernel_table* kernels = simd::kernels_of(t);
    kernels->rope.rotate[static_cast<int>(shape.type)][shape.layout]({x, shape.stride(), shape.heads, shape.pairs, cos.as<float>(), sin.as<float>(),
                                                                      shape.misaligned ? 4096 : 0, shape.apart == 0 ? 0 : shape.pairs + shape.apart});
    std::vector<bool> rotated(before.size());
    for (int32_t h = 0; h < shape.heads; ++h) {
        for (int32_t i = 0; i < shape.pairs; ++i) {
            double from[2], to[2];
            for (int32_t side = 0; side < 2; ++side) {
                const auto at = static_cast<std::size_t>(shape.to(h, i, side)) * bytes;
                from[side] = element_value(shape.type, old + static_cast<std::size_t>(shape.from(h, i, side)) * bytes);
                to[side] = element_value(shape.type, x + at);
                for (std::size_t b = 0; b < bytes; ++b) rotated[static_cast<std::size_t>(x - memory.data()) + at + b] = true;
            }
            expect_pair(t, shape, i, from, to, cos.as<float>()[i], sin.as<float>()[i]);
            if (HasFatalFailure()) return;
        }
    }
    for (std::size_t b = 0; b < before.size(); ++b) {
        if (!rotated[b]) {
            ASSERT_EQ(memory.data()[b], before[b]) << name(t) << " pairs " << shape.pairs << ": byte " << b << " outside the slice";
        }
    }
}

// D14 (misaligned bases), odd pair counts, tails, gaps between heads, exact bounds on both sides.
TEST_F(rope_kernels, every_target_type_pairing_and_tail) {
    for (const target t : available_targets()) {
        for (const dtype type : all_types) {
            for (const simd::rotate_layout layout : all_layouts) {
                for (const int32_t dim : rotary_dims()) {
                    for (const guard edge : {guard::back, guard::front}) {
                        for (const bool misaligned : {false, true}) {
                            const auto heads = static_cast<int32_t>(dim > 200 ? 2 : 3);
                            check(t, {type, layout, dim / 2, heads, misaligned ? 5 : 0, misaligned, edge});
                            if (HasFatalFailure()) return;
                            if (layout == simd::half_pairs) check(t, {type, layout, dim / 2, heads, 0, misaligned, edge, 3 + dim / 4});
                            if (HasFatalFailure()) return;
                        }
                    }
                }
            }
        }
    }
}

TEST_F(rope_kernels, no_head_is_touched_when_there_is_none) {
    for (const target t : available_targets()) {
        for (const dtype type : all_types) {
            for (const simd::rotate_layout pairing : all_layouts) {
                const float one[4] = {1, 1, 1, 1};
                simd::kernels_of(t)->rope.rotate[static_cast<int>(type)][pairing]({nullptr, 8, 0, 4, one, one});
            }
        }
    }
}

// A row of several positions takes the bits of an axis where that axis is asked for, and keeps all others.
TEST_F(rope_kernels, composed_rows_are_copies) {
    for (const target t : available_targets()) {
        for (const int32_t dim : rotary_dims()) {
            const auto n = static_cast<std::size_t>(dim / 2);
            const guarded_buffer from(2 * n * sizeof(float)), row(2 * n * sizeof(float)), axis(n);
            std::vector<float> before(2 * n);
            for (std::size_t i = 0; i < 2 * n; ++i) {
                from.as<float>()[i] = normal();
                row.as<float>()[i] = before[i] = normal();
            }
            for (std::size_t i = 0; i < n; ++i) axis.as<uint8_t>()[i] = static_cast<uint8_t>(between(0, 3));
            for (int32_t wanted = 0; wanted < 4; ++wanted) {
                simd::kernels_of(t)->rope.compose({from.as<float>(), axis.as<uint8_t>(), wanted, dim / 2, row.as<float>()});
                for (std::size_t i = 0; i < 2 * n; ++i) {
                    const bool copied = axis.as<uint8_t>()[i % n] <= wanted;  // by this call or one before
                    ASSERT_EQ(row.as<float>()[i], copied ? from.as<float>()[i] : before[i])
                        << name(t) << " dim " << dim << " axis " << wanted << " " << i;
                }
            }
        }
    }
}

// Angle 0 with amplitude 1 gives every value back, subnormals and the largest included.
TEST_F(rope_kernels, the_identity_keeps_every_finite_value) {
    constexpr int32_t pairs = 37;
    const std::vector<float> cos(pairs, 1.0f), sin(pairs, 0.0f);
    for (const target t : available_targets()) {
        for (const dtype type : {dtype::bf16, dtype::fp16}) {
            for (int pairing = 0; pairing < 2; ++pairing) {
                std::vector<uint16_t> x(2 * pairs), before;
                for (int32_t first = 0; first < 65536; first += 2 * pairs) {
                    for (int32_t i = 0; i < 2 * pairs; ++i) {
                        const auto bits = static_cast<uint16_t>(first + i);
                        const double value = element_value(type, &bits);
                        x[static_cast<std::size_t>(i)] = std::isfinite(value) ? bits : 0;
                    }
                    before = x;
                    simd::kernels_of(t)->rope.rotate[static_cast<int>(type)][pairing]({x.data(), 0, 1, pairs, cos.data(), sin.data()});
                    for (std::size_t i = 0; i < x.size(); ++i) {
                        // -0 may become +0: -0 * 1 + x * 0
                        ASSERT_EQ(element_value(type, &x[i]), element_value(type, &before[i]))
                            << name(t) << " " << name(type) << " bits " << before[i];
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace ropewalk::test
