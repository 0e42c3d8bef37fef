#include "ovq/base/files/descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace ovq::files {

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void fail_errno(const std::string& op, const std::string& what, const std::filesystem::path& path) {
  const int error = errno;
  throw std::system_error(error, std::generic_category(), "[" + op + "] cannot " + what + " " + path.string());
}

}  // namespace ovq::files
