// Plain loops for writing a chunk to the dictionary of one kv head. ovq_founders.h decides which tokens join or found
// which centroids; ovq_dictionary_backward.h has the gradient of the write.
//
//   counts' = counts + m,   m = sum_{t: a_t = n} w_t
//   D'[n] = D[n] + rate[n] sum_{t: a_t = n} w_t (x_t - D[n]),   rate[n] = 1 / counts'[n] or a constant
//   normalize: D_k''[n] = D_k'[n] / |D_k'[n]|
//   value_norms: D_v stands for the mean r[n] D_v[n] and the norm |D_v[n]|, which are updated like D; where tokens
//   joined D_v'[n] = mean'[n] norm'[n] / |mean'[n]|,  r'[n] = |mean'[n]| / norm'[n]
//
// Without weights w_t = 1.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/ovq_attention/reference_founders.h"

namespace ovq::kernels::reference {

// The effect of a write on each row apart from the added values: which rows change, and at which rate.
struct OvqWritePlan {
  std::vector<double> counts;  // [n'] before the members joined
  std::vector<double> joined;  // [n'] m: the sum of the joined tokens' weights (founders do not count)
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

// D' = D + rate * sum w (x - D) for keys or values. A founder starts with its own row.
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

// Rescales the changed rows to unit norm; a zero row stays zero.
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

// With value_norms: the means and norms that a dictionary's values represent.
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
  // Whether row n can be rescaled.
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

}  // namespace ovq::kernels::reference
