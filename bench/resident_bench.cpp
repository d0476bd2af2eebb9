// Small decode steps whose keys and values lie in the caches, against the bare kernels and against one thread.
#include <algorithm>
#include <limits>

#include "bench/attention_step.hpp"
#include "runtime/attention_plan.hpp"

namespace ropewalk::bench {
namespace {

// The kernels that a step of one token over whole tiles needs, one after the other on this thread: Q.K, softmax and P.V of fp32 or bf16 pages.
class bare_kernels {
public:
    bare_kernels(const attention_plan& plan, const paged_layers& kv)
        : state_(*plan.internals()), kv_(kv), tiles_(kv.shape.tokens / simd::tile_tokens) {
        const simd::attend_shape& shape = state_.shape;
        memory_ = random_memory(int64_t{shape.group} * (shape.k_pad + shape.v_pad + 2 * simd::tile_tokens + simd::sum_lanes + 4) * 4, dtype::bf16);
        q_ = take(shape.k_pad);
        o_ = take(shape.v_pad);
        scores_ = take(simd::tile_tokens);
        p_ = shape.pv_arithmetic == simd::dot_bf16 ? take(simd::tile_tokens) : scores_;
        l_ = take(simd::sum_lanes);
        m_ = take(1);
        alpha_ = take(1);
        first_ = reinterpret_cast<int32_t*>(take(1));
        last_ = reinterpret_cast<int32_t*>(take(1));
        std::fill_n(first_, shape.group, 0);
        std::fill_n(last_, shape.group, simd::tile_tokens);
    }

    void run(const kv_pages& pages) {
        for (int32_t head = 0; head < state_.shape.kv_heads; ++head) {
            std::fill_n(m_, state_.shape.group, -std::numeric_limits<float>::infinity());
            std::fill_n(l_, state_.shape.group * simd::sum_lanes, 0.0f);
            std::fill_n(o_, state_.shape.group * state_.shape.v_pad, 0.0f);
            for (int64_t tile = 0; tile < tiles_; ++tile) run_tile(pages, head, tile);
        }
    }

private:
    float* take(int64_t floats_a_row) {
        float* at = reinterpret_cast<float*>(memory_.data()) + taken_;
        taken_ += floats_a_row * state_.shape.group;
        return at;
    }

    void run_tile(const kv_pages& pages, int32_t head, int64_t tile) {
        const simd::attend_shape& shape = state_.shape;
        const simd::attention_kernels& kernels = state_.kernels->attention;
        const int64_t tile_pages = simd::tile_tokens / shape.page_tokens;
        const auto record = [&](int64_t page) {
            return pages.base + kv_.page_ids[static_cast<std::size_t>(tile * tile_pages + page)] * shape.page_stride + head * shape.head_stride;
        };
        for (int64_t page = 0; page < tile_pages; ++page) {
            kernels.qk[shape.k_type][shape.qk_arithmetic]({q_,
                                                           shape.k_pad,
                                                           shape.group,
                                                           shape.k_pad,
                                                           record(page),
                                                           nullptr,
                                                           shape.page_tokens / simd::panel,
                                                           scores_ + page * shape.page_tokens,
                                                           simd::tile_tokens,
                                                           {}});
        }
        kernels.softmax[shape.pv_arithmetic](
            {scores_, simd::tile_tokens, shape.group, simd::tile_tokens, first_, last_, shape.scale, 0.0f, nullptr, nullptr, m_, alpha_, l_, p_});
        simd::v_run runs[simd::tile_tokens / simd::panel];
        for (int64_t page = 0; page < tile_pages; ++page) runs[page] = {record(page) + shape.v_offset, nullptr, shape.page_tokens, {}};
        kernels.pv[shape.v_type][shape.pv_arithmetic](
            {p_, simd::tile_tokens, shape.group, runs, static_cast<int32_t>(tile_pages), shape.page_tokens, shape.v_pad, o_, shape.v_pad, alpha_});
    }

    const attention_plan::state& state_;
    const paged_layers& kv_;
    int64_t tiles_, taken_ = 0;
    runtime::mapped_memory memory_;
    float *q_, *o_, *scores_, *p_, *l_, *m_, *alpha_;
    int32_t *first_, *last_;
};

// One layer that stays in the caches, call after call. over_kernels: seconds / those of the kernels alone on one thread; to_one_thread: seconds /
// those of the same step on one thread.
void decode_resident(benchmark::State& state, const pages_shape& shape) {
    const paged_layers& kv = layers_of(shape);
    serial_executor serial;
    step all(make_problem(shape), kv, 1, shape.tokens, default_executor()), one(make_problem(shape), kv, 1, shape.tokens, serial);
    bare_kernels bare(one.plan(), kv);
    run_iterations(
        state, "over_kernels", [&](int64_t) { return all.seconds(kv.pages(0)); },
        [&](int64_t, double seconds, samples& counters) {
            const toolkit::stopwatch watch;
            bare.run(kv.pages(0));
            counters.add("over_kernels", seconds / watch.seconds());
            counters.add("to_one_thread", seconds / one.seconds(kv.pages(0)));
        });
}

}  // namespace

void register_resident() {
    for (const char* preset : {"bf16", "fp32"}) {
        for (const int64_t tokens : {256, 512, 1024, 2048}) {
            const pages_shape shape{{9, 3, 64}, *find_kv_preset(preset), tokens};
            for_targets("decode_resident", std::string(preset) + "/" + shape.text(),
                        [=](benchmark::State& state, const simd::kernel_table&) { decode_resident(state, shape); });
        }
    }
}

}  // namespace ropewalk::bench
