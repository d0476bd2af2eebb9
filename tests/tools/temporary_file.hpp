// A file in the system's folder for temporary files that goes away with its object.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace ropewalk::test {

inline std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class temporary_file {
public:
    explicit temporary_file(std::string_view contents = "") : path_((std::filesystem::temp_directory_path() / "ropewalk_XXXXXX").string()) {
        const int descriptor = ::mkstemp(path_.data());
        if (descriptor >= 0) ::close(descriptor);
        write(contents);
    }
    ~temporary_file() { ::unlink(path_.c_str()); }
    temporary_file(const temporary_file&) = delete;
    temporary_file& operator=(const temporary_file&) = delete;

    void write(std::string_view contents) const {
        std::ofstream(path_, std::ios::binary | std::ios::trunc).write(contents.data(), static_cast<std::streamsize>(contents.size()));
    }
    [[nodiscard]] std::string read() const { return read_file(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }

private:
    std::string path_;
};

}  // namespace ropewalk::test
