// Writes on from prompts of token ids with a model of the Llama family, by greedy choice:
//
//   ropewalk-example-llama --model FOLDER --prompts FILE [--expect FILE] ...
//
// FILE has a prompt a line, ids between blanks. Ids of the texts go to standard output, a line a prompt; figures to standard error.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <ropewalk/ropewalk.hpp>

#include "checkpoint.hpp"
#include "errors.hpp"
#include "model.hpp"
#include "openmp_executor.hpp"
#include "scheduler.hpp"

namespace {

using namespace llama;
using id_lists = std::vector<std::vector<int32_t>>;

struct options {
    std::filesystem::path model, prompts, expect;
    std::string kv_type = "fp32", executor = "openmp";
    int32_t page_tokens = 64, pages = 0;
    scheduler::limits limits;
};

void declare(CLI::App& app, options& o) {
    app.add_option("--model", o.model, "folder with config.json and *.safetensors")->required()->check(CLI::ExistingDirectory);
    app.add_option("--prompts", o.prompts, "a prompt a line, token ids between blanks")->required()->check(CLI::ExistingFile);
    app.add_option("--expect", o.expect, "ids that have to come out, as they are printed; exit code 1 where they differ")->check(CLI::ExistingFile);
    app.add_option("--new-tokens", o.limits.new_tokens, "tokens of a text")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--sequences", o.limits.sequences, "texts that are written at the same time")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--step-tokens", o.limits.step_tokens, "tokens of a step")->capture_default_str()->check(CLI::PositiveNumber);
    std::vector<std::string> presets;
    for (const ropewalk::kv_preset& preset : ropewalk::kv_presets) presets.emplace_back(preset.name);
    app.add_option("--kv-type", o.kv_type, "type of keys and values in the cache")->capture_default_str()->check(CLI::IsMember(presets));
    app.add_option("--page-tokens", o.page_tokens, "tokens of a page")->capture_default_str();
    app.add_option("--pages", o.pages, "pages of the cache; 0: enough for --sequences of the longest prompt")->capture_default_str();
    app.add_option("--executor", o.executor, "who runs attention")->capture_default_str()->check(CLI::IsMember({"openmp", "default", "serial"}));
}

std::unique_ptr<ropewalk::executor> own_executor(const std::string& name) {
    if (name == "openmp") return std::make_unique<openmp_executor>();
    if (name == "serial") return std::make_unique<ropewalk::serial_executor>();
    return nullptr;
}

id_lists read_ids(const std::filesystem::path& path) {
    id_lists lists;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::vector<int32_t>& ids = lists.emplace_back();
        for (int32_t id = 0; words >> id;) ids.push_back(id);
        if (!words.eof())
            throw std::runtime_error(path.string() + ", line " + std::to_string(lists.size()) + ": holds something that is no token id");
    }
    return lists;
}

// Returns the tokens of the longest text that may come of them.
int64_t check_prompts(const id_lists& prompts, const config& facts, std::size_t new_tokens) {
    std::size_t longest = 0;
    for (const std::vector<int32_t>& ids : prompts) {
        const auto unknown = std::ranges::find_if(ids, [&](int32_t id) { return id < 0 || id >= facts.vocabulary; });
        if (ids.empty()) throw std::runtime_error("a prompt is empty");
        if (unknown != ids.end()) throw std::runtime_error("token id " + std::to_string(*unknown) + " is not in the vocabulary");
        longest = std::max(longest, ids.size() + new_tokens);
    }
    const int64_t limit = facts.positions.max_positions;
    if (limit != 0 && longest > static_cast<std::size_t>(limit)) {
        throw std::runtime_error("a text may reach " + std::to_string(longest) + " tokens, the model has " + std::to_string(limit) + " positions");
    }
    return static_cast<int64_t>(longest);
}

ropewalk::kv_cache make_cache(const options& o, const model& m, int64_t longest) {
    ropewalk::kv_cache_config config;
    config.layout = m.layout(*ropewalk::find_kv_preset(o.kv_type), o.page_tokens);
    check(config.layout.validate());
    config.layers = m.facts().positions.layers.layers();
    const int64_t pages_of_one = (longest + o.page_tokens - 1) / o.page_tokens;
    config.page_count = o.pages != 0 ? o.pages : static_cast<int32_t>(pages_of_one * static_cast<int64_t>(o.limits.sequences));
    return value(ropewalk::kv_cache::create(config));
}

std::string printed(const id_lists& lists) {
    std::ostringstream text;
    for (const std::vector<int32_t>& ids : lists) {
        for (std::size_t i = 0; i < ids.size(); ++i) text << (i == 0 ? "" : " ") << ids[i];
        text << '\n';
    }
    return text.str();
}

int report_difference(const id_lists& got, const id_lists& expected) {
    if (got == expected) return 0;
    const auto line = std::ranges::mismatch(got, expected).in1 - got.begin();
    std::fprintf(stderr, "text %td is not the expected one (%zu texts, %zu expected)\n", line + 1, got.size(), expected.size());
    return 1;
}

int write_on(const options& o) {
    const std::unique_ptr<ropewalk::executor> own = own_executor(o.executor);
    model m(checkpoint(o.model), own ? *own : ropewalk::default_executor());
    const id_lists prompts = read_ids(o.prompts);
    ropewalk::kv_cache cache = make_cache(o, m, check_prompts(prompts, m.facts(), o.limits.new_tokens));
    scheduler::limits limits = o.limits;
    limits.endings = m.facts().endings;
    scheduler texts(cache, limits);
    for (const std::vector<int32_t>& prompt : prompts) texts.submit(prompt);

    int64_t steps = 0, computed = 0, written = 0;
    const auto start = std::chrono::steady_clock::now();
    for (; const step* work = texts.next(); ++steps) {
        texts.accept(m.forward(*work, cache));
        computed += static_cast<int64_t>(work->tokens.size());
        written += static_cast<int64_t>(work->last_rows.size());
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    std::fputs(printed(texts.texts()).c_str(), stdout);
    std::fprintf(stderr, "%zu prompts, %lld steps, %lld tokens computed, %lld written in %.2f s: %.1f tokens/s written\n", prompts.size(),
                 static_cast<long long>(steps), static_cast<long long>(computed), static_cast<long long>(written), seconds,
                 static_cast<double>(written) / seconds);
    std::fprintf(stderr, "attention %.1f %% of the time, matrix products %.1f %%; %lld times sent back for want of pages; kv %s, executor %s\n",
                 100.0 * m.spent().attention / seconds, 100.0 * m.spent().products / seconds, static_cast<long long>(texts.sent_back()),
                 o.kv_type.c_str(), o.executor.c_str());
    return o.expect.empty() ? 0 : report_difference(texts.texts(), read_ids(o.expect));
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Continuous batching of a Llama-family model: oneDNN for matrix products, ropewalk for positions, cache and attention");
    options o;
    declare(app, o);
    CLI11_PARSE(app, argc, argv);
    try {
        return write_on(o);
    } catch (const std::exception& e) {
        std::fprintf(stderr, "ropewalk-example-llama: %s\n", e.what());
        return 2;
    }
}
