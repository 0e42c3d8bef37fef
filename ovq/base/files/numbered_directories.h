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

// directory / "<prefix>000123": six digits, more where needed.
std::filesystem::path numbered_path(const std::filesystem::path& directory, std::string_view prefix, int64_t number);

// Directories in `directory` named prefix and digits, largest number first. Other names, unfinished and half-removed
// ones among them, are no part of it. None if `directory` does not exist.
std::vector<NumberedDirectory> latest_first(const std::filesystem::path& directory, std::string_view prefix);

// Removes all but the `count` (at least 1) latest, oldest first; each is there whole or not at all.
void keep_last(const std::filesystem::path& directory, std::string_view prefix, int64_t count);

}  // namespace ovq::files
