// Mesa by chunks (see mesa.h): conjugate gradients for all tokens of a chunk at once; the parts before and after are
// those of decayed linear attention.
//
// States are [H | G], values [K | V], each with H and K padded to whole vectors. With E and L as in
// linear_attention/kernel-inl.h and W_ij = L_ij beta_j, the matrix of token i times p_i is row i of
//   E P H_0 + ((P K^T) . W) K + P diag(lambda)
// which takes dk^2 + n dk multiply-adds per token and iteration. Converged tokens are removed from the products.
#if defined(OVQ_OPS_MESA_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_MESA_KERNEL_INL_H_
#undef OVQ_OPS_MESA_KERNEL_INL_H_
#else
#define OVQ_OPS_MESA_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "ovq/ops/linear_attention/kernel-inl.h"
#include "ovq/ops/recurrence/decays-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

struct MesaScratch {
  MesaScratch(const MesaCall& call, float* data, bool backward)
      : key_dim(call.q.dim),
        value_dim(call.v.dim),
        keys(padded(key_dim)),
        values(padded(value_dim)),
        columns(keys + values),
        stride(state_stride(columns)),
        stride_t(state_stride(key_dim)) {
    Carver carver(data);
    written = carver.take(kChunk, columns);
    k = carver.take(kChunk, keys);
    weighted_k = carver.take(kChunk, keys);
    k_t = carver.take(key_dim, kChunk);
    weights = carver.take(kChunk, kChunk);
    scores = carver.take(kChunk, kChunk);
    lambda = carver.take(1, keys);
    right = carver.take(kChunk, keys);
    solution = carver.take(kChunk, keys);
    p = carver.take(kChunk, keys);
    scaled = carver.take(kChunk, keys);
    ap = carver.take(kChunk, keys);
    o = carver.take(kChunk, columns);
    state = carver.take(key_dim, stride);
    if (backward) {
      solved = carver.take(kChunk, keys);
      values_t = carver.take(value_dim, kChunk);
      state_t = carver.take(value_dim, stride_t);
      d_q = carver.take(kChunk, keys);
      d_k = carver.take(kChunk, keys);
      d_written = carver.take(kChunk, columns);
      rest = carver.take(0, 0);
      const LinearBackwardScratch counted(carver, key_dim, columns);
    }
    size = carver.used();
  }

  int64_t key_dim, value_dim, keys, values, columns;
  int64_t stride, stride_t;  // of states and of their transposes
  float *written, *k, *weighted_k, *k_t, *weights, *scores, *lambda;
  float *right, *solution, *p, *scaled, *ap, *o, *state;
  float *solved = nullptr, *values_t = nullptr, *state_t = nullptr, *d_q = nullptr, *d_k = nullptr,
        *d_written = nullptr, *rest = nullptr;
  int64_t size = 0;
};

struct MesaChunk {
  MesaChunk(const MesaCall& call, const Run& sequence, int64_t head, int64_t first)
      : first(first), n(chunk_length(sequence, first)) {
    const Series<const float> g = series(call.g, sequence, head), beta = series(call.beta, sequence, head);
    fill_decays(
        n, [&](int64_t i) HWY_ATTR { return *g[first + i]; }, decays);
    for (int64_t i = 0; i < n; ++i) strength[i] = *beta[first + i];
    for (int64_t i = n; i < kChunk; ++i) strength[i] = 0.0f;
  }

  int64_t first, n;
  Decays decays;
  alignas(64) float strength[kChunk];  // beta
};

// Keys, values and weights of a chunk.
HWY_NOINLINE void load_mesa_chunk(const MesaCall& call, const Run& sequence, int64_t head, const MesaChunk& chunk,
                                  const MesaScratch& x) {
  const Tag d;
  const int64_t n = chunk.n;
  load_rows(series(call.k, sequence, head), chunk.first, n, x.key_dim, 1.0f, x.k);
  scale_rows(x.k, x.keys, chunk.strength, n, x.keys, x.weighted_k);
  transpose(x.k, x.keys, n, x.key_dim, x.k_t, kChunk);
  const Series<const float> v = series(call.v, sequence, head);
  for (int64_t i = 0; i < n; ++i) {
    float* const row = x.written + i * x.columns;
    std::memcpy(row, x.k + i * x.keys, x.keys * sizeof(float));
    load_row(v[chunk.first + i], x.value_dim, 1.0f, row + x.keys);
  }
  for_pairs(chunk.decays, n, [&](int64_t i, int64_t j, Vector pair) HWY_ATTR {
    hn::StoreU(hn::Mul(pair, hn::Load(d, chunk.strength + j)), d, x.weights + i * kChunk + j);
  });
}

// scores <- (left K^T) . W for the tokens `index`
HWY_INLINE void weighted_scores(const float* left, const MesaChunk& chunk, int64_t rows, const int64_t* index,
                                const MesaScratch& x) {
  const Tag d;
  const int64_t columns = padded(chunk.n);
  multiply({.rows = rows,
            .columns = columns,
            .out = x.scores,
            .out_stride = kChunk,
            .first = rows_of(left, x.keys, x.k_t, kChunk, x.key_dim),
            .lower = true,
            .index = index});
  for (int64_t row = 0; row < rows; ++row) {
    float* const scores = x.scores + row * kChunk;
    const float* const weights = x.weights + index[row] * kChunk;
    int64_t j = 0;
    for (; j <= index[row]; j += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, weights + j), hn::LoadU(d, scores + j)), d, scores + j);
    }
    for (; j < columns; j += kLanes) hn::StoreU(hn::Zero(d), d, scores + j);
  }
}

// The conjugate gradients of a chunk's unconverged tokens, one per row.
struct Conjugates {
  int64_t active = 0;
  int64_t index[kChunk];  // tokens
  alignas(64) float norms[kChunk], next[kChunk], enough[kChunk], factors[kChunk];

  // factors <- a / (b + tiny)
  HWY_INLINE void divide(const float* a, const float* b) {
    const Tag d;
    const Vector tiny = hn::Set(d, 1.17549435e-38f);
    for (int64_t i = 0; i < active; i += kLanes) {
      hn::Store(hn::Div(hn::Load(d, a + i), hn::Add(hn::Load(d, b + i), tiny)), d, factors + i);
    }
  }
};

// Updates x and r along p; s.ap comes without lambda's part of the matrix. Several passes over the rows, because in a
// single pass each row would wait for its own sums and quotients.
HWY_NOINLINE void conjugate_step(const MesaScratch& s, Conjugates& c) {
  const Tag d;
  const int64_t keys = s.keys;
  for (int64_t row = 0; row < c.active; ++row) {
    const float* const p = s.p + row * keys;
    float* const ap = s.ap + row * keys;
    Vector sum = hn::Zero(d);
    for (int64_t j = 0; j < keys; j += kLanes) {
      const Vector along = hn::LoadU(d, p + j);
      const Vector whole = hn::MulAdd(hn::LoadU(d, s.lambda + j), along, hn::LoadU(d, ap + j));
      hn::StoreU(whole, d, ap + j);
      sum = hn::MulAdd(along, whole, sum);
    }
    c.next[row] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
  c.divide(c.norms, c.next);
  for (int64_t row = 0; row < c.active; ++row) {
    const Vector alpha = hn::Set(d, c.factors[row]);
    const float *const p = s.p + row * keys, *const ap = s.ap + row * keys;
    float *const r = s.right + row * keys, *const x = s.solution + c.index[row] * keys;
    Vector sum = hn::Zero(d);
    for (int64_t j = 0; j < keys; j += kLanes) {
      hn::StoreU(hn::MulAdd(alpha, hn::LoadU(d, p + j), hn::LoadU(d, x + j)), d, x + j);
      const Vector rest = hn::NegMulAdd(alpha, hn::LoadU(d, ap + j), hn::LoadU(d, r + j));
      sum = hn::MulAdd(rest, rest, sum);
      hn::StoreU(rest, d, r + j);
    }
    c.next[row] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
  c.divide(c.next, c.norms);
  // Moves up the rows of the unconverged tokens.
  int64_t to = 0;
  for (int64_t row = 0; row < c.active; ++row) {
    if (c.next[row] <= c.enough[row]) continue;
    const Vector along = hn::Set(d, c.factors[row]);
    const float *const p = s.p + row * keys, *const r = s.right + row * keys;
    for (int64_t j = 0; j < keys; j += kLanes) {
      const Vector rest = hn::LoadU(d, r + j), direction = hn::MulAdd(along, hn::LoadU(d, p + j), rest);
      hn::StoreU(rest, d, s.right + to * keys + j);
      hn::StoreU(direction, d, s.p + to * keys + j);
    }
    c.norms[to] = c.next[row];
    c.enough[to] = c.enough[row];
    c.index[to++] = c.index[row];
  }
  c.active = to;
}

// s.solution <- solutions of the chunk's systems with the right sides s.right, which are overwritten. A token stops
// when its residual is at rounding level, independently of its neighbours, which may be in its future.
HWY_NOINLINE void solve_mesa(const MesaChunk& chunk, const float* state, int64_t iterations, const MesaScratch& s,
                             Ahead& ahead) {
  constexpr float kDone = 1.1920929e-7f;
  const int64_t n = chunk.n, keys = s.keys;
  Conjugates c;
  std::memset(s.solution, 0, n * keys * sizeof(float));
  for (int64_t i = 0; i < n; ++i) {
    const float* const right = s.right + i * keys;
    const float norm = dot(right, right, keys);
    if (norm <= 0.0f) continue;
    const int64_t row = c.active++;
    c.norms[row] = norm;
    c.enough[row] = kDone * kDone * norm;
    c.index[row] = i;
    for (int64_t j = 0; j < keys; ++j) {
      const float value = right[j];
      s.right[row * keys + j] = s.p[row * keys + j] = value;
    }
  }
  for (int64_t iteration = 0; iteration < iterations && c.active > 0; ++iteration) {
    weighted_scores(s.p, chunk, c.active, c.index, s);
    multiply({.rows = c.active,
              .columns = keys,
              .out = s.ap,
              .out_stride = keys,
              .first = rows_of(s.p, keys, state, s.stride, s.key_dim),
              .second = rows_of(s.scores, kChunk, s.k, keys, n, Part::lower),
              .first_factors = chunk.decays.from_start,
              .index = c.index},
             ahead);
    conjugate_step(s, c);
  }
}

// Prefetches the chunk that begins with `first` during the first two iterations of the chunk before or after it.
HWY_INLINE void fetch_mesa_chunk(const MesaCall& call, const Run& sequence, int64_t head, int64_t first,
                                 const MesaScratch& x, Ahead& ahead) {
  const int64_t n = first < 0 ? 0 : chunk_length(sequence, first);
  ahead.restart(2 * tiles_of(kChunk, x.keys));
  ahead.add(series(call.k, sequence, head), first, n, x.key_dim);
  ahead.add(series(call.v, sequence, head), first, n, x.value_dim);
}

struct TokensInOrder {
  TokensInOrder() {
    for (int64_t i = 0; i < kChunk; ++i) index[i] = i;
  }
  int64_t index[kChunk];
};

HWY_INLINE void load_mesa_state(const Strided<const float>& view, int64_t index, int64_t head, const MesaScratch& x,
                                float* state) {
  for (int64_t i = 0; i < x.key_dim; ++i) {
    float* const row = state + i * x.stride;
    if (view.data == nullptr) {
      std::memset(row, 0, x.columns * sizeof(float));
      continue;
    }
    const float* const from = view.row(index, i, head);
    load_row(from, x.key_dim, 1.0f, row);
    load_row(from + x.key_dim, x.value_dim, 1.0f, row + x.keys);
  }
}

HWY_INLINE void store_mesa_state(const float* state, const MesaScratch& x, const Strided<float>& view, int64_t index,
                                 int64_t head) {
  if (view.data == nullptr) return;
  for (int64_t i = 0; i < x.key_dim; ++i) {
    const float* const row = state + i * x.stride;
    float* const to = view.row(index, i, head);
    store_row(row, x.key_dim, 1.0f, to);
    store_row(row + x.keys, x.value_dim, 1.0f, to + x.key_dim);
  }
}

HWY_NOINLINE void mesa_forward(const MesaCall& call, const Piece& piece, int64_t head, float* memory) {
  const MesaScratch x(call, memory, false);
  const TokensInOrder all;
  const Run& sequence = piece.sequence;
  const int64_t chunks = chunks_of(sequence.length);
  load_mesa_state(call.state, piece.index, head, x, x.state);
  keep_state(x.state, call.borders.at(piece, head, 0), x.key_dim * x.stride);
  load_row(call.lambda + head * x.key_dim, x.key_dim, 1.0f, x.lambda);
  Ahead ahead;
  for (int64_t i = 0; i < chunks; ++i) {
    const MesaChunk chunk(call, sequence, head, i * kChunk);
    fetch_mesa_chunk(call, sequence, head, chunk.first + kChunk, x, ahead);
    ahead.add(series(call.q, sequence, head), chunk.first + kChunk, chunk_length(sequence, chunk.first + kChunk),
              x.key_dim);
    load_mesa_chunk(call, sequence, head, chunk, x);
    load_rows(series(call.q, sequence, head), chunk.first, chunk.n, x.key_dim, 1.0f, x.right);
    solve_mesa(chunk, x.state, call.iterations, x, ahead);
    if (call.solution.data != nullptr) {
      store_rows(x.solution, chunk.n, x.key_dim, 1.0f, series(call.solution, sequence, head), chunk.first);
    }
    // O <- E Q* G + ((Q* K^T) . W) V
    weighted_scores(x.solution, chunk, chunk.n, all.index, x);
    multiply({.rows = chunk.n,
              .columns = x.values,
              .out = x.o,
              .out_stride = x.values,
              .first = rows_of(x.solution, x.keys, x.state + x.keys, x.stride, x.key_dim),
              .second = rows_of(x.scores, kChunk, x.written + x.keys, x.columns, chunk.n, Part::lower),
              .first_factors = chunk.decays.from_start});
    store_rows(x.o, chunk.n, x.value_dim, 1.0f, series(call.o, sequence, head), chunk.first);
    // S' <- e^{G_n} S + (F B K)^T [K | V]
    scale_rows(x.weighted_k, x.keys, chunk.decays.to_end, chunk.n, x.keys, x.scaled);
    multiply({.rows = x.key_dim,
              .columns = x.columns,
              .out = x.state,
              .out_stride = x.stride,
              .first = columns_of(x.scaled, x.keys, x.written, x.columns, chunk.n),
              .start = x.state,
              .start_stride = x.stride,
              .factor = chunk.decays.total,
              .copy = call.borders.at(piece, head, i + 1),
              .past_caches = call.borders.past_caches});
  }
  store_mesa_state(x.state, x, call.last_state, piece.index, head);
  hwy::FlushStream();
}

// s.right <- E dO G^T + ((dO V^T) . W) K, the solutions' gradients by the outputs; dO is [n, values].
HWY_NOINLINE void mesa_right_sides(const MesaChunk& chunk, const float* state, const float* d_o, const MesaScratch& s) {
  const Tag d;
  const int64_t n = chunk.n;
  transpose(s.written + s.keys, s.columns, n, s.value_dim, s.values_t, kChunk);
  multiply_pairs(n, d_o, s.values, s.values_t, s.value_dim, s.scores);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < padded(n); j += kLanes) {
      const int64_t at = i * kChunk + j;
      const Vector weight = hn::LoadU(d, s.weights + at);
      const auto seen = hn::Ne(weight, hn::Zero(d));
      hn::StoreU(hn::IfThenElseZero(seen, hn::Mul(weight, hn::LoadU(d, s.scores + at))), d, s.scores + at);
    }
  }
  transpose(state + s.keys, s.stride, s.key_dim, s.value_dim, s.state_t, s.stride_t);
  multiply({.rows = n,
            .columns = s.keys,
            .out = s.right,
            .out_stride = s.keys,
            .first = rows_of(d_o, s.values, s.state_t, s.stride_t, s.value_dim),
            .second = rows_of(s.scores, kChunk, s.k, s.keys, n, Part::lower),
            .first_factors = chunk.decays.from_start});
}

HWY_NOINLINE void mesa_backward(const MesaCall& call, const Piece& piece, int64_t head, float* memory) {
  const MesaScratch x(call, memory, true);
  Ahead ahead;
  Carver rest(x.rest);
  const LinearBackwardScratch linear(rest, x.key_dim, x.columns);
  const TokensInOrder all;
  const Tag d;
  const Run& sequence = piece.sequence;
  const int64_t matrix = x.key_dim * x.stride;
  double* const d_lambda = call.d_lambda + (piece.index * call.q.heads + head) * x.key_dim;
  const Series<float> d_g = series(call.d_g, sequence, head), d_beta = series(call.d_beta, sequence, head),
                      d_k = series(call.d_k, sequence, head), d_v = series(call.d_v, sequence, head);
  load_mesa_state(call.d_last_state, piece.index, head, x, x.state);
  load_row(call.lambda + head * x.key_dim, x.key_dim, 1.0f, x.lambda);
  for (int64_t index = chunks_of(sequence.length) - 1; index >= 0; --index) {
    const MesaChunk chunk(call, sequence, head, index * kChunk);
    const int64_t first = chunk.first, n = chunk.n;
    const float* const state = call.borders.at(piece, head, index);
    fetch_mesa_chunk(call, sequence, head, first - kChunk, x, ahead);
    if (index > 0) {
      ahead.add(series(call.solved, sequence, head), first - kChunk, kChunk, x.key_dim);
      ahead.add(series(call.d_o, sequence, head), first - kChunk, kChunk, x.value_dim);
      ahead.add({state - matrix, x.stride}, 0, x.key_dim, x.columns);
    }
    load_mesa_chunk(call, sequence, head, chunk, x);
    load_rows(series(call.solved, sequence, head), first, n, x.key_dim, 1.0f, x.solved);
    load_rows(series(call.d_o, sequence, head), first, n, x.value_dim, 1.0f, x.d_written);
    mesa_right_sides(chunk, state, x.d_written, x);
    // o <- [-Y | dO]
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(x.o + i * x.columns + x.keys, x.d_written + i * x.values, x.values * sizeof(float));
    }
    solve_mesa(chunk, state, call.iterations, x, ahead);
    store_rows(x.solution, n, x.key_dim, 1.0f, series(call.d_q, sequence, head), first);
    for (int64_t j = 0; j < x.keys; j += kLanes) {
      Vector sum = hn::Zero(d);
      for (int64_t i = 0; i < n; ++i) {
        const Vector y = hn::LoadU(d, x.solution + i * x.keys + j);
        sum = hn::MulAdd(y, hn::LoadU(d, x.solved + i * x.keys + j), sum);
        hn::StoreU(hn::Neg(y), d, x.o + i * x.columns + j);
      }
      hn::StoreU(sum, d, x.ap + j);
    }
    for (int64_t j = 0; j < x.key_dim; ++j) d_lambda[j] -= static_cast<double>(x.ap[j]);
    // Linear attention with queries Q*, keys B K, values [K | V] and output gradients [-Y | dO]
    double d_sums[kChunk];
    weighted_scores(x.solved, chunk, n, all.index, x);
    linear_backward_chunk({.n = n,
                           .key_dim = x.key_dim,
                           .columns = x.columns,
                           .q = x.solved,
                           .k = x.weighted_k,
                           .v = x.written,
                           .scores = x.scores,
                           .d_o = x.o,
                           .state = state,
                           .next_state = state + matrix,
                           .d_state = x.state,
                           .d_q = x.d_q,
                           .d_k = x.d_k,
                           .d_v = x.d_written,
                           .d_sums = d_sums},
                          chunk.decays, linear, ahead);
    sum_to_end(d_sums, n);
    for (int64_t i = 0; i < n; ++i) {
      float* const by_key = x.d_k + i * x.keys;
      const float* const by_written = x.d_written + i * x.columns;
      *d_g[first + i] = static_cast<float>(d_sums[i]);
      *d_beta[first + i] = dot(x.k + i * x.keys, by_key, x.keys);
      const Vector strength = hn::Set(d, chunk.strength[i]);
      for (int64_t j = 0; j < x.keys; j += kLanes) {
        hn::StoreU(hn::MulAdd(strength, hn::LoadU(d, by_key + j), hn::LoadU(d, by_written + j)), d, by_key + j);
      }
      store_row(by_key, x.key_dim, 1.0f, d_k[first + i], d_k.past_caches);
      store_row(by_written + x.keys, x.value_dim, 1.0f, d_v[first + i], d_v.past_caches);
    }
  }
  store_mesa_state(x.state, x, call.d_state, piece.index, head);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
