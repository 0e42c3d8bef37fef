// A file descriptor that closes itself, and errors from system calls.
#pragma once

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

namespace ovq::files {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Repeats a system call while it is interrupted by signals.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

// open(2), repeated if interrupted; empty, with errno set, if it fails.
Descriptor open_file(const std::filesystem::path& path, int flags, unsigned mode = 0666);

// Throws std::system_error (a std::runtime_error): "[op] cannot <what> <path>: <strerror of errno>".
[[noreturn]] void fail_errno(const std::string& op, const std::string& what, const std::filesystem::path& path);

}  // namespace ovq::files
