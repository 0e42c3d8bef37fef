#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "ovq/base/error.h"
#include "ovq/base/files/safetensors.h"
#include "ovq/base/files/safetensors_header.h"

namespace ovq::files {
namespace {

constexpr const char* kOp = "write_safetensors";

std::string json_text(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(kOp, "the name or metadata ", detail::quoted(text), " is not UTF-8");
  }
}

void check_tensor(const FileTensor& tensor) {
  const std::string name = detail::quoted(tensor.name);
  check(tensor.name != "__metadata__", kOp, "a tensor has the name ", name, ", which the format reserves");
  check(tensor.shape.size() <= kMaxRank, kOp, "tensor ", name, " has ", tensor.shape.size(),
        " dimensions; must be at most ", kMaxRank);
  for (const int64_t size : tensor.shape) {
    check(size >= 0, kOp, "tensor ", name, " has a dimension of ", size, "; must not be negative");
  }
  const std::optional<uint64_t> bytes = detail::tensor_bytes(tensor.dtype, tensor.shape);
  check(bytes == tensor.bytes.size(), kOp, "tensor ", name, " comes with ", tensor.bytes.size(),
        " bytes; its shape takes ", bytes ? std::to_string(*bytes) : "more than 2^63");
}

// Indices of the tensors in the order of the file.
std::vector<size_t> file_order(std::span<const FileTensor> tensors, std::vector<size_t> by_name, Order order) {
  if (order == Order::given) {
    std::iota(by_name.begin(), by_name.end(), size_t{0});
  } else {
    std::stable_sort(by_name.begin(), by_name.end(),
                     [&](size_t a, size_t b) { return dtype_bytes(tensors[a].dtype) > dtype_bytes(tensors[b].dtype); });
  }
  return by_name;
}

// Pads with spaces so that the data starts aligned.
std::string make_header(std::span<const FileTensor> tensors, std::span<const size_t> order, const Metadata& metadata) {
  std::string header = R"({"__metadata__":{)";
  for (const auto& [key, text] : metadata) {
    if (header.back() != '{') header += ',';
    header += json_text(key) + ":" + json_text(text);
  }
  header += '}';
  uint64_t offset = 0;
  for (const size_t i : order) {
    const FileTensor& tensor = tensors[i];
    const uint64_t end = offset + tensor.bytes.size();
    header += ',';
    header += json_text(tensor.name) + R"(:{"dtype":")" + std::string(dtype_name(tensor.dtype)) + R"(","shape":)" +
              nlohmann::json(tensor.shape).dump() + R"(,"data_offsets":)" + nlohmann::json{offset, end}.dump() + "}";
    offset = end;
  }
  header += '}';
  const size_t over = (sizeof(uint64_t) + header.size()) % kDataAlignment;
  header.append(over == 0 ? 0 : kDataAlignment - over, ' ');
  check(header.size() <= kMaxHeaderBytes, kOp, "the header takes ", header.size(), " bytes; must be at most ",
        kMaxHeaderBytes);
  return header;
}

}  // namespace

void write_safetensors(OutputFile& out, std::span<const FileTensor> tensors, const SafetensorsOptions& options) {
  for (const FileTensor& tensor : tensors) check_tensor(tensor);
  const std::vector<size_t> by_name = detail::order_by_name(tensors);
  for (size_t i = 1; i < by_name.size(); ++i) {
    const std::string& name = tensors[by_name[i]].name;
    check(tensors[by_name[i - 1]].name != name, kOp, "two tensors have the name ", detail::quoted(name));
  }
  const std::vector<size_t> order = file_order(tensors, by_name, options.order);
  Metadata metadata = options.metadata;
  metadata[kChecksumKey] = detail::content_checksum(tensors, by_name, metadata);

  const std::string header = make_header(tensors, order, metadata);
  const uint64_t length = header.size();
  out.write(std::as_bytes(std::span(&length, 1)));
  out.write(header);
  for (const size_t i : order) out.write(tensors[i].bytes);
}

void save_safetensors(const std::filesystem::path& path, std::span<const FileTensor> tensors,
                      const SafetensorsOptions& options) {
  write_file_durably(path, [&](OutputFile& out) { write_safetensors(out, tensors, options); });
}

}  // namespace ovq::files
