// Errors about what came from outside: "[op] what came; what was expected".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ovq {

// What is wrong with a file of the user's, as opposed to the call: missing, empty, not what it should be.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Training that cannot go on: the same options will always come to this.
struct DivergedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline constexpr int kDivergedStatus = 3;  // with which the program ends then

template <class Error, class... Parts>
[[noreturn]] void fail_with(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw Error(message.str());
}

// A bad call.
template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  fail_with<std::invalid_argument>(op, parts...);
}

template <class... Parts>
void check(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail(op, parts...);
}

// Bad data.
template <class... Parts>
[[noreturn]] void fail_data(const char* op, const Parts&... parts) {
  fail_with<DataError>(op, parts...);
}

template <class... Parts>
void check_data(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail_data(op, parts...);
}

}  // namespace ovq
