// The dictionary of one kv head, and plain loops that decide which tokens of a chunk found centroids and which
// centroids the others join.
//
//   n_new = clamp(target(t) - n, 0, L)
//   a_t = argmax_n k_t . D_k[n], or t founds a centroid
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/ovq_attention/dictionary.h"
#include "ovq/ops/ovq_attention/options.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct OvqDictionary {
  Matrix<Scalar> keys, values;         // [n, dk], [n, dv]
  std::vector<Scalar> counts;          // [n]
  std::vector<Scalar> shrinkage = {};  // [n] r; with value_norms

  int64_t size() const { return keys.rows; }
};

// A complete chunk that is about to be written.
template <class Scalar>
struct OvqChunk {
  Matrix<Scalar> keys, values;  // [L, dk], [L, dv]
  std::vector<Scalar> weights;  // [L]; 1 without weights
  int64_t index = 0;
  int64_t head = 0;  // kv head
};

inline int64_t target_centroids(const OvqOptions& options, int64_t tokens) {
  const __int128 t = tokens, n = options.centroids;
  __int128 target = 0;
  switch (options.growth) {
    case Growth::plateau:
      target = (2 * t * n + t + n) / (2 * (t + n));
      break;
    case Growth::linear:
      target = std::min(std::min(n, t), std::max<__int128>(1, t * n / options.total_tokens));
      break;
    case Growth::all:
      target = std::min(t, n);
      break;
    case Growth::square_root: {
      const auto most = static_cast<long double>(options.centroids);
      const long double exact = most - most / std::sqrt(1 + 2 * static_cast<long double>(tokens) / most);
      target = std::min<__int128>(t, std::max<__int128>(1, std::llround(exact)));
      break;
    }
  }
  return static_cast<int64_t>(target);
}

inline int64_t founder_count(const OvqOptions& options, int64_t size, int64_t chunk_index) {
  const int64_t target = target_centroids(options, (chunk_index + 1) * options.chunk);
  return std::clamp<int64_t>(target - size, 0, options.chunk);
}

template <class Scalar>
Scalar similarity(const Scalar* key, const Scalar* centroid, int64_t dim) {
  const Scalar product = dot(key, centroid, dim);
  return std::isnan(product) ? -std::numeric_limits<Scalar>::infinity() : product;
}

template <class Scalar>
struct Nearest {
  Scalar similarity = -std::numeric_limits<Scalar>::infinity();
  int32_t centroid = 0;
};

template <class Scalar>
Nearest<Scalar> nearest(const Scalar* key, const Matrix<Scalar>& centroids) {
  Nearest<Scalar> best;
  for (int64_t n = 0; n < centroids.rows; ++n) {
    const Scalar s = similarity(key, centroids[n], centroids.columns);
    if (s > best.similarity) best = {s, static_cast<int32_t>(n)};
  }
  return best;
}

// Positions of the `count` smallest scores in ascending order; the earlier position on a tie.
template <class Score>
std::vector<int64_t> smallest(const std::vector<Score>& scores, int64_t count) {
  std::vector<int64_t> positions(scores.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

// The priority of a token of weight w as a founder: w (1 - s), where a similarity s above 1 counts as 1. Ties are
// ordered by similarity, so that with weights of 1 the order is that of the similarities.
template <class Scalar>
struct FounderScore {
  Scalar score, similarity;

  FounderScore(Scalar weight, Scalar similarity)
      : score(weight * std::max(Scalar(0), 1 - similarity)), similarity(similarity) {}
  // Whether this one has priority.
  bool operator<(const FounderScore& other) const {
    return score > other.score || (score == other.score && similarity < other.similarity);
  }
};

// Farthest-first traversal: `next`, then repeatedly the key with priority over all others. Returns positions in
// increasing order. before(t, u, largest): whether key t has priority over u; largest[t] is its similarity to the
// nearest chosen key.
template <class Scalar, class Before>
std::vector<int64_t> farthest_first(const Matrix<Scalar>& keys, int64_t count, int64_t next, Before&& before) {
  std::vector<int64_t> chosen;
  std::vector<bool> taken(keys.rows, false);
  std::vector<Scalar> largest(keys.rows, -std::numeric_limits<Scalar>::infinity());
  while (static_cast<int64_t>(chosen.size()) < count) {
    chosen.push_back(next);
    taken[next] = true;
    int64_t farthest = -1;
    for (int64_t t = 0; t < keys.rows; ++t) {
      largest[t] = std::max(largest[t], similarity(keys[t], keys[next], keys.columns));
      if (!taken[t] && (farthest < 0 || before(t, farthest, largest))) farthest = t;
    }
    next = farthest;
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

// With weights: starts with the heaviest key, the earlier one on a tie, and continues with the best score.
template <class Scalar>
std::vector<int64_t> farthest_first(const Matrix<Scalar>& keys, const std::vector<Scalar>& weights, int64_t count) {
  const int64_t heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
  return farthest_first(keys, count, heaviest, [&](int64_t t, int64_t u, const std::vector<Scalar>& largest) {
    return FounderScore(weights[t], largest[t]) < FounderScore(weights[u], largest[u]);
  });
}

// Without weights: starts with key 0 and continues with the key least similar to those chosen.
template <class Scalar>
std::vector<int64_t> farthest_first(const Matrix<Scalar>& keys, int64_t count) {
  return farthest_first(
      keys, count, 0, [](int64_t t, int64_t u, const std::vector<Scalar>& largest) { return largest[t] < largest[u]; });
}

template <class Scalar>
std::vector<int64_t> choose_founders(const OvqDictionary<Scalar>& dictionary, const OvqChunk<Scalar>& chunk,
                                     const OvqOptions& options) {
  const int64_t count = founder_count(options, dictionary.size(), chunk.index);
  if (options.new_centroids == NewCentroids::random) {
    std::vector<uint64_t> ranks;
    for (int64_t t = 0; t < options.chunk; ++t) {
      ranks.push_back(random_rank(options.seed, chunk.head, chunk.index, t));
    }
    return smallest(ranks, count);
  }
  if (dictionary.size() == 0) {
    return options.weighted ? farthest_first(chunk.keys, chunk.weights, count) : farthest_first(chunk.keys, count);
  }
  if (options.weighted) {
    std::vector<FounderScore<Scalar>> scores;
    for (int64_t t = 0; t < options.chunk; ++t) {
      scores.emplace_back(chunk.weights[t], nearest(chunk.keys[t], dictionary.keys).similarity);
    }
    return smallest(scores, count);
  }
  std::vector<Scalar> similarities;
  for (int64_t t = 0; t < options.chunk; ++t) {
    similarities.push_back(nearest(chunk.keys[t], dictionary.keys).similarity);
  }
  return smallest(similarities, count);
}

// Joined centroids and, as ~c, founded ones: see ovq/ops/ovq_attention/ovq_attention.h.
template <class Scalar>
std::vector<int32_t> assign(const OvqDictionary<Scalar>& dictionary, const OvqChunk<Scalar>& chunk,
                            const OvqOptions& options) {
  const std::vector<int64_t> founders = choose_founders(dictionary, chunk, options);
  Matrix<Scalar> candidates = dictionary.keys;
  if (dictionary.size() == 0) {
    for (int64_t t : founders) candidates.append(chunk.keys[t]);
  }
  std::vector<int32_t> assignments(options.chunk);
  for (int64_t t = 0; t < options.chunk; ++t) assignments[t] = nearest(chunk.keys[t], candidates).centroid;
  for (size_t i = 0; i < founders.size(); ++i) {
    assignments[founders[i]] = ~static_cast<int32_t>(dictionary.size() + static_cast<int64_t>(i));
  }
  return assignments;
}

}  // namespace ovq::kernels::reference
