// Rows of results as JSON or CSV in a file. The file is opened when the tool starts, so that a path that cannot be written is an error before hours
// of measuring, not after.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::toolkit {

class report_file {
public:
    // "-" is standard output; an empty path is no report. `option` is the command-line option, for the error text.
    static result<report_file> open(const std::string& path, const std::string& option);

    // rows is an array of objects; JSON may be anything. CSV takes its columns from the first row; values with commas, quotes or line ends are
    // quoted (RFC 4180).
    status write_json(const nlohmann::ordered_json& rows);
    status write_csv(const nlohmann::ordered_json& rows);
    // True if it writes to standard output, where no table may be then.
    [[nodiscard]] bool takes_stdout() const { return file_.get() == stdout; }

private:
    struct closer {
        void operator()(std::FILE* file) const {
            if (file != stdout) std::fclose(file);
        }
    };
    status write(const std::string& text);

    std::unique_ptr<std::FILE, closer> file_;
    std::string path_;
};

}  // namespace ropewalk::toolkit
