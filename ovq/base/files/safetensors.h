// Tensors in a file, in the safetensors format of https://github.com/huggingface/safetensors:
//   header length u64 | header, JSON | data
//   header: {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
// little-endian; the offsets count from the start of the data and cover it without gap or overlap.
//
// A file written here also carries a checksum, as metadata that other libraries pass over. It covers the content, not
// the layout: CRC-32C of
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

// Those of whole bytes; a file with another is an error.
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

// A file to read. Opening checks the whole header against the file and touches no data.
class Safetensors {
 public:
  // Throws std::runtime_error: no such file, or not a valid one.
  explicit Safetensors(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  // In the order of the data. The bytes live as long as this object; files of other libraries may hold them unaligned.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // nullptr if there is none.
  const FileTensor* find(std::string_view name) const;
  const Metadata& metadata() const { return metadata_; }
  // Reads all data. Throws std::runtime_error if it is not what was written; absent: there is no checksum to tell by.
  Integrity verify() const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<FileTensor> tensors_;
  std::vector<size_t> by_name_;
  Metadata metadata_;
};

enum class Order {
  aligned,  // larger elements first, then by name: each tensor aligned to its elements
  given,
};

struct SafetensorsOptions {
  Metadata metadata;  // a checksum in it is replaced
  Order order = Order::aligned;
};

// Throws std::invalid_argument for tensors that make no valid file. The tensors' bytes are read twice and copied never.
void write_safetensors(OutputFile& out, std::span<const FileTensor> tensors, const SafetensorsOptions& options = {});
// The same, durably to a file of its own.
void save_safetensors(const std::filesystem::path& path, std::span<const FileTensor> tensors,
                      const SafetensorsOptions& options = {});

}  // namespace ovq::files
