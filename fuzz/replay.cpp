// The fuzz targets as an ordinary test, without libFuzzer: every seed and so many variations of each, and every file in
// FOUND/<target>/, which once were faults.
//   fuzz_replay FOUND [VARIATIONS]
//   fuzz_replay --list               the targets there are
//   fuzz_replay --seeds TARGET DIR   writes a target's seeds, for libFuzzer
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>

#include "fuzz/targets.h"
#include "ovq/base/random.h"

namespace {

namespace fs = std::filesystem;
using namespace ovq::fuzz;

// A fault is named before it ends the program.
void read(const Target& target, std::string_view bytes, const std::string& what) {
  try {
    may_refuse([&] { target.read(bytes); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s, %s: %s\n", target.name.c_str(), what.c_str(), error.what());
    throw;
  }
}

int64_t replay(const Target& target, const fs::path& found, int64_t variations) {
  int64_t runs = 0;
  const std::vector<std::string> seeds = target.seeds();
  for (size_t i = 0; i < seeds.size(); ++i, ++runs) {
    target.read(seeds[i]);  // good input is not refused
    for (int64_t variation = 0; variation < variations; ++variation, ++runs) {
      const uint64_t seed = ovq::hash_numbers({i, static_cast<uint64_t>(variation)});
      read(target, mutated(seeds[i], seed), "variation " + std::to_string(variation) + " of seed " + std::to_string(i));
    }
  }
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(found / target.name, none)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    read(target, bytes, entry.path().string());
    ++runs;
  }
  return runs;
}

void write_seeds(const Target& target, const fs::path& directory) {
  fs::create_directories(directory);
  const std::vector<std::string> seeds = target.seeds();
  for (size_t i = 0; i < seeds.size(); ++i)
    std::ofstream(directory / ("seed-" + std::to_string(i)), std::ios::binary) << seeds[i];
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::vector<Target> all = targets();
  if (arguments == std::vector<std::string>{"--list"}) {
    for (const Target& target : all) std::printf("%s\n", target.name.c_str());
    return 0;
  }
  if (arguments.size() == 3 && arguments[0] == "--seeds") {
    write_seeds(target_named(arguments[1], all), arguments[2]);
    return 0;
  }
  if (arguments.empty() || arguments.size() > 2) {
    std::fprintf(stderr, "usage: fuzz_replay FOUND [VARIATIONS]\n");
    return 2;
  }
  for (const Target& target : all) {
    const int64_t runs = replay(target, arguments[0], arguments.size() > 1 ? std::stoll(arguments[1]) : 200);
    std::printf("%s: %lld inputs\n", target.name.c_str(), static_cast<long long>(runs));
  }
  return 0;
}
