// A state as bytes, little-endian:
//   "OVQSTATE", version u32, header (below), then for each sequence and head
//   keys [rows, dk], values [rows, dv] (centroids, then pending tokens, f32; centroids of a bfloat16 state bf16),
//   counts [n] i64 or with weights those [rows] f32, with value_norms shrinkage [n] f32, similarity [searched] f32 and
//   centroid [searched] i32 of the keys searched so far in this chunk; FNV-1a of everything before, u64.
// Version 1 has no weights, version 2 has; both are float32. Version 3 states both in the header: weighted i64, dtype
// i64. The reader trusts nothing: each field has a range, and memory grows with the bytes actually read, not with the
// sizes in the header.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <istream>
#include <limits>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ovq/base/checksum.h"
#include "ovq/core/checks.h"
#include "ovq/ops/attention/kernel.h"
#include "ovq/ops/ovq_attention/state.h"
#include "ovq/ops/rotary/rotary.h"

namespace ovq::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMagic[8] = {'O', 'V', 'Q', 'S', 'T', 'A', 'T', 'E'};
constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kReadBlock = int64_t{1} << 20;  // bytes

[[noreturn]] void corrupt(const std::string& what) { throw std::runtime_error("[OvqState::read] " + what); }

class Writer {
 public:
  explicit Writer(std::ostream& out) : out_(out) {}
  void bytes(const void* data, size_t count) {
    checksum_.add({static_cast<const std::byte*>(data), count});
    out_.write(static_cast<const char*>(data), static_cast<std::streamsize>(count));
    if (!out_) throw std::runtime_error("[OvqState::write] the stream takes no more bytes");
  }
  template <class T>
  void value(T value) {
    bytes(&value, sizeof(value));
  }
  void finish() {
    const uint64_t checksum = checksum_.value();
    bytes(&checksum, sizeof(checksum));
  }

 private:
  std::ostream& out_;
  Fnv1a checksum_;
};

class Reader {
 public:
  explicit Reader(std::istream& in) : in_(in) {}
  void bytes(void* data, size_t count) {
    in_.read(static_cast<char*>(data), static_cast<std::streamsize>(count));
    if (static_cast<size_t>(in_.gcount()) != count) corrupt("the stream ends early");
    checksum_.add({static_cast<const std::byte*>(data), count});
  }
  template <class T>
  T value() {
    T value;
    bytes(&value, sizeof(value));
    return value;
  }
  int64_t in_range(const char* name, int64_t low, int64_t high) {
    const auto read = value<int64_t>();
    if (read < low || read > high) {
      corrupt(std::string(name) + " is " + std::to_string(read) + "; must be in [" + std::to_string(low) + ", " +
              std::to_string(high) + "]");
    }
    return read;
  }
  // Reads `count` elements; the vector grows only as far as the stream goes.
  template <class T>
  std::vector<T> array(int64_t count) {
    std::vector<T> result;
    const int64_t block = kReadBlock / static_cast<int64_t>(sizeof(T));
    for (int64_t done = 0; done < count; done += block) {
      const int64_t part = std::min(block, count - done);
      result.resize(done + part);
      bytes(result.data() + done, part * sizeof(T));
    }
    return result;
  }
  void finish() {
    const uint64_t expected = checksum_.value();
    if (value<uint64_t>() != expected) corrupt("the checksum does not match");
  }

 private:
  std::istream& in_;
  Fnv1a checksum_;
};

// The largest value that has a name; a value may have several names.
template <class Enum>
constexpr int64_t largest_value() {
  int64_t largest = 0;
  for (const auto& [value, name] : enum_names(Enum{})) largest = std::max(largest, static_cast<int64_t>(value));
  return largest;
}

// The options as a list of fields: integers, enums and bools as i64, numbers as f32, an optional number as i64 (whether
// it is present) and f32.
class OptionWriter {
 public:
  OptionWriter(Writer& writer, int64_t count) : writer_(writer), left_(count) {}

  template <class T>
  void operator()(const char*, const T& value, const char*, const Range& = {}) {
    if (left_-- <= 0) return;  // an older version, which leaves out only fields with default values
    if constexpr (is_optional<T>) {
      writer_.value(static_cast<int64_t>(value.has_value()));
      writer_.value(value.value_or(0.0f));
    } else if constexpr (std::is_floating_point_v<T>) {
      writer_.value(static_cast<float>(value));
    } else {
      writer_.value(static_cast<int64_t>(value));
    }
  }

 private:
  Writer& writer_;
  int64_t left_;
};

class OptionReader {
 public:
  OptionReader(Reader& reader, int64_t count) : reader_(reader), left_(count) {}

  template <class T>
  void operator()(const char* name, T& value, const char*, const Range& = {}) {
    if (left_-- <= 0) return;  // an older file; the field keeps its default
    if constexpr (is_optional<T>) {
      const bool there = reader_.in_range(name, 0, 1) == 1;
      const auto number = reader_.value<float>();
      if (there) value = number;
    } else if constexpr (std::is_floating_point_v<T>) {
      value = reader_.value<float>();
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(reader_.in_range(name, 0, largest_value<T>()));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = reader_.in_range(name, 0, 1) == 1;
    } else {
      value = static_cast<T>(reader_.value<int64_t>());
    }
  }

 private:
  Reader& reader_;
  int64_t left_;
};

constexpr int64_t kFirstFields = 10;       // number of fields in versions 1 to 3; every appended field adds one
constexpr uint32_t kFirstWithStorage = 3;  // first version whose header contains the storage type

// The fields as numbers, for comparison.
std::vector<double> field_values(OvqOptions options) {
  std::vector<double> values;
  const auto add = [&]<class T>(const char*, const T& value, const char*, const Range& = {}) {
    if constexpr (is_optional<T>) {
      values.push_back(value ? static_cast<double>(*value) : -1.0);
    } else {
      values.push_back(static_cast<double>(value));
    }
  };
  list_fields(add, options);
  return values;
}

uint32_t version_with_fields(size_t count) {
  return kFirstWithStorage + static_cast<uint32_t>(std::max(static_cast<int64_t>(count), kFirstFields) - kFirstFields);
}

uint32_t newest_version() { return version_with_fields(field_values({}).size()); }

// The oldest version that can hold the state, so that older programs can read as much as possible.
uint32_t version_of(const OvqOptions& options, StateDtype dtype) {
  const std::vector<double> values = field_values(options), defaults = field_values({});
  size_t needed = values.size();
  while (needed > 0 && values[needed - 1] == defaults[needed - 1]) --needed;
  if (dtype != StateDtype::float32 || static_cast<int64_t>(needed) > kFirstFields) return version_with_fields(needed);
  return options.weighted ? 2 : 1;
}

int64_t fields_of_version(uint32_t version) {
  return version <= kFirstWithStorage ? kFirstFields : kFirstFields + version - kFirstWithStorage;
}

// The number of keys of the current chunk whose nearest centroid is already known.
int64_t searched_keys(const OvqOptions& options, int64_t position, int64_t size) {
  return size == 0 ? 0 : position % options.chunk;
}

struct HeadData {
  std::vector<float> keys, values, weights, shrinkage, best_similarity;
  std::vector<Bfloat16> narrow_keys, narrow_values;  // the centroids of a bfloat16 state
  std::vector<int64_t> counts;
  std::vector<int32_t> best_centroid;
};

// Rows of `dim`, one after another, to rows `stride` apart
template <class T>
void spread_rows(const std::vector<T>& from, int64_t dim, T* to, int64_t stride) {
  const int64_t count = static_cast<int64_t>(from.size()) / dim;
  for (int64_t row = 0; row < count; ++row) std::copy_n(from.data() + row * dim, dim, to + row * stride);
}

void check_counts(const HeadData& head, int64_t committed) {
  int64_t total = 0;
  for (const int64_t count : head.counts) {
    if (count < 1 || count > committed - total) {
      corrupt("a count is " + std::to_string(count) + "; counts must be positive and sum to " +
              std::to_string(committed));
    }
    total += count;
  }
  if (total != committed)
    corrupt("the counts sum to " + std::to_string(total) + "; must be " + std::to_string(committed));
}

void check_head(const HeadData& head, const OvqOptions& options, int64_t size, int64_t committed) {
  if (!options.weighted) check_counts(head, committed);
  for (const float weight : head.weights) {
    if (!(weight > 0.0f && std::isfinite(weight))) {
      corrupt("a weight is " + std::to_string(weight) + "; must be positive and finite");
    }
  }
  for (const float share : head.shrinkage) {
    if (!(share >= 0.0f && std::isfinite(share))) {
      corrupt("a shrinkage is " + std::to_string(share) + "; must be finite and not negative");
    }
  }
  for (const int32_t centroid : head.best_centroid) {
    if (centroid < 0 || centroid >= size) {
      corrupt("a nearest centroid is " + std::to_string(centroid) + "; must be below " + std::to_string(size));
    }
  }
}

}  // namespace

int64_t OvqState::file_bytes_after(const OvqShape& shape, const OvqOptions& options, int64_t tokens, StateDtype dtype) {
  constexpr int64_t kInteger = sizeof(int64_t), kFloat = sizeof(float);
  int64_t header = sizeof(kMagic) + sizeof(uint32_t) + 6 * kInteger + sizeof(uint64_t);  // including the checksum
  const uint32_t version = version_of(options, dtype);
  int64_t left = fields_of_version(version);
  const auto add = [&]<class T>(const char*, const T&, const char*, const Range& = {}) {
    if (left-- <= 0) return;
    header += is_optional<T> ? kInteger + kFloat : std::is_floating_point_v<T> ? kFloat : kInteger;
  };
  OvqOptions listed = options;
  list_fields(add, listed);
  if (version >= kFirstWithStorage) header += 2 * kInteger;
  const int64_t size = size_after(options, 0, 0, tokens), rows = size + pending_tokens(options, tokens);
  const int64_t counts =
      (options.weighted ? rows * kFloat : size * kInteger) + (options.value_norms ? size * kFloat : 0);
  const int64_t searched = searched_keys(options, tokens, size) * (kFloat + static_cast<int64_t>(sizeof(int32_t)));
  const int64_t of_centroid = dtype == StateDtype::bfloat16 ? static_cast<int64_t>(sizeof(Bfloat16)) : kFloat;
  const int64_t elements = (shape.key_dim + shape.value_dim) * (size * of_centroid + (rows - size) * kFloat);
  return header + shape.batch * shape.kv_heads * (elements + counts + searched);
}

void OvqState::write(std::ostream& out) const {
  Writer writer(out);
  writer.bytes(kMagic, sizeof(kMagic));
  const uint32_t version = version_of(options_, dtype_);
  writer.value(version);
  writer.value(shape_.batch);
  writer.value(shape_.kv_heads);
  writer.value(shape_.key_dim);
  writer.value(shape_.value_dim);
  if (version >= kFirstWithStorage) {
    writer.value(static_cast<int64_t>(options_.weighted));
    writer.value(static_cast<int64_t>(dtype_));
  }
  OptionWriter option_writer(writer, fields_of_version(version));
  OvqOptions options = options_;
  list_fields(option_writer, options);
  writer.value(position_);
  writer.value(size_);
  const int64_t searched = searched_keys(options_, position_, size_);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int64_t h = 0; h < shape_.kv_heads; ++h) {
      const OvqHead rows = head(b, h);
      const int64_t wide_rows = pending() + (narrow() ? 0 : size_);
      const auto write_rows = [&](const Bfloat16* short_rows, const float* wide, int64_t stride, int64_t dim) {
        for (int64_t i = 0; narrow() && i < size_; ++i) writer.bytes(short_rows + i * stride, dim * sizeof(Bfloat16));
        for (int64_t i = 0; i < wide_rows; ++i) writer.bytes(wide + i * stride, dim * sizeof(float));
      };
      write_rows(rows.narrow_keys, rows.keys, rows.key_stride, shape_.key_dim);
      write_rows(rows.narrow_values, rows.values, rows.value_stride, shape_.value_dim);
      if (options_.weighted) {
        writer.bytes(rows.weights, (size_ + pending()) * sizeof(float));
      } else {
        writer.bytes(rows.counts, size_ * sizeof(int64_t));
      }
      if (options_.value_norms) writer.bytes(rows.shrinkage, size_ * sizeof(float));
      writer.bytes(rows.best_similarity, searched * sizeof(float));
      writer.bytes(rows.best_centroid, searched * sizeof(int32_t));
    }
  }
  writer.finish();
}

OvqState OvqState::read(std::istream& in) {
  Reader reader(in);
  std::array<char, sizeof(kMagic)> magic;
  reader.bytes(magic.data(), magic.size());
  if (!std::equal(magic.begin(), magic.end(), kMagic)) corrupt("not a state: the first bytes are not \"OVQSTATE\"");
  const auto version = reader.value<uint32_t>();
  const uint32_t newest = newest_version();
  if (version < 1 || version > newest)
    corrupt("version " + std::to_string(version) + "; this program reads 1 to " + std::to_string(newest));
  OvqShape shape;
  shape.batch = reader.in_range("batch", 0, kMaxRows);
  shape.kv_heads = reader.in_range("kv_heads", 1, kMaxRows);
  shape.key_dim = reader.in_range("key_dim", 1, kMaxDim);
  shape.value_dim = reader.in_range("value_dim", 1, kMaxDim);
  OvqOptions options;
  StateDtype dtype = StateDtype::float32;
  options.weighted = version == 2;
  if (version >= kFirstWithStorage) {
    options.weighted = reader.in_range("weighted", 0, 1) == 1;
    dtype = static_cast<StateDtype>(reader.in_range("dtype", 0, largest_value<StateDtype>()));
  }
  OptionReader option_reader(reader, fields_of_version(version));
  list_fields(option_reader, options);
  try {
    check_options("OvqState::read", options, shape.key_dim);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error(error.what());
  }
  const int64_t position = reader.in_range("position", 0, kMaxRows);
  const int64_t lag = options.rope ? options.chunk : 0;
  const int64_t committed = std::max<int64_t>(0, position / options.chunk * options.chunk - lag);
  const int64_t size = reader.in_range("size", committed > 0 ? 1 : 0, committed);
  const int64_t pending = pending_tokens(options, position);
  const int64_t searched = searched_keys(options, position, size);

  const bool narrow = dtype == StateDtype::bfloat16;
  const int64_t wide_rows = pending + (narrow ? 0 : size);

  // A header with a huge batch but no data must not cause a long loop.
  const bool empty = size + pending == 0;
  std::vector<HeadData> heads;
  for (int64_t i = 0; i < shape.batch * shape.kv_heads && !empty; ++i) {
    HeadData head;
    if (narrow) head.narrow_keys = reader.array<Bfloat16>(size * shape.key_dim);
    head.keys = reader.array<float>(wide_rows * shape.key_dim);
    if (narrow) head.narrow_values = reader.array<Bfloat16>(size * shape.value_dim);
    head.values = reader.array<float>(wide_rows * shape.value_dim);
    if (options.weighted) {
      head.weights = reader.array<float>(size + pending);
    } else {
      head.counts = reader.array<int64_t>(size);
    }
    if (options.value_norms) head.shrinkage = reader.array<float>(size);
    head.best_similarity = reader.array<float>(searched);
    head.best_centroid = reader.array<int32_t>(searched);
    check_head(head, options, size, committed);
    heads.push_back(std::move(head));
  }
  reader.finish();

  OvqState state(shape, options, dtype);
  if (empty) {
    state.position_ = position;
    return state;
  }
  state.resize(size, size + pending, pending);
  state.position_ = position;
  state.size_ = size;
  for (size_t i = 0; i < heads.size(); ++i) {
    const HeadData& from = heads[i];
    const OvqHead to = state.head(static_cast<int64_t>(i) / shape.kv_heads, static_cast<int64_t>(i) % shape.kv_heads);
    spread_rows(from.keys, shape.key_dim, to.keys, to.key_stride);
    spread_rows(from.values, shape.value_dim, to.values, to.value_stride);
    spread_rows(from.narrow_keys, shape.key_dim, to.narrow_keys, to.key_stride);
    spread_rows(from.narrow_values, shape.value_dim, to.narrow_values, to.value_stride);
    for (int64_t row = 0; options.weighted && row < size + pending; ++row) {
      to.weights[row] = from.weights[row];
      to.log_counts[row] = std::log2(from.weights[row]);
    }
    for (int64_t c = 0; !options.weighted && c < size; ++c) {
      to.counts[c] = from.counts[c];
      to.log_counts[c] = std::log2(static_cast<float>(from.counts[c]));
    }
    std::copy(from.shrinkage.begin(), from.shrinkage.end(), to.shrinkage);
    std::copy(from.best_similarity.begin(), from.best_similarity.end(), to.best_similarity);
    std::copy(from.best_centroid.begin(), from.best_centroid.end(), to.best_centroid);
    if (!options.rope) continue;
    const auto rotary = detail::rotary_table(options.chunk, shape.key_dim, options.rope_base, position);
    const int64_t previous = position < options.chunk ? 0 : options.chunk;
    for (int64_t row = 0; row < pending; ++row) {
      const float* angles = row < previous ? rotary->previous_row(row) : rotary->current_row(row - previous);
      detail::rotate(to.keys + (wide_rows - pending + row) * to.key_stride, angles, shape.key_dim, 1.0f,
                     to.rotated + row * to.key_stride);
    }
  }
  return state;
}

}  // namespace ovq::kernels
