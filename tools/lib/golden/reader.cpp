#include "tools/lib/golden/reader.hpp"

#include <algorithm>
#include <utility>

#include "tools/lib/refusal.hpp"

namespace ropewalk::toolkit {

using nlohmann::json;

golden_reader::golden_reader(const safetensors_file& file) : file_(file) {
    const auto& metadata = file.metadata();
    const auto kind = metadata.find("kind"), params = metadata.find("params");
    if (kind == metadata.end()) {
        fail({status_code::corrupt_data, "metadata has no kind: this is no golden file"});
        return;
    }
    kind_ = kind->second;
    params_ = params != metadata.end() ? json::parse(params->second, nullptr, false) : json::object();
    if (!params_.is_object()) fail({status_code::corrupt_data, "metadata: params are no JSON object"});
}

void golden_reader::fail(const status& failure) {
    if (state_.ok()) state_ = failure;
}

void golden_reader::require(bool condition, std::string_view rule) {
    if (!condition) fail(refusal(status_code::corrupt_data, "{}", rule));
}

const json& golden_reader::raw(std::string_view key) const {
    static const json nothing;
    if (!params_.is_object()) return nothing;
    const auto found = params_.find(std::string(key));
    return found != params_.end() ? *found : nothing;
}

bool golden_reader::has(std::string_view key) const { return !raw(key).is_null(); }

const json* golden_reader::parameter(std::string_view key, bool optional, std::string_view type, bool (json::*wanted)() const noexcept) {
    const json& value = raw(key);
    if ((value.*wanted)()) return &value;
    if (!value.is_null() || !optional) fail(refusal(status_code::corrupt_data, "params.{} is {}; must be {}", key, value.dump(), type));
    return nullptr;
}

double golden_reader::number(std::string_view key, std::optional<double> otherwise) {
    const json* value = parameter(key, otherwise.has_value(), "a number", &json::is_number);
    return value != nullptr ? value->get<double>() : otherwise.value_or(0.0);
}

int64_t golden_reader::integer(std::string_view key, std::optional<int64_t> otherwise) {
    const json* value = parameter(key, otherwise.has_value(), "an integer", &json::is_number_integer);
    return value != nullptr ? value->get<int64_t>() : otherwise.value_or(0);
}

int32_t golden_reader::size(std::string_view key) {
    const int64_t value = integer(key);
    if (value >= 1 && value <= 1 << 20) return static_cast<int32_t>(value);
    fail(refusal(status_code::corrupt_data, "params.{} is {}; must be 1 to 1048576", key, value));
    return 0;
}

bool golden_reader::flag(std::string_view key, std::optional<bool> otherwise) {
    const json* value = parameter(key, otherwise.has_value(), "true or false", &json::is_boolean);
    return value != nullptr ? value->get<bool>() : otherwise.value_or(false);
}

std::string golden_reader::text(std::string_view key, std::optional<std::string> otherwise) {
    const json* value = parameter(key, otherwise.has_value(), "a text", &json::is_string);
    return value != nullptr ? value->get<std::string>() : otherwise.value_or("");
}

std::vector<int64_t> golden_reader::integers_of(std::string_view key) {
    std::vector<int64_t> values;
    const json* list = parameter(key, false, "a list of integers", &json::is_array);
    if (list == nullptr) return values;
    for (const json& value : *list) {
        if (!value.is_number_integer()) {
            fail(refusal(status_code::corrupt_data, "params.{} holds {}; must be integers", key, value.dump()));
            return {};
        }
        values.push_back(value.get<int64_t>());
    }
    return values;
}

template <class T>
tensor<T> golden_reader::read(std::string_view name, const std::vector<int64_t>& shape,
                              result<std::vector<T>> (safetensors_file::*values)(std::string_view) const) {
    tensor<T> read{std::vector<int64_t>(shape.size()), {}};
    if (!state_.ok()) return read;
    if (const tensor_view* view = file_.find(name)) {
        const auto matches = [](int64_t is, int64_t wanted) { return wanted == any_extent || is == wanted; };
        if (!std::equal(view->shape.begin(), view->shape.end(), shape.begin(), shape.end(), matches)) {
            fail(
                refusal(status_code::corrupt_data, "tensor {} has shape {}; must be {} (-1: any)", name, shape_text(view->shape), shape_text(shape)));
            return read;
        }
        read.shape = view->shape;
    }
    result<std::vector<T>> loaded = (file_.*values)(name);
    if (!loaded.ok()) {
        fail(loaded.state());
        return {std::vector<int64_t>(shape.size()), {}};
    }
    read.values = std::move(*loaded);
    return read;
}

tensor<float> golden_reader::floats(std::string_view name, const std::vector<int64_t>& shape) { return read(name, shape, &safetensors_file::floats); }
tensor<double> golden_reader::doubles(std::string_view name, const std::vector<int64_t>& shape) {
    return read(name, shape, &safetensors_file::doubles);
}
tensor<int64_t> golden_reader::integers(std::string_view name, const std::vector<int64_t>& shape) {
    return read(name, shape, &safetensors_file::integers);
}

}  // namespace ropewalk::toolkit
