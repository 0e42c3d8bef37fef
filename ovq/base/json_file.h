// A file with one JSON value. Files with one on each line: json_lines.h.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace ovq {

// std::runtime_error if there is no such file or it is not JSON.
nlohmann::json read_json_file(const std::filesystem::path& file);

}  // namespace ovq
