// Checksums of files. Both find accidents, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ovq {

// CRC-32C (Castagnoli, reflected, 0x82f63b78), eight bytes a step: finds every error burst of up to 32 bits, and misses
// other damage once in 2^32. For weights and checkpoints.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes);
  // The length before the text, both little-endian: neighbouring fields cannot trade characters unseen.
  void add(std::string_view text);
  void add(uint64_t value);
  uint32_t value() const { return ~remainder_; }
  // "crc32c:e3069283"
  std::string text() const;

 private:
  uint32_t remainder_ = ~uint32_t{0};
};

// FNV-1a of 64 bits, a byte a step. For states, whose format is older.
class Fnv1a {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) hash_ = (hash_ ^ std::to_integer<uint64_t>(byte)) * 0x100000001b3u;
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace ovq
