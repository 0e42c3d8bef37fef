#include "fuzz/targets.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ovq/base/closest.h"
#include "ovq/base/random.h"

namespace ovq::fuzz {

namespace fs = std::filesystem;

const Target& target_named(const std::string& name, const std::vector<Target>& targets) {
  std::vector<std::string> names;
  for (const Target& target : targets) {
    if (target.name == name) return target;
    names.push_back(target.name);
  }
  throw std::invalid_argument(unknown_name("fuzz target", name, names));
}

std::string file_of(std::string_view bytes) {
  static const std::string path = [] {
    const fs::path memory = "/dev/shm";
    const fs::path where = fs::is_directory(memory) ? memory : fs::temp_directory_path();
    return (where / ("ovq_fuzz_" + std::to_string(::getpid()))).string();
  }();
  static const struct Remover {
    ~Remover() {
      std::error_code none;
      fs::remove(path, none);
    }
  } remover;
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

void may_refuse(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {
  }
}

std::string mutated(std::string bytes, uint64_t seed) {
  Random random(seed);
  const auto position = [&] { return static_cast<size_t>(random.below(static_cast<int64_t>(bytes.size()))); };
  for (int64_t change = random.below(4); change >= 0 && !bytes.empty(); --change) {
    const size_t at = position(), room = bytes.size() - at;
    switch (random.below(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.below(256));
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3: {  // an integer at the edge of what fits
        const int64_t edges[] = {0, 1, -1, INT64_MAX, INT64_MIN, INT32_MAX, int64_t{1} << 32, 1 << 20};
        const int64_t edge = edges[random.below(8)];
        std::memcpy(&bytes[at], &edge, std::min(room, random.below(2) == 0 ? sizeof(edge) : size_t{4}));
        break;
      }
      case 4:
        bytes.insert(at, bytes.substr(position(), static_cast<size_t>(random.below(64))));
        break;
      default:
        bytes.erase(at, static_cast<size_t>(random.below(16)));
    }
  }
  return bytes;
}

}  // namespace ovq::fuzz
