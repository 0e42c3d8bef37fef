// A file with one JSON value. Files with a value on each line: json_lines.h.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ovq {

// std::runtime_error if the file is missing or not JSON.
nlohmann::json read_json_file(const std::filesystem::path& file);

// The text of an object for files under version control: a line for each field, and one for each element of the field
// `list`.
std::string to_lines(const nlohmann::ordered_json& object, std::string_view list);

}  // namespace ovq
