// Checksums of files, against accidental damage, not against attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ovq {

// CRC-32C (Castagnoli, reflected, 0x82f63b78), eight bytes per step: detects every error burst of up to 32 bits and
// misses other damage with probability 2^-32. For weights and checkpoints.
class Crc32c {
 public:
  void add(std::span<const std::byte> bytes);
  // Adds the length first, then the text, so that moving characters between neighbouring fields changes the checksum.
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
