#include "ovq/base/files/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "ovq/base/checksum.h"

namespace ovq::files {
namespace {

struct DtypeInfo {
  std::string_view name;
  size_t bytes;
};

// In the order of the enum.
constexpr std::array<DtypeInfo, 17> kDtypes{{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3", 1},
    {"F8_E8M0", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"C64", 8},
    {"I64", 8},
    {"U64", 8},
    {"F64", 8},
}};
static_assert(kDtypes.size() == static_cast<size_t>(Dtype::f64) + 1);

constexpr uint64_t kMaxInt = std::numeric_limits<int64_t>::max();

[[noreturn]] void broken(const std::string& what) { throw std::runtime_error("header: " + what); }

// Handles the parser's events and accepts only the format's structure. No tree is built, nesting is limited to that of
// a shape, and the parser does not recurse.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  detail::Header take() {
    if (at_ != At::end) broken("it ends early");
    return std::move(header_);
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(detail::quoted(text)); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > kMaxInt) unexpected(std::to_string(value));
    if (at_ == At::shape) {
      if (tensor_.shape.size() == kMaxRank) {
        broken(where() + " has more than " + std::to_string(kMaxRank) + " dimensions");
      }
      tensor_.shape.push_back(static_cast<int64_t>(value));
    } else if (at_ == At::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    } else {
      unexpected(std::to_string(value));
    }
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::metadata_text) {
      if (!header_.metadata.emplace(key_, std::move(text)).second) {
        broken("the metadata has " + detail::quoted(key_) + " twice");
      }
      at_ = At::metadata;
    } else if (at_ == At::dtype) {
      const std::optional<Dtype> dtype = detail::parse_dtype(text);
      if (!dtype) broken(where() + " is " + detail::quoted(text) + ", an unknown dtype");
      tensor_.dtype = *dtype;
      at_ = At::tensor;
    } else {
      unexpected("the text " + detail::quoted(text));
    }
    return true;
  }

  bool start_object(size_t) override {
    switch (at_) {
      case At::start:
        at_ = At::top;
        break;
      case At::metadata_object:
        at_ = At::metadata;
        break;
      case At::tensor_object:
        at_ = At::tensor;
        break;
      default:
        unexpected("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    switch (at_) {
      case At::top:
        top_key(name);
        break;
      case At::metadata:
        key_ = std::move(name);
        at_ = At::metadata_text;
        break;
      default:
        tensor_key(name);
    }
    return true;
  }

  bool end_object() override {
    if (at_ == At::tensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        broken(where() + " lacks dtype, shape or data_offsets; must have all three");
      }
      header_.tensors.push_back(std::move(tensor_));
    }
    at_ = at_ == At::top ? At::end : At::top;
    return true;
  }

  bool start_array(size_t) override {
    if (at_ != At::shape_array && at_ != At::offsets_array) unexpected("a list");
    at_ = at_ == At::shape_array ? At::shape : At::offsets;
    return true;
  }

  bool end_array() override {
    if (at_ == At::offsets && offsets_ != 2)
      broken(where() + " has " + std::to_string(offsets_) + " numbers; must be 2");
    at_ = At::tensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& last, const nlohmann::json::exception&) override {
    broken("not JSON in UTF-8: invalid at byte " + std::to_string(position) + ", " + detail::quoted(last));
  }

 private:
  // The expected element.
  enum class At {
    start,
    top,
    metadata_object,
    metadata,
    metadata_text,
    tensor_object,
    tensor,
    dtype,
    shape_array,
    shape,
    offsets_array,
    offsets,
    end,
  };

  void top_key(std::string& name) {
    if (name == "__metadata__") {
      if (has_metadata_) broken("\"__metadata__\" occurs twice");
      has_metadata_ = true;
      at_ = At::metadata_object;
      return;
    }
    tensor_ = {.name = std::move(name)};
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offsets_ = 0;
    at_ = At::tensor_object;
  }

  void tensor_key(const std::string& name) {
    bool* seen;
    if (name == "dtype") {
      seen = &has_dtype_, at_ = At::dtype;
    } else if (name == "shape") {
      seen = &has_shape_, at_ = At::shape_array;
    } else if (name == "data_offsets") {
      seen = &has_offsets_, at_ = At::offsets_array;
    } else {
      broken(where() + " has the field " + detail::quoted(name) + "; must be dtype, shape or data_offsets");
    }
    if (*seen) broken(where() + " occurs twice");
    *seen = true;
  }

  std::string where() const {
    const std::string tensor = "tensor " + detail::quoted(tensor_.name);
    switch (at_) {
      case At::metadata_object:
      case At::metadata:
        return "the metadata";
      case At::metadata_text:
        return "the metadata " + detail::quoted(key_);
      case At::tensor_object:
      case At::tensor:
        return tensor;
      case At::dtype:
        return "the dtype of " + tensor;
      case At::shape_array:
      case At::shape:
        return "the shape of " + tensor;
      case At::offsets_array:
      case At::offsets:
        return "data_offsets of " + tensor;
      default:
        return "the whole";
    }
  }

  std::string_view expected() const {
    switch (at_) {
      case At::dtype:
      case At::metadata_text:
        return "a text";
      case At::shape_array:
        return "a list of integers";
      case At::shape:
        return "integers in [0, 2^63)";
      case At::offsets_array:
      case At::offsets:
        return "two integers in [0, 2^63)";
      default:
        return "an object";
    }
  }

  [[noreturn]] void unexpected(const std::string& what) const {
    broken(where() + ": got " + what + "; must be " + std::string(expected()));
  }

  At at_ = At::start;
  detail::Header header_;
  bool has_metadata_ = false;
  std::string key_;
  detail::HeaderTensor tensor_{};
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offsets_ = 0;
};

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].name; }
size_t dtype_bytes(Dtype dtype) { return kDtypes[static_cast<size_t>(dtype)].bytes; }

namespace detail {

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<uint64_t> tensor_bytes(Dtype dtype, std::span<const int64_t> shape) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t bytes = dtype_bytes(dtype);
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) || bytes > kMaxInt) return std::nullopt;
  }
  return bytes;
}

std::string quoted(std::string_view text) {
  constexpr size_t kLongest = 100;
  std::string result = nlohmann::json(text.substr(0, kLongest))
                           .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  return text.size() > kLongest ? result + "..." : result;
}

std::vector<size_t> order_by_name(std::span<const FileTensor> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  return order;
}

std::string content_checksum(std::span<const FileTensor> tensors, std::span<const size_t> by_name,
                             const Metadata& metadata) {
  Crc32c checksum;
  checksum.add(uint64_t{metadata.size() - metadata.count(kChecksumKey)});
  for (const auto& [key, text] : metadata) {
    if (key == kChecksumKey) continue;
    checksum.add(std::string_view(key));
    checksum.add(std::string_view(text));
  }
  checksum.add(uint64_t{tensors.size()});
  for (const size_t i : by_name) {
    const FileTensor& tensor = tensors[i];
    checksum.add(std::string_view(tensor.name));
    checksum.add(dtype_name(tensor.dtype));
    checksum.add(uint64_t{tensor.shape.size()});
    for (const int64_t size : tensor.shape) checksum.add(static_cast<uint64_t>(size));
    checksum.add(uint64_t{tensor.bytes.size()});
    checksum.add(tensor.bytes);
  }
  return checksum.text();
}

Header parse_header(std::string_view json) {
  if (!json.starts_with('{')) broken("the first byte is not '{'");
  // The parser would take a zero byte for the end of its input.
  if (json.find('\0') != std::string_view::npos) broken("there is a zero byte in it");
  HeaderEvents events;
  nlohmann::json::sax_parse(json, &events);
  return events.take();
}

}  // namespace detail
}  // namespace ovq::files
