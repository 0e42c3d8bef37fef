// Where the time of a run goes: the project's own kernels, matrix products, everything else.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace ovq::train {

// Records torch's functions from its construction on. Only one can exist at a time.
class Profile {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Shares {
    double kernels = 0, matrix_products = 0, rest = 0;  // sum to 1
  };

  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  std::map<std::string, Entry> entries() const;  // by function; nested calls count for the outer function only
  Shares shares(double seconds) const;           // of the recorded time

  void add(const std::string& name, double seconds);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  uint64_t callback_ = 0;
};

// Functions by their time out of `seconds`, and the shares.
std::string to_table(const Profile& profile, double seconds);

}  // namespace ovq::train
