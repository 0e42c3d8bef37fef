// Plain loops of how a chunk is written into the dictionary of one kv head, and the gradient of that write.
//
//   n_new = clamp(target(t) - n, 0, L)
//   a_t = argmax_n k_t . D_k[n], or t founds a centroid
//   counts' = counts + m,   m = sum_{t: a_t = n} w_t
//   D'[n] = D[n] + rate[n] sum_{t: a_t = n} w_t (x_t - D[n]),   rate[n] = 1 / counts'[n] or a constant
//   normalize: D_k''[n] = D_k'[n] / |D_k'[n]|
//   value_norms: D_v stands for the mean r[n] D_v[n] and the norm |D_v[n]|, which are updated like D; where tokens
//   joined D_v'[n] = mean'[n] norm'[n] / |mean'[n]|,  r'[n] = |mean'[n]| / norm'[n]
//
//   g'[n] = (g''[n] - y (y . g''[n])) / |D_k'[n]| with y = D_k''[n]
//   g[n] = (1 - m rate[n]) g'[n],   dx_t = w_t rate[n] g'[n] for the members, g[n] for the founder
//
// Without weights w_t = 1. With them, h' the gradient of counts' and g' that of keys and values together:
//   dw_t = h'[n] + g'[n] . (x_t - D'[n]) / counts'[n],   h[n] = h'[n] + g'[n] . (D[n] - D'[n]) / counts'[n]
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "ovq/kernels/ovq_attention.h"
#include "ovq/kernels/ovq_dictionary.h"
#include "ovq/kernels/ovq_options.h"
#include "ovq/kernels/reference/matrix.h"

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

// Positions of the `count` smallest scores, earlier position on a tie, in ascending order.
template <class Score>
std::vector<int64_t> smallest(const std::vector<Score>& scores, int64_t count) {
  std::vector<int64_t> positions(scores.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::stable_sort(positions.begin(), positions.end(), [&](int64_t a, int64_t b) { return scores[a] < scores[b]; });
  positions.resize(count);
  std::sort(positions.begin(), positions.end());
  return positions;
}

// How much a token of weight w wants to found a centroid: w (1 - s), a similarity above 1 counting as 1. What scores
// the same is ordered by similarity, so that with weights of 1 the order is that of the similarities.
template <class Scalar>
struct FounderScore {
  Scalar score, similarity;

  FounderScore(Scalar weight, Scalar similarity)
      : score(weight * std::max(Scalar(0), 1 - similarity)), similarity(similarity) {}
  // Comes first
  bool operator<(const FounderScore& other) const {
    return score > other.score || (score == other.score && similarity < other.similarity);
  }
};

// Farthest-first traversal: `next`, then again and again the key that comes before all others, in increasing order.
// before(t, u, largest): whether key t does before u, where largest[t] is its similarity to the nearest chosen key.
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

// With weights: starts with the heaviest key, earlier on a tie, and goes on with the best score.
template <class Scalar>
std::vector<int64_t> farthest_first(const Matrix<Scalar>& keys, const std::vector<Scalar>& weights, int64_t count) {
  const int64_t heaviest = std::max_element(weights.begin(), weights.end()) - weights.begin();
  return farthest_first(keys, count, heaviest, [&](int64_t t, int64_t u, const std::vector<Scalar>& largest) {
    return FounderScore(weights[t], largest[t]) < FounderScore(weights[u], largest[u]);
  });
}

// Without: starts with key 0 and goes on with the key least similar to the chosen ones.
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

// Joined centroids and, as ~c, founded ones: see ovq/kernels/ovq_attention.h.
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

// What a write does to each row, other than what it adds: which rows it touches and how fast they move.
struct OvqWritePlan {
  std::vector<double> counts;  // [n'] before the members joined
  std::vector<double> joined;  // [n'] m: what the tokens that joined weigh (founders do not count)
  std::vector<bool> touched;   // [n']
  std::vector<double> rate;    // [n']
};

template <class Scalar>
OvqWritePlan plan_write(const OvqDictionary<Scalar>& before, const OvqChunk<Scalar>& chunk,
                        const std::vector<int32_t>& assignments, const OvqOptions& options) {
  OvqWritePlan plan;
  plan.counts.assign(before.counts.begin(), before.counts.end());
  for (size_t t = 0; t < assignments.size(); ++t) {
    if (assignments[t] >= 0) continue;
    assert(~assignments[t] == static_cast<int32_t>(plan.counts.size()));
    plan.counts.push_back(chunk.weights[t]);
  }
  const size_t size = plan.counts.size();
  plan.joined.resize(size);
  plan.touched.resize(size);
  plan.rate.resize(size);
  for (size_t t = 0; t < assignments.size(); ++t) {
    const int32_t a = assignments[t];
    plan.touched[a < 0 ? ~a : a] = true;
    if (a >= 0) plan.joined[a] += chunk.weights[t];
  }
  for (size_t n = 0; n < size; ++n) {
    plan.rate[n] = options.rate ? static_cast<double>(*options.rate) : 1.0 / (plan.counts[n] + plan.joined[n]);
  }
  return plan;
}

// D' = D + rate * sum w (x - D) for keys or for values. Founders start as their own row.
template <class Scalar>
Matrix<Scalar> update_rows(Matrix<Scalar> rows, const Matrix<Scalar>& tokens, const std::vector<Scalar>& weights,
                           const std::vector<int32_t>& assignments, const OvqWritePlan& plan) {
  for (size_t t = 0; t < assignments.size(); ++t) {
    if (assignments[t] < 0) rows.append(tokens[t]);
  }
  Matrix<Scalar> change(rows.rows, rows.columns);
  for (size_t t = 0; t < assignments.size(); ++t) {
    const int32_t n = assignments[t];
    if (n < 0) continue;
    for (int64_t i = 0; i < rows.columns; ++i) change[n][i] += weights[t] * (tokens[t][i] - rows[n][i]);
  }
  for (int64_t n = 0; n < rows.rows; ++n) {
    if (plan.joined[n] > 0) add_scaled(rows[n], static_cast<Scalar>(plan.rate[n]), change[n], rows.columns);
  }
  return rows;
}

// Rescales the touched rows to unit norm; a zero row stays.
template <class Scalar>
void normalize_rows(Matrix<Scalar>& rows, const OvqWritePlan& plan) {
  for (int64_t n = 0; n < rows.rows; ++n) {
    const Scalar norm = std::sqrt(dot(rows[n], rows[n], rows.columns));
    if (!plan.touched[n] || norm == 0) continue;
    for (int64_t i = 0; i < rows.columns; ++i) rows[n][i] /= norm;
  }
}

// The norms of rows, as a column.
template <class Scalar>
Matrix<Scalar> norms_of(const Matrix<Scalar>& rows) {
  Matrix<Scalar> norms(rows.rows, 1);
  for (int64_t n = 0; n < rows.rows; ++n) norms[n][0] = std::sqrt(dot(rows[n], rows[n], rows.columns));
  return norms;
}

// With value_norms: what a dictionary's values stand for.
template <class Scalar>
struct ValueMeans {
  Matrix<Scalar> means, norms;  // [n, dv], [n, 1]

  explicit ValueMeans(const OvqDictionary<Scalar>& dictionary)
      : means(dictionary.values), norms(norms_of(dictionary.values)) {
    for (int64_t n = 0; n < means.rows; ++n) {
      for (int64_t i = 0; i < means.columns; ++i) means[n][i] *= dictionary.shrinkage[n];
    }
  }

  // After the write of a chunk.
  ValueMeans updated(const OvqChunk<Scalar>& chunk, const std::vector<int32_t>& assignments,
                     const OvqWritePlan& plan) const {
    ValueMeans after = *this;
    after.means = update_rows(means, chunk.values, chunk.weights, assignments, plan);
    after.norms = update_rows(norms, norms_of(chunk.values), chunk.weights, assignments, plan);
    return after;
  }
  // Whether row n has a length to be given another.
  bool has_length(int64_t n) const { return norms[n][0] > 0 && dot(means[n], means[n], means.columns) > 0; }
};

template <class Scalar>
void write_values(OvqDictionary<Scalar>& dictionary, const OvqChunk<Scalar>& chunk,
                  const std::vector<int32_t>& assignments, const OvqWritePlan& plan) {
  const ValueMeans<Scalar> after = ValueMeans<Scalar>(dictionary).updated(chunk, assignments, plan);
  for (size_t t = 0; t < assignments.size(); ++t) {
    if (assignments[t] < 0) dictionary.values.append(chunk.values[t]);
  }
  dictionary.shrinkage.resize(after.means.rows, 1);
  for (int64_t n = 0; n < after.means.rows; ++n) {
    if (plan.joined[n] == 0) continue;
    const Scalar mean_norm = std::sqrt(dot(after.means[n], after.means[n], after.means.columns));
    const Scalar factor = after.has_length(n) ? after.norms[n][0] / mean_norm : 1;
    for (int64_t i = 0; i < after.means.columns; ++i) dictionary.values[n][i] = after.means[n][i] * factor;
    dictionary.shrinkage[n] = after.has_length(n) ? mean_norm / after.norms[n][0] : 1;
  }
}

template <class Scalar>
void write_chunk(OvqDictionary<Scalar>& dictionary, const OvqChunk<Scalar>& chunk,
                 const std::vector<int32_t>& assignments, const OvqOptions& options) {
  const OvqWritePlan plan = plan_write(dictionary, chunk, assignments, options);
  dictionary.keys = update_rows(dictionary.keys, chunk.keys, chunk.weights, assignments, plan);
  if (options.value_norms) {
    write_values(dictionary, chunk, assignments, plan);
  } else {
    dictionary.values = update_rows(dictionary.values, chunk.values, chunk.weights, assignments, plan);
  }
  if (options.normalize) normalize_rows(dictionary.keys, plan);
  dictionary.counts.resize(dictionary.size());
  for (int64_t n = 0; n < dictionary.size(); ++n) {
    dictionary.counts[n] = static_cast<Scalar>(plan.counts[n] + plan.joined[n]);
  }
}

// Gradients of rows: the dictionary's keys, values and counts, or those of tokens.
template <class Scalar>
struct OvqRowGradients {
  Matrix<Scalar> keys, values;
  std::vector<Scalar> weights;    // zero without weights
  std::vector<Scalar> shrinkage;  // of a dictionary; zero without value_norms

  OvqRowGradients(int64_t rows, int64_t key_dim, int64_t value_dim)
      : keys(rows, key_dim), values(rows, value_dim), weights(rows), shrinkage(rows) {}
};

// gradient: of D' on entry, of D on return. Returns that of the chunk's tokens.
template <class Scalar>
Matrix<Scalar> update_rows_backward(Matrix<Scalar>& gradient, const std::vector<Scalar>& weights,
                                    const std::vector<int32_t>& assignments, const OvqWritePlan& plan,
                                    int64_t size_before) {
  const auto keep = [&](int64_t n) { return static_cast<Scalar>(1 - plan.joined[n] * plan.rate[n]); };
  Matrix<Scalar> d_tokens(assignments.size(), gradient.columns);
  for (int64_t t = 0; t < d_tokens.rows; ++t) {
    const int32_t a = assignments[t];
    const int64_t n = a < 0 ? ~a : a;
    add_scaled(d_tokens[t], a < 0 ? keep(n) : weights[t] * static_cast<Scalar>(plan.rate[n]), gradient[n],
               gradient.columns);
  }
  gradient = gradient.slice(0, size_before);
  for (int64_t n = 0; n < size_before; ++n) {
    for (int64_t i = 0; i < gradient.columns; ++i) gradient[n][i] *= keep(n);
  }
  return d_tokens;
}

// What the rows `before` and `tokens` of a mean D' = (counts D + sum w x) / counts' add to the gradients of counts and
// weights: (row - D') . g' / counts'
template <class Scalar>
void mean_weights_backward(const Matrix<Scalar>& before, const Matrix<Scalar>& tokens, const Matrix<Scalar>& after,
                           const Matrix<Scalar>& gradient, const std::vector<int32_t>& assignments,
                           const OvqWritePlan& plan, std::vector<Scalar>& d_counts, std::vector<Scalar>& d_weights) {
  const auto along = [&](const Scalar* row, int64_t n) {
    Scalar sum = 0;
    for (int64_t i = 0; i < after.columns; ++i) sum += (row[i] - after[n][i]) * gradient[n][i];
    return sum * static_cast<Scalar>(plan.rate[n]);
  };
  for (int64_t n = 0; n < before.rows; ++n) {
    if (plan.joined[n] > 0) d_counts[n] += along(before[n], n);
  }
  for (int64_t t = 0; t < tokens.rows; ++t) {
    d_weights[t] += along(tokens[t], assignments[t] < 0 ? ~assignments[t] : assignments[t]);
  }
}

// gradient: of the rescaled rows on entry, of `rows` (not rescaled yet) on return.
template <class Scalar>
void normalize_rows_backward(Matrix<Scalar>& gradient, const Matrix<Scalar>& rows, const OvqWritePlan& plan) {
  for (int64_t n = 0; n < rows.rows; ++n) {
    const Scalar norm = std::sqrt(dot(rows[n], rows[n], rows.columns));
    if (!plan.touched[n] || norm == 0) continue;
    std::vector<Scalar> y(rows[n], rows[n] + rows.columns);
    for (Scalar& element : y) element /= norm;
    add_scaled(gradient[n], -dot(y.data(), gradient[n], rows.columns), y.data(), rows.columns);
    for (int64_t i = 0; i < rows.columns; ++i) gradient[n][i] /= norm;
  }
}

// gradient <- gradient + d_norms row / |row|; a zero row has none
template <class Scalar>
void norms_backward(const Matrix<Scalar>& rows, const Matrix<Scalar>& d_norms, Matrix<Scalar>& gradient) {
  const Matrix<Scalar> norms = norms_of(rows);
  for (int64_t n = 0; n < rows.rows; ++n) {
    if (norms[n][0] > 0) add_scaled(gradient[n], d_norms[n][0] / norms[n][0], rows[n], rows.columns);
  }
}

// The same for the values alone, with value_norms.
template <class Scalar>
void write_values_backward(const OvqDictionary<Scalar>& before, const OvqChunk<Scalar>& chunk,
                           const std::vector<int32_t>& assignments, const OvqWritePlan& plan,
                           OvqRowGradients<Scalar>& gradient, OvqRowGradients<Scalar>& d_tokens,
                           std::vector<Scalar>& d_counts) {
  const ValueMeans<Scalar> old(before), after = old.updated(chunk, assignments, plan);
  const int64_t dim = after.means.columns;
  Matrix<Scalar> d_means = gradient.values, d_norms(after.means.rows, 1);
  for (int64_t n = 0; n < after.means.rows; ++n) {
    if (plan.joined[n] == 0 || !after.has_length(n)) continue;
    const Scalar norm = after.norms[n][0], mean_norm = std::sqrt(dot(after.means[n], after.means[n], dim));
    std::vector<Scalar> u(after.means[n], after.means[n] + dim);
    for (Scalar& element : u) element /= mean_norm;
    const Scalar radial = dot(u.data(), d_means[n], dim), d_shrinkage = gradient.shrinkage[n];
    add_scaled(d_means[n], -radial, u.data(), dim);
    for (int64_t i = 0; i < dim; ++i) d_means[n][i] *= norm / mean_norm;
    add_scaled(d_means[n], d_shrinkage / norm, u.data(), dim);
    d_norms[n][0] = radial - d_shrinkage * mean_norm / (norm * norm);
  }
  const Matrix<Scalar> token_norms = norms_of(chunk.values);
  mean_weights_backward(old.means, chunk.values, after.means, d_means, assignments, plan, d_counts, d_tokens.weights);
  mean_weights_backward(old.norms, token_norms, after.norms, d_norms, assignments, plan, d_counts, d_tokens.weights);
  const int64_t size = before.size();
  d_tokens.values = update_rows_backward(d_means, chunk.weights, assignments, plan, size);
  norms_backward(chunk.values, update_rows_backward(d_norms, chunk.weights, assignments, plan, size), d_tokens.values);
  gradient.values = gradient.values.slice(0, size);
  gradient.shrinkage.resize(size);
  Matrix<Scalar> of_norms(size, dim);
  norms_backward(before.values, d_norms, of_norms);
  for (int64_t n = 0; n < size; ++n) {
    if (plan.joined[n] == 0) continue;
    for (int64_t i = 0; i < dim; ++i) gradient.values[n][i] = before.shrinkage[n] * d_means[n][i] + of_norms[n][i];
    gradient.shrinkage[n] = dot(before.values[n], d_means[n], dim);
  }
}

// gradient: of the dictionary after the write on entry, before it on return. Returns that of the chunk's tokens.
template <class Scalar>
OvqRowGradients<Scalar> write_chunk_backward(const OvqDictionary<Scalar>& before, const OvqChunk<Scalar>& chunk,
                                             const std::vector<int32_t>& assignments, const OvqOptions& options,
                                             OvqRowGradients<Scalar>& gradient) {
  const OvqWritePlan plan = plan_write(before, chunk, assignments, options);
  const Matrix<Scalar> keys = update_rows(before.keys, chunk.keys, chunk.weights, assignments, plan);
  if (options.normalize) normalize_rows_backward(gradient.keys, keys, plan);
  OvqRowGradients<Scalar> d_tokens(chunk.keys.rows, chunk.keys.columns, chunk.values.columns);
  std::vector<Scalar>& d_counts = gradient.weights;
  if (options.weighted) {
    for (int64_t t = 0; t < chunk.keys.rows; ++t) {
      d_tokens.weights[t] = d_counts[assignments[t] < 0 ? ~assignments[t] : assignments[t]];
    }
    mean_weights_backward(before.keys, chunk.keys, keys, gradient.keys, assignments, plan, d_counts, d_tokens.weights);
  }
  if (options.value_norms) {
    write_values_backward(before, chunk, assignments, plan, gradient, d_tokens, d_counts);
  } else {
    if (options.weighted) {
      const Matrix<Scalar> values = update_rows(before.values, chunk.values, chunk.weights, assignments, plan);
      mean_weights_backward(before.values, chunk.values, values, gradient.values, assignments, plan, d_counts,
                            d_tokens.weights);
    }
    d_tokens.values = update_rows_backward(gradient.values, chunk.weights, assignments, plan, before.size());
  }
  if (!options.weighted) {  // of what does not count
    std::fill(d_counts.begin(), d_counts.end(), Scalar(0));
    std::fill(d_tokens.weights.begin(), d_tokens.weights.end(), Scalar(0));
  }
  gradient.weights.resize(before.size());
  d_tokens.keys = update_rows_backward(gradient.keys, chunk.weights, assignments, plan, before.size());
  return d_tokens;
}

}  // namespace ovq::kernels::reference
