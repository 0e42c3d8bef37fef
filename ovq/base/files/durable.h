// Files and directories that exist completely or not at all, whenever the process or the machine stops:
//   write aside -> fsync -> rename -> fsync of the parent.
// The data is first written aside, beside the target as "<target>.part-<pid>-<n>", locked (flock) while its writer
// lives. The lock shows that the leftovers of a killed writer are stale; process ids would not, since containers reuse
// them. Errors are std::system_error (a std::runtime_error) with the path and strerror; exceptions of a callback pass
// through. In both cases the data written aside is removed and the target stays as before. One exception: if only the
// last fsync, that of the parent, fails, the target is new and complete, but a power loss may bring the old one back.
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

// Unbuffered output: writes every byte or throws. `path` names the file in errors.
class OutputFile {
 public:
  OutputFile(Descriptor file, std::filesystem::path path) : file_(std::move(file)), path_(std::move(path)) {}
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Overwrites bytes written before; the next write still appends.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  void sync();

 private:
  Descriptor file_;
  std::filesystem::path path_;
};

// Creates or replaces the file `path`. A symbolic link at `path` is replaced, not followed.
void write_file_durably(const std::filesystem::path& path, std::string_view content);
void write_file_durably(const std::filesystem::path& path, const std::function<void(OutputFile&)>& write);

// The same for output through a stream. The stream is buffered and throws on errors.
void write_stream_durably(const std::filesystem::path& path, const std::function<void(std::ostream&)>& write);

enum class IfExists { fail, replace };

// Creates the directory `path` with the content that `write` puts into the directory it is given; everything is
// fsynced. IfExists::replace exchanges old and new atomically (RENAME_EXCHANGE). Where the file system does not support
// this, the old one is first renamed to "<path>.old-<pid>-<n>". If the process dies before the second rename,
// remove_stale_parts renames it back.
void write_directory_durably(const std::filesystem::path& path,
                             const std::function<void(const std::filesystem::path& aside)>& write,
                             IfExists if_exists = IfExists::fail);

// Removes a file or directory: its name disappears atomically, then the content is deleted. A missing one is no error.
void remove_durably(const std::filesystem::path& path);

// Removes the leftovers of dead writers in `directory` (or renames them back, see above); returns them, sorted by name.
std::vector<std::filesystem::path> remove_stale_parts(const std::filesystem::path& directory);

// Deletes the files that this process is writing aside, for a signal handler that ends the process (async-signal-safe).
// Directories are left to remove_stale_parts.
void remove_open_parts() noexcept;

namespace detail {
// Replaces a directory where RENAME_EXCHANGE is not supported; returns the new name of the old one.
std::filesystem::path replace_in_two_steps(const std::filesystem::path& aside, const std::filesystem::path& target);
}  // namespace detail

}  // namespace ovq::files
