#include "tools/lib/table.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ropewalk::toolkit {
namespace {

constexpr int64_t bar_width = 30;

bool is_terminal(std::FILE* file) { return ::isatty(::fileno(file)) == 1; }

}  // namespace

table::table(std::FILE* out, std::vector<column> columns) : out_(out), columns_(std::move(columns)) {
    for (column& c : columns_) c.width = std::max(c.width, c.title.size());
}

std::string table::line(const std::vector<std::string>& cells) const {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
        if (i != 0) text += "  ";
        text +=
            columns_[i].side == align::left ? fmt::format("{:<{}}", cells[i], columns_[i].width) : fmt::format("{:>{}}", cells[i], columns_[i].width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
}

void table::header() {
    std::vector<std::string> titles;
    for (const column& c : columns_) titles.push_back(c.title);
    const bool bold = is_terminal(out_);
    fmt::print(out_, "{}{}{}\n", bold ? "\x1b[1m" : "", line(titles), bold ? "\x1b[0m" : "");
}

void table::row(const std::vector<std::string>& cells) {
    fmt::print(out_, "{}\n", line(cells));
    std::fflush(out_);
}

progress_bar::progress_bar(int64_t total) : total_(std::max<int64_t>(total, 1)), terminal_(is_terminal(stderr)) {}

void progress_bar::show(int64_t done, std::string_view what) {
    if (!terminal_) return;
    const int64_t filled = bar_width * std::clamp<int64_t>(done, 0, total_) / total_;
    fmt::print(stderr, "\r\x1b[K[{:#<{}}{:<{}}] {}/{}  {}", "", filled, "", bar_width - filled, done, total_, what);
    std::fflush(stderr);
    visible_ = true;
}

void progress_bar::clear() {
    if (!visible_) return;
    fmt::print(stderr, "\r\x1b[K");
    std::fflush(stderr);
    visible_ = false;
}

}  // namespace ropewalk::toolkit
