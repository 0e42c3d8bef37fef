// Tensors in a file, in the safetensors format of https://github.com/huggingface/safetensors:
//   header length u64 | header, JSON | data
//   header: {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// little-endian; the offsets count from the start of the data and cover it without gaps or overlaps.
//
// Files written here also carry a checksum, in metadata that other libraries ignore. It covers the content, not the
// layout: CRC-32C of
//   number of other metadata | key, text of each, by key | number of tensors |
//   name, dtype, rank, shape, number of bytes, bytes of each, by name
// with integers as u64 and each text after its length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/base/files/durable.h"
#include "ovq/base/files/mapped_file.h"

namespace ovq::files {

inline constexpr const char* kChecksumKey = "ovq.checksum";
inline constexpr size_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
inline constexpr size_t kMaxRank = 64;                  // as in torch
inline constexpr size_t kDataAlignment = 64;            // of the data's start, in files written here

// The dtypes of whole bytes; any other is an error.
enum class Dtype {
  boolean,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  i64,
  u64,
  f64,
};

std::string_view dtype_name(Dtype dtype);  // as in the file: "BF16"
size_t dtype_bytes(Dtype dtype);

struct FileTensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;  // {}: a scalar
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string, std::less<>>;

enum class Integrity { verified, absent };

// A file opened for reading. Opening checks the whole header but reads no data.
class Safetensors {
 public:
  // std::runtime_error if the file is missing or invalid.
  explicit Safetensors(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of the data. The bytes live as long as this object and may be unaligned in files of other libraries.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // nullptr if there is none.
  const FileTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  // Reads all data and compares its checksum. std::runtime_error if it differs; Integrity::absent without a checksum.
  Integrity verify() const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<FileTensor> tensors_;
  std::vector<size_t> by_name_;
  Metadata metadata_;
};

enum class Order {
  aligned,  // larger elements first, then by name, so that every tensor is aligned to its elements
  given,
};

struct SafetensorsOptions {
  Metadata metadata;  // an existing checksum is replaced
  Order order = Order::aligned;
};

// std::invalid_argument for tensors that make no valid file. The tensors' bytes are read twice and never copied.
void write_safetensors(OutputFile& out, std::span<const FileTensor> tensors, const SafetensorsOptions& options = {});
// The same, durably to its own file.
void save_safetensors(const std::filesystem::path& path, std::span<const FileTensor> tensors,
                      const SafetensorsOptions& options = {});

}  // namespace ovq::files
