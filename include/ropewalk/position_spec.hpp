// What a model does with positions, read from its configuration: a position_spec for every attention layer, as plain data.
//
// Sources: config.json of Hugging Face (the flat keys of transformers 4 and the rope_parameters of transformers 5, nested per layer type or not),
// MPT's attn_config, the metadata of GGUF files. What a file does not say comes from the defaults of transformers' configuration classes, or from
// llama.cpp's table of architectures. A model type that is not in the table is refused by name, also when all its keys look familiar: which
// two elements make a pair is in no file. A key of the parts that are read which is unknown and would change numbers is refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <ropewalk/absolute.hpp>
#include <ropewalk/alibi.hpp>
#include <ropewalk/attention.hpp>
#include <ropewalk/export.hpp>
#include <ropewalk/query_temperature.hpp>
#include <ropewalk/relative_buckets.hpp>
#include <ropewalk/rope.hpp>
#include <ropewalk/rope_cache.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk {

// What carries the position in a layer.
enum class position_encoding : int32_t {
    none = 0,                // NoPE, and cross attention
    rope = 1,                // position_spec::rope
    alibi = 2,               // position_spec::alibi
    t5_buckets = 3,          // position_spec::t5
    xlnet = 4,               // position_spec::xlnet
    deberta = 5,             // position_spec::deberta
    relative_key = 6,        // Shaw, one term: q . E[l - r + rows / 2]; position_spec::relative_rows
    relative_key_query = 7,  // with the second term k . E as well
    learned = 8,             // position_stack::absolute, added to the embeddings before the first layer
    sinusoidal = 9,          // likewise
};
// E.g. "rope".
ROPEWALK_API std::string_view name(position_encoding encoding) noexcept;

// Which function of rope_spec forms the frequencies.
enum class rope_family : int32_t {
    standard = 0,
    linear = 1,
    ntk = 2,
    ntk_mixed = 3,
    ntk_alpha = 4,
    dynamic_ntk = 5,
    yarn = 6,
    longrope = 7,
    llama3 = 8,
    proportional = 9,
};
// E.g. "yarn".
ROPEWALK_API std::string_view name(rope_family family) noexcept;

// The arguments of the functions of rope_spec, whichever the family takes; the others keep their defaults.
struct ROPEWALK_API rope_parameters {
    rope_family family = rope_family::standard;
    int32_t rotary_dim = 0;  // proportional: the head dim, all of whose pairs are in the spec
    double theta = 10000.0;
    double factor = 1.0;
    double original_max_position = 0.0;  // L of yarn, longrope and llama3; of dynamic_ntk, where it is max_position_embeddings
    double attention_factor = 1.0;       // amplitude of yarn and longrope, as one number
    double beta_fast = 32.0, beta_slow = 1.0;
    bool truncate = true;
    double low_freq_factor = 1.0, high_freq_factor = 4.0;
    double partial_rotary_factor = 1.0;  // proportional
    double alpha = 1.0;                  // ntk_alpha
    double mixed_b = 0.0;                // ntk_mixed
    std::vector<double> short_factor, long_factor;
    std::vector<double> divisors;       // explicit factors on top (rope_freqs of GGUF files), or empty
    std::vector<uint8_t> axis_of_pair;  // as in rope_spec

    // Frequencies differ with the length of the sequence: dynamic_ntk and longrope.
    [[nodiscard]] bool depends_on_length() const noexcept;
    // The spec for sequences of `length` tokens. Errors: those of the family's function, a wrong count of divisors or axes.
    [[nodiscard]] result<rope_spec> at(int64_t length, phase_mode phases = phase_mode::exact) const noexcept;
    // at() of every length, and where it changes. Errors: as at().
    [[nodiscard]] result<rope_schedule> schedule(phase_mode phases = phase_mode::exact) const noexcept;
    bool operator==(const rope_parameters&) const = default;
};

// Rotation of q and k in a layer.
struct rope_rotation {
    rope_parameters parameters;
    // parameters.at(0): of every length where the family does not depend on it, else of short sequences.
    rope_spec spec;
    rope_pairing pairing = rope_pairing::half;
    int32_t first_dim = 0;  // of the rotated slice inside a head of k_dim elements
    bool operator==(const rope_rotation&) const = default;
};

// ALiBi in a layer.
struct alibi_bias {
    alibi_rule rule = alibi_rule::press;
    double max_exponent = 8.0;
    bias_place place = bias_place::after_softcap;
    bool symmetric = false;  // bidirectional: - slope |i - j| on both sides (Jina BERT 2)
    bool operator==(const alibi_bias&) const = default;
};

// T5's buckets in a layer.
struct t5_terms {
    t5_bucket_rule rule;
    bool shared = true;  // one table [buckets, heads] for all layers (T5, mT5); false: one a layer (UMT5)
    bool operator==(const t5_terms&) const = default;
};

// XLNet's and Transformer-XL's relative terms in a layer.
struct xlnet_terms {
    bool bidirectional = true;  // attn_type "bi", else "uni"
    int64_t clamp_len = -1;     // <= 0: distances are not clamped
    int64_t mem_len = 0;        // tokens of memory; 0: none
    int64_t reuse_len = 0;      // tokens of the current segment that enter the memory; 0: all
    bool bi_data = false;       // the second half of a batch has distances of the other sign
    bool same_length = false;   // every query sees equally many keys
    bool untie_r = true;        // u and v of every layer; false: shared by all
    bool operator==(const xlnet_terms&) const = default;
};

// DeBERTa's relative terms in a layer.
struct deberta_terms {
    int32_t version = 2;            // 1: no buckets, biases of q and v apart. DeBERTa v3 is 2 with share_keys
    bool c2p = false, p2c = false;  // content to position, position to content
    int32_t buckets = 0;            // log buckets; 0: none
    int64_t max_distance = 0;       // max_relative_positions, or max_position_embeddings where that is < 1
    bool share_keys = false;        // share_att_key: positions are projected with the weights of the content
    bool normalise = false;         // norm_rel_ebd: LayerNorm over the table
    // Rows of the table on either side of distance 0.
    [[nodiscard]] int64_t span() const noexcept { return buckets > 0 ? buckets : max_distance; }
    bool operator==(const deberta_terms&) const = default;
};

// Where q and k are normalised.
enum class qk_norm_order : int32_t { none = 0, before_rope = 1, after_rope = 2 };

// Attention of one layer.
struct position_spec {
    position_encoding encoding = position_encoding::none;
    rope_rotation rope;
    alibi_bias alibi;
    t5_terms t5;
    xlnet_terms xlnet;
    deberta_terms deberta;
    int64_t relative_rows = 0;  // of the table of relative_key, 2 * max_position_embeddings - 1

    int32_t heads = 0, kv_heads = 0;
    int32_t k_dim = 0, v_dim = 0;  // of a head; MLA: of the expanded form, [nope | rope] for q and k
    int32_t kv_lora_rank = 0;      // MLA: in absorbed form k_dim is kv_lora_rank + rotary_dim, v_dim is kv_lora_rank; else 0
    double scale = 0.0;            // of q . k (and of the terms that the model scales with it), mscale^2 and the like included
    double softcap = 0.0;          // 0: off
    attention_span span;           // causal, window, chunks, or full
    bool sinks = false;            // a learned logit per head takes part in the softmax
    bool prefix_lm = false;        // tokens of the prefix see one another in both directions
    std::optional<query_temperature> temperature;
    qk_norm_order qk_norm = qk_norm_order::none;
    bool operator==(const position_spec&) const = default;
};

// Rows that are added to the embeddings of a stack.
struct absolute_positions {
    position_encoding kind = position_encoding::none;  // none, learned or sinusoidal
    sinusoid_spec sinusoid;                            // sinusoidal
    int64_t rows = 0;                                  // of the table; position p reads row p + offset, beyond the table is an error
    int64_t offset = 0;
    int32_t dim = 0;
    // Positions count real tokens only, as positions_from_mask() does, and padding reads row offset - 1 (RoBERTa, OPT, M2M100).
    bool skips_padding = false;
    bool operator==(const absolute_positions&) const = default;
};

// Layers that share a residual stream. Layers of equal content share one spec.
struct position_stack {
    absolute_positions absolute;
    std::vector<position_spec> kinds;
    std::vector<int32_t> kind_of_layer;  // [layers] index into kinds

    // How many layers share the stream.
    [[nodiscard]] int32_t layers() const noexcept { return static_cast<int32_t>(kind_of_layer.size()); }
    // Attention of layer i. Precondition: 0 <= i < layers().
    [[nodiscard]] const position_spec& layer(int32_t i) const noexcept {
        return kinds[static_cast<std::size_t>(kind_of_layer[static_cast<std::size_t>(i)])];
    }
};

// A whole model.
struct position_config {
    std::string model_type;                        // model_type, or general.architecture of a GGUF file
    int64_t max_positions = 0;                     // 0: the model sets no limit
    position_stack layers;                         // the decoder, or the only stack
    position_stack encoder;                        // of encoder-decoder models, else without layers
    std::optional<position_spec> cross_attention;  // of each decoder layer to the encoder
};

// From the text of a config.json. Where it holds a text_config (multimodal models), that is what is read. Errors: invalid_argument naming key, value
// and rule; corrupt_data where the text is no JSON object; unsupported for a model type or a form that is not in the table. Thread-safe.
[[nodiscard]] ROPEWALK_API result<position_config> read_hf_config(std::string_view json_text) noexcept;

// Metadata of a GGUF file. Arrays of strings (vocabularies) are not kept: monostate. Integers and bools of every width are int64_t.
struct gguf_pair {
    std::string key;
    std::variant<std::monostate, int64_t, double, std::string, std::vector<int64_t>, std::vector<double>> value;
};
// Tensors that hold explicit frequencies: rope_freqs, rope_factors_long and rope_factors_short, each [rotary_dim / 2] or empty.
struct gguf_metadata {
    std::vector<gguf_pair> pairs;
    std::vector<double> rope_freqs, rope_factors_long, rope_factors_short;
    // Bytes before the data of the first tensor; the file must have been read to here, and further where it holds a tensor named above.
    int64_t header_bytes = 0;
};

// Parses the head of a GGUF file of version 2 or 3, little-endian. `bytes` may end where header_bytes ends, or anywhere behind the tensors named
// above. Bounds are checked everywhere: errors are corrupt_data with the offset, unsupported for other versions.
[[nodiscard]] ROPEWALK_API result<gguf_metadata> parse_gguf(std::span<const std::byte> bytes) noexcept;

// From parsed metadata; errors as read_hf_config.
[[nodiscard]] ROPEWALK_API result<position_config> read_gguf_metadata(const gguf_metadata& metadata) noexcept;
// parse_gguf() and then the above.
[[nodiscard]] ROPEWALK_API result<position_config> read_gguf_metadata(std::span<const std::byte> bytes) noexcept;

}  // namespace ropewalk
