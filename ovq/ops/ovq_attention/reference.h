// Plain loops of OVQ-attention, one kv head of one sequence with the query heads that read it: the twin of
// ovq/ops/ovq_attention/ovq_attention.h. Stores a dictionary per chunk, O(T / L * N * d), so that backward is a plain
// application of the chain rule.
//
//   s_tj = beta * q_t . [D_k ; K_window]_j + [log counts ; log w]_j        w = 1 without weights
//   lse_t = log sum_j exp(s_tj)
//   o_t = sum_j exp(s_tj - lse_t) [D_v ; V_window]_j
//
// The window is the token's chunk up to itself. With rope it also includes the chunk before, and queries and window
// keys are rotated by their position in the window (previous chunk 1 ... L, current L + 1 ... 2 L, centroids 0).
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "ovq/core/reference_matrix.h"
#include "ovq/ops/ovq_attention/options.h"
#include "ovq/ops/ovq_attention/ovq_attention.h"
#include "ovq/ops/ovq_attention/reference_dictionary.h"
#include "ovq/ops/ovq_attention/reference_dictionary_backward.h"
#include "ovq/ops/ovq_attention/state.h"

namespace ovq::kernels::reference {

template <class Scalar>
struct OvqHeadInputs {
  std::vector<Matrix<Scalar>> q;  // [Hq / Hkv] of [T, dk]
  Matrix<Scalar> k, v;            // [T, dk], [T, dv]
  std::vector<Scalar> beta;       // [Hq / Hkv]
  std::vector<Scalar> weights;    // [T]; with options.weighted
  OvqOptions options;
  int64_t head = 0;  // kv head
};

template <class Scalar>
struct OvqHeadState {
  OvqDictionary<Scalar> dictionary;
  Matrix<Scalar> pending_keys, pending_values;
  std::vector<Scalar> pending_weights;  // 1 without weights
  int64_t position = 0;
};

template <class Scalar>
struct OvqHeadResult {
  std::vector<Matrix<Scalar>> o;                    // [Hq / Hkv] of [T, dv]
  std::vector<std::vector<Scalar>> lse;             // [Hq / Hkv] of [T]
  std::vector<int32_t> assignments;                 // [pending + T]
  OvqHeadState<Scalar> state;                       // after the last token
  std::vector<OvqDictionary<Scalar>> dictionaries;  // as each chunk read it, from the first pending token's chunk on
};

// Empty matrices count as zero. Without weights, the gradients of weights and counts are zero.
template <class Scalar>
struct OvqHeadStateGradients {
  Matrix<Scalar> keys, values, pending_keys, pending_values;
  std::vector<Scalar> counts, pending_weights;
  std::vector<Scalar> shrinkage = {};  // with value_norms
};

template <class Scalar>
struct OvqHeadGradients {
  std::vector<Matrix<Scalar>> d_q;
  Matrix<Scalar> d_k, d_v;
  std::vector<Scalar> d_beta, d_weights;
  OvqHeadStateGradients<Scalar> d_initial;
};

// The tokens `first` ... `first + tokens - 1` of one kv head.
template <class Scalar>
OvqHeadInputs<Scalar> load_head(const OvqInputs& inputs, int64_t batch, int64_t kv_head, int64_t first,
                                int64_t tokens) {
  const int64_t group = inputs.q.heads / inputs.k.heads;
  OvqHeadInputs<Scalar> head;
  head.options = inputs.options;
  head.head = kv_head;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    head.q.push_back(load<Scalar>(inputs.q, batch, h, first, tokens));
    head.beta.push_back(inputs.beta[h]);
  }
  head.k = load<Scalar>(inputs.k, batch, kv_head, first, tokens);
  head.v = load<Scalar>(inputs.v, batch, kv_head, first, tokens);
  if (inputs.options.weighted) head.weights = load<Scalar>(inputs.weights, batch, kv_head, first, tokens).data;
  return head;
}

template <class Scalar>
OvqHeadState<Scalar> empty_state(int64_t key_dim, int64_t value_dim) {
  return {{Matrix<Scalar>(0, key_dim), Matrix<Scalar>(0, value_dim), {}},
          Matrix<Scalar>(0, key_dim),
          Matrix<Scalar>(0, value_dim),
          {}};
}

template <class Scalar>
OvqHeadState<Scalar> load_state(const OvqState& state, int64_t batch, int64_t head) {
  const auto counts = state.counts(batch, head);
  OvqHeadState<Scalar> loaded = {{load<Scalar>(state.keys(), batch, head, 0, state.size()),
                                  load<Scalar>(state.values(), batch, head, 0, state.size()),
                                  {counts.begin(), counts.end()}},
                                 load<Scalar>(state.pending_keys(), batch, head, 0, state.pending()),
                                 load<Scalar>(state.pending_values(), batch, head, 0, state.pending()),
                                 std::vector<Scalar>(state.pending(), 1),
                                 state.position()};
  if (state.options().weighted) {
    loaded.dictionary.counts = load<Scalar>(state.real_counts(), batch, head, 0, state.size()).data;
    loaded.pending_weights = load<Scalar>(state.pending_weights(), batch, head, 0, state.pending()).data;
  }
  if (state.options().value_norms)
    loaded.dictionary.shrinkage = load<Scalar>(state.shrinkage(), batch, head, 0, state.size()).data;
  return loaded;
}

// Rotates the pairs (i, i + dim / 2) by position * base^(-2 i / dim). Angles are double for any scalar.
template <class Scalar>
std::vector<Scalar> rotate(const Scalar* row, int64_t dim, double position, double base) {
  std::vector<Scalar> rotated(dim);
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double angle = position * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
    const Scalar cosine = std::cos(angle), sine = std::sin(angle);
    rotated[i] = row[i] * cosine - row[i + dim / 2] * sine;
    rotated[i + dim / 2] = row[i] * sine + row[i + dim / 2] * cosine;
  }
  return rotated;
}

// Pending and new tokens in one array that starts at a chunk, and what the query of a token sees.
template <class Scalar>
class OvqTokens {
 public:
  OvqTokens(const OvqHeadInputs<Scalar>& inputs, const OvqHeadState<Scalar>& initial)
      : keys(initial.pending_keys),
        values(initial.pending_values),
        weights(initial.pending_weights),
        pending(keys.rows),
        first_chunk((initial.position - pending) / inputs.options.chunk),
        options_(inputs.options),
        head_(inputs.head) {
    for (int64_t t = 0; t < inputs.k.rows; ++t) {
      keys.append(inputs.k[t]);
      values.append(inputs.v[t]);
      weights.push_back(options_.weighted ? inputs.weights[t] : Scalar(1));
    }
  }

  int64_t size() const { return keys.rows; }
  int64_t chunk_begin(int64_t token) const { return token - token % options_.chunk; }
  int64_t chunk_end(int64_t token) const { return std::min(chunk_begin(token) + options_.chunk, size()); }
  int64_t window_begin(int64_t token) const {
    return options_.rope ? std::max<int64_t>(chunk_begin(token) - options_.chunk, 0) : chunk_begin(token);
  }

  // The first token of the chunk that is written after the chunk that starts at `begin` is complete; -1 if there is
  // none.
  int64_t written_chunk(int64_t begin) const {
    if (begin + options_.chunk > size()) return -1;
    if (!options_.rope) return begin;
    return begin - options_.chunk >= 0 ? begin - options_.chunk : -1;
  }
  OvqChunk<Scalar> chunk(int64_t begin) const {
    return {keys.slice(begin, options_.chunk),
            values.slice(begin, options_.chunk),
            {weights.begin() + begin, weights.begin() + begin + options_.chunk},
            first_chunk + begin / options_.chunk,
            head_};
  }

  // A key or query of `token`, rotated for the window of the chunk that starts at `begin`.
  std::vector<Scalar> in_window(const Scalar* row, int64_t token, int64_t begin) const {
    return options_.rope ? rotate(row, keys.columns, position(token, begin), options_.rope_base)
                         : std::vector<Scalar>(row, row + keys.columns);
  }
  std::vector<Scalar> out_of_window(const Scalar* row, int64_t token, int64_t begin) const {
    return options_.rope ? rotate(row, keys.columns, -position(token, begin), options_.rope_base)
                         : std::vector<Scalar>(row, row + keys.columns);
  }

  Matrix<Scalar> keys, values;
  std::vector<Scalar> weights;
  const int64_t pending;
  const int64_t first_chunk;

 private:
  double position(int64_t token, int64_t begin) const {
    return static_cast<double>(options_.chunk + 1 + token - begin);
  }

  const OvqOptions options_;
  const int64_t head_;
};

// The rows that the queries of one chunk read: the dictionary, then the window.
template <class Scalar>
struct OvqRows {
  Matrix<Scalar> keys, values;
  std::vector<Scalar> weights;  // counts, then weights
  std::vector<Scalar> bias;     // their logarithms

  OvqRows(const OvqDictionary<Scalar>& dictionary, const OvqTokens<Scalar>& tokens, int64_t begin)
      : keys(dictionary.keys), values(dictionary.values), weights(dictionary.counts) {
    for (int64_t token = tokens.window_begin(begin); token < tokens.chunk_end(begin); ++token) {
      keys.append(tokens.in_window(tokens.keys[token], token, begin).data());
      values.append(tokens.values[token]);
      weights.push_back(tokens.weights[token]);
    }
    for (Scalar weight : weights) bias.push_back(std::log(weight));
  }
};

template <class Scalar>
void read_chunk(const OvqHeadInputs<Scalar>& inputs, const OvqTokens<Scalar>& tokens,
                const OvqDictionary<Scalar>& dictionary, int64_t begin, OvqHeadResult<Scalar>& result) {
  const OvqRows<Scalar> rows(dictionary, tokens, begin);
  for (size_t g = 0; g < inputs.q.size(); ++g) {
    for (int64_t token = std::max(begin, tokens.pending); token < tokens.chunk_end(begin); ++token) {
      const int64_t t = token - tokens.pending;
      const int64_t visible = dictionary.size() + token + 1 - tokens.window_begin(begin);
      const std::vector<Scalar> q = tokens.in_window(inputs.q[g][t], token, begin);
      std::vector<Scalar> logits;
      for (int64_t j = 0; j < visible; ++j) {
        logits.push_back(inputs.beta[g] * dot(q.data(), rows.keys[j], rows.keys.columns) + rows.bias[j]);
      }
      const Scalar lse = log_sum_exp(logits);
      for (int64_t j = 0; j < visible; ++j) {
        add_scaled(result.o[g][t], std::exp(logits[j] - lse), rows.values[j], rows.values.columns);
      }
      result.lse[g][t] = lse;
    }
  }
}

// `forced` [pending + T] replaces the choice of centroids.
template <class Scalar>
OvqHeadResult<Scalar> ovq_attention_forward(const OvqHeadInputs<Scalar>& inputs, const OvqHeadState<Scalar>& initial,
                                            std::span<const int32_t> forced = {}) {
  const OvqOptions& options = inputs.options;
  const OvqTokens<Scalar> tokens(inputs, initial);
  OvqHeadResult<Scalar> result;
  result.o.assign(inputs.q.size(), Matrix<Scalar>(inputs.k.rows, inputs.v.columns));
  result.lse.assign(inputs.q.size(), std::vector<Scalar>(inputs.k.rows));
  result.assignments.assign(tokens.size(), kUnassigned);

  OvqDictionary<Scalar> dictionary = initial.dictionary;
  int64_t committed = 0;
  for (int64_t begin = 0; begin < tokens.size(); begin += options.chunk) {
    result.dictionaries.push_back(dictionary);
    read_chunk(inputs, tokens, dictionary, begin, result);
    const int64_t written = tokens.written_chunk(begin);
    if (written < 0) continue;
    const OvqChunk<Scalar> chunk = tokens.chunk(written);
    const std::vector<int32_t> assignments =
        forced.empty() ? assign(dictionary, chunk, options)
                       : std::vector<int32_t>(&forced[written], &forced[written] + options.chunk);
    write_chunk(dictionary, chunk, assignments, options);
    std::copy(assignments.begin(), assignments.end(), result.assignments.begin() + written);
    committed = written + options.chunk;
  }
  result.state = {dictionary,
                  tokens.keys.slice(committed, tokens.size() - committed),
                  tokens.values.slice(committed, tokens.size() - committed),
                  {tokens.weights.begin() + committed, tokens.weights.end()},
                  initial.position + inputs.k.rows};
  return result;
}

// Adds to the gradients of q and beta; returns those of the rows that the chunk read.
template <class Scalar>
OvqRowGradients<Scalar> read_chunk_backward(const OvqHeadInputs<Scalar>& inputs, const OvqTokens<Scalar>& tokens,
                                            const OvqHeadResult<Scalar>& forward,
                                            const std::vector<Matrix<Scalar>>& d_o, int64_t begin,
                                            OvqHeadGradients<Scalar>& gradients) {
  const int64_t key_dim = inputs.k.columns, value_dim = inputs.v.columns;
  const OvqDictionary<Scalar>& dictionary = forward.dictionaries[begin / inputs.options.chunk];
  const OvqRows<Scalar> rows(dictionary, tokens, begin);
  OvqRowGradients<Scalar> d_rows(rows.keys.rows, key_dim, value_dim);
  for (size_t g = 0; g < inputs.q.size(); ++g) {
    const Scalar beta = inputs.beta[g];
    for (int64_t token = std::max(begin, tokens.pending); token < tokens.chunk_end(begin); ++token) {
      const int64_t t = token - tokens.pending;
      const int64_t visible = dictionary.size() + token + 1 - tokens.window_begin(begin);
      const std::vector<Scalar> q = tokens.in_window(inputs.q[g][t], token, begin);
      const Scalar delta = dot(d_o[g][t], forward.o[g][t], value_dim);
      std::vector<Scalar> d_q(key_dim);
      for (int64_t j = 0; j < visible; ++j) {
        const Scalar product = dot(q.data(), rows.keys[j], key_dim);
        const Scalar p = std::exp(beta * product + rows.bias[j] - forward.lse[g][t]);
        const Scalar d_s = p * (dot(d_o[g][t], rows.values[j], value_dim) - delta);
        add_scaled(d_rows.values[j], p, d_o[g][t], value_dim);
        add_scaled(d_rows.keys[j], beta * d_s, q.data(), key_dim);
        add_scaled(d_q.data(), beta * d_s, rows.keys[j], key_dim);
        gradients.d_beta[g] += d_s * product;
        if (inputs.options.weighted) d_rows.weights[j] += d_s / rows.weights[j];
      }
      d_q = tokens.out_of_window(d_q.data(), token, begin);
      std::copy(d_q.begin(), d_q.end(), gradients.d_q[g][t]);
    }
  }
  return d_rows;
}

// Gradients of sum(o * d_o) + sum(final state * d_final) with fixed assignments.
template <class Scalar>
OvqHeadGradients<Scalar> ovq_attention_backward(const OvqHeadInputs<Scalar>& inputs,
                                                const OvqHeadState<Scalar>& initial,
                                                const OvqHeadResult<Scalar>& forward,
                                                const std::vector<Matrix<Scalar>>& d_o,
                                                const OvqHeadStateGradients<Scalar>& d_final = {}) {
  const OvqTokens<Scalar> tokens(inputs, initial);
  const int64_t key_dim = inputs.k.columns, value_dim = inputs.v.columns;
  const int64_t size = forward.state.dictionary.size(), committed = tokens.size() - forward.state.pending_keys.rows;
  OvqHeadGradients<Scalar> gradients;
  gradients.d_q.assign(inputs.q.size(), Matrix<Scalar>(inputs.k.rows, key_dim));
  gradients.d_beta.assign(inputs.q.size(), 0);

  const auto add = [](std::vector<Scalar>& to, int64_t first, const std::vector<Scalar>& x) {
    for (size_t i = 0; i < x.size(); ++i) to[first + i] += x[i];
  };
  OvqRowGradients<Scalar> d_dictionary(size, key_dim, value_dim);
  OvqRowGradients<Scalar> d_tokens(tokens.size(), key_dim, value_dim);
  add_rows(d_dictionary.keys, 0, d_final.keys);
  add_rows(d_dictionary.values, 0, d_final.values);
  add_rows(d_tokens.keys, committed, d_final.pending_keys);
  add_rows(d_tokens.values, committed, d_final.pending_values);
  add(d_dictionary.weights, 0, d_final.counts);
  add(d_dictionary.shrinkage, 0, d_final.shrinkage);
  add(d_tokens.weights, committed, d_final.pending_weights);

  for (int64_t c = static_cast<int64_t>(forward.dictionaries.size()) - 1; c >= 0; --c) {
    const OvqDictionary<Scalar>& dictionary = forward.dictionaries[c];
    const int64_t begin = c * inputs.options.chunk;
    if (const int64_t written = tokens.written_chunk(begin); written >= 0) {
      const auto first = forward.assignments.begin() + written;
      const OvqRowGradients<Scalar> d_chunk = write_chunk_backward(
          dictionary, tokens.chunk(written), {first, first + inputs.options.chunk}, inputs.options, d_dictionary);
      add_rows(d_tokens.keys, written, d_chunk.keys);
      add_rows(d_tokens.values, written, d_chunk.values);
      add(d_tokens.weights, written, d_chunk.weights);
    }
    const OvqRowGradients<Scalar> d_rows = read_chunk_backward(inputs, tokens, forward, d_o, begin, gradients);
    add_rows(d_dictionary.keys, 0, d_rows.keys.slice(0, dictionary.size()));
    add_rows(d_dictionary.values, 0, d_rows.values.slice(0, dictionary.size()));
    add(d_dictionary.weights, 0, {d_rows.weights.begin(), d_rows.weights.begin() + dictionary.size()});
    for (int64_t j = dictionary.size(); j < d_rows.keys.rows; ++j) {
      const int64_t token = tokens.window_begin(begin) + j - dictionary.size();
      const std::vector<Scalar> d_key = tokens.out_of_window(d_rows.keys[j], token, begin);
      add_scaled(d_tokens.keys[token], Scalar(1), d_key.data(), key_dim);
      add_scaled(d_tokens.values[token], Scalar(1), d_rows.values[j], value_dim);
      d_tokens.weights[token] += d_rows.weights[j];
    }
  }

  gradients.d_k = d_tokens.keys.slice(tokens.pending, inputs.k.rows);
  gradients.d_v = d_tokens.values.slice(tokens.pending, inputs.k.rows);
  gradients.d_weights = {d_tokens.weights.begin() + tokens.pending, d_tokens.weights.end()};
  gradients.d_initial = {d_dictionary.keys,
                         d_dictionary.values,
                         d_tokens.keys.slice(0, tokens.pending),
                         d_tokens.values.slice(0, tokens.pending),
                         d_dictionary.weights,
                         {d_tokens.weights.begin(), d_tokens.weights.begin() + tokens.pending},
                         d_dictionary.shrinkage};
  return gradients;
}

}  // namespace ovq::kernels::reference
