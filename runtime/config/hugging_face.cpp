// read_hf_config: finds the text model in config.json and hands it to the reader of its form.
#include <new>
#include <string>

#include <ropewalk/position_spec.hpp>
#include "runtime/config/models.hpp"
#include "runtime/refuse.hpp"

namespace ropewalk {
namespace runtime {
namespace {

using nlohmann::json;

using reader = void (*)(config_object&, const model_type&, position_config&);

reader reader_of(model_form form) {
    switch (form) {
        case model_form::decoder: return read_decoder;
        case model_form::mla: return read_mla;
        case model_form::gptj: return read_gptj;
        case model_form::falcon: return read_falcon;
        case model_form::bloom: return read_bloom;
        case model_form::mpt: return read_mpt;
        case model_form::baichuan: return read_baichuan;
        case model_form::t5: return read_t5;
        case model_form::xlnet: return read_xlnet;
        case model_form::deberta: return read_deberta;
        case model_form::bert: return read_bert;
        case model_form::gpt2: return read_gpt2;
        case model_form::opt: return read_opt;
        case model_form::whisper: return read_whisper;
        case model_form::m2m100: return read_m2m100;
    }
    return read_decoder;
}

// Members of the top level that speak of positions or scores: what nobody has read of these would change numbers.
void refuse_unread_positions(config_object& config, const model_type& type) {
    config.know({"n_positions", "max_position_embeddings", "max_window_layers"});
    config.refuse_unread({"rope", "rotary", "alibi", "position", "relative", "sliding", "window", "softcap", "attn_scale", "attention_scale",
                          "dual_chunk", "attention_chunk", "attn_temperature", "attention_sink", "partial_rotary", "mrope"},
                         "is not known for model type " + std::string(type.name));
}

result<position_config> read_object(const json& whole) {
    status fault;
    config_object outer(whole, "", fault);
    std::string type_name = outer.text({"model_type"}, "");
    const json* inner = outer.find({"text_config"});
    const bool nested = inner != nullptr && inner->is_object();
    config_object config(nested ? *inner : whole, nested ? "text_config." : "", fault);
    type_name = config.text({"model_type"}, type_name);
    if (!fault.ok()) return fault;
    const model_type* type = find_model_type(type_name);
    if (type == nullptr) {
        return refuse(status_code::unsupported,
                      "model_type is %s; must be a type in the table of model types: which elements make a pair is in no key",
                      type_name.empty() ? "missing" : short_dump(json(type_name)).c_str());
    }
    position_config out;
    out.model_type = type_name;
    reader_of(type->form)(config, *type, out);
    refuse_unread_positions(config, *type);
    if (!fault.ok()) return fault;
    return out;
}

}  // namespace
}  // namespace runtime

result<position_config> read_hf_config(std::string_view json_text) noexcept {
    try {
        // Comparing and printing values recurse: what nests too deep is dropped while it is parsed, and refused.
        bool deep = false;
        const auto shallow = [&deep](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
            deep = deep || depth > 32;
            return depth <= 32;
        };
        const auto whole = nlohmann::json::parse(json_text, shallow, false);
        if (deep) return runtime::refuse(status_code::corrupt_data, "the configuration nests deeper than 32 levels");
        if (!whole.is_object()) return runtime::refuse(status_code::corrupt_data, "the configuration is no JSON object");
        return runtime::read_object(whole);
    } catch (const std::bad_alloc&) {
        return runtime::refuse(status_code::out_of_memory, "no memory for a configuration of %zu bytes", json_text.size());
    } catch (const std::exception& e) {  // nothing here should throw another, and nothing may leave
        return runtime::refuse(status_code::corrupt_data, "the configuration cannot be read: %s", e.what());
    }
}

}  // namespace ropewalk
