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
  nlohmann::json object;  // discarded (is_discarded) if the line is something else
};

// The lines that are not blank.
std::vector<JsonLine> json_lines(std::string_view text);

// The objects of a file; a line cut short by a crash counts as none, and so does a missing file.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& file);

// Adds a line at the end; std::runtime_error if it cannot.
void append_json_line(const std::filesystem::path& file, const nlohmann::json& object);

}  // namespace ovq
