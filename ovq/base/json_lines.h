// Files with a JSON object on each line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

namespace ovq {

struct JsonLine {
  int64_t number = 0;     // from 1
  nlohmann::json object;  // discarded (is_discarded) if the line is not JSON
};

// Parses the lines that are not blank.
std::vector<JsonLine> json_lines(std::string_view text);

// The objects in a file. Ignores a line cut short by a crash; a missing file has none.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& file);

// Appends a line; std::runtime_error if it cannot be written.
void append_json_line(const std::filesystem::path& file, const nlohmann::json& object);

}  // namespace ovq
