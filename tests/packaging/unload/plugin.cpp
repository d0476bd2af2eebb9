// What an application's plugin does with the library: uses the executor, so that TBB starts its workers, and a kernel.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include <ropewalk/ropewalk.hpp>

extern "C" __attribute__((visibility("default"))) int use_ropewalk() {
    std::atomic<int> ran{0};
    ropewalk::default_executor().run(
        64, [](void* count, int32_t) { ++*static_cast<std::atomic<int>*>(count); }, &ran);
    const auto spec = ropewalk::rope_spec::standard(64, 10000.0);
    if (!spec.ok()) return 1;
    const auto table = ropewalk::rope_table::growing(*spec);
    if (!table.ok()) return 2;
    std::vector<float> q(64, 1.0f);
    const int64_t position = 3;
    const auto rotated = ropewalk::rope_apply(*table, {&position, 1}, ropewalk::dense_view(q.data(), ropewalk::dtype::fp32, 1, 1, 64), {});
    const float expected = std::cos(3.0f) - std::sin(3.0f);  // the first of pair (1, 1), turned by 3 radians
    return ran == 64 && rotated.ok() && std::abs(q[0] - expected) < 1e-6f ? 0 : 3;
}
