// parse_gguf: the head of a GGUF file (magic, metadata, names of tensors) with every read checked against the end.
#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstring>
#include <new>
#include <set>

#include <ropewalk/position_spec.hpp>
#include "runtime/refuse.hpp"

namespace ropewalk {
namespace runtime {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are read as they lie");

enum value_type : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64, value_types };
constexpr std::size_t bytes_of_type[value_types] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Longer arrays are parts of vocabularies.
constexpr uint64_t longest_array_kept = 65536;

class byte_reader {
public:
    explicit byte_reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    [[nodiscard]] bool ok() const { return state_.ok(); }
    [[nodiscard]] const status& state() const { return state_; }
    [[nodiscard]] std::size_t offset() const { return at_; }
    void fail(const char* what) {
        if (ok()) state_ = refuse(status_code::corrupt_data, "GGUF at byte %zu of %zu: %s", at_, bytes_.size(), what);
    }

    // The next `count` items of `size` bytes; null, and a failure, where there are not so many.
    const std::byte* take(uint64_t count, std::size_t size) {
        if (!ok()) return nullptr;
        if (count > (bytes_.size() - at_) / size) {
            fail("the file ends inside a value");
            return nullptr;
        }
        const std::byte* from = bytes_.data() + at_;
        at_ += static_cast<std::size_t>(count) * size;
        return from;
    }
    template <class T>
    T number() {
        T value{};
        if (const std::byte* from = take(1, sizeof value)) std::memcpy(&value, from, sizeof value);
        return value;
    }
    std::string_view string() {
        const auto length = number<uint64_t>();
        const std::byte* from = take(length, 1);
        return from != nullptr ? std::string_view(reinterpret_cast<const char*>(from), static_cast<std::size_t>(length)) : std::string_view();
    }

private:
    std::span<const std::byte> bytes_;
    std::size_t at_ = 0;
    status state_;
};

bool is_float(uint32_t type) { return type == f32 || type == f64; }

double read_float(byte_reader& from, uint32_t type) { return type == f32 ? from.number<float>() : from.number<double>(); }

int64_t read_integer(byte_reader& from, uint32_t type) {
    switch (type) {
        case u8: return from.number<uint8_t>();
        case i8: return from.number<int8_t>();
        case u16: return from.number<uint16_t>();
        case i16: return from.number<int16_t>();
        case u32: return from.number<uint32_t>();
        case i32: return from.number<int32_t>();
        case boolean: return from.number<uint8_t>() != 0;
        case u64: return static_cast<int64_t>(std::min<uint64_t>(from.number<uint64_t>(), INT64_MAX));
        default: return from.number<int64_t>();
    }
}

void read_array(byte_reader& from, gguf_pair& pair) {
    const auto type = from.number<uint32_t>();
    const auto count = from.number<uint64_t>();
    if (type == text) {
        for (uint64_t i = 0; i < count && from.ok(); ++i) from.string();
    } else if (type >= value_types || type == array) {
        from.fail("an array of a type that GGUF does not have here");
    } else if (count > longest_array_kept) {
        from.take(count, bytes_of_type[type]);
    } else if (is_float(type)) {
        std::vector<double> values;
        for (uint64_t i = 0; i < count && from.ok(); ++i) values.push_back(read_float(from, type));
        pair.value = std::move(values);
    } else {
        std::vector<int64_t> values;
        for (uint64_t i = 0; i < count && from.ok(); ++i) values.push_back(read_integer(from, type));
        pair.value = std::move(values);
    }
}

gguf_pair read_pair(byte_reader& from) {
    gguf_pair pair;
    pair.key = from.string();
    const auto type = from.number<uint32_t>();
    if (type >= value_types) {
        from.fail("a value of a type that GGUF does not have");
    } else if (type == text) {
        pair.value = std::string(from.string());
    } else if (type == array) {
        read_array(from, pair);
    } else if (is_float(type)) {
        pair.value = read_float(from, type);
    } else {
        pair.value = read_integer(from, type);
    }
    return pair;
}

// A tensor of explicit rope factors: where its numbers lie.
struct factor_tensor {
    std::vector<double>* into = nullptr;
    uint64_t count = 0, offset = 0;  // from the start of the data
};

factor_tensor read_tensor(byte_reader& from, gguf_metadata& out) {
    const std::string_view name = from.string();
    const auto dims = from.number<uint32_t>();
    if (dims > 4) from.fail("a tensor of more than 4 dims");
    uint64_t extent[4] = {1, 1, 1, 1};
    for (uint32_t i = 0; i < dims && from.ok(); ++i) extent[i] = from.number<uint64_t>();
    const auto type = from.number<uint32_t>();
    factor_tensor tensor;
    tensor.offset = from.number<uint64_t>();
    if (name == "rope_freqs.weight") tensor.into = &out.rope_freqs;
    if (name == "rope_factors_long.weight") tensor.into = &out.rope_factors_long;
    if (name == "rope_factors_short.weight") tensor.into = &out.rope_factors_short;
    if (tensor.into == nullptr) return tensor;
    tensor.count = extent[0];
    if (type != 0 || tensor.count > 4096 || extent[1] != 1 || extent[2] != 1 || extent[3] != 1) {
        from.fail("rope factors must be one row of at most 4096 fp32 numbers");
    }
    return tensor;
}

void read_factors(byte_reader& from, std::span<const std::byte> bytes, uint64_t data, const factor_tensor& tensor) {
    const uint64_t need = tensor.count * sizeof(float);
    if (tensor.offset > bytes.size() || data > bytes.size() - tensor.offset || need > bytes.size() - tensor.offset - data) {
        return from.fail("the file ends before the data of its rope factors");
    }
    for (uint64_t i = 0; i < tensor.count; ++i) {
        float value;
        std::memcpy(&value, bytes.data() + data + tensor.offset + i * sizeof value, sizeof value);
        tensor.into->push_back(value);
    }
}

result<gguf_metadata> parse(std::span<const std::byte> bytes) {
    byte_reader from(bytes);
    const std::byte* magic = from.take(4, 1);
    if (magic == nullptr || std::memcmp(magic, "GGUF", 4) != 0) return refuse(status_code::corrupt_data, "no GGUF file: it does not begin with GGUF");
    const auto version = from.number<uint32_t>();
    if (from.ok() && version != 2 && version != 3) {
        return refuse(status_code::unsupported, "GGUF version is %" PRIu32 "; must be 2 or 3, little-endian", version);
    }
    const auto tensors = from.number<uint64_t>(), pairs = from.number<uint64_t>();
    gguf_metadata out;
    uint64_t alignment = 32;
    std::set<std::string> seen;
    for (uint64_t i = 0; i < pairs && from.ok(); ++i) {
        gguf_pair pair = read_pair(from);
        if (from.ok() && !seen.insert(pair.key).second) from.fail("a key that was there before");
        const int64_t* number = std::get_if<int64_t>(&pair.value);
        if (pair.key == "general.alignment" && number != nullptr) alignment = static_cast<uint64_t>(*number);
        out.pairs.push_back(std::move(pair));
    }
    if (from.ok() && (!std::has_single_bit(alignment) || alignment > 1 << 20)) from.fail("general.alignment must be a power of two up to 2^20");
    std::vector<factor_tensor> factors;
    for (uint64_t i = 0; i < tensors && from.ok(); ++i) {
        if (const factor_tensor tensor = read_tensor(from, out); tensor.into != nullptr) factors.push_back(tensor);
    }
    const uint64_t data = (from.offset() + alignment - 1) / alignment * alignment;
    for (const factor_tensor& tensor : factors) {
        if (!tensor.into->empty()) from.fail("a tensor of rope factors that was there before");
        if (from.ok()) read_factors(from, bytes, data, tensor);
    }
    if (!from.ok()) return from.state();
    out.header_bytes = static_cast<int64_t>(data);
    return out;
}

}  // namespace
}  // namespace runtime

result<gguf_metadata> parse_gguf(std::span<const std::byte> bytes) noexcept {
    try {
        return runtime::parse(bytes);
    } catch (const std::bad_alloc&) {
        return runtime::refuse(status_code::out_of_memory, "no memory for the metadata of a GGUF file");
    }
}

}  // namespace ropewalk
