// What a model's configuration says of positions, as text with a chart of its wavelengths, or as JSON.
#pragma once

#include <string>

#include <nlohmann/json.hpp>
#include <ropewalk/position_spec.hpp>

namespace ropewalk::toolkit {

// Reads a config.json, or a GGUF file (told by its first four bytes).
result<position_config> read_config_file(const std::string& path);

// Every layer of every stack; layers of equal content are one entry with "layers": "0-4, 6-10".
nlohmann::ordered_json config_json(const position_config& config);

// The same as text; rope comes with a chart of log10 wavelength over pairs, in which the context length is a line, and a bar of its amplitude.
std::string config_text(const position_config& config);

}  // namespace ropewalk::toolkit
