// What is wrong with a file of the user's, as opposed to the call: missing, empty, not what it should be.
#pragma once

#include <sstream>
#include <stdexcept>

namespace ovq::tasks {

struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// "[op] what came; what was expected"
template <class... Parts>
[[noreturn]] void fail_data(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw DataError(message.str());
}

template <class... Parts>
void check_data(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail_data(op, parts...);
}

}  // namespace ovq::tasks
