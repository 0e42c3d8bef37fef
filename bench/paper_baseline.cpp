#include "bench/paper_baseline.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "ovq/core/parallel.h"

namespace ovq::bench {
namespace {

using kernels::OvqInputs;
using kernels::View;

struct Matrix {
  Matrix(int64_t rows, int64_t columns) : rows(rows), columns(columns), data(rows * columns) {}
  float* row(int64_t i) { return data.data() + i * columns; }
  const float* row(int64_t i) const { return data.data() + i * columns; }

  int64_t rows, columns;
  std::vector<float> data;
};

Matrix copy_rows(View<const float> view, int64_t batch, int64_t head, int64_t first, int64_t count) {
  Matrix result(count, view.dim);
  for (int64_t i = 0; i < count; ++i) std::copy_n(view.row(batch, first + i, head), view.dim, result.row(i));
  return result;
}

// cat([a[0 : rows], b])
Matrix concatenate(const Matrix& a, int64_t rows, const Matrix& b) {
  Matrix result(rows + b.rows, a.columns);
  std::copy_n(a.data.begin(), rows * a.columns, result.data.begin());
  std::copy(b.data.begin(), b.data.end(), result.data.begin() + rows * a.columns);
  return result;
}

// a [n, d], b [m, d] -> a @ b[0 : rows]^T [n, rows]
Matrix multiply_transposed(const Matrix& a, const Matrix& b, int64_t rows) {
  Matrix result(a.rows, rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < rows; ++j) {
      const float* x = a.row(i);
      const float* y = b.row(j);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < a.columns; ++c) sum += x[c] * y[c];
      result.row(i)[j] = sum;
    }
  }
  return result;
}

// a [n, m], b [m, d] -> a @ b [n, d]
Matrix multiply(const Matrix& a, const Matrix& b) {
  Matrix result(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    float* out = result.row(i);
    for (int64_t j = 0; j < a.columns; ++j) {
      const float weight = a.row(i)[j];
      const float* y = b.row(j);
      for (int64_t c = 0; c < b.columns; ++c) out[c] += weight * y[c];
    }
  }
  return result;
}

// softmax(beta * q @ k^T + log(counts) + mask) @ v; the last q.rows keys are the chunk itself, causally masked.
Matrix causal_attention(const Matrix& q, const Matrix& k, const Matrix& v, const std::vector<float>& counts,
                        float beta) {
  Matrix scores = multiply_transposed(q, k, k.rows);
  const int64_t dictionary = k.rows - q.rows;
  for (int64_t i = 0; i < scores.rows; ++i) {
    float* row = scores.row(i);
    const int64_t visible = dictionary + i + 1;
    for (int64_t j = 0; j < scores.columns; ++j)
      row[j] = j < visible ? beta * row[j] + std::log(counts[j]) : -std::numeric_limits<float>::infinity();
    const float largest = *std::max_element(row, row + scores.columns);
    float sum = 0;
    for (int64_t j = 0; j < scores.columns; ++j) {
      row[j] = std::exp(row[j] - largest);
      sum += row[j];
    }
    for (int64_t j = 0; j < scores.columns; ++j) row[j] /= sum;
  }
  return multiply(scores, v);
}

// The keys of a founding chunk that become centroids, in the order of selection: farthest-first traversal.
std::vector<int64_t> choose_founders(const Matrix& similarity, int64_t count) {
  std::vector<int64_t> chosen{0};
  std::vector<float> closest(similarity.row(0), similarity.row(0) + similarity.columns);
  closest[0] = std::numeric_limits<float>::infinity();
  while (static_cast<int64_t>(chosen.size()) < count) {
    const int64_t next = std::min_element(closest.begin(), closest.end()) - closest.begin();
    chosen.push_back(next);
    for (int64_t t = 0; t < similarity.columns; ++t) closest[t] = std::max(closest[t], similarity.row(next)[t]);
    closest[next] = std::numeric_limits<float>::infinity();
  }
  return chosen;
}

// The centroid of each key of the chunk; `founders` lists the positions of the keys that become centroids.
std::vector<int64_t> get_nn_assignments(const Matrix& d_k, int64_t size, const Matrix& keys, int64_t num_new,
                                        std::vector<int64_t>& founders) {
  const Matrix similarity =
      size > 0 ? multiply_transposed(keys, d_k, size) : multiply_transposed(keys, keys, keys.rows);
  std::vector<int64_t> best(keys.rows);
  std::vector<float> best_similarity(keys.rows);
  if (size > 0) {
    for (int64_t t = 0; t < keys.rows; ++t) {
      best[t] = std::max_element(similarity.row(t), similarity.row(t) + size) - similarity.row(t);
      best_similarity[t] = similarity.row(t)[best[t]];
    }
    founders.resize(keys.rows);
    std::iota(founders.begin(), founders.end(), 0);
    std::stable_sort(founders.begin(), founders.end(),
                     [&](int64_t a, int64_t b) { return best_similarity[a] < best_similarity[b]; });
    founders.resize(num_new);
  } else {
    founders = choose_founders(similarity, num_new);
  }
  std::sort(founders.begin(), founders.end());
  if (size == 0) {
    for (int64_t t = 0; t < keys.rows; ++t) {
      for (int64_t i = 1; i < num_new; ++i)
        if (similarity.row(t)[founders[i]] > similarity.row(t)[founders[best[t]]]) best[t] = i;
    }
  }
  for (int64_t i = 0; i < num_new; ++i) best[founders[i]] = size + i;
  return best;
}

// d[a_t] += (x_t - d[a_t]) / counts[a_t], with all differences taken before the first is added.
void scatter_update(Matrix& d, const Matrix& x, const std::vector<int64_t>& assignments,
                    const std::vector<float>& counts) {
  Matrix quantized(x.rows, x.columns);
  for (int64_t t = 0; t < x.rows; ++t) std::copy_n(d.row(assignments[t]), x.columns, quantized.row(t));
  for (int64_t t = 0; t < x.rows; ++t) {
    const float rate = 1.0f / counts[assignments[t]];
    float* row = d.row(assignments[t]);
    for (int64_t c = 0; c < x.columns; ++c) row[c] -= rate * (quantized.row(t)[c] - x.row(t)[c]);
  }
}

void one_head(const OvqInputs& inputs, View<float> o, std::span<int32_t> assignments, int64_t batch, int64_t kv_head) {
  const int64_t time = inputs.k.time, chunk = inputs.options.chunk, group = inputs.q.heads / inputs.k.heads;
  int64_t capacity = 0;
  for (int64_t t = chunk; t <= time; t += chunk) capacity += kernels::new_centroid_count(inputs.options, capacity, t);
  Matrix d_k(capacity, inputs.k.dim), d_v(capacity, inputs.v.dim);
  std::vector<float> counts(capacity);

  int64_t size = 0;
  for (int64_t first = 0; first < time; first += chunk) {
    const int64_t length = std::min(chunk, time - first);
    const Matrix k_c = copy_rows(inputs.k, batch, kv_head, first, length);
    const Matrix v_c = copy_rows(inputs.v, batch, kv_head, first, length);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      std::vector<float> all_counts(counts.begin(), counts.begin() + size);
      all_counts.resize(size + length, 1.0f);
      const Matrix out = causal_attention(copy_rows(inputs.q, batch, head, first, length), concatenate(d_k, size, k_c),
                                          concatenate(d_v, size, v_c), all_counts, inputs.beta[head]);
      for (int64_t i = 0; i < length; ++i) std::copy_n(out.row(i), o.dim, o.row(batch, first + i, head));
    }

    int32_t* written = assignments.data() + (batch * time + first) * inputs.k.heads + kv_head;
    if (length < chunk) {
      for (int64_t t = 0; t < length; ++t) written[t * inputs.k.heads] = kernels::kUnassigned;
      break;
    }
    const int64_t num_new = kernels::new_centroid_count(inputs.options, size, first + chunk);
    std::vector<int64_t> founders;
    const std::vector<int64_t> nearest = get_nn_assignments(d_k, size, k_c, num_new, founders);
    for (int64_t t = 0; t < length; ++t) {
      counts[nearest[t]] += 1;
      const auto id = static_cast<int32_t>(nearest[t]);
      written[t * inputs.k.heads] = std::binary_search(founders.begin(), founders.end(), t) ? ~id : id;
    }
    scatter_update(d_k, k_c, nearest, counts);
    scatter_update(d_v, v_c, nearest, counts);
    size += num_new;
  }
}

}  // namespace

void paper_ovq_forward(const OvqInputs& inputs, View<float> o, std::span<int32_t> assignments) {
  const int64_t kv_heads = inputs.k.heads;
  kernels::parallel_for(inputs.k.batch * kv_heads, kernels::max_threads(),
                        [&](int64_t task, int) { one_head(inputs, o, assignments, task / kv_heads, task % kv_heads); });
}

}  // namespace ovq::bench
