// Math and roof kernels of the scalar target.
#include <cmath>
#include <cstring>

#include "simd/core/kernels.hpp"

namespace ropewalk::simd::scalar {
namespace {

void exp2_all(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(std::exp2(double{x[i]}));
}

void tanh_all(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(std::tanh(double{x[i]}));
}

float read_cached_all(const std::byte* data, int64_t bytes, int64_t passes) {
    uint64_t sum = 0;
    for (int64_t pass = 0; pass < passes; ++pass) {
        for (int64_t i = 0; i < bytes; i += 8) {
            uint64_t word;
            std::memcpy(&word, data + i, sizeof word);
            sum ^= word;
        }
        asm volatile("" : "+r"(sum));  // or the second pass would undo the first
    }
    return static_cast<float>(sum & 0xffff);
}

float read_all(const std::byte* data, int64_t bytes) { return read_cached_all(data, bytes, 1); }

void copy_all(std::byte* target, const std::byte* source, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 8) std::memcpy(target + i, source + i, 8);
}

void scale_all(float* x, int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

// Four chains of multiply and add: what scalar code can reach.
float multiply_add(int64_t rounds, double* flops) {
    float a = 0.1f, b = 0.2f, c = 0.3f, d = 0.4f;
    for (int64_t i = 0; i < rounds; ++i) {
        a = a * 0.999f + 0.001f;
        b = b * 0.999f + 0.001f;
        c = c * 0.999f + 0.001f;
        d = d * 0.999f + 0.001f;
    }
    *flops = static_cast<double>(rounds) * 8;
    return a + b + c + d;
}

}  // namespace

void fill_math(math_kernels& table) { table = {exp2_all, tanh_all}; }
void fill_roof(roof_kernels& table) { table = {read_all, read_cached_all, copy_all, scale_all, multiply_add, nullptr, nullptr, nullptr}; }

}  // namespace ropewalk::simd::scalar
