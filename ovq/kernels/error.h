// Errors for bad input: "[op] what came; what was expected".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ovq::kernels {

template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

template <class... Parts>
void check(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail(op, parts...);
}

}  // namespace ovq::kernels
