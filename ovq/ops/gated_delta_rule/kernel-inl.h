// The gated delta rule by chunks (see gated_delta_rule.h).
//
// With E, F, L as in linear_attention/kernel-inl.h, B = diag(beta) and A the strictly lower part of -B (K K^T . L):
//   V' = (I - A)^(-1) (B V - B E K S);  P = (Q K^T) . L;  O = E Q S + P V';  S' = e^{G_n} S + (F K)^T V'
// V' comes from a triangular solve with all columns at once, so the inverse and its product with K are not needed.
// Multiply-adds per token: 3 dk dv + n (dk + dv).
//
// Backward, with dS' from the chunk after it, S and V' from forward:
//   dV' = P^T dO + F K dS';  X = (I - A)^(-T) dV';  dV = B X
//   D = (dO V'^T) . L;  M = -(X V'^T) . L below the diagonal
//   dQ = E dO S^T + D K;  R = -E X S^T + M K;  W = F V' dS'^T + D^T Q + M^T B K;  dK = W + B R
//   dbeta_i = x_i . v_i + k_i . r_i
//   dG_i = q_i . dq_i - k_i . w_i + beta_i k_i . r_i, and <dS', S'> for the last token
//   dS = e^{G_n} dS' + (E Q)^T dO - (E K)^T dV
// Multiply-adds per token: 6 dk dv + n (3 dk + 2 dv).
#if defined(OVQ_OPS_GATED_DELTA_RULE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_GATED_DELTA_RULE_KERNEL_INL_H_
#undef OVQ_OPS_GATED_DELTA_RULE_KERNEL_INL_H_
#else
#define OVQ_OPS_GATED_DELTA_RULE_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "ovq/ops/recurrence/decays-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

struct DeltaScratch {
  DeltaScratch(const DeltaCall& call, int64_t heads, float* data, bool backward)
      : key_dim(call.q.dim),
        value_dim(call.v.dim),
        keys(padded(key_dim)),
        values(padded(value_dim)),
        stride(state_stride(value_dim)),
        stride_t(state_stride(key_dim)) {
    Carver carver(data);
    q = carver.take(2 * kChunk, keys);
    k = q == nullptr ? nullptr : q + kChunk * keys;
    k_t = carver.take(key_dim, kChunk);
    scaled = carver.take(kChunk, keys);
    scores = carver.take(kChunk, kChunk);
    a = carver.take(kChunk, kChunk);
    written = carver.take(kChunk, values);
    o = carver.take(kChunk, values);
    states = carver.take(heads * key_dim, stride);
    if (backward) {
      d_scores = carver.take(kChunk, kChunk);
      d_a = carver.take(kChunk, kChunk);
      x = carver.take(kChunk, values);
      written_t = carver.take(value_dim, kChunk);
      state_t = carver.take(value_dim, stride_t);
      d_q = carver.take(kChunk, keys);
      d_read = carver.take(kChunk, keys);
      d_write = carver.take(kChunk, keys);
    }
    size = carver.used();
  }

  float* own_state(int64_t i) const { return states + i * key_dim * stride; }

  int64_t key_dim, value_dim, keys, values;
  int64_t stride, stride_t;  // of states and of their transposes
  float *q, *k, *k_t, *scaled, *scores, *a, *written, *o, *states;
  float* state = nullptr;  // backward: of the current head
  float *d_scores = nullptr, *d_a = nullptr, *x = nullptr, *written_t = nullptr, *state_t = nullptr, *d_q = nullptr,
        *d_read = nullptr, *d_write = nullptr;
  int64_t size = 0;
};

// One chunk of one head.
struct DeltaChunk {
  DeltaChunk(const DeltaCall& call, const Run& sequence, int64_t head, int64_t first)
      : first(first), n(chunk_length(sequence, first)) {
    const Series<const float> g = series(call.g, sequence, head), beta = series(call.beta, sequence, head);
    fill_decays(
        n, [&](int64_t i) HWY_ATTR { return *g[first + i]; }, decays);
    for (int64_t i = 0; i < n; ++i) {
      strength[i] = *beta[first + i];
      minus_from_start[i] = -decays.from_start[i];
      read_strength[i] = strength[i] * minus_from_start[i];
    }
  }

  int64_t first, n;
  Decays decays;
  float strength[kChunk];          // beta
  float minus_from_start[kChunk];  // -e^G
  float read_strength[kChunk];     // -beta e^G
};

// P and A from q, k and k_t.
HWY_NOINLINE void delta_scores(const DeltaChunk& chunk, const DeltaScratch& x) {
  const Tag d;
  const int64_t n = chunk.n;
  multiply_pairs(n, x.q, x.keys, x.k_t, x.key_dim, x.scores);
  multiply_pairs(n, x.k, x.keys, x.k_t, x.key_dim, x.a);
  for_pairs(chunk.decays, n, [&](int64_t i, int64_t j, Vector pair) HWY_ATTR {
    const int64_t at = i * kChunk + j;
    const auto seen = hn::Ne(pair, hn::Zero(d));  // scores right of the diagonal are undefined
    hn::StoreU(hn::IfThenElseZero(seen, hn::Mul(pair, hn::LoadU(d, x.scores + at))), d, x.scores + at);
    const Vector similar = hn::IfThenElseZero(seen, hn::LoadU(d, x.a + at));
    const auto below = i > j ? hn::FirstN(d, static_cast<size_t>(i - j)) : hn::FirstN(d, 0);
    const Vector weight = hn::Mul(hn::Set(d, -chunk.strength[i]), pair);
    hn::StoreU(hn::IfThenElseZero(below, hn::Mul(weight, similar)), d, x.a + at);
  });
}

// Loads q, k, k_t and the scores of a chunk.
HWY_NOINLINE void load_delta_chunk(const DeltaCall& call, const Run& sequence, int64_t head, const DeltaChunk& chunk,
                                   const DeltaScratch& x) {
  const int64_t first = chunk.first, n = chunk.n;
  load_rows(series(call.q, sequence, head), first, n, x.key_dim, call.scale, x.q);
  load_rows(series(call.k, sequence, head), first, n, x.key_dim, 1.0f, x.k);
  transpose(x.k, x.keys, n, x.key_dim, x.k_t, kChunk);
  delta_scores(chunk, x);
}

// Computes x.written <- V' from the state before the chunk.
HWY_NOINLINE void delta_written(const DeltaCall& call, const Run& sequence, int64_t head, const DeltaChunk& chunk,
                                const float* state, const DeltaScratch& x, Ahead& ahead) {
  const int64_t first = chunk.first, n = chunk.n;
  const Series<const float> v = series(call.v, sequence, head);
  for (int64_t i = 0; i < n; ++i) load_row(v[first + i], x.value_dim, chunk.strength[i], x.written + i * x.values);
  // V' <- (I - A)^(-1) (B V - B E K S)
  multiply({.rows = n,
            .columns = x.values,
            .out = x.written,
            .out_stride = x.values,
            .first = rows_of(x.k, x.keys, state, x.stride, x.key_dim),
            .start = x.written,
            .start_stride = x.values,
            .first_factors = chunk.read_strength},
           ahead);
  solve_unit({.n = n, .columns = x.values, .a = x.a, .a_stride = kChunk, .x = x.written, .x_stride = x.values});
}

// Prefetches the chunk that begins with `first` during two products.
HWY_INLINE void fetch_delta_chunk(const DeltaCall& call, const Run& sequence, int64_t head, int64_t first,
                                  const DeltaScratch& x, Ahead& ahead) {
  const int64_t n = first < 0 ? 0 : chunk_length(sequence, first);
  ahead.restart(2 * tiles_of(kChunk, x.values));
  ahead.add(series(call.k, sequence, head), first, n, x.key_dim);
  ahead.add(series(call.q, sequence, head), first, n, x.key_dim);
  ahead.add(series(call.v, sequence, head), first, n, x.value_dim);
}

HWY_NOINLINE void delta_forward(const DeltaCall& call, const Piece& piece, const HeadRange& range, float* memory) {
  const DeltaScratch x(call, range.count, memory, false);
  const Run& sequence = piece.sequence;
  const int64_t chunks = chunks_of(sequence.length), end = range.first + range.count;
  Ahead ahead;
  for (int64_t head = range.first; head < end; ++head) {
    float* const state = x.own_state(head - range.first);
    load_state(call.state, piece.index, head, x.key_dim, x.value_dim, state);
    keep_state(state, call.borders.at(piece, head, 0), x.key_dim * x.stride);
  }
  for (int64_t index = 0; index < chunks; ++index) {
    for (int64_t head = range.first; head < end; ++head) {
      const DeltaChunk chunk(call, sequence, head, index * kChunk);
      float* const state = x.own_state(head - range.first);
      fetch_delta_chunk(call, sequence, head, chunk.first + kChunk, x, ahead);
      load_delta_chunk(call, sequence, head, chunk, x);
      delta_written(call, sequence, head, chunk, state, x, ahead);
      if (float* const border = call.borders.at(piece, head, index); border != nullptr) {
        store_rows(x.written, chunk.n, x.values, 1.0f,
                   {border + x.key_dim * x.stride, x.values, call.borders.past_caches}, 0);
      }
      // O <- E Q S + P V', in place if rows need no padding
      const Series<float> o = series(call.o, sequence, head);
      const bool in_place = x.value_dim == x.values;
      multiply({.rows = chunk.n,
                .columns = x.values,
                .out = in_place ? o[chunk.first] : x.o,
                .out_stride = in_place ? o.stride : x.values,
                .first = rows_of(x.q, x.keys, state, x.stride, x.key_dim),
                .second = rows_of(x.scores, kChunk, x.written, x.values, chunk.n, Part::lower),
                .first_factors = chunk.decays.from_start,
                .past_caches = o.past_caches},
               ahead);
      if (!in_place) store_rows(x.o, chunk.n, x.value_dim, 1.0f, o, chunk.first);
      // S' <- e^{G_n} S + (F K)^T V'
      scale_rows(x.k, x.keys, chunk.decays.to_end, chunk.n, x.keys, x.scaled);
      multiply({.rows = x.key_dim,
                .columns = x.values,
                .out = state,
                .out_stride = x.stride,
                .first = columns_of(x.scaled, x.keys, x.written, x.values, chunk.n),
                .start = state,
                .start_stride = x.stride,
                .factor = chunk.decays.total,
                .copy = call.borders.at(piece, head, index + 1),
                .past_caches = call.borders.past_caches});
    }
  }
  for (int64_t head = range.first; head < end; ++head) {
    store_state(x.own_state(head - range.first), x.key_dim, x.value_dim, call.last_state, piece.index, head);
  }
  hwy::FlushStream();
}

// Computes X in x.x, D in x.d_scores and M in x.d_a, from dO in x.o and dS' in x.state.
HWY_NOINLINE void delta_score_gradients(const DeltaChunk& chunk, const float* written, const DeltaScratch& x,
                                        Ahead& ahead) {
  const Tag d;
  const int64_t n = chunk.n;
  // X <- (I - A)^(-T) (F K dS' + P^T dO)
  multiply({.rows = n,
            .columns = x.values,
            .out = x.x,
            .out_stride = x.values,
            .first = rows_of(x.k, x.keys, x.state, x.stride, x.key_dim),
            .second = columns_of(x.scores, kChunk, x.o, x.values, n, Part::upper),
            .first_factors = chunk.decays.to_end},
           ahead);
  solve_unit(
      {.n = n, .columns = x.values, .a = x.a, .a_stride = kChunk, .x = x.x, .x_stride = x.values, .transposed = true});
  transpose(written, x.values, n, x.value_dim, x.written_t, kChunk);
  multiply_pairs(n, x.o, x.values, x.written_t, x.value_dim, x.d_scores);
  multiply_pairs(n, x.x, x.values, x.written_t, x.value_dim, x.d_a);
  for_pairs(chunk.decays, n, [&](int64_t i, int64_t j, Vector pair) HWY_ATTR {
    const int64_t at = i * kChunk + j;
    const auto seen = hn::Ne(pair, hn::Zero(d));
    hn::StoreU(hn::IfThenElseZero(seen, hn::Mul(pair, hn::LoadU(d, x.d_scores + at))), d, x.d_scores + at);
    const auto below = i > j ? hn::FirstN(d, static_cast<size_t>(i - j)) : hn::FirstN(d, 0);
    const Vector d_a = hn::IfThenElseZero(seen, hn::Mul(pair, hn::LoadU(d, x.d_a + at)));
    hn::StoreU(hn::IfThenElseZero(below, hn::Neg(d_a)), d, x.d_a + at);
  });
}

// Computes dQ, R and W in x.d_q, x.d_read and x.d_write.
HWY_NOINLINE void delta_key_gradients(const DeltaChunk& chunk, const float* state, const float* written,
                                      const DeltaScratch& x, Ahead& ahead) {
  const int64_t n = chunk.n;
  transpose(state, x.stride, x.key_dim, x.value_dim, x.state_t, x.stride_t);
  multiply({.rows = n,
            .columns = x.keys,
            .out = x.d_q,
            .out_stride = x.keys,
            .first = rows_of(x.o, x.values, x.state_t, x.stride_t, x.value_dim),
            .second = rows_of(x.d_scores, kChunk, x.k, x.keys, n, Part::lower),
            .first_factors = chunk.decays.from_start},
           ahead);
  multiply({.rows = n,
            .columns = x.keys,
            .out = x.d_read,
            .out_stride = x.keys,
            .first = rows_of(x.x, x.values, x.state_t, x.stride_t, x.value_dim),
            .second = rows_of(x.d_a, kChunk, x.k, x.keys, n, Part::lower),
            .first_factors = chunk.minus_from_start});
  transpose(x.state, x.stride, x.key_dim, x.value_dim, x.state_t, x.stride_t);
  scale_rows(x.k, x.keys, chunk.strength, n, x.keys, x.scaled);
  multiply({.rows = n,
            .columns = x.keys,
            .out = x.d_write,
            .out_stride = x.keys,
            .first = rows_of(written, x.values, x.state_t, x.stride_t, x.value_dim),
            .second = columns_of(x.d_scores, kChunk, x.q, x.keys, n, Part::upper),
            .third = columns_of(x.d_a, kChunk, x.scaled, x.keys, n, Part::upper),
            .first_factors = chunk.decays.to_end});
}

// x.state holds dS' on entry and dS on return.
HWY_NOINLINE void delta_backward_chunk(const DeltaCall& call, const Piece& piece, int64_t head, int64_t index,
                                       const DeltaScratch& x, Ahead& ahead) {
  const Tag d;
  const Run& sequence = piece.sequence;
  const Series<const float> v = series(call.v, sequence, head);
  const Series<float> d_k = series(call.d_k, sequence, head), d_v = series(call.d_v, sequence, head),
                      d_g = series(call.d_g, sequence, head), d_beta = series(call.d_beta, sequence, head);
  const DeltaChunk chunk(call, sequence, head, index * kChunk);
  const int64_t first = chunk.first, n = chunk.n;
  const int64_t matrix = call.borders.matrix();
  const float *const state = call.borders.at(piece, head, index), *const next = state + matrix;
  const float* const written = state + x.key_dim * x.stride;
  fetch_delta_chunk(call, sequence, head, first - kChunk, x, ahead);
  if (index > 0) {
    ahead.add(series(call.d_o, sequence, head), first - kChunk, kChunk, x.value_dim);
    ahead.add({state - matrix, x.stride}, 0, x.key_dim, x.value_dim);
    ahead.add({written - matrix, x.values}, 0, kChunk, x.value_dim);
  }
  load_delta_chunk(call, sequence, head, chunk, x);
  load_rows(series(call.d_o, sequence, head), first, n, x.value_dim, 1.0f, x.o);
  delta_score_gradients(chunk, written, x, ahead);
  delta_key_gradients(chunk, state, written, x, ahead);

  double d_sums[kChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float *const k = x.k + i * x.keys, *const read = x.d_read + i * x.keys;
    float* const write = x.d_write + i * x.keys;
    const double reads = static_cast<double>(dot(k, read, x.keys));
    d_sums[i] = static_cast<double>(dot(x.q + i * x.keys, x.d_q + i * x.keys, x.keys)) -
                static_cast<double>(dot(k, write, x.keys)) + static_cast<double>(chunk.strength[i]) * reads;
    *d_beta[first + i] =
        static_cast<float>(reads + static_cast<double>(dot(x.x + i * x.values, v[first + i], x.value_dim)));
    const Vector strength = hn::Set(d, chunk.strength[i]);
    for (int64_t j = 0; j < x.keys; j += kLanes) {
      hn::StoreU(hn::MulAdd(strength, hn::LoadU(d, read + j), hn::LoadU(d, write + j)), d, write + j);
    }
    store_row(write, x.key_dim, 1.0f, d_k[first + i], d_k.past_caches);
    store_row(x.x + i * x.values, x.value_dim, chunk.strength[i], d_v[first + i], d_v.past_caches);
  }
  store_rows(x.d_q, n, x.key_dim, call.scale, series(call.d_q, sequence, head), first);
  d_sums[n - 1] += state_dot(x.state, next, x.key_dim, x.value_dim);
  sum_to_end(d_sums, n);
  for (int64_t i = 0; i < n; ++i) *d_g[first + i] = static_cast<float>(d_sums[i]);

  // dS <- e^{G_n} dS' + (E Q)^T dO - (B E K)^T X
  scale_rows(x.q, x.keys, chunk.decays.from_start, n, x.keys, x.d_q);
  scale_rows(x.k, x.keys, chunk.read_strength, n, x.keys, x.scaled);
  multiply({.rows = x.key_dim,
            .columns = x.values,
            .out = x.state,
            .out_stride = x.stride,
            .first = columns_of(x.d_q, x.keys, x.o, x.values, n),
            .second = columns_of(x.scaled, x.keys, x.x, x.values, n),
            .start = x.state,
            .start_stride = x.stride,
            .factor = chunk.decays.total});
}

HWY_NOINLINE void delta_backward(const DeltaCall& call, const Piece& piece, const HeadRange& range, float* memory) {
  DeltaScratch x(call, range.count, memory, true);
  Ahead ahead;
  for (int64_t i = 0; i < range.count; ++i) {
    load_state(call.d_last_state, piece.index, range.first + i, x.key_dim, x.value_dim, x.own_state(i));
  }
  for (int64_t index = chunks_of(piece.sequence.length) - 1; index >= 0; --index) {
    for (int64_t i = 0; i < range.count; ++i) {
      x.state = x.own_state(i);
      delta_backward_chunk(call, piece, range.first + i, index, x, ahead);
    }
  }
  for (int64_t i = 0; i < range.count; ++i) {
    store_state(x.own_state(i), x.key_dim, x.value_dim, call.d_state, piece.index, range.first + i);
  }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
