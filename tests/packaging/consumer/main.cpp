#include <cstdio>
#include <vector>

#include <ropewalk/ropewalk.hpp>

int main() {
    const auto spec = ropewalk::rope_spec::standard(64, 10000.0);
    const auto table = ropewalk::rope_table::fixed(*spec, 16);
    std::vector<float> q(64, 1.0f);
    const std::int64_t position = 5;
    const auto done = ropewalk::rope_apply(*table, {&position, 1}, ropewalk::dense_view(q.data(), ropewalk::dtype::fp32, 1, 1, 64), {});
    std::printf("ropewalk %s: %s %f\n", ropewalk::version(), done.text(), q[0]);
    return done.ok() && q[0] != 1.0f ? 0 : 1;
}
