#include "checkpoint.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <stdexcept>

#include <nlohmann/json.hpp>
#include <ropewalk/types.hpp>

namespace llama {

namespace {

std::shared_ptr<const std::byte> map_file(const std::filesystem::path& path, std::size_t size) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    void* const base = file < 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (file >= 0) close(file);
    if (base == MAP_FAILED) throw std::runtime_error(path.string() + ": cannot be mapped: " + std::strerror(errno));
    return {static_cast<const std::byte*>(base), [base, size](const std::byte*) { munmap(base, size); }};
}

}  // namespace

checkpoint::checkpoint(const std::filesystem::path& folder) {
    std::ifstream config(folder / "config.json");
    if (!config) throw std::runtime_error(folder.string() + ": has no config.json that can be read");
    config_.assign(std::istreambuf_iterator<char>(config), {});
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() == ".safetensors") add_file(entry.path());
    }
}

// Eight bytes with the length of a JSON header, the header, the data that its offsets count from.
void checkpoint::add_file(const std::filesystem::path& path) {
    const std::size_t size = std::filesystem::file_size(path);
    uint64_t header = 0;
    if (size < sizeof header) throw std::runtime_error(path.string() + ": is too short for a header");
    const std::byte* const base = files_.emplace_back(map_file(path, size)).get();
    std::memcpy(&header, base, sizeof header);
    if (header > size - sizeof header) throw std::runtime_error(path.string() + ": ends inside its header");
    const std::span data = std::span(base, size).subspan(sizeof header + header);
    const char* const text = reinterpret_cast<const char*>(base) + sizeof header;
    const nlohmann::json entries = nlohmann::json::parse(text, text + header);
    for (const auto& [name, entry] : entries.items()) {
        if (name == "__metadata__") continue;
        tensor t{entry.at("dtype"), entry.at("shape"), {}};
        const auto [first, last] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
        if (first > last || last > data.size()) throw std::runtime_error(path.string() + ": " + name + " lies outside of the file");
        t.bytes = data.subspan(first, last - first);
        tensors_.emplace(name, std::move(t));
    }
}

void checkpoint::read(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>& to) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw std::runtime_error("no tensor " + name + " in the checkpoint");
    const auto& [type, stored_shape, bytes] = found->second;
    if (stored_shape != shape) throw std::runtime_error(name + " has another shape than config.json says");
    const auto elements = std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>{});
    const std::size_t old_size = to.size();
    if (type == "F32" && bytes.size() == 4 * elements) {
        to.resize(old_size + elements);
        std::memcpy(to.data() + old_size, bytes.data(), bytes.size());
    } else if (type == "BF16" && bytes.size() == 2 * elements) {
        std::vector<uint16_t> narrow(elements);
        std::memcpy(narrow.data(), bytes.data(), bytes.size());
        std::transform(narrow.begin(), narrow.end(), std::back_inserter(to), ropewalk::bf16_to_float);
    } else {
        throw std::runtime_error(name + " has type " + type + " and " + std::to_string(bytes.size()) + " bytes; F32 and BF16 are read");
    }
}

}  // namespace llama
