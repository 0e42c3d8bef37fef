// Errors in external input: "[op] what came; what was expected".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace ovq {

// The error is in a user's file instead of the call: missing, empty or invalid.
struct DataError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Training diverged: the same options will always end like this.
struct DivergedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline constexpr int kDivergedStatus = 3;  // the program's exit status in this case

template <class Error, class... Parts>
[[noreturn]] void fail_with(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "[" << op << "] ";
  (message << ... << parts);
  throw Error(message.str());
}

// Throws std::invalid_argument for a bad call.
template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  fail_with<std::invalid_argument>(op, parts...);
}

template <class... Parts>
void check(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail(op, parts...);
}

// Throws DataError for bad data.
template <class... Parts>
[[noreturn]] void fail_data(const char* op, const Parts&... parts) {
  fail_with<DataError>(op, parts...);
}

template <class... Parts>
void check_data(bool ok, const char* op, const Parts&... parts) {
  if (!ok) fail_data(op, parts...);
}

}  // namespace ovq
