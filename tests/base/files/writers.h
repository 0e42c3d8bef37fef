// Writers whose files contain their generation, for tests that interrupt them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/base/files/durable.h"
#include "ovq/base/files/safetensors.h"
#include "tests/base/files/fixtures.h"

namespace ovq::files::test {

inline void save_generation(const std::filesystem::path& path, int generation, size_t bytes) {
  const std::string data(bytes, static_cast<char>(generation));
  const FileTensor tensors[] = {
      {.name = "w", .dtype = Dtype::u8, .shape = {static_cast<int64_t>(bytes)}, .bytes = bytes_of(data)}};
  save_safetensors(path, tensors, {.metadata = {{"generation", std::to_string(generation)}}});
}

inline int load_generation(const std::filesystem::path& path) {
  const Safetensors file(path);
  EXPECT_EQ(file.verify(), Integrity::verified);
  const int generation = std::stoi(file.metadata().at("generation"));
  for (const std::byte byte : file.find("w")->bytes) EXPECT_EQ(byte, static_cast<std::byte>(generation));
  return generation;
}

inline void replace_directory(const std::filesystem::path& path, int generation, size_t bytes) {
  const auto fill = [&](const std::filesystem::path& aside) {
    save_generation(aside / "model", generation, bytes);
    save_generation(aside / "optimizer", generation, bytes);
  };
  write_directory_durably(path, fill, IfExists::replace);
}

inline int directory_generation(const std::filesystem::path& path) {
  const int generation = load_generation(path / "model");
  EXPECT_EQ(load_generation(path / "optimizer"), generation);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), std::filesystem::directory_iterator()), 2);
  return generation;
}

inline void stream_generation(const std::filesystem::path& path, int generation, size_t bytes) {
  write_stream_durably(path, [&](std::ostream& out) {
    out << generation << "\n" << std::flush << std::string(bytes, static_cast<char>(generation));
  });
}

inline int streamed_generation(const std::filesystem::path& path) {
  std::istringstream in(get_file(path));
  int generation = -1;
  in >> generation;
  in.get();
  const std::string rest{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(rest, std::string(rest.size(), static_cast<char>(generation)));
  EXPECT_FALSE(rest.empty());
  return generation;
}

struct Writer {
  const char* name;
  std::function<void(const std::filesystem::path&, int generation, size_t bytes)> write;
  std::function<int(const std::filesystem::path&)> read;
};

inline const std::vector<Writer>& writers() {
  static const std::vector<Writer> all{{"file", save_generation, load_generation},
                                       {"stream", stream_generation, streamed_generation},
                                       {"directory", replace_directory, directory_generation}};
  return all;
}

// Returns the child's id. `work` runs in the child without gtest, and the child exits afterwards: with status 0, with 1
// after an error that a writer may throw, with 2 after any other.
inline pid_t fork_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    work();
  } catch (const std::runtime_error&) {
    ::_exit(1);
  } catch (...) {
    ::_exit(2);
  }
  ::_exit(0);
}

}  // namespace ovq::files::test
