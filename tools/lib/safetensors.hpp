// Reads safetensors files: an 8-byte little-endian header length, a JSON header, then the tensors' bytes back to back.
//
// The file is mapped, not read, and everything the header claims is checked before a byte of data is touched: a corrupt or truncated file gives a
// status (corrupt_data, not_found), never a crash. Values are trusted only as numbers: any bit pattern of a tensor is legal.
// The file must not be cut while it is open (the mapping would fault).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ropewalk/status.hpp>

namespace ropewalk::toolkit {

struct tensor_view {
    std::string type;                 // as in the file: "F32", "I64", ...
    std::vector<int64_t> shape;       // row-major; empty is a scalar
    const std::byte* data = nullptr;  // any alignment
    int64_t elements = 0;
    int64_t bytes = 0;
};

// "[2, 8, 33]"
std::string shape_text(const std::vector<int64_t>& shape);

class safetensors_file {
public:
    static constexpr int64_t max_header_bytes = 100'000'000;  // the limit of the reference implementation

    static result<safetensors_file> open(const std::string& path);

    safetensors_file(safetensors_file&& other) noexcept;
    safetensors_file& operator=(safetensors_file&& other) noexcept;
    ~safetensors_file();

    [[nodiscard]] const std::map<std::string, tensor_view, std::less<>>& tensors() const { return tensors_; }
    [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
    // Null where there is none.
    [[nodiscard]] const tensor_view* find(std::string_view name) const;

    // All elements of a tensor, row-major. Floating point from F64, F32, F16, BF16, I64, I32, U8, BOOL (fp32 is rounded to nearest even from what is
    // wider); integers from I64, I32, U8, BOOL. not_found or unsupported otherwise, with the name in the text.
    [[nodiscard]] result<std::vector<double>> doubles(std::string_view name) const;
    [[nodiscard]] result<std::vector<float>> floats(std::string_view name) const;
    [[nodiscard]] result<std::vector<int64_t>> integers(std::string_view name) const;

private:
    safetensors_file() = default;
    status parse();

    const std::byte* mapping_ = nullptr;
    int64_t file_bytes_ = 0;
    std::map<std::string, tensor_view, std::less<>> tensors_;
    std::map<std::string, std::string, std::less<>> metadata_;
};

}  // namespace ropewalk::toolkit
