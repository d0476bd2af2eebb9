// ropewalk-decode: decode throughput of attention, rope and the KV cache.
//
//   replay (default)   a recorded trace of a real model, token by token, checked against the model's own outputs
//   synthetic          --model or --heads ..: caches as large as a server's, KV from DRAM, against the machine's read roof
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <ropewalk/ropewalk.hpp>
#include "runtime/pages_memory.hpp"
#include "simd/core/dispatch.hpp"
#include "tools/lib/cli.hpp"
#include "tools/lib/decode/replay.hpp"
#include "tools/lib/decode/rows.hpp"
#include "tools/lib/decode/sweep.hpp"
#include "tools/lib/machine.hpp"
#include "tools/lib/refusal.hpp"
#include "tools/lib/report.hpp"
#include "tools/lib/roof.hpp"

namespace {

using namespace ropewalk;
using namespace ropewalk::toolkit;

constexpr const char* tool = "ropewalk-decode";
constexpr const char* trace_in_repository = "tests/golden/trace/smollm2_l4_f32.safetensors";
constexpr const char* trace_installed = "share/ropewalk/smollm2_l4_f32.safetensors";  // below the prefix

struct options {
    std::string trace;
    std::optional<int64_t> prefill;  // has a value once the trace is known
    std::vector<std::string> models;
    int32_t heads = 0, kv_heads = 0, head_dim = 0, layers = 0;
    int64_t window = 0;
    double softcap = 0.0;
    bool alibi = false;
    std::vector<int64_t> contexts{4096};
    std::vector<int32_t> batches{1};
    std::vector<std::string> kv_types;
    std::string q_type, precision = "standard";
    std::vector<int32_t> threads;
    int32_t page_tokens = 64, repetitions = 5;
    int64_t least_megabytes = beyond_cache_bytes() >> 20;
    std::string json, csv, target;
};

// What every mode needs, made of the options once they are known to be right.
struct session {
    options chosen;
    target used = target::scalar;
    std::vector<kv_preset> kv_types;
    std::vector<workers> teams;  // one for each number of threads
    std::vector<int32_t> threads;
    report_file json, csv;
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();

    [[nodiscard]] bool shows_table() const { return !json.takes_stdout() && !csv.takes_stdout(); }
};

result<dtype> query_type(const std::string& text) {
    for (const dtype type : {dtype::fp32, dtype::bf16}) {
        if (text == name(type)) return type;
    }
    return refusal(status_code::invalid_argument, "--q-type is {}; must be fp32 or bf16", text);
}

result<attention_precision> precision_named(const std::string& text) {
    if (text == "standard") return attention_precision::standard;
    if (text == "fast") return attention_precision::fast;
    return refusal(status_code::invalid_argument, "--precision is {}; must be standard or fast", text);
}

result<kv_preset> preset_named(const std::string& text) {
    if (const kv_preset* preset = find_kv_preset(text); preset != nullptr) return *preset;
    std::string names;
    for (const kv_preset& preset : kv_presets) names.append(names.empty() ? "" : ", ").append(preset.name);
    return refusal(status_code::invalid_argument, "--kv-type is {}; must be one of {}", text, names);
}

result<session> open_session(const options& chosen, std::vector<std::string> default_kv_types) {
    session s;
    s.chosen = chosen;
    const result<target> used = use_target(chosen.target);
    if (!used.ok()) return used.state();
    s.used = *used;
    for (const std::string& text : chosen.kv_types.empty() ? default_kv_types : chosen.kv_types) {
        const result<kv_preset> preset = preset_named(text);
        if (!preset.ok()) return preset.state();
        s.kv_types.push_back(*preset);
    }
    s.threads = chosen.threads.empty() ? std::vector<int32_t>{workers::available()} : chosen.threads;
    for (const int32_t threads : s.threads) {
        result<workers> team = workers::create(threads);
        if (!team.ok()) return refusal(status_code::invalid_argument, "--{}", std::string_view(team.state().text()));
        s.teams.push_back(std::move(*team));
    }
    for (auto [file, path, option] : {std::tuple{&s.json, &chosen.json, "--json"}, std::tuple{&s.csv, &chosen.csv, "--csv"}}) {
        result<report_file> report = report_file::open(*path, option);
        if (!report.ok()) return report.state();
        *file = std::move(*report);
    }
    return s;
}

int finish(session& s, int code) {
    for (const status& written : {s.json.write_json(s.rows), s.csv.write_csv(s.rows)}) {
        if (!written.ok()) return bad_input(tool, written.text());
    }
    return code;
}

decode_row row_of(const session& s, std::string mode, const model_shape& model, std::size_t team) {
    decode_row row;
    row.mode = std::move(mode);
    row.model = &model;
    row.used = s.used;
    row.threads = s.threads[team];
    row.page_tokens = s.chosen.page_tokens;
    return row;
}

void add_row(session& s, table& rows, const decode_row& row) {
    s.rows.push_back(to_json(row));
    if (s.shows_table()) rows.row(table_cells(row));
}

// ---- replay -------------------------------------------------------------------------------------------------------------------------------

// The trace of the repository: beside the executable's build folder, installed with it, or where the sources were when it was built.
std::string find_trace() {
    std::error_code ignored;
    std::vector<std::filesystem::path> places;
    const std::filesystem::path executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
    for (auto folder = executable.parent_path(); folder.has_relative_path(); folder = folder.parent_path()) places.push_back(folder);
#if defined(ROPEWALK_SOURCE_DIR)
    places.emplace_back(ROPEWALK_SOURCE_DIR);
#endif
    for (const auto& place : places) {
        for (const char* trace : {trace_in_repository, trace_installed}) {
            if (std::filesystem::is_regular_file(place / trace, ignored)) return (place / trace).string();
        }
    }
    return "";
}

// One replay measured: `repetitions` runs, the roof over a buffer beyond the caches after each.
result<decode_row> replay_row(const session& s, const trace& recorded, const kv_preset& kv, std::size_t team, std::span<const std::byte> buffer,
                              const std::function<void()>& progress) {
    result<trace_replay> replay = trace_replay::create(recorded, {*s.chosen.prefill, kv, s.chosen.page_tokens});
    if (!replay.ok()) return replay.state();
    status why;
    const simd::kernel_table* kernels = simd::active_kernels(&why);
    if (kernels == nullptr) return why;

    decode_row row = row_of(s, "replay", recorded.model, team);
    row.kv = kv;
    row.context = recorded.tokens;
    std::vector<double> steps, attention, append;
    std::vector<std::vector<float>> first;
    comparison checks;
    executor& on = s.teams[team].on();
    status done;
    for (int32_t i = 0; done.ok() && i <= s.chosen.repetitions; ++i) {
        trace_replay::timing t;
        s.teams[team].enter([&] { done = replay->run(on, t); });
        if (i == 0) first = replay->outputs();  // the first run also warms up and is not timed
        for (std::size_t l = 0; l < first.size(); ++l) checks.same_bits("another run", replay->outputs()[l], first[l]);
        if (i == 0 || t.steps == 0) continue;
        row.bandwidth.add(t.kv_bytes / t.seconds * 1e-9, read_roof(kernels->roof, buffer, on));
        const auto count = static_cast<double>(t.steps);
        steps.push_back(t.seconds / count);
        attention.push_back(t.parts.attention / count);
        append.push_back(t.parts.append / count);
        progress();
    }
    if (!done.ok()) return done;
    replay->compare(checks);
    row.step_seconds = median(steps);
    row.attention_seconds = median(attention);
    row.append_seconds = median(append);
    row.errors = {checks.largest().error, checks.largest().tolerance, checks.ratio(), checks.quantity(), checks.passed()};
    return row;
}

int replay_all(session& s, const trace& recorded, const std::string& path) {
    const int64_t spare = available_memory() / 4;  // negative where nobody knows
    result<runtime::mapped_memory> buffer = runtime::mapped_memory::create(spare > 0 ? std::min(spare, beyond_cache_bytes()) : beyond_cache_bytes());
    if (!buffer.ok()) return bad_input(tool, buffer.state().text());
    std::fill(buffer->bytes().begin(), buffer->bytes().end(), std::byte{1});
    if (s.shows_table()) {
        fmt::print(
            "{}\n{} on {}: {} of {} tokens prefilled, then one a step through {} layers of {} heads on {} KV heads of dim {}\n"
            "KV of this trace stays in the CPU's caches, the roof is DRAM's: shares above 100 % are possible\n",
            path, recorded.model.name, name(s.used), *s.chosen.prefill, recorded.tokens, recorded.model.layers, recorded.model.heads,
            recorded.model.kv_heads, recorded.model.head_dim);
    }
    table rows = decode_table(true);
    if (s.shows_table()) rows.header();
    const auto total = static_cast<int64_t>(s.kv_types.size() * s.teams.size()) * s.chosen.repetitions;
    progress_bar bar(total);
    int64_t done = 0;
    int code = exit_ok;
    for (const kv_preset& kv : s.kv_types) {
        for (std::size_t team = 0; team < s.teams.size(); ++team) {
            const auto progress = [&] { bar.show(++done, fmt::format("{} KV, {} threads", kv.name, s.threads[team])); };
            const result<decode_row> row = replay_row(s, recorded, kv, team, buffer->bytes(), progress);
            bar.clear();
            if (!row.ok()) return bad_input(tool, row.state().text());
            add_row(s, rows, *row);
            if (!row->errors->passed) code = exit_failed;
        }
    }
    return finish(s, code);
}

int run_replay(options chosen) {
    const std::string path = chosen.trace.empty() ? find_trace() : chosen.trace;
    if (path.empty()) return bad_input(tool, fmt::format("no trace: {} is nowhere above this executable; give --trace F", trace_in_repository));
    const result<safetensors_file> file = safetensors_file::open(path);
    if (!file.ok()) return bad_input(tool, fmt::format("--trace {}: {}", path, file.state().text()));
    golden_reader golden(*file);
    trace recorded;
    golden.require(!golden.state().ok() || golden.kind() == "trace", fmt::format("kind is {}; must be trace", golden.kind()));
    const status loaded = load_trace(golden, recorded);
    for (const status& state : {golden.state(), loaded}) {
        if (!state.ok()) return bad_input(tool, fmt::format("--trace {}: {}", path, state.text()));
    }
    if (!chosen.prefill) chosen.prefill = recorded.prompt_tokens;
    if (*chosen.prefill < 0 || *chosen.prefill >= recorded.tokens) {
        return bad_input(tool, fmt::format("--prefill is {}; must be 0 to {}: the trace has {} tokens and at least one is decoded", *chosen.prefill,
                                           recorded.tokens - 1, recorded.tokens));
    }
    result<session> s = open_session(chosen, {"fp32", "bf16"});
    if (!s.ok()) return bad_input(tool, s.state().text());
    return replay_all(*s, recorded, path);
}

// ---- synthetic ----------------------------------------------------------------------------------------------------------------------------

// The model given by --heads and its like.
result<model_shape> explicit_model(const options& chosen) {
    const std::pair<const char*, int32_t> needed[] = {
        {"--heads", chosen.heads}, {"--kv-heads", chosen.kv_heads}, {"--head-dim", chosen.head_dim}, {"--layers", chosen.layers}};
    for (const auto& [option, value] : needed) {
        if (value == 0) {
            return refusal(status_code::invalid_argument, "{} is missing; explicit shapes need --heads --kv-heads --head-dim --layers",
                           std::string_view(option));
        }
    }
    if (chosen.heads % chosen.kv_heads != 0) {
        return refusal(status_code::invalid_argument, "--heads is {}; must be a multiple of --kv-heads, {}", chosen.heads, chosen.kv_heads);
    }
    model_shape model;
    model.name = fmt::format("h{}x{}x{}", chosen.heads, chosen.kv_heads, chosen.head_dim);
    model.heads = chosen.heads;
    model.kv_heads = chosen.kv_heads;
    model.head_dim = chosen.head_dim;
    model.layers = chosen.layers;
    model.window = chosen.window;
    model.softcap = static_cast<float>(chosen.softcap);
    model.encoding = chosen.alibi ? model_shape::position::alibi : model_shape::position::rope;
    if (!chosen.alibi) {
        const result<rope_spec> spec = rope_spec::standard(chosen.head_dim / 2 * 2, 1e4);
        if (!spec.ok()) return spec.state();
        model.rope = *spec;
    }
    return model;
}

result<std::vector<model_shape>> models_of(const options& chosen) {
    std::vector<model_shape> models;
    for (const std::string& wanted : chosen.models) {
        const model_shape* preset = find_preset(wanted);
        if (preset == nullptr) return refusal(status_code::invalid_argument, "--model is {}; must be one of {}", wanted, preset_names());
        models.push_back(*preset);
    }
    if (chosen.models.empty()) {
        const result<model_shape> model = explicit_model(chosen);
        if (!model.ok()) return model.state();
        models.push_back(*model);
    }
    return models;
}

result<std::vector<sweep_case>> cases_of(const session& s, const std::vector<model_shape>& models) {
    std::vector<sweep_case> cases;
    const result<attention_precision> precision = precision_named(s.chosen.precision);
    if (!precision.ok()) return precision.state();
    for (const model_shape& model : models) {
        for (const kv_preset& kv : s.kv_types) {
            const result<dtype> q_type = !s.chosen.q_type.empty()        ? query_type(s.chosen.q_type)
                                         : element_bytes(kv.k_type) != 0 ? result<dtype>(kv.k_type)
                                                                         : result<dtype>(dtype::bf16);
            if (!q_type.ok()) return q_type.state();
            for (const int64_t context : s.chosen.contexts) {
                for (const int32_t batch : s.chosen.batches) {
                    cases.push_back({model, kv, *q_type, *precision, context, batch, s.chosen.page_tokens, s.chosen.least_megabytes << 20});
                }
            }
        }
    }
    for (const sweep_case& c : cases) {
        const result<int64_t> bytes = synthetic_cache::bytes(c);
        if (!bytes.ok()) return bytes.state();
    }
    return cases;
}

std::string case_text(const sweep_case& c) { return fmt::format("{} {} context {} batch {}", c.model.name, c.kv.name, c.context, c.batch); }

// True if the case fits in what is free, with a twentieth and 256 MiB to spare; otherwise says why it is left out.
bool fits(const sweep_case& c) {
    const int64_t bytes = *synthetic_cache::bytes(c), free = available_memory();
    if (free < 0 || static_cast<double>(bytes) * 1.05 + 0x1p28 <= static_cast<double>(free)) return true;
    complain(tool, fmt::format("skipped {}: its KV cache takes {}, {} are free", case_text(c), bytes_text(static_cast<double>(bytes)),
                               bytes_text(static_cast<double>(free))));
    return false;
}

// One cache, measured with every number of threads.
status sweep_one(session& s, const sweep_case& c, table& rows, progress_bar& bar, int64_t& done) {
    bar.show(done, fmt::format("{}: filling {}", case_text(c), bytes_text(static_cast<double>(*synthetic_cache::bytes(c)))));
    result<synthetic_cache> cache = synthetic_cache::create(c, s.teams.back().on());
    if (!cache.ok()) return cache.state();
    for (std::size_t team = 0; team < s.teams.size(); ++team) {
        const auto progress = [&] { bar.show(++done, fmt::format("{} threads {}", case_text(c), s.threads[team])); };
        const result<measurement> m = cache->measure(s.chosen.repetitions, s.teams[team], progress);
        if (!m.ok()) return m.state();
        decode_row row = row_of(s, "synthetic", c.model, team);
        row.kv = c.kv;
        row.precision = c.precision;
        row.q_type = c.q_type;
        row.context = c.context;
        row.batch = c.batch;
        row.step_seconds = median(m->step);
        row.attention_seconds = median(m->attention);
        row.append_seconds = median(m->append);
        row.bandwidth = m->bandwidth;
        bar.clear();
        add_row(s, rows, row);
    }
    return {};
}

int run_synthetic(const options& chosen) {
    const result<std::vector<model_shape>> models = models_of(chosen);
    if (!models.ok()) return bad_input(tool, models.state().text());
    result<session> s = open_session(chosen, {"bf16"});
    if (!s.ok()) return bad_input(tool, s.state().text());
    const result<std::vector<sweep_case>> cases = cases_of(*s, *models);
    if (!cases.ok()) return bad_input(tool, cases.state().text());
    if (s->shows_table()) {
        fmt::print(
            "target {}; a step appends one token a sequence (rope fused in) and attends in every layer; share of the read roof: median of {}\n",
            name(s->used), chosen.repetitions);
    }
    table rows = decode_table(false);
    if (s->shows_table()) rows.header();
    const auto per_case = static_cast<int64_t>(s->teams.size()) * chosen.repetitions;
    progress_bar bar(static_cast<int64_t>(cases->size()) * per_case);
    for (std::size_t i = 0; i < cases->size(); ++i) {
        int64_t done = static_cast<int64_t>(i) * per_case;
        bar.clear();
        if (!fits((*cases)[i])) continue;
        const status swept = sweep_one(*s, (*cases)[i], rows, bar, done);
        if (!swept.ok()) return bad_input(tool, fmt::format("{}: {}", case_text((*cases)[i]), swept.text()));
    }
    bar.clear();
    return finish(*s, exit_ok);
}

// ---- command line -------------------------------------------------------------------------------------------------------------------------

void add_replay_options(CLI::App& app, options& chosen) {
    const char* group = "Replay of a trace (default)";
    app.add_option("--trace", chosen.trace, fmt::format("Trace file (default: {})", trace_in_repository))->group(group);
    app.add_option("--prefill", chosen.prefill, "Tokens of the first step, the rest is decoded one by one (default: the prompt)")->group(group);
}

void add_synthetic_options(CLI::App& app, options& chosen) {
    const char* group = "Synthetic sweep";
    const CLI::Range extent(1, 1 << 20);
    app.add_option("--model", chosen.models, fmt::format("Shapes of published models, a list: {}", preset_names()))->delimiter(',')->group(group);
    app.add_option("--heads", chosen.heads, "Query heads, instead of --model")->check(extent)->group(group);
    app.add_option("--kv-heads", chosen.kv_heads, "KV heads")->check(extent)->group(group);
    app.add_option("--head-dim", chosen.head_dim, "Dim of a head")->check(extent)->group(group);
    app.add_option("--layers", chosen.layers, "Layers")->check(extent)->group(group);
    app.add_option("--window", chosen.window, "Keys that a token sees, in all layers (default: all)")->check(extent)->group(group);
    app.add_option("--softcap", chosen.softcap, "Cap of the scores (default: none)")->check(CLI::Range(0.0, 1e6))->group(group);
    app.add_flag("--alibi", chosen.alibi, "ALiBi in place of rope")->group(group);
    app.add_option("--context", chosen.contexts, "Keys of a sequence, a list (default: 4096)")
        ->delimiter(',')
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
        ->group(group);
    app.add_option("--batch", chosen.batches, "Sequences in a step, a list (default: 1)")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 16))
        ->group(group);
    app.add_option("--min-cache", chosen.least_megabytes,
                   fmt::format("MiB that the KV cache takes at least, by holding more sequences, so that it lies in DRAM (default: {})",
                               chosen.least_megabytes))
        ->check(CLI::Range(1, 1 << 24))
        ->group(group);
    app.add_option("--q-type", chosen.q_type, "Type of queries and outputs: fp32, bf16 (default: as --kv-type, bf16 with quantised ones)")
        ->group(group);
    app.add_option("--precision", chosen.precision, "standard, or fast: q and probabilities may be rounded, to 8 bits with k4v4")->group(group);
}

void add_common_options(CLI::App& app, options& chosen) {
    app.add_option(
           "--kv-type", chosen.kv_types,
           "Types of keys and values, a list: fp32, bf16, fp16, fp8, k8v8, k8v4, k4v4, k8v4h, k4v4h (default: fp32 and bf16; synthetic: bf16)")
        ->delimiter(',');
    app.add_option("--threads", chosen.threads, fmt::format("Threads, a list (default: all {})", workers::available()))->delimiter(',');
    app.add_option("--page-tokens", chosen.page_tokens, "Tokens of a page: 16, 32, 64, 128 or 256 (default: 64)")->check(CLI::Range(16, 256));
    app.add_option("--repetitions", chosen.repetitions, "Measurements of a row (default: 5)")->check(CLI::Range(1, 1000));
    app.add_option("--json", chosen.json, "Write the rows as JSON; - is standard output");
    app.add_option("--csv", chosen.csv, "Write the rows as CSV; - is standard output");
    add_target_option(app, chosen.target);
}

// Options of one mode in the other would be ignored silently.
std::optional<std::string> misplaced(const CLI::App& app, bool synthetic) {
    const std::vector<const char*> foreign =
        synthetic ? std::vector<const char*>{"--trace", "--prefill"}
                  : std::vector<const char*>{"--window", "--softcap", "--alibi", "--context", "--batch", "--min-cache", "--q-type", "--precision"};
    for (const char* option : foreign) {
        if (app.count(option) == 0) continue;
        return synthetic ? fmt::format("{} is for the replay of a trace; leave out --model and --heads", option)
                         : fmt::format("{} is for a synthetic sweep; give --model or --heads", option);
    }
    if (app.count("--model") == 0) return std::nullopt;
    for (const char* option : {"--heads", "--kv-heads", "--head-dim", "--layers", "--window", "--softcap", "--alibi"}) {
        if (app.count(option) != 0) return fmt::format("{} gives an explicit shape; --model already has one", option);
    }
    return std::nullopt;
}

}  // namespace

int main(int argc, char** argv) {
    options chosen;
    CLI::App app(
        "Decode throughput of attention, rope and the KV cache: tokens/s, us per layer, GB/s of keys and values and their share of this\n"
        "machine's read bandwidth. Without --model or --heads it replays a recorded trace and checks every output.\n"
        "Exit code: 0 ok, 1 an output is wrong, 2 bad input.",
        tool);
    add_replay_options(app, chosen);
    add_synthetic_options(app, chosen);
    add_common_options(app, chosen);
    if (const std::optional<int> ended = parse(app, argc, argv)) return *ended;
    bool synthetic = false;
    for (const char* option : {"--model", "--heads", "--kv-heads", "--head-dim", "--layers"}) synthetic |= app.count(option) != 0;
    if (const std::optional<std::string> wrong = misplaced(app, synthetic)) return bad_input(tool, *wrong);
    return synthetic ? run_synthetic(chosen) : run_replay(chosen);
}
