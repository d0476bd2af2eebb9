// Rows of any tensor type to fp32 and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/core/kernels.hpp"
#include "simd/core/shuffle.hpp"

namespace ropewalk::simd::ROPEWALK_TARGET {
namespace {

template <int type>
using storage = std::conditional_t<type == fp32, float, uint16_t>;

// Converts n elements; the last vector overlaps the one before, and fewer than a vector go through a padded copy.
template <int from, int to>
void convert(const storage<from>* source, storage<to>* target, int64_t n) {
    if (n < lanes) {
        storage<from> in[lanes] = {};
        storage<to> out[lanes];
        std::memcpy(in, source, static_cast<std::size_t>(n) * sizeof(*in));
        store_as<to>(out, load_as<from>(in));
        std::memcpy(target, out, static_cast<std::size_t>(n) * sizeof(*out));
        return;
    }
    for (int64_t i = 0; i + lanes <= n; i += lanes) store_as<to>(target + i, load_as<from>(source + i));
    if (n % lanes != 0) store_as<to>(target + n - lanes, load_as<from>(source + n - lanes));
}

template <int type>
void load_row(const void* source, float* row, int64_t n) {
    convert<type, fp32>(static_cast<const storage<type>*>(source), row, n);
}

template <int type>
void store_row(const float* row, void* target, int64_t n) {
    convert<fp32, type>(row, static_cast<storage<type>*>(target), n);
}

}  // namespace
}  // namespace ropewalk::simd::ROPEWALK_TARGET
