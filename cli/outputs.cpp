#include "cli/outputs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

#include "cli/commands.h"

namespace ovq::cli {
namespace {

namespace fs = std::filesystem;

// A directory with config.json or run.json is a model or a run; these files belong to it.
constexpr std::array<std::string_view, 8> kParts = {"config.json",       "model.safetensors", "optimizer.safetensors",
                                                    "tokenizer.model",   "tokenizer.bytes",   "run.json",
                                                    "evaluations.jsonl", "metrics.jsonl"};

std::optional<struct stat> status_of(const fs::path& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 ? std::optional(status) : std::nullopt;
}

// Whether `path` is that file or a directory that contains it.
bool holds(const fs::path& path, const struct stat& file) {
  const auto same = [&](const fs::path& other) {
    const auto status = status_of(other);
    return status && status->st_dev == file.st_dev && status->st_ino == file.st_ino;
  };
  if (same(path)) return true;
  std::error_code unreadable;  // reported by whoever reads it
  for (fs::recursive_directory_iterator at(path, unreadable), end; !unreadable && at != end; at.increment(unreadable)) {
    if (same(at->path())) return true;
  }
  return false;
}

// The model or run that owns a file of this name, or that owns the target of a link.
std::optional<fs::path> owner_of(const fs::path& file) {
  std::error_code error;
  const fs::path parent = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (const fs::path& path :
       {fs::weakly_canonical(parent, error) / file.filename(), fs::weakly_canonical(file, error)}) {
    const fs::path directory = path.parent_path();
    const bool part = std::find(kParts.begin(), kParts.end(), path.filename().string()) != kParts.end();
    const bool owned = fs::exists(directory / "config.json", error) || fs::exists(directory / "run.json", error);
    if (part && owned) return directory;
  }
  return std::nullopt;
}

void check_writable(const std::string& flag, const fs::path& directory) {
  if (!fs::is_directory(directory))
    throw std::runtime_error(fmt::format("{}: {} is not a directory", flag, directory.string()));
  if (::access(directory.c_str(), W_OK | X_OK) != 0)
    throw std::runtime_error(
        fmt::format("{}: cannot write into {}: {}", flag, directory.string(), std::strerror(errno)));
}

}  // namespace

void check_output_file(const std::string& flag, const std::string& file, const std::vector<std::string>& reads) {
  const fs::path path = file, parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const auto status = status_of(path);
  if (status && S_ISDIR(status->st_mode))
    throw UsageError(fmt::format("{}: {} is a directory; expected the name of a file", flag, file));
  if (!path.has_filename()) throw UsageError(fmt::format("{}: \"{}\" is not the name of a file", flag, file));
  if (status && !S_ISREG(status->st_mode))
    throw UsageError(fmt::format("{}: {} is not a regular file; it would be replaced", flag, file));
  if (!status_of(parent))
    throw std::runtime_error(
        fmt::format("{}: cannot write {}: the directory {} does not exist", flag, file, parent.string()));
  check_writable(flag, parent);
  for (const std::string& read : reads) {
    if (status && !read.empty() && holds(read, *status))
      throw UsageError(
          fmt::format("{}: {} is read by this command and would be overwritten; name another file", flag, file));
  }
  if (const auto owner = owner_of(path))
    throw UsageError(
        fmt::format("{}: {} belongs to the model or run in {}; name another file", flag, file, owner->string()));
}

void check_output_directory(const std::string& flag, const std::string& directory) {
  fs::path there = fs::absolute(directory);
  while (!status_of(there) && there.has_relative_path()) there = there.parent_path();
  check_writable(flag, there);
}

void write_result(const std::string& file, const std::function<void(const fs::path&)>& write) {
  try {
    write(file);
  } catch (const std::system_error& error) {
    std::error_code none;
    const fs::path instead =
        fs::temp_directory_path(none) / fmt::format("ovq-{}-{}", ::getpid(), fs::path(file).filename().string());
    bool kept = true;
    try {
      write(instead);
    } catch (const std::system_error&) {
      kept = false;
    }
    if (!kept) throw;
    throw std::runtime_error(fmt::format("{}; the result is in {} instead", error.what(), instead.string()));
  }
}

}  // namespace ovq::cli
