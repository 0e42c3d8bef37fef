// Files and directories that are there whole or not at all, whatever moment the process or the machine stops at:
//   write aside -> fsync -> rename -> fsync of the parent.
// Aside means beside the target as "<target>.part-<pid>-<n>", locked (flock) while its writer lives. What a killed
// writer leaves behind is therefore known as stale without trusting process ids, which containers reuse. Errors:
// std::system_error (a std::runtime_error) with the path and strerror; an exception of a callback passes through. In
// both cases what was written aside is removed and the target is as before. The one exception: if only the last fsync,
// that of the parent, fails, the target is new and complete, but a power loss may bring the old one back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string_view>
#include <vector>

#include "ovq/base/files/descriptor.h"

namespace ovq::files {

// Unbuffered output; every byte is taken or an error thrown. `path` names the file in errors.
class OutputFile {
 public:
  OutputFile(Descriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Over bytes that were written before; what is written next still comes at the end.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void sync();

 private:
  Descriptor file_;
  std::filesystem::path path_;
};

// Creates or replaces the file `path`. A symbolic link at `path` is replaced, not followed.
void write_file_durably(const std::filesystem::path& path, std::string_view content);
void write_file_durably(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);

// The same for what is written to a stream, which is buffered; its errors are exceptions.
void write_stream_durably(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

enum class IfExists { fail, replace };

// Creates the directory `path` out of what `write` puts into the directory it is given; everything in it is fsynced.
// IfExists::replace exchanges old and new in one step (RENAME_EXCHANGE). Where the file system cannot, the old one is
// first renamed to "<path>.old-<pid>-<n>"; if the process dies right there, remove_stale_parts renames it back.
void write_directory_durably(const std::filesystem::path& path,
                             const std::function<void(const std::filesystem::path& aside)>& write,
                             IfExists if_exists = IfExists::fail);

// Removes a file or directory: gone under its name in one step, then deleted. A missing one is no error.
void remove_durably(const std::filesystem::path& path);

// Children of `directory` that dead writers left behind, sorted by name.
std::vector<std::filesystem::path> stale_parts(const std::filesystem::path& directory);
// Removes them (or renames them back, see above); returns what was stale.
std::vector<std::filesystem::path> remove_stale_parts(const std::filesystem::path& directory);

// Deletes the files that this process has written aside and not renamed yet, for a signal handler that ends the process
// (async-signal-safe). Directories stay; remove_stale_parts takes them.
void remove_open_parts() noexcept;

namespace detail {
// The way to replace a directory where RENAME_EXCHANGE is missing; returns the new name of the old one.
std::filesystem::path replace_in_two_steps(const std::filesystem::path& aside, const std::filesystem::path& target);
}  // namespace detail

}  // namespace ovq::files
