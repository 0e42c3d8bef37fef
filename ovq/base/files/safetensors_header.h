// Shared by the reader and the writer of safetensors.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/base/files/safetensors.h"

namespace ovq::files::detail {

std::optional<Dtype> parse_dtype(std::string_view name);

// The number of bytes of a tensor; empty if it exceeds 63 bits.
std::optional<uint64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape);

// Quoted as in JSON, without control characters and shortened for messages.
std::string quoted(std::string_view text);

// Indices of the tensors, by name.
std::vector<size_t> order_by_name(std::span<const FileTensor> tensors);

std::string content_checksum(std::span<const FileTensor> tensors, std::span<const size_t> by_name,
                             const Metadata& metadata);

struct HeaderTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

struct Header {
  std::vector<HeaderTensor> tensors;
  Metadata metadata;
};

// Checks structure, types and dtypes, but not offsets and sizes against each other. Memory grows only with the text.
// Throws std::runtime_error without the name of the file.
Header parse_header(std::string_view json);

}  // namespace ovq::files::detail
