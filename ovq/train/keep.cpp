#include "ovq/train/keep.h"

#include <algorithm>
#include <cmath>

#include "ovq/base/error.h"

namespace ovq::train {

using kernels::Growth;

const kernels::OvqOptions* dictionary_of(const models::ModelConfig& config) {
  for (const auto& [name, options] : config.mixers) {
    if (const auto* ovq = std::get_if<nn::OvqAttentionOptions>(&options)) return &ovq->dictionary;
  }
  return nullptr;
}

double keep_of(const kernels::OvqOptions& dictionary, int64_t length) {
  const int64_t size = kernels::target_size(dictionary, length);
  const auto tokens = static_cast<double>(length), most = static_cast<double>(dictionary.centroids);
  if (size >= length) return 1;
  return dictionary.growth == Growth::plateau ? most / (tokens + most) : static_cast<double>(size) / tokens;
}

namespace {

// N with N (1 - 1 / sqrt(1 + 2 T / N)) = keep T. With r = T / N this is (1 - keep r)^2 (1 + 2 r) = 1. Its root r = 0 is
// no solution; dividing by r leaves 2 keep^2 r^2 - keep (4 - keep) r + 2 (1 - keep) = 0, of which the smaller root is
// the solution.
double square_root_centroids(double keep, double tokens) {
  return tokens * keep * (4 - keep + std::sqrt(keep * (keep + 8))) / (4 * (1 - keep));
}

}  // namespace

std::string centroids_text(int64_t centroids, bool every_token) {
  return centroids == 0 ? "-" : every_token ? "all" : std::to_string(centroids);
}

int64_t centroids_for_keep(const kernels::OvqOptions& dictionary, double keep, int64_t length, int64_t row) {
  check(keep > 0 && keep <= 1, "keep", "keep is ", keep, "; must be more than 0 and at most 1");
  check(length >= 1 && row >= length, "keep", "length is ", length, "; must be within 1 and the row's ", row);
  const auto tokens = static_cast<double>(keep == 1 ? row : length);
  const double enough = 2.0 * static_cast<double>(row) * static_cast<double>(row);  // target_size(row) is row
  double centroids = keep * tokens;
  switch (dictionary.growth) {
    case Growth::plateau:
      centroids = keep == 1 ? enough : std::min(enough, keep * tokens / (1 - keep));
      break;
    case Growth::linear:
      centroids = keep * std::max(tokens, static_cast<double>(dictionary.total_tokens));
      break;
    case Growth::all:
      break;
    case Growth::square_root:
      centroids = keep == 1 ? 2 * enough : std::min(2 * enough, square_root_centroids(keep, tokens));
      break;
  }
  return std::max<int64_t>(1, std::llround(centroids));
}

}  // namespace ovq::train
