// Random input whose seed a failure prints. ROPEWALK_TEST_SEED repeats a run.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace ropewalk::test {

inline uint64_t chosen_seed() {
    const char* text = std::getenv("ROPEWALK_TEST_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 0) : 20260101;
}

class seeded : public ::testing::Test {
protected:
    const uint64_t seed = chosen_seed();
    std::mt19937_64 random{seed};

    float normal() { return normal_(random); }
    int64_t between(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random); }

private:
    std::normal_distribution<float> normal_;
    ::testing::ScopedTrace trace_{__FILE__, __LINE__, "ROPEWALK_TEST_SEED=" + std::to_string(seed)};
};

}  // namespace ropewalk::test
