// Rows of text in aligned columns, and a progress bar. No packaged library does either.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::toolkit {

// Columns have a width from the start, so that every row can be printed when it is known; a longer cell pushes its row to the right. On a terminal
// the header is bold, anywhere else the text is plain.
class table {
public:
    enum class align { left, right };
    struct column {
        std::string title;
        align side = align::left;
        std::size_t width = 0;  // at least; the title always fits
    };

    table(std::FILE* out, std::vector<column> columns);

    void header();
    // One cell per column.
    void row(const std::vector<std::string>& cells);

private:
    [[nodiscard]] std::string line(const std::vector<std::string>& cells) const;

    std::FILE* out_;
    std::vector<column> columns_;
};

// One line on stderr that overwrites itself; silent where stderr is no terminal.
class progress_bar {
public:
    explicit progress_bar(int64_t total);
    ~progress_bar() { clear(); }
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;

    void show(int64_t done, std::string_view what);
    // Takes the line away, e.g. before a row of a table is printed.
    void clear();

private:
    int64_t total_;
    bool terminal_;
    bool visible_ = false;
};

}  // namespace ropewalk::toolkit
