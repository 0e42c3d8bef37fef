#include "ovq/ops/rotary/rotary.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <list>
#include <mutex>

#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"

namespace ovq::kernels {
namespace {

constexpr const char* kRotary = "rotary";
constexpr int64_t kRotaryBlock = 32;  // tokens a thread takes at a time

}  // namespace

void rotary_angles(int64_t first_position, int64_t count, int64_t dim, double base, std::span<float> angles) {
  check(dim >= 2 && dim % 2 == 0, kRotary, "dim is ", dim, "; must be even");
  check_size(kRotary, "angles", angles, count * dim);
  const int64_t half = dim / 2;
  const double step = -std::log(base) / static_cast<double>(half);
  float* row = angles.data();
  for (int64_t t = 0; t < count; ++t, row += dim) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(first_position + t) * std::exp(static_cast<double>(i) * step);
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

void rotary(const View<const float>& x, std::span<const float> angles, float direction, const View<float>& y) {
  check(x.dim >= 2 && x.dim % 2 == 0, kRotary, "x has dim ", x.dim, "; must be even");
  check_shape(kRotary, "x", x, x.batch, x.time, x.heads, x.dim);
  check_shape(kRotary, "y", y, x.batch, x.time, x.heads, x.dim);
  check_size(kRotary, "angles", angles, x.time * x.dim);
  parallel_blocks(x.batch * x.time, kRotaryBlock, x.heads * x.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t b = row / x.time, t = row % x.time;
      for (int64_t h = 0; h < x.heads; ++h) {
        detail::rotate(x.row(b, t, h), angles.data() + t * x.dim, x.dim, direction, y.row(b, t, h));
      }
    }
  });
}

}  // namespace ovq::kernels

namespace ovq::kernels::detail {
namespace {

constexpr size_t kTablesKept = 4;

struct CachedTable {
  float base;
  std::shared_ptr<const RotaryTable> table;
};

Buffer<float> make_rows(int64_t first_position, int64_t rows, int64_t dim, float base) {
  const int64_t half = dim / 2;
  Buffer<float> table(rows * dim);
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(static_cast<double>(base), -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    for (int64_t row = 0; row < rows; ++row) {
      const double angle = static_cast<double>(first_position + row) * frequency;
      table[row * dim + i] = static_cast<float>(std::cos(angle));
      table[row * dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace

std::shared_ptr<const RotaryTable> rotary_table(int64_t chunk, int64_t dim, float base, int64_t tokens) {
  static std::mutex mutex;
  static std::list<CachedTable> tables;  // most recently used first
  const int64_t needed = std::min(chunk, tokens);
  const std::lock_guard lock(mutex);
  for (auto at = tables.begin(); at != tables.end(); ++at) {
    const RotaryTable& table = *at->table;
    if (table.chunk == chunk && table.dim == dim && at->base == base && table.current.size() >= needed * dim) {
      tables.splice(tables.begin(), tables, at);
      return tables.front().table;
    }
  }
  // Rounded up to a power of two, so that a sequence that grows token by token does not need a new table each time.
  const int64_t rows = std::min(chunk, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(needed))));
  auto table = std::make_shared<RotaryTable>();
  *table = {chunk, dim, make_rows(1, rows, dim, base), make_rows(chunk + 1, rows, dim, base)};
  tables.push_front({base, std::move(table)});
  if (tables.size() > kTablesKept) tables.pop_back();
  return tables.front().table;
}

}  // namespace ovq::kernels::detail
