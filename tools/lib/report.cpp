#include "tools/lib/report.hpp"

#include <cerrno>
#include <cstring>
#include <string_view>

#include "tools/lib/refusal.hpp"

namespace ropewalk::toolkit {
namespace {

using nlohmann::ordered_json;

std::string csv_cell(const ordered_json& value) {
    if (value.is_null()) return "";
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + '"';
}

}  // namespace

result<report_file> report_file::open(const std::string& path, const std::string& option) {
    report_file report;
    report.path_ = path;
    if (path.empty()) return report;
    report.file_.reset(path == "-" ? stdout : std::fopen(path.c_str(), "wb"));
    if (report.file_ == nullptr) {
        return refusal(status_code::invalid_argument, "{}: cannot write {}: {}", option, path, std::string_view(std::strerror(errno)));
    }
    return report;
}

status report_file::write(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size() && std::fflush(file_.get()) == 0;
    return written ? status() : refusal(status_code::invalid_argument, "cannot write {}: {}", path_, std::string_view(std::strerror(errno)));
}

status report_file::write_json(const ordered_json& rows) { return file_ != nullptr ? write(rows.dump(2) + "\n") : status(); }

status report_file::write_csv(const ordered_json& rows) {
    if (file_ == nullptr || rows.empty()) return {};
    std::string text;
    const auto append_line = [&](const auto& cells_of) {
        const char* separator = "";
        for (const auto& [key, value] : rows.front().items()) {
            text += separator + cells_of(key);
            separator = ",";
        }
        text += "\n";
    };
    append_line([](const std::string& key) { return key; });
    for (const ordered_json& row : rows) {
        append_line([&](const std::string& key) { return row.contains(key) ? csv_cell(row.at(key)) : std::string(); });
    }
    return write(text);
}

}  // namespace ropewalk::toolkit
