// Replaying the trace: every way to cut it gives the same bits, and the tolerances of the tool mean something.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tools/lib/decode/reference.hpp"
#include "tools/lib/decode/replay.hpp"
#include "tools/lib/decode/sweep.hpp"

namespace ropewalk::test {
namespace {

using namespace toolkit;

// The trace of the repository.
const trace& recorded_trace() {
    static const trace loaded = [] {
        const result<safetensors_file> file = safetensors_file::open(ROPEWALK_SOURCE_DIR "/tests/golden/trace/smollm2_l4_f32.safetensors");
        golden_reader golden(*file);
        trace whole;
        EXPECT_TRUE(load_trace(golden, whole).ok());
        EXPECT_TRUE(golden.state().ok()) << golden.state().text();
        return whole;
    }();
    return loaded;
}

std::vector<std::vector<float>> outputs_of(const trace_replay::settings& chosen, executor& on) {
    result<trace_replay> replay = trace_replay::create(recorded_trace(), chosen);
    if (!replay.ok()) {
        ADD_FAILURE() << replay.state().text();
        return {};
    }
    trace_replay::timing timing;
    const status ran = replay->run(on, timing);
    EXPECT_TRUE(ran.ok()) << ran.text();
    EXPECT_EQ(timing.steps, recorded_trace().tokens - chosen.prefill);
    comparison checks;
    replay->compare(checks);
    EXPECT_TRUE(checks.passed()) << checks.quantity() << ": " << checks.error() << " of " << checks.tolerance();
    return replay->outputs();
}

class replay_cuts : public testing::TestWithParam<kv_preset> {};

TEST_P(replay_cuts, same_bits) {
    serial_executor serial;
    const kv_preset& kv = GetParam();
    const auto expected = outputs_of({200, kv, 64}, default_executor());
    EXPECT_EQ(outputs_of({250, kv, 16}, serial), expected) << "one thread, pages of 16 tokens, 250 prefilled";
    EXPECT_EQ(outputs_of({recorded_trace().tokens, kv, 256}, default_executor()), expected) << "all prefilled";
}

INSTANTIATE_TEST_SUITE_P(presets, replay_cuts, testing::ValuesIn(kv_presets), [](const auto& info) { return std::string(info.param.name); });

TEST(replay, refuses_impossible_settings) {
    EXPECT_EQ(trace_replay::create(recorded_trace(), {-1, *find_kv_preset("fp32"), 64}).state().code(), status_code::invalid_argument);
    EXPECT_EQ(trace_replay::create(recorded_trace(), {257, *find_kv_preset("fp32"), 64}).state().code(), status_code::invalid_argument);
    EXPECT_EQ(trace_replay::create(recorded_trace(), {0, *find_kv_preset("fp32"), 0}).state().code(), status_code::invalid_argument);
    EXPECT_EQ(trace_replay::create(recorded_trace(), {0, *find_kv_preset("fp32"), 48}).state().code(), status_code::invalid_argument);
}

// The bounds are of the size of what they bound: an error ten times the largest one that happens would be noticed in most outputs.
TEST(replay, bounds_are_tight) {
    for (const auto& [name, most] : {std::pair{"fp32", 1e-4}, {"fp16", 0.1}, {"bf16", 0.5}, {"k8v8", 2.0}}) {
        const trace_layer& layer = recorded_trace().layers[1];
        const attention_bounds bounds = bounds_of(recorded_trace(), layer, *find_kv_preset(name));
        double largest = 0.0, size = 0.0;
        for (size_t i = 0; i < bounds.out.size(); ++i) {
            ASSERT_GT(bounds.out[i], 0.0);
            largest = std::max(largest, bounds.out[i]);
            size = std::max(size, std::abs(layer.out[i]));
        }
        EXPECT_LT(largest, size * most) << name;
    }
}

TEST(sweep, decodes_every_position_encoding) {
    result<workers> team = workers::create(1);
    ASSERT_TRUE(team.ok());
    for (const char* name : {"smollm2-135m", "gemma-2-9b", "bloom-7b1"}) {
        sweep_case c;
        c.model = *find_preset(name);
        c.model.layers = 2;
        c.model.window = c.model.window != 0 ? 16 : 0;
        c.context = 33;
        c.batch = 2;
        c.page_tokens = 16;
        c.least_bytes = int64_t{1} << 20;
        EXPECT_GE(*synthetic_cache::bytes(c), c.least_bytes);
        result<synthetic_cache> cache = synthetic_cache::create(c, team->on());
        ASSERT_TRUE(cache.ok()) << cache.state().text();
        int repetitions = 0;
        const result<measurement> m = cache->measure(2, *team, [&] { ++repetitions; });
        ASSERT_TRUE(m.ok()) << m.state().text();
        EXPECT_EQ(repetitions, 2);
        EXPECT_EQ(m->step.size(), 2u);
        EXPECT_GT(m->bandwidth.rate().median, 0.0);
        EXPECT_GE(m->step[0], m->attention[0] + m->append[0]);
    }
}

}  // namespace
}  // namespace ropewalk::test
