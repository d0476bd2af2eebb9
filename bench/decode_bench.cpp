// Decode, verification of drafted tokens, a shared prefix: share of the read roof and of the bound; tokens/s of narrow types against bf16.
#include <algorithm>

#include "bench/attention_step.hpp"

namespace ropewalk::bench {
namespace {

// A few times what starting the workers takes, and no more than a decode step; of a step that is longer than that, an eighth.
constexpr double peak_seconds = 0.0004;

// The bound is the longer of reading K and V at the roof and of computing at the peak. memory_bound tells which: 1 reading, 0 computing.
void run_bounded(benchmark::State& state, const simd::kernel_table& kernels, const paged_layers& kv, step& s, executor& on) {
    const peak_function peak = peak_of(s.plan());
    const double gigabytes = static_cast<double>(s.plan().kv_bytes()) * 1e-9, gigaflops = s.plan().flops() * 1e-9;
    run_iterations(
        state, peak != nullptr ? "bound_share" : "roof_share", [&](int64_t i) { return s.seconds(kv.unit_pages(2 * i)); },
        [&](int64_t i, double seconds, samples& counters) {
            const double roof = toolkit::read_roof(kernels.roof, kv.unit_bytes(2 * i + 1), on);
            add_rate(counters, "GB/s", gigabytes / seconds, roof);
            if (peak == nullptr) return;
            const double reading = gigabytes / roof, computing = gigaflops / peak(kernels.roof, on, std::max(peak_seconds, seconds / 8));
            counters.add("bound_share", std::max(reading, computing) / seconds);
            counters.add("memory_bound", reading >= computing ? 1.0 : 0.0);
        });
}

void decode(benchmark::State& state, const simd::kernel_table& kernels, const pages_shape& shape, int64_t q_len, executor& on) {
    const paged_layers& kv = layers_of(shape);
    step s(make_problem(shape), kv, q_len, shape.tokens, on);
    run_bounded(state, kernels, kv, s, on);
}

// One query token of each of `sequences`, which have their first `shared` tokens in common and a page of their own.
void cascade(benchmark::State& state, const simd::kernel_table& kernels, const pages_shape& shape, int64_t sequences, int64_t shared) {
    const paged_layers& kv = layers_of(shape);
    std::vector<int64_t> q_indptr{0}, page_indptr{0};
    const std::vector<int64_t> kv_lens(static_cast<std::size_t>(sequences), shared + kv.layout.page_tokens);
    std::vector<int32_t> page_ids;
    const auto prefix = kv.page_ids.begin(), own = prefix + shared / kv.layout.page_tokens;
    for (int64_t s = 0; s < sequences; ++s) {
        q_indptr.push_back(s + 1);
        page_ids.insert(page_ids.end(), prefix, own);
        page_ids.push_back(own[s]);
        page_indptr.push_back(static_cast<int64_t>(page_ids.size()));
    }
    step s(make_problem(shape), kv, {q_indptr, kv_lens, {}, page_indptr, page_ids, {}}, default_executor());
    run_bounded(state, kernels, kv, s, default_executor());
}

// Latent attention over pages in which V is a view of K, and right after it over pages that store V as well: what turning K into V costs.
void latent_ratio(benchmark::State& state, const pages_shape& shape, executor& on) {
    pages_shape stored = shape;
    stored.v_in_k = false;
    const paged_layers &kv = layers_of(shape), &both = layers_of(stored);
    step s(make_problem(shape), kv, 1, shape.tokens, on), s_both(make_problem(stored), both, 1, shape.tokens, on);
    run_iterations(
        state, "ratio_to_stored_v", [&](int64_t i) { return s.seconds(kv.pages(i)); },
        [&](int64_t i, double seconds, samples& counters) { counters.add("ratio_to_stored_v", s_both.seconds(both.pages(i)) / seconds); });
}

// The same step over bf16 pages right after it: how many times the tokens/s of bf16.
void decode_ratio(benchmark::State& state, const pages_shape& shape, executor& on) {
    pages_shape wide = shape;
    wide.preset = *find_kv_preset("bf16");
    const paged_layers &bf16 = layers_of(wide), &kv = layers_of(shape);
    step s(make_problem(shape), kv, 1, shape.tokens, on), s16(make_problem(wide), bf16, 1, shape.tokens, on);
    run_iterations(
        state, "ratio_to_bf16", [&](int64_t i) { return s.seconds(kv.pages(i)); },
        [&](int64_t i, double seconds, samples& counters) { counters.add("ratio_to_bf16", s16.seconds(bf16.pages(i)) / seconds); });
}

constexpr head_shape shapes[] = {{32, 8, 128}, {32, 32, 128}, {28, 4, 128}, {64, 8, 128}, {71, 1, 64}, {71, 1, 128}};

executor& one_core() {
    static serial_executor serial;
    return serial;
}

void register_ratio(const kv_preset& preset) {
    for (const head_shape& heads : {shapes[0], shapes[2], shapes[3]}) {
        for (const int64_t tokens : {4096, 16384}) {
            const pages_shape shape{heads, preset, tokens, 1, decode_bytes};
            const std::string rest = std::string(preset.name) + "/" + shape.text();
            for_targets("decode_ratio", rest,
                        [=](benchmark::State& state, const simd::kernel_table&) { decode_ratio(state, shape, default_executor()); });
            for_targets("decode_ratio_one_core", rest,
                        [=](benchmark::State& state, const simd::kernel_table&) { decode_ratio(state, shape, one_core()); });
        }
    }
}

}  // namespace

void register_decode() {
    for (const head_shape& heads : shapes) {
        for (const kv_preset& preset : kv_presets) {
            for (const int64_t tokens : {4096, 16384, 131072}) {
                for (const int64_t sequences : {1, 8}) {
                    const pages_shape shape{heads, preset, tokens, sequences, decode_bytes};
                    if (!shape.fits()) continue;
                    const std::string rest = std::string(preset.name) + "/" + shape.text();
                    for_targets("decode", rest,
                                [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, 1, default_executor()); });
                    for_targets("decode_one_core", rest,
                                [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, 1, one_core()); });
                }
            }
        }
    }
    for (const kv_preset& preset : kv_presets) {
        if (preset.name != "bf16") register_ratio(preset);
    }
    for (const int32_t heads : {16, 128}) {
        for (const char* preset : {"bf16", "fp32", "fp16"}) {
            const pages_shape shape{{heads, 1, 576}, *find_kv_preset(preset), 8192, 1, decode_bytes / 4, 512, true};
            const std::string rest = std::string(preset) + "/" + shape.text();
            for_targets("latent", rest,
                        [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, 1, default_executor()); });
            for_targets("latent_one_core", rest,
                        [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, 1, one_core()); });
            for_targets("latent_ratio", rest,
                        [=](benchmark::State& state, const simd::kernel_table&) { latent_ratio(state, shape, default_executor()); });
        }
    }
    const pages_shape shared{shapes[0], *find_kv_preset("bf16"), 4096 + 32 * 64, 1, decode_bytes};
    for_targets("cascade", "bf16/" + shared.heads.text() + "/s32p4096",
                [=](benchmark::State& state, const simd::kernel_table& k) { cascade(state, k, shared, 32, 4096); });
    for (const char* preset : {"bf16", "fp32", "k8v8"}) {
        const pages_shape shape{shapes[0], *find_kv_preset(preset), 8192, 1, decode_bytes};
        for (const int64_t drafted : {2, 4, 8, 16}) {
            for_targets("verify", std::string(preset) + "/" + shape.text() + "q" + std::to_string(drafted),
                        [=](benchmark::State& state, const simd::kernel_table& k) { decode(state, k, shape, drafted, default_executor()); });
        }
    }
}

}  // namespace ropewalk::bench
