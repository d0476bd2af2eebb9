// Members of a JSON object, checked one by one. The first fault is kept in a status; what is read after it has its default, so that a reader needs
// one test at its end. Functions throw std::bad_alloc and nothing else.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <ropewalk/status.hpp>

namespace ropewalk::runtime {

using keys = std::initializer_list<const char*>;

constexpr int64_t max_config_integer = (int64_t{1} << 31) - 1;

class config_object {
public:
    // `path` comes before every key in texts: "rope_scaling." or nothing. The object and the fault outlive this.
    config_object(const nlohmann::json& object, std::string path, status& fault) : object_(&object), path_(std::move(path)), fault_(&fault) {}

    [[nodiscard]] bool ok() const { return fault_->ok(); }
    // Keeps the fault if it is the first.
    void fail(const status& fault) const {
        if (fault_->ok()) *fault_ = fault;
    }
    // "<path><key> is <value>; <rule>"
    void refuse(const char* key, std::string_view rule, status_code code = status_code::invalid_argument) const;

    // The member under one of its names, null where there is none or its value is null. Two names with different values are a fault.
    [[nodiscard]] const nlohmann::json* find(keys names);
    [[nodiscard]] bool has(keys names) { return find(names) != nullptr; }
    // Present, be it with null.
    [[nodiscard]] bool mentions(const char* key) const { return object_->contains(key); }
    // Marks as read.
    void know(keys names) { known_.insert(known_.end(), names.begin(), names.end()); }

    [[nodiscard]] double number(keys names, double fallback);
    // A number that must be there; `why` continues the text of the fault.
    [[nodiscard]] double required(const char* key, std::string_view why);
    [[nodiscard]] int64_t integer(keys names, int64_t fallback, int64_t least = 1, int64_t most = max_config_integer);
    [[nodiscard]] int32_t small(keys names, int64_t fallback, int64_t least = 1, int64_t most = 65536) {
        return static_cast<int32_t>(integer(names, fallback, least, most));
    }
    // true, false, or a number other than 0
    [[nodiscard]] bool flag(keys names, bool fallback);
    [[nodiscard]] std::string text(keys names, std::string_view fallback);
    [[nodiscard]] std::vector<double> numbers(const char* key);
    [[nodiscard]] std::vector<std::string> texts(const char* key);

    [[nodiscard]] const nlohmann::json& value() const { return *object_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] status& fault() const { return *fault_; }

    // Refuses the members that nobody has read, whose value is not null, false or empty, and whose name contains one of the words; all where there is
    // no word.
    void refuse_unread(keys words, std::string_view rule) const;

private:
    const nlohmann::json* object_;
    std::string path_;
    status* fault_;
    std::vector<std::string> known_;
};

// For a dictionary that is not there: outlives every config_object.
const nlohmann::json& empty_object();

// The value in a text of a refusal, cut to a readable length.
std::string short_dump(const nlohmann::json& value);

}  // namespace ropewalk::runtime
