// A file with one JSON value. Files with one on each line: json_lines.h.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace ovq {

// std::runtime_error if there is no such file or it is not JSON.
nlohmann::json read_json_file(const std::filesystem::path& file);

// The text of an object for a file that is kept under version control: a line for each field, and one for each element
// of the field `list`.
std::string to_lines(const nlohmann::ordered_json& object, std::string_view list);

}  // namespace ovq
