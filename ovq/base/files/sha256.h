// SHA-256 (FIPS 180-4), as computed by sha256sum: identifies a file by its content.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ovq::files {

// 64 hexadecimal digits.
std::string sha256(std::span<const std::byte> bytes);

}  // namespace ovq::files
