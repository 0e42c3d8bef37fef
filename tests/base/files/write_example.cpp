// Writes the file that read_back.py expects: write_example <path>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <vector>

#include "ovq/base/files/safetensors.h"

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  using namespace ovq::files;
  std::vector<float> weight(35);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = 0.5f * static_cast<float>(i) - 3.0f;
  const std::vector<int64_t> steps{-1, 0, int64_t{1} << 40};
  const std::vector<uint16_t> half{0x3c00, 0xc000};
  const double scalar = 2.5;
  const uint8_t flags[] = {1, 0, 1};
  const FileTensor tensors[] = {
      {.name = "flags", .dtype = Dtype::boolean, .shape = {3}, .bytes = std::as_bytes(std::span(flags))},
      {.name = "layers.0.weight", .dtype = Dtype::f32, .shape = {5, 7}, .bytes = std::as_bytes(std::span(weight))},
      {.name = "steps", .dtype = Dtype::i64, .shape = {3, 1}, .bytes = std::as_bytes(std::span(steps))},
      {.name = "half", .dtype = Dtype::f16, .shape = {2}, .bytes = std::as_bytes(std::span(half))},
      {.name = "scalar \"ü\"", .dtype = Dtype::f64, .shape = {}, .bytes = std::as_bytes(std::span(&scalar, 1))},
      {.name = "empty", .dtype = Dtype::u8, .shape = {4, 0}},
  };
  save_safetensors(argv[1], tensors, {.metadata = {{"format", "pt"}, {"note", "line\nbreak"}}});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
