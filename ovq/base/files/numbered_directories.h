// Directories named by a number, such as checkpoints: step-000123.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace ovq::files {

struct NumberedDirectory {
  int64_t number;
  std::filesystem::path path;
};

// directory / "<prefix>000123": at least six digits.
std::filesystem::path numbered_path(const std::filesystem::path& directory, std::string_view prefix, int64_t number);

// The directories in `directory` named by prefix and digits, largest number first. Other names, including unfinished
// and half-removed ones, are ignored. Empty if `directory` does not exist.
std::vector<NumberedDirectory> latest_first(const std::filesystem::path& directory, std::string_view prefix);

// Removes all but the `count` (at least 1) latest, oldest first, each one atomically.
void keep_last(const std::filesystem::path& directory, std::string_view prefix, int64_t count);

}  // namespace ovq::files
