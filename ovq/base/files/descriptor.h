// A file descriptor that closes itself, and errors of system calls.
#pragma once

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

// Throws std::system_error (a std::runtime_error): "[op] cannot <what> <path>: <strerror of errno>".
[[noreturn]] void fail_errno(const std::string& op, const std::string& what, const std::filesystem::path& path);

}  // namespace ovq::files
