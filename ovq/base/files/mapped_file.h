// A whole file as read-only memory. Pages come from disk as they are touched. The map outlives replacement of the file
// by rename (what durable.h does); cutting the file short in place, which nothing here does, would end the reader by
// SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace ovq::files {

class MappedFile {
 public:
  // Throws std::runtime_error if there is no regular file to read at `path`.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace ovq::files
