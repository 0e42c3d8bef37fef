// Where the time of a run goes: the project's own kernels, the matrix products, and all else.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace ovq::train {

// Listens to torch's record functions from its construction on; at most one at a time.
class Profile {
 public:
  struct Entry {
    int64_t calls = 0;
    double seconds = 0;
  };
  struct Shares {
    double kernels = 0, matrix_products = 0, rest = 0;  // add up to 1
  };

  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  std::map<std::string, Entry> entries() const;  // by function; one within another counts for the outer one only
  Shares shares(double seconds) const;           // of the time that was listened to

  void add(const std::string& name, double seconds);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  uint64_t callback_ = 0;
};

// Functions by the time they took, of `seconds` in all, and the shares.
std::string to_table(const Profile& profile, double seconds);

}  // namespace ovq::train
