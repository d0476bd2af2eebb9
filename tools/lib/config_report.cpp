#include "tools/lib/config_report.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <vector>

#include "tools/lib/refusal.hpp"

namespace ropewalk::toolkit {
namespace {

using nlohmann::ordered_json;

struct unmapper {
    std::size_t bytes;
    void operator()(void* from) const { ::munmap(from, bytes); }
};
struct closer {
    int descriptor;
    ~closer() { ::close(descriptor); }
};

// "0-4, 6-10"
std::string ranges_of(const position_stack& stack, int32_t kind) {
    std::string text;
    for (int32_t i = 0; i < stack.layers(); ++i) {
        if (stack.kind_of_layer[static_cast<std::size_t>(i)] != kind) continue;
        int32_t last = i;
        while (last + 1 < stack.layers() && stack.kind_of_layer[static_cast<std::size_t>(last) + 1] == kind) ++last;
        text += fmt::format("{}{}", text.empty() ? "" : ", ", i);
        if (last > i) text += fmt::format("-{}", last);
        i = last;
    }
    return text;
}

std::string span_text(const position_spec& layer) {
    const auto side = [](int64_t keys) { return keys == attention_span::unlimited ? std::string("all") : std::to_string(keys); };
    if (layer.span.chunk != 0) return fmt::format("causal in chunks of {}", layer.span.chunk);
    if (layer.span == attention_span::causal()) return "causal";
    if (layer.span == attention_span::full()) return "full";
    if (layer.span.right == 0) return fmt::format("window of {}", layer.span.left + 1);
    return fmt::format("{} to the left, {} to the right", side(layer.span.left), side(layer.span.right));
}

ordered_json rope_json(const rope_rotation& rope) {
    const rope_parameters& p = rope.parameters;
    const int32_t turned = rope.spec.rotary_dim();
    static constexpr const char* pairings[] = {"halves", "neighbours", "neighbours, written as halves"};
    ordered_json json = {{"type", name(p.family)},
                         {"theta", p.theta},
                         {"dims", fmt::format("{}-{}", rope.first_dim, rope.first_dim + std::max(turned, 1) - 1)},
                         {"pairs", pairings[static_cast<int>(rope.pairing)]},
                         {"amplitude", rope.spec.amplitude}};
    if (p.factor != 1.0) json["factor"] = p.factor;
    if (p.original_max_position != 0.0) json["original_length"] = p.original_max_position;
    if (p.family == rope_family::llama3) json["low_high_freq_factor"] = fmt::format("{}, {}", p.low_freq_factor, p.high_freq_factor);
    if (p.family == rope_family::yarn) json["beta_fast_slow"] = fmt::format("{}, {}", p.beta_fast, p.beta_slow);
    if (p.family == rope_family::yarn) json["truncate"] = p.truncate;
    if (p.family == rope_family::proportional) json["share"] = p.partial_rotary_factor;
    if (p.family == rope_family::ntk_alpha) json["alpha"] = p.alpha;
    if (!p.divisors.empty()) json["divisors"] = fmt::format("{} explicit", p.divisors.size());
    if (!p.axis_of_pair.empty()) json["axis_of_pair"] = p.axis_of_pair;
    json["inv_freq"] = rope.spec.inv_freq;
    if (p.depends_on_length()) {
        const auto longer = p.at(static_cast<int64_t>(2.0 * p.original_max_position));
        if (longer.ok()) json["inv_freq_at_twice_the_original_length"] = longer->inv_freq;
    }
    return json;
}

// What belongs to the encoding alone.
ordered_json encoding_json(const position_spec& layer) {
    const auto& d = layer.deberta;
    const auto& x = layer.xlnet;
    static constexpr const char *rules[] = {"press", "mpt", "falcon"}, *places[] = {"after softcap", "before softcap", "before scale"};
    switch (layer.encoding) {
        case position_encoding::alibi:
            return {{"rule", rules[static_cast<int>(layer.alibi.rule)]},
                    {"max_exponent", layer.alibi.max_exponent},
                    {"place", places[static_cast<int>(layer.alibi.place)]},
                    {"symmetric", layer.alibi.symmetric}};
        case position_encoding::t5_buckets:
            return {{"buckets", layer.t5.rule.num_buckets},
                    {"max_distance", layer.t5.rule.max_distance},
                    {"bidirectional", layer.t5.rule.bidirectional},
                    {"shared", layer.t5.shared}};
        case position_encoding::xlnet:
            return {{"bidirectional", x.bidirectional},
                    {"clamp_len", x.clamp_len},
                    {"mem_len", x.mem_len},
                    {"reuse_len", x.reuse_len},
                    {"bi_data", x.bi_data},
                    {"same_length", x.same_length},
                    {"untie_r", x.untie_r}};
        case position_encoding::deberta:
            return {{"version", d.version},
                    {"c2p", d.c2p},
                    {"p2c", d.p2c},
                    {"buckets", d.buckets},
                    {"max_distance", d.max_distance},
                    {"span", d.span()},
                    {"share_keys", d.share_keys},
                    {"normalise", d.normalise}};
        case position_encoding::relative_key:
        case position_encoding::relative_key_query: return {{"rows", layer.relative_rows}};
        default: return ordered_json::object();
    }
}

ordered_json layer_json(const position_spec& layer) {
    ordered_json json = {{"encoding", name(layer.encoding)},
                         {"heads", layer.heads},
                         {"kv_heads", layer.kv_heads},
                         {"k_dim", layer.k_dim},
                         {"v_dim", layer.v_dim},
                         {"scale", layer.scale},
                         {"sees", span_text(layer)}};
    if (layer.kv_lora_rank != 0) json["kv_lora_rank"] = layer.kv_lora_rank;
    if (layer.softcap != 0.0) json["softcap"] = layer.softcap;
    if (layer.sinks) json["sinks"] = true;
    if (layer.prefix_lm) json["prefix_lm"] = true;
    if (layer.qk_norm != qk_norm_order::none) json["qk_norm"] = layer.qk_norm == qk_norm_order::before_rope ? "before rope" : "after rope";
    if (const auto& t = layer.temperature; t.has_value()) {
        json["temperature"] = fmt::format("1 + {:.6g} ln(1 + floor((p + {}) / {}))", t->beta, t->offset, t->floor_length);
    }
    if (layer.encoding == position_encoding::rope) json["rope"] = rope_json(layer.rope);
    if (const ordered_json own = encoding_json(layer); !own.empty()) json[std::string(name(layer.encoding))] = own;
    return json;
}

ordered_json sinusoid_json(const sinusoid_spec& sinusoid) {
    return {{"columns", sinusoid.columns == sinusoid_columns::interleaved ? "interleaved" : "concatenated"},
            {"base", sinusoid.base},
            {"denominator", sinusoid.denominator}};
}

ordered_json stack_json(const position_stack& stack) {
    ordered_json json = ordered_json::object();
    const absolute_positions& a = stack.absolute;
    if (a.kind != position_encoding::none) {
        json["absolute"] = {{"kind", name(a.kind)}, {"rows", a.rows}, {"offset", a.offset}, {"dim", a.dim}, {"skips_padding", a.skips_padding}};
        if (a.kind == position_encoding::sinusoidal) json["absolute"].update(sinusoid_json(a.sinusoid));
    }
    json["layers"] = ordered_json::array();
    for (std::size_t kind = 0; kind < stack.kinds.size(); ++kind) {
        ordered_json entry = {{"layers", ranges_of(stack, static_cast<int32_t>(kind))}};
        entry.update(layer_json(stack.kinds[kind]));
        json["layers"].push_back(entry);
    }
    return json;
}

// "key value, key value" of the scalars of an object.
std::string scalars(const ordered_json& object) {
    std::string text;
    for (const auto& [key, value] : object.items()) {
        if (value.is_structured() || key == "layers" || key == "encoding") continue;
        std::string words = key;
        std::replace(words.begin(), words.end(), '_', ' ');
        const std::string shown = value.is_string()         ? value.get<std::string>()
                                  : value.is_number_float() ? fmt::format("{:.6g}", value.get<double>())
                                  : value.is_boolean()      ? (value.get<bool>() ? "yes" : "no")
                                                            : value.dump();
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", words, shown);
    }
    return text;
}

double log_wavelength(double inv_freq) { return std::log10(2.0 * std::numbers::pi / inv_freq); }

// Rows of log10 wavelength, columns of pairs: '*' short sequences, 'o' long ones where they differ, '-' the context. Pairs that stand still stay
// empty.
class wavelength_chart {
public:
    static constexpr std::size_t rows = 12, widest = 64;

    wavelength_chart(const std::vector<double>& inv_freq, int64_t context) : pairs_(inv_freq.size()), width_(std::min(pairs_, widest)) {
        for (const double w : inv_freq) {
            if (w > 0.0) highest_ = std::max(highest_, log_wavelength(w));
        }
        if (context > 0) highest_ = std::max(highest_, std::log10(static_cast<double>(context)));
        highest_ = std::min(std::ceil(highest_), 20.0);  // a divisor of 1e30 says "stands still"
        lines_.assign(rows, std::string(width_, ' '));
        if (context > 0) lines_[row_of(std::log10(static_cast<double>(context)))].assign(width_, '-');
    }

    void draw(const std::vector<double>& inv_freq, char mark) {
        for (std::size_t i = 0; i < inv_freq.size() && i < pairs_; ++i) {
            const double wavelength = inv_freq[i] > 0.0 ? log_wavelength(inv_freq[i]) : 100.0;
            if (wavelength <= highest_) lines_[row_of(wavelength)][i * width_ / pairs_] = mark;
        }
    }

    [[nodiscard]] std::string text() const {
        std::string text;
        for (std::size_t row = 0; row < rows; ++row) {
            const std::string line = lines_[row].substr(0, lines_[row].find_last_not_of(' ') + 1);
            text += fmt::format("    {:4.1f} |{}\n", highest_ - static_cast<double>(row) * step(), line);
        }
        text += fmt::format("   log10 +{}\n  wavelength  pairs 0 to {}\n", std::string(width_, '-'), pairs_ - 1);
        return text;
    }

private:
    [[nodiscard]] double step() const { return highest_ / static_cast<double>(rows - 1); }
    [[nodiscard]] std::size_t row_of(double value) const {
        const double row = std::round((highest_ - value) / step());
        return static_cast<std::size_t>(std::clamp(row, 0.0, static_cast<double>(rows - 1)));
    }

    std::size_t pairs_, width_;
    double highest_ = 1.0;
    std::vector<std::string> lines_;
};

std::string rope_chart(const rope_rotation& rope, int64_t context) {
    if (rope.spec.inv_freq.empty()) return {};
    wavelength_chart chart(rope.spec.inv_freq, context);
    const rope_parameters& p = rope.parameters;
    std::string legend = context > 0 ? fmt::format("  - context of {}", context) : "";
    if (p.depends_on_length()) {
        const auto longer = p.at(static_cast<int64_t>(2.0 * p.original_max_position));
        if (longer.ok()) chart.draw(longer->inv_freq, 'o');
        legend += fmt::format("  o at {} tokens", 2.0 * p.original_max_position);
    }
    chart.draw(rope.spec.inv_freq, '*');
    const double amplitude = rope.spec.amplitude;
    const auto bar = static_cast<std::size_t>(std::lround(20.0 * std::clamp(amplitude, 0.0, 3.0)));
    return fmt::format("{}  * wavelength{}\n  amplitude {:.6f} |{}\n", chart.text(), legend, amplitude, std::string(bar, '='));
}

std::string stack_text(const char* title, const position_stack& stack, int64_t context) {
    const ordered_json json = stack_json(stack);
    std::string text = fmt::format("\n{}, {} layers\n", title, stack.layers());
    if (json.contains("absolute")) text += fmt::format("  added to the embeddings: {}\n", scalars(json["absolute"]));
    for (std::size_t kind = 0; kind < stack.kinds.size(); ++kind) {
        const ordered_json& entry = json["layers"][kind];
        text += fmt::format("\nlayers {}: {}\n  {}\n", entry["layers"].get<std::string>(), entry["encoding"].get<std::string>(), scalars(entry));
        for (const auto& [key, value] : entry.items()) {
            if (value.is_object()) text += fmt::format("  {}: {}\n", key, scalars(value));
        }
        if (stack.kinds[kind].encoding == position_encoding::rope) text += rope_chart(stack.kinds[kind].rope, context);
    }
    return text;
}

}  // namespace

result<position_config> read_config_file(const std::string& path) {
    const closer file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat about {};
    if (file.descriptor < 0 || ::fstat(file.descriptor, &about) != 0) return refusal(status_code::not_found, "{}: {}", path, std::strerror(errno));
    if (!S_ISREG(about.st_mode) || about.st_size == 0) return refusal(status_code::corrupt_data, "{}: not a regular file with content", path);
    const auto bytes = static_cast<std::size_t>(about.st_size);
    void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
    if (mapped == MAP_FAILED) return refusal(status_code::out_of_memory, "{}: {}", path, std::strerror(errno));
    const std::unique_ptr<void, unmapper> mapping(mapped, unmapper{bytes});
    const bool gguf = bytes >= 4 && std::memcmp(mapped, "GGUF", 4) == 0;
    result<position_config> config = gguf ? read_gguf_metadata(std::span(static_cast<const std::byte*>(mapped), bytes))
                                          : read_hf_config(std::string_view(static_cast<const char*>(mapped), bytes));
    if (!config.ok()) return refusal(config.state().code(), "{}: {}", path, config.state().text());
    return config;
}

ordered_json config_json(const position_config& config) {
    ordered_json json = {{"model_type", config.model_type}, {"max_positions", config.max_positions}, {"stack", stack_json(config.layers)}};
    if (config.encoder.layers() != 0) json["encoder"] = stack_json(config.encoder);
    if (config.cross_attention) json["cross_attention"] = layer_json(*config.cross_attention);
    return json;
}

std::string config_text(const position_config& config) {
    const std::string limit = config.max_positions != 0 ? fmt::format("{} positions", config.max_positions) : "no limit of positions";
    std::string text = fmt::format("{}: {}\n", config.model_type, limit);
    if (config.encoder.layers() != 0) text += stack_text("encoder", config.encoder, config.max_positions);
    text += stack_text(config.encoder.layers() != 0 ? "decoder" : "model", config.layers, config.max_positions);
    if (config.cross_attention) text += fmt::format("\ncross attention: {}\n", scalars(layer_json(*config.cross_attention)));
    return text;
}

}  // namespace ropewalk::toolkit
