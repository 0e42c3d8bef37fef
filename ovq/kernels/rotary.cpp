#include "ovq/kernels/rotary.h"

#include <cmath>
#include <list>
#include <mutex>

namespace ovq::kernels::detail {
namespace {

constexpr size_t kTablesKept = 4;

struct CachedTable {
  int64_t positions, dim;
  float base;
  std::shared_ptr<const Buffer<float>> table;
};

std::shared_ptr<const Buffer<float>> make_table(int64_t positions, int64_t dim, float base) {
  const int64_t half = dim / 2;
  auto table = std::make_shared<Buffer<float>>(positions * dim);
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(static_cast<double>(base), -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    for (int64_t row = 0; row < positions; ++row) {
      const double angle = static_cast<double>(row + 1) * frequency;
      (*table)[row * dim + i] = static_cast<float>(std::cos(angle));
      (*table)[row * dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace

std::shared_ptr<const Buffer<float>> rotary_table(int64_t positions, int64_t dim, float base) {
  static std::mutex mutex;
  static std::list<CachedTable> tables;  // most recently used first
  const std::lock_guard lock(mutex);
  for (auto at = tables.begin(); at != tables.end(); ++at) {
    if (at->positions >= positions && at->dim == dim && at->base == base) {
      tables.splice(tables.begin(), tables, at);
      return tables.front().table;
    }
  }
  tables.push_front({positions, dim, base, make_table(positions, dim, base)});
  if (tables.size() > kTablesKept) tables.pop_back();
  return tables.front().table;
}

}  // namespace ovq::kernels::detail
