#include "runtime/config/json_access.hpp"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "runtime/refuse.hpp"

namespace ropewalk::runtime {

using nlohmann::json;

const json& empty_object() {
    static const json object = json::object();
    return object;
}

std::string short_dump(const json& value) {
    constexpr std::size_t most = 40;
    if (value.is_structured() && value.size() > 8) {
        return (value.is_array() ? "a list of " : "an object of ") + std::to_string(value.size());
    }
    std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (text.size() > most) text = text.substr(0, most) + "...";
    return text;
}

void config_object::refuse(const char* key, std::string_view rule, status_code code) const {
    const auto found = object_->find(key);
    const std::string value = found == object_->end() ? "missing" : short_dump(*found);
    fail(runtime::refuse(code, "%s%s is %s; %.*s", path_.c_str(), key, value.c_str(), static_cast<int>(rule.size()), rule.data()));
}

const json* config_object::find(keys names) {
    know(names);
    const json* first = nullptr;
    const char* first_name = nullptr;
    for (const char* name : names) {
        const auto found = object_->find(name);
        if (found == object_->end() || found->is_null()) continue;
        if (first == nullptr) {
            first = &*found;
            first_name = name;
        } else if (*first != *found) {
            refuse(name, "must agree with " + std::string(first_name) + ", which is " + short_dump(*first));
        }
    }
    return first;
}

double config_object::number(keys names, double fallback) {
    const json* found = find(names);
    if (found == nullptr) return fallback;
    if (found->is_number() && std::isfinite(found->get<double>())) return found->get<double>();
    for (const char* name : names) {
        if (mentions(name)) refuse(name, "must be a number");
    }
    return fallback;
}

double config_object::required(const char* key, std::string_view why) {
    if (!has({key})) refuse(key, why);
    return number({key}, 0.0);
}

int64_t config_object::integer(keys names, int64_t fallback, int64_t least, int64_t most) {
    const json* found = find(names);
    if (found == nullptr) return fallback;
    const double value = found->is_number() ? found->get<double>() : std::nan("");
    // Compared as doubles first: a conversion out of range would be undefined.
    if (value == std::floor(value) && value >= static_cast<double>(least) && value <= static_cast<double>(most)) return static_cast<int64_t>(value);
    for (const char* name : names) {
        if (mentions(name)) refuse(name, "must be an integer, " + std::to_string(least) + " .. " + std::to_string(most));
    }
    return fallback;
}

bool config_object::flag(keys names, bool fallback) {
    const json* found = find(names);
    if (found == nullptr) return fallback;
    if (found->is_boolean()) return found->get<bool>();
    if (found->is_number()) return found->get<double>() != 0.0;
    for (const char* name : names) {
        if (mentions(name)) refuse(name, "must be true or false");
    }
    return fallback;
}

std::string config_object::text(keys names, std::string_view fallback) {
    const json* found = find(names);
    if (found == nullptr) return std::string(fallback);
    if (found->is_string()) return found->get<std::string>();
    for (const char* name : names) {
        if (mentions(name)) refuse(name, "must be a string");
    }
    return std::string(fallback);
}

std::vector<double> config_object::numbers(const char* key) {
    const json* found = find({key});
    if (found == nullptr) return {};
    std::vector<double> values;
    if (found->is_array()) {
        for (const json& value : *found) {
            if (value.is_number()) values.push_back(value.get<double>());
            if (value.is_boolean()) values.push_back(value.get<bool>() ? 1.0 : 0.0);
        }
    }
    if (!found->is_array() || values.size() != found->size()) {
        refuse(key, "must be a list of numbers");
        return {};
    }
    return values;
}

std::vector<std::string> config_object::texts(const char* key) {
    const json* found = find({key});
    if (found == nullptr) return {};
    std::vector<std::string> values;
    if (found->is_array()) {
        for (const json& value : *found) {
            if (value.is_string()) values.push_back(value.get<std::string>());
        }
    }
    if (!found->is_array() || values.size() != found->size()) {
        refuse(key, "must be a list of strings");
        return {};
    }
    return values;
}

void config_object::refuse_unread(keys words, std::string_view rule) const {
    for (const auto& [key, value] : object_->items()) {
        const bool says_nothing = value.is_null() || value == false || (value.is_structured() && value.empty());
        if (says_nothing || std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
        const std::string& name = key;
        const bool meant =
            words.size() == 0 || std::any_of(words.begin(), words.end(), [&](const char* word) { return name.find(word) != std::string::npos; });
        if (meant) refuse(key.c_str(), rule, status_code::unsupported);
    }
}

}  // namespace ropewalk::runtime
