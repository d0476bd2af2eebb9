#include "tools/lib/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>
#include <ropewalk/types.hpp>
#include "tools/lib/refusal.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and are used in place");

namespace ropewalk::toolkit {
namespace {

using nlohmann::json;

template <class... Values>
status corrupt(fmt::format_string<const Values&...> text, const Values&... values) {
    return refusal<Values...>(status_code::corrupt_data, text, values...);
}

// 0 for a name that is no type of the format with whole bytes.
int64_t type_bytes(std::string_view type) {
    static constexpr std::pair<std::string_view, int64_t> known[] = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
        {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8},     {"F64", 8}, {"C64", 8},
    };
    for (const auto& [name, bytes] : known) {
        if (name == type) return bytes;
    }
    return 0;
}

float half_to_float(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f));  // subnormal: exact
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

template <class T>
T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class To, class From, class Convert>
std::vector<To> converted(const tensor_view& tensor, Convert&& convert) {
    std::vector<To> values(static_cast<std::size_t>(tensor.elements));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<To>(convert(load<From>(tensor.data + i * sizeof(From))));
    return values;
}

template <class To>
result<std::vector<To>> numbers(std::string_view name, const tensor_view* tensor) {
    const auto same = [](auto value) { return value; };
    if (tensor == nullptr) return refusal(status_code::not_found, "tensor {} is missing", name);
    if (tensor->type == "I64") return converted<To, int64_t>(*tensor, same);
    if (tensor->type == "I32") return converted<To, int32_t>(*tensor, same);
    if (tensor->type == "U8" || tensor->type == "BOOL") return converted<To, uint8_t>(*tensor, same);
    if constexpr (std::is_floating_point_v<To>) {
        if (tensor->type == "F64") return converted<To, double>(*tensor, same);
        if (tensor->type == "F32") return converted<To, float>(*tensor, same);
        if (tensor->type == "F16") return converted<To, uint16_t>(*tensor, half_to_float);
        if (tensor->type == "BF16") return converted<To, uint16_t>(*tensor, bf16_to_float);
    }
    return refusal(status_code::unsupported, "tensor {} has type {}; must be {}", name, tensor->type,
                   std::string_view(std::is_floating_point_v<To> ? "F64, F32, F16, BF16, I64, I32 or U8" : "I64, I32 or U8"));
}

// Reads a JSON array of non-negative integers that fit int64_t.
bool read_sizes(const json& array, std::vector<int64_t>& sizes) {
    if (!array.is_array()) return false;
    for (const json& value : array) {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) return false;
        sizes.push_back(static_cast<int64_t>(value.get<uint64_t>()));
    }
    return true;
}

// A tensor's entry of the header: {"dtype": .., "shape": [..], "data_offsets": [begin, end]}. The view is complete but for `data`.
status read_entry(const std::string& name, const json& entry, int64_t data_bytes, tensor_view& tensor, int64_t& begin) {
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
        return corrupt("header: tensor {} lacks dtype, shape or data_offsets", name);
    }
    if (!entry["dtype"].is_string()) return corrupt("header: dtype of tensor {} is no text", name);
    tensor.type = entry["dtype"].get<std::string>();
    const int64_t element = type_bytes(tensor.type);
    if (element == 0) return corrupt("header: dtype of tensor {} is {}; no type of the format", name, tensor.type);
    if (!read_sizes(entry["shape"], tensor.shape)) return corrupt("header: shape of tensor {} is no array of sizes", name);
    tensor.elements = 1;
    for (const int64_t extent : tensor.shape) {
        if (__builtin_mul_overflow(tensor.elements, extent, &tensor.elements)) return corrupt("header: shape of tensor {} overflows", name);
    }
    if (__builtin_mul_overflow(tensor.elements, element, &tensor.bytes)) return corrupt("header: size of tensor {} overflows", name);

    std::vector<int64_t> offsets;
    if (!read_sizes(entry["data_offsets"], offsets) || offsets.size() != 2 || offsets[0] > offsets[1]) {
        return corrupt("header: data_offsets of tensor {} are no range", name);
    }
    if (offsets[1] > data_bytes) {
        return corrupt("tensor {} ends at byte {} of the data; the file holds {}: truncated", name, offsets[1], data_bytes);
    }
    if (offsets[1] - offsets[0] != tensor.bytes) {
        return corrupt("tensor {} {} {} takes {} bytes; data_offsets hold {}", name, tensor.type, shape_text(tensor.shape), tensor.bytes,
                       offsets[1] - offsets[0]);
    }
    begin = offsets[0];
    return {};
}

// The format wants the data covered exactly: no byte twice, none left over.
status check_coverage(std::vector<std::pair<int64_t, int64_t>>& ranges, int64_t data_bytes) {
    std::sort(ranges.begin(), ranges.end());
    int64_t covered = 0;
    for (const auto& [begin, end] : ranges) {
        if (begin < covered) return corrupt("tensors overlap at byte {} of the data", begin);
        if (begin > covered) return corrupt("bytes {} to {} of the data belong to no tensor", covered, begin);
        covered = end;
    }
    if (covered != data_bytes) return corrupt("the tensors end at byte {} of the data; the file holds {}", covered, data_bytes);
    return {};
}

// Parses the header; nullptr-like (discarded) if it is no JSON or names a tensor twice.
json parse_header(std::string_view text, std::string& twice) {
    std::set<std::string> names;
    const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) twice = value.get<std::string>();
        return true;
    };
    return json::parse(text.begin(), text.end(), watch, false);
}

}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

status safetensors_file::parse() {
    if (file_bytes_ < 8) return corrupt("the file has {} bytes; a safetensors file has at least 8: truncated", file_bytes_);
    const uint64_t header_bytes = load<uint64_t>(mapping_);
    if (header_bytes > uint64_t{max_header_bytes}) return corrupt("header length is {}; must be at most {}", header_bytes, max_header_bytes);
    if (header_bytes > static_cast<uint64_t>(file_bytes_ - 8)) {
        return corrupt("header length is {}; the file has {} bytes after it: truncated", header_bytes, file_bytes_ - 8);
    }
    const std::string_view text(reinterpret_cast<const char*>(mapping_ + 8), header_bytes);
    std::string twice;
    const json header = parse_header(text, twice);
    if (!header.is_object() || text.front() != '{') return corrupt("the header of {} bytes is no JSON object", header_bytes);
    if (!twice.empty()) return corrupt("header: tensor {} appears twice", twice);

    const std::byte* const data = mapping_ + 8 + header_bytes;
    const int64_t data_bytes = file_bytes_ - 8 - static_cast<int64_t>(header_bytes);
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const auto& [name, entry] : header.items()) {
        if (name == "__metadata__") {
            if (!entry.is_object()) return corrupt("header: __metadata__ is no object");
            for (const auto& [key, value] : entry.items()) {
                if (!value.is_string()) return corrupt("header: __metadata__.{} is no text", key);
                metadata_[key] = value.get<std::string>();
            }
            continue;
        }
        tensor_view tensor;
        int64_t begin = 0;
        const status read = read_entry(name, entry, data_bytes, tensor, begin);
        if (!read.ok()) return read;
        tensor.data = data + begin;
        ranges.emplace_back(begin, begin + tensor.bytes);
        tensors_.emplace(name, std::move(tensor));
    }
    return check_coverage(ranges, data_bytes);
}

result<safetensors_file> safetensors_file::open(const std::string& path) {
    const auto failed = [&](std::string_view what) {
        return refusal(status_code::not_found, "{}: {}", what, std::string_view(std::strerror(errno)));
    };
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return failed("cannot open");
    safetensors_file file;
    struct stat about {};
    status opened;
    if (::fstat(descriptor, &about) != 0) {
        opened = failed("cannot stat");
    } else if (!S_ISREG(about.st_mode)) {
        opened = status(status_code::not_found, "not a regular file");
    } else if (about.st_size > 0) {
        void* mapping = ::mmap(nullptr, static_cast<std::size_t>(about.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (mapping == MAP_FAILED) {
            opened = failed("cannot map");
        } else {
            file.mapping_ = static_cast<const std::byte*>(mapping);
            file.file_bytes_ = about.st_size;
        }
    }
    ::close(descriptor);
    if (opened.ok()) opened = file.parse();
    if (!opened.ok()) return opened;
    return file;
}

safetensors_file::safetensors_file(safetensors_file&& other) noexcept { *this = std::move(other); }

safetensors_file& safetensors_file::operator=(safetensors_file&& other) noexcept {
    std::swap(mapping_, other.mapping_);
    std::swap(file_bytes_, other.file_bytes_);
    tensors_.swap(other.tensors_);
    metadata_.swap(other.metadata_);
    return *this;
}

safetensors_file::~safetensors_file() {
    if (mapping_ != nullptr) ::munmap(const_cast<std::byte*>(mapping_), static_cast<std::size_t>(file_bytes_));
}

const tensor_view* safetensors_file::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found != tensors_.end() ? &found->second : nullptr;
}

result<std::vector<double>> safetensors_file::doubles(std::string_view name) const { return numbers<double>(name, find(name)); }
result<std::vector<float>> safetensors_file::floats(std::string_view name) const { return numbers<float>(name, find(name)); }
result<std::vector<int64_t>> safetensors_file::integers(std::string_view name) const { return numbers<int64_t>(name, find(name)); }

}  // namespace ropewalk::toolkit
