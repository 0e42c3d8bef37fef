// Plain loops for the gradient of a write: the chain rule applied to ovq_dictionary.h.
//
//   g'[n] = (g''[n] - y (y . g''[n])) / |D_k'[n]| with y = D_k''[n]
//   g[n] = (1 - m rate[n]) g'[n],   dx_t = w_t rate[n] g'[n] for the members, g[n] for the founder
//
// With weights, h' the gradient of counts' and g' that of keys and values together:
//   dw_t = h'[n] + g'[n] . (x_t - D'[n]) / counts'[n],   h[n] = h'[n] + g'[n] . (D[n] - D'[n]) / counts'[n]
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/ovq_attention/reference_dictionary.h"

namespace ovq::kernels::reference {

// Gradients of rows: the dictionary's keys, values and counts, or those of tokens.
template <class Scalar>
struct OvqRowGradients {
  Matrix<Scalar> keys, values;
  std::vector<Scalar> weights;    // zero without weights
  std::vector<Scalar> shrinkage;  // of a dictionary; zero without value_norms

  OvqRowGradients(int64_t rows, int64_t key_dim, int64_t value_dim)
      : keys(rows, key_dim), values(rows, value_dim), weights(rows), shrinkage(rows) {}
};

// gradient: that of D' on entry, of D on return. Returns that of the chunk's tokens.
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

// The contribution of the rows `before` and `tokens` of a mean D' = (counts D + sum w x) / counts' to the gradients of
// counts and weights: (row - D') . g' / counts'
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

// gradient: that of the rescaled rows on entry, of `rows` (before rescaling) on return.
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

// The same for the values only, with value_norms.
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

// gradient: that of the dictionary after the write on entry, before it on return. Returns that of the chunk's tokens.
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
  if (!options.weighted) {  // these do not exist without weights
    std::fill(d_counts.begin(), d_counts.end(), Scalar(0));
    std::fill(d_tokens.weights.begin(), d_tokens.weights.end(), Scalar(0));
  }
  gradient.weights.resize(before.size());
  d_tokens.keys = update_rows_backward(gradient.keys, chunk.weights, assignments, plan, before.size());
  return d_tokens;
}

}  // namespace ovq::kernels::reference
