// A whole file as read-only memory, loaded from disk as pages are touched. The map stays valid if the file is replaced
// by rename, as durable.h does. Truncating the file in place, which this project never does, would end the reader with
// SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace ovq::files {

class MappedFile {
 public:
  // std::runtime_error if `path` is not a readable regular file.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace ovq::files
