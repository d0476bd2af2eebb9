// A Hugging Face checkpoint: config.json and all *.safetensors files of a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace llama {

class checkpoint {
public:
    // Maps the files into memory. Throws std::runtime_error where one cannot be read or does not hold what it claims.
    explicit checkpoint(const std::filesystem::path& folder);

    [[nodiscard]] const std::string& config() const noexcept { return config_; }
    // Appends the elements of a tensor (F32, or BF16 widened) to `to`. Throws where there is none of that name and shape.
    void read(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>& to) const;

private:
    struct tensor {
        std::string type;
        std::vector<int64_t> shape;
        std::span<const std::byte> bytes;  // in one of files_
    };
    void add_file(const std::filesystem::path& path);

    std::string config_;
    std::vector<std::shared_ptr<const std::byte>> files_;
    std::map<std::string, tensor> tensors_;
};

}  // namespace llama
