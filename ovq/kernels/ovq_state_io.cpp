// A state as bytes, little-endian:
//   "OVQSTATE", version u32, header (below), then for each sequence and head
//   keys [rows, dk], values [rows, dv] (centroids, then pending tokens), counts [n] i64 (version 1) or weights [rows]
//   f32 (version 2: a state with weights),
//   similarity [searched] f32 and centroid [searched] i32 of the keys searched so far in this chunk; FNV-1a of all
//   before, u64.
// A reader trusts nothing: each field has its range, and memory grows with the bytes that really come, not with what
// the header promises.
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
#include "ovq/kernels/checks.h"
#include "ovq/kernels/ovq_state.h"
#include "ovq/kernels/rotary.h"
#include "ovq/kernels/simd/read_kernels.h"

namespace ovq::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr char kMagic[8] = {'O', 'V', 'Q', 'S', 'T', 'A', 'T', 'E'};
constexpr uint32_t kVersion = 1, kWeightedVersion = 2;
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
  // `count` elements; the vector grows only as far as the stream goes.
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

void write_options(Writer& writer, const OvqOptions& options) {
  writer.value(options.chunk);
  writer.value(options.centroids);
  writer.value(static_cast<int64_t>(options.growth));
  writer.value(options.total_tokens);
  writer.value(static_cast<int64_t>(options.new_centroids));
  writer.value(static_cast<int64_t>(options.rate.has_value()));
  writer.value(options.rate.value_or(0.0f));
  writer.value(options.rope_base);
  writer.value(static_cast<int64_t>(options.normalize));
  writer.value(static_cast<int64_t>(options.rope));
  writer.value(options.seed);
}

OvqOptions read_options(Reader& reader) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  OvqOptions options;
  options.chunk = reader.in_range("chunk", 1, kMaxRows);
  options.centroids = reader.in_range("centroids", 1, most);
  options.growth = static_cast<Growth>(reader.in_range("growth", 0, static_cast<int64_t>(Growth::all)));
  options.total_tokens = reader.value<int64_t>();
  options.new_centroids =
      static_cast<NewCentroids>(reader.in_range("new_centroids", 0, static_cast<int64_t>(NewCentroids::random)));
  const bool constant_rate = reader.in_range("constant rate", 0, 1) == 1;
  const auto rate = reader.value<float>();
  if (constant_rate) options.rate = rate;
  options.rope_base = reader.value<float>();
  options.normalize = reader.in_range("normalize", 0, 1) == 1;
  options.rope = reader.in_range("rope", 0, 1) == 1;
  options.seed = reader.value<uint64_t>();
  return options;
}

// Keys of the chunk being searched whose nearest centroid is known.
int64_t searched_keys(const OvqOptions& options, int64_t position, int64_t size) {
  return size == 0 ? 0 : position % options.chunk;
}

struct HeadData {
  std::vector<float> keys, values, weights, best_similarity;
  std::vector<int64_t> counts;
  std::vector<int32_t> best_centroid;
};

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
  for (const int32_t centroid : head.best_centroid) {
    if (centroid < 0 || centroid >= size) {
      corrupt("a nearest centroid is " + std::to_string(centroid) + "; must be below " + std::to_string(size));
    }
  }
}

}  // namespace

void OvqState::write(std::ostream& out) const {
  Writer writer(out);
  writer.bytes(kMagic, sizeof(kMagic));
  writer.value(options_.weighted ? kWeightedVersion : kVersion);
  writer.value(shape_.batch);
  writer.value(shape_.kv_heads);
  writer.value(shape_.key_dim);
  writer.value(shape_.value_dim);
  write_options(writer, options_);
  writer.value(position_);
  writer.value(size_);
  const int64_t searched = searched_keys(options_, position_, size_);
  for (int64_t b = 0; b < shape_.batch; ++b) {
    for (int64_t h = 0; h < shape_.kv_heads; ++h) {
      const OvqHead rows = head(b, h);
      for (int64_t i = 0; i < size_ + pending(); ++i) {
        writer.bytes(rows.keys + i * rows.key_stride, shape_.key_dim * sizeof(float));
      }
      for (int64_t i = 0; i < size_ + pending(); ++i) {
        writer.bytes(rows.values + i * rows.value_stride, shape_.value_dim * sizeof(float));
      }
      if (options_.weighted) {
        writer.bytes(rows.weights, (size_ + pending()) * sizeof(float));
      } else {
        writer.bytes(rows.counts, size_ * sizeof(int64_t));
      }
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
  if (version != kVersion && version != kWeightedVersion)
    corrupt("version " + std::to_string(version) + "; this program reads " + std::to_string(kVersion) + " and " +
            std::to_string(kWeightedVersion));
  OvqShape shape;
  shape.batch = reader.in_range("batch", 0, kMaxRows);
  shape.kv_heads = reader.in_range("kv_heads", 1, kMaxRows);
  shape.key_dim = reader.in_range("key_dim", 1, kMaxDim);
  shape.value_dim = reader.in_range("value_dim", 1, kMaxDim);
  OvqOptions options = read_options(reader);
  options.weighted = version == kWeightedVersion;
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

  // A batch without bytes behind it must not become a loop of the header's choosing.
  const bool empty = size + pending == 0;
  std::vector<HeadData> heads;
  for (int64_t i = 0; i < shape.batch * shape.kv_heads && !empty; ++i) {
    HeadData head;
    head.keys = reader.array<float>((size + pending) * shape.key_dim);
    head.values = reader.array<float>((size + pending) * shape.value_dim);
    if (options.weighted) {
      head.weights = reader.array<float>(size + pending);
    } else {
      head.counts = reader.array<int64_t>(size);
    }
    head.best_similarity = reader.array<float>(searched);
    head.best_centroid = reader.array<int32_t>(searched);
    check_head(head, options, size, committed);
    heads.push_back(std::move(head));
  }
  reader.finish();

  OvqState state(shape, options);
  if (empty) {
    state.position_ = position;
    return state;
  }
  state.resize(size + pending, pending);
  state.position_ = position;
  state.size_ = size;
  for (size_t i = 0; i < heads.size(); ++i) {
    const HeadData& from = heads[i];
    const OvqHead to = state.head(static_cast<int64_t>(i) / shape.kv_heads, static_cast<int64_t>(i) % shape.kv_heads);
    for (int64_t row = 0; row < size + pending; ++row) {
      std::copy_n(from.keys.data() + row * shape.key_dim, shape.key_dim, to.keys + row * to.key_stride);
      std::copy_n(from.values.data() + row * shape.value_dim, shape.value_dim, to.values + row * to.value_stride);
    }
    for (int64_t row = 0; options.weighted && row < size + pending; ++row) {
      to.weights[row] = from.weights[row];
      to.log_counts[row] = std::log2(from.weights[row]);
    }
    for (int64_t c = 0; !options.weighted && c < size; ++c) {
      to.counts[c] = from.counts[c];
      to.log_counts[c] = std::log2(static_cast<float>(from.counts[c]));
    }
    std::copy(from.best_similarity.begin(), from.best_similarity.end(), to.best_similarity);
    std::copy(from.best_centroid.begin(), from.best_centroid.end(), to.best_centroid);
    if (!options.rope) continue;
    const auto rotary = detail::rotary_table(options.chunk, shape.key_dim, options.rope_base, position);
    const int64_t previous = position < options.chunk ? 0 : options.chunk;
    for (int64_t row = 0; row < pending; ++row) {
      const float* angles = row < previous ? rotary->previous_row(row) : rotary->current_row(row - previous);
      detail::rotate(to.keys + (size + row) * to.key_stride, angles, shape.key_dim, 1.0f,
                     to.rotated + row * to.key_stride);
    }
  }
  return state;
}

}  // namespace ovq::kernels
