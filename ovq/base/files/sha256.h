// SHA-256 (FIPS 180-4): names a file by its content, as the program sha256sum does.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ovq::files {

// 64 hexadecimal digits.
std::string sha256(std::span<const std::byte> bytes);

}  // namespace ovq::files
