#include "ovq/base/files/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <system_error>

namespace ovq::files {

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  return Descriptor(uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

void fail_errno(const std::string& op, const std::string& what, const std::filesystem::path& path) {
  const int error = errno;
  throw std::system_error(error, std::generic_category(), "[" + op + "] cannot " + what + " " + path.string());
}

}  // namespace ovq::files
