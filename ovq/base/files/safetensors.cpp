#include "ovq/base/files/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "ovq/base/files/safetensors_header.h"

namespace ovq::files {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kLengthBytes = 8;

[[noreturn]] void broken(const std::filesystem::path& path, const std::string& what) {
  throw std::runtime_error("[Safetensors] " + path.string() + ": " + what);
}

// The header's text; the data follows it.
std::string_view header_text(const std::filesystem::path& path, std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    broken(path, std::to_string(file.size()) + " bytes; a header length alone takes " + std::to_string(kLengthBytes));
  }
  uint64_t length;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes) {
    broken(path,
           "the header length is " + std::to_string(length) + "; must be at most " + std::to_string(kMaxHeaderBytes));
  }
  if (length > file.size() - kLengthBytes) {
    broken(path, "the header length is " + std::to_string(length) + ", but only " +
                     std::to_string(file.size() - kLengthBytes) + " bytes follow");
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length)};
}

// Sorts the tensors by offset and checks that the size of each matches its shape and that together they cover the data.
void check_layout(const std::filesystem::path& path, std::vector<detail::HeaderTensor>& tensors, uint64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const detail::HeaderTensor& a, const detail::HeaderTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  for (const detail::HeaderTensor& tensor : tensors) {
    const auto reject = [&](const std::string& why) {
      broken(path, "tensor " + detail::quoted(tensor.name) + " has data_offsets [" + std::to_string(tensor.begin) +
                       ", " + std::to_string(tensor.end) + "]; " + why);
    };
    if (tensor.begin > tensor.end) reject("must not end before they begin");
    if (tensor.begin != covered) reject("must begin at " + std::to_string(covered) + ", where the one before ends");
    if (tensor.end > data_bytes) reject("there are " + std::to_string(data_bytes) + " bytes of data");
    const std::optional<uint64_t> bytes = detail::tensor_bytes(tensor.dtype, tensor.shape);
    if (bytes != tensor.end - tensor.begin) {
      reject("its shape takes " + (bytes ? std::to_string(*bytes) : "more than 2^63") + " bytes");
    }
    covered = tensor.end;
  }
  if (covered != data_bytes) {
    broken(path,
           "there are " + std::to_string(data_bytes) + " bytes of data; the tensors take " + std::to_string(covered));
  }
}

detail::Header read_header(const std::filesystem::path& path, std::string_view json) {
  try {
    return detail::parse_header(json);
  } catch (const std::runtime_error& error) {
    broken(path, error.what());
  }
}

}  // namespace

Safetensors::Safetensors(std::filesystem::path path) : path_(std::move(path)), file_(path_) {
  const std::string_view json = header_text(path_, file_.bytes());
  detail::Header header = read_header(path_, json);
  const std::span<const std::byte> data = file_.bytes().subspan(kLengthBytes + json.size());
  check_layout(path_, header.tensors, data.size());
  tensors_.reserve(header.tensors.size());
  for (detail::HeaderTensor& tensor : header.tensors) {
    tensors_.push_back({.name = std::move(tensor.name),
                        .dtype = tensor.dtype,
                        .shape = std::move(tensor.shape),
                        .bytes = data.subspan(tensor.begin, tensor.end - tensor.begin)});
  }
  metadata_ = std::move(header.metadata);
  by_name_ = detail::order_by_name(tensors_);
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(),
                                        [&](size_t a, size_t b) { return tensors_[a].name == tensors_[b].name; });
  if (twice != by_name_.end()) broken(path_, "tensor " + detail::quoted(tensors_[*twice].name) + " occurs twice");
}

const FileTensor* Safetensors::find(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                   [&](size_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

Integrity Safetensors::verify() const {
  const auto stored = metadata_.find(kChecksumKey);
  if (stored == metadata_.end()) return Integrity::absent;
  const std::string actual = detail::content_checksum(tensors_, by_name_, metadata_);
  if (stored->second != actual) {
    broken(path_, "the checksum of the content is " + actual + "; must be " + detail::quoted(stored->second));
  }
  return Integrity::verified;
}

}  // namespace ovq::files
