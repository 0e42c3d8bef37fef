#include "ovq/base/files/numbered_directories.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>

#include "ovq/base/error.h"
#include "ovq/base/files/descriptor.h"
#include "ovq/base/files/durable.h"

namespace ovq::files {
namespace {

namespace fs = std::filesystem;

void check_prefix(const char* op, std::string_view prefix) {
  check(!prefix.empty() && prefix.find('/') == std::string_view::npos, op, "the prefix is \"", prefix,
        "\"; must be the start of a name");
}

std::optional<int64_t> parse_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (name.empty() || name.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const std::from_chars_result result = std::from_chars(name.data(), name.data() + name.size(), number);
  return result.ec == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

fs::path numbered_path(const fs::path& directory, std::string_view prefix, int64_t number) {
  check_prefix("numbered_path", prefix);
  check(number >= 0, "numbered_path", "the number is ", number, "; must not be negative");
  std::string digits = std::to_string(number);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return directory / (std::string(prefix) + digits);
}

std::vector<NumberedDirectory> latest_first(const fs::path& directory, std::string_view prefix) {
  check_prefix("latest_first", prefix);
  std::error_code error;
  std::vector<NumberedDirectory> result;
  fs::directory_iterator at(directory, error);
  if (error == std::errc::no_such_file_or_directory) return result;
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::optional<int64_t> number = parse_number(at->path().filename().string(), prefix);
    std::error_code gone;
    if (number && at->is_directory(gone)) result.push_back({*number, at->path()});
  }
  if (error) {
    errno = error.value();
    fail_errno("latest_first", "list", directory);
  }
  std::sort(result.begin(), result.end(), [](const NumberedDirectory& a, const NumberedDirectory& b) {
    return std::tie(a.number, a.path) > std::tie(b.number, b.path);
  });
  return result;
}

void keep_last(const fs::path& directory, std::string_view prefix, int64_t count) {
  check(count >= 1, "keep_last", "the count is ", count, "; must be at least 1");
  std::vector<NumberedDirectory> found = latest_first(directory, prefix);
  while (static_cast<int64_t>(found.size()) > count) {
    remove_durably(found.back().path);
    found.pop_back();
  }
}

}  // namespace ovq::files
