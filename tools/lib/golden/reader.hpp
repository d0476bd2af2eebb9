// Golden files: safetensors with `kind` and `params` (JSON text) in the metadata; tests/golden/README.md describes every kind.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <ropewalk/status.hpp>
#include "tools/lib/safetensors.hpp"

namespace ropewalk::toolkit {

template <class T>
struct tensor {
    std::vector<int64_t> shape;
    std::vector<T> values;
};

inline constexpr int64_t any_extent = -1;

// Reads parameters and tensors and remembers the first thing that was not as expected, so that a check reads all it needs and then asks state() once.
// After a failure everything reads as empty or zero.
class golden_reader {
public:
    explicit golden_reader(const safetensors_file& file);

    [[nodiscard]] const status& state() const { return state_; }
    [[nodiscard]] const std::string& kind() const { return kind_; }
    // Records a failure found by the check itself; the first one stays.
    void fail(const status& failure);
    void require(bool condition, std::string_view rule);

    // Parameters. A missing or null one gives `otherwise`, or is a failure where there is none.
    double number(std::string_view key, std::optional<double> otherwise = std::nullopt);
    int64_t integer(std::string_view key, std::optional<int64_t> otherwise = std::nullopt);
    // An extent: 1 to 2^20, so that products of a few of them cannot overflow.
    int32_t size(std::string_view key);
    bool flag(std::string_view key, std::optional<bool> otherwise = std::nullopt);
    std::string text(std::string_view key, std::optional<std::string> otherwise = std::nullopt);
    std::vector<int64_t> integers_of(std::string_view key);
    [[nodiscard]] bool has(std::string_view key) const;
    // A parameter as it stands, null where there is none; and the object that holds all of them.
    [[nodiscard]] const nlohmann::json& raw(std::string_view key) const;
    [[nodiscard]] const nlohmann::json& parameters() const { return params_; }

    // Tensors of a given shape; any_extent matches every size.
    tensor<float> floats(std::string_view name, const std::vector<int64_t>& shape);
    tensor<double> doubles(std::string_view name, const std::vector<int64_t>& shape);
    tensor<int64_t> integers(std::string_view name, const std::vector<int64_t>& shape);
    [[nodiscard]] bool has_tensor(std::string_view name) const { return file_.find(name) != nullptr; }

private:
    template <class T>
    tensor<T> read(std::string_view name, const std::vector<int64_t>& shape,
                   result<std::vector<T>> (safetensors_file::*values)(std::string_view) const);
    // The parameter if `wanted` accepts its type; null (and perhaps a failure) otherwise.
    const nlohmann::json* parameter(std::string_view key, bool optional, std::string_view type, bool (nlohmann::json::*wanted)() const noexcept);

    const safetensors_file& file_;
    std::string kind_;
    nlohmann::json params_;
    status state_;
};

// [batch, heads, tokens, dim] as golden files have it -> [batch * tokens, heads, dim] as the library wants it; the same for [batch, heads, tokens].
// What could not be read is empty and stays so.
template <class T>
std::vector<T> tokens_first(std::span<const T> values, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
    std::vector<T> moved(values.size());
    if (values.empty()) return moved;
    for (int64_t b = 0; b < batch; ++b) {
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t t = 0; t < tokens; ++t) {
                const auto from = values.begin() + ((b * heads + h) * tokens + t) * dim;
                std::copy(from, from + dim, moved.begin() + ((b * tokens + t) * heads + h) * dim);
            }
        }
    }
    return moved;
}

}  // namespace ropewalk::toolkit
