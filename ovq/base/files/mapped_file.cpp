#include "ovq/base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <stdexcept>
#include <utility>

#include "ovq/base/files/descriptor.h"

namespace ovq::files {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK keeps the opening of a pipe from waiting for its writer.
  const Descriptor file = open_file(path, O_RDONLY | O_NONBLOCK);
  if (!file) fail_errno("MappedFile", "open", path);
  struct stat status;
  if (::fstat(file.number(), &status) != 0) fail_errno("MappedFile", "inspect", path);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error("[MappedFile] " + path.string() + " is not a regular file");
  if (status.st_size == 0) return;  // mmap rejects an empty map
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (data == MAP_FAILED) fail_errno("MappedFile", "map", path);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace ovq::files
