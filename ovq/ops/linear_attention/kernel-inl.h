// Decayed linear attention by chunks (see linear_attention.h): the parts of one chunk, and loops over the chunks.
//
// With G the sums of g in a chunk, E = diag(e^G), F = diag(e^{G_n - G}), L_ij = e^{G_i - G_j} for i >= j and S the
// state before it (queries hold the scale, values the steps):
//   P = (Q K^T) . L;  O = E Q S + P V;  S' = e^{G_n} S + (F K)^T V
// Backward, with dS' from the chunk after it:
//   dV = P^T dO + F K dS';  D = (dO V^T) . L;  dQ = E dO S^T + D K;  dK = F V dS'^T + D^T Q
//   dG_i = q_i . dq_i - k_i . dk_i, and <dS', S'> for the last token;  dS = e^{G_n} dS' + (E Q)^T dO
#if defined(OVQ_OPS_LINEAR_ATTENTION_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVQ_OPS_LINEAR_ATTENTION_KERNEL_INL_H_
#undef OVQ_OPS_LINEAR_ATTENTION_KERNEL_INL_H_
#else
#define OVQ_OPS_LINEAR_ATTENTION_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "ovq/ops/recurrence/decays-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::recurrence {
namespace HWY_NAMESPACE {

// to <- from . L
HWY_NOINLINE void decayed_scores(const Decays& decays, int64_t n, const float* from, float* to) {
  const Tag d;
  for_pairs(decays, n, [&](int64_t i, int64_t j, Vector pair) HWY_ATTR {
    const int64_t at = i * kChunk + j;
    // Scores right of the diagonal are undefined.
    const Vector score = hn::IfThenElseZero(hn::Ne(pair, hn::Zero(d)), hn::LoadU(d, from + at));
    hn::StoreU(hn::Mul(pair, score), d, to + at);
  });
}

// The matrices of one chunk for the gradients of linear attention.
struct LinearBackward {
  int64_t n = 0, key_dim = 0, columns = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;  // [n, padded dim]
  const float* scores = nullptr;                         // P [n, n]
  const float* d_o = nullptr;                            // [n, columns]
  const float* state = nullptr;                          // before the chunk
  const float* next_state = nullptr;                     // after it
  float* d_state = nullptr;                              // dS' on entry, dS on return
  float *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;  // written
  double* d_sums = nullptr;                              // [n], written
};

// Scratch memory of linear_backward_chunk.
struct LinearBackwardScratch {
  LinearBackwardScratch(Carver& carver, int64_t key_dim, int64_t columns)
      : scaled_keys(carver.take(kChunk, padded(key_dim))),
        d_scores(carver.take(kChunk, kChunk)),
        values_t(carver.take(columns, kChunk)),
        state_t(carver.take(columns, state_stride(key_dim))) {}
  float *scaled_keys, *d_scores, *values_t, *state_t;
};

HWY_NOINLINE void linear_backward_chunk(const LinearBackward& x, const Decays& decays,
                                        const LinearBackwardScratch& scratch, Ahead& ahead) {
  const int64_t n = x.n, key_dim = x.key_dim, keys = padded(key_dim), columns = x.columns, values = padded(columns);
  const int64_t stride = state_stride(columns), stride_t = state_stride(key_dim);
  // dV <- F K dS' + P^T dO
  multiply({.rows = n,
            .columns = values,
            .out = x.d_v,
            .out_stride = values,
            .first = rows_of(x.k, keys, x.d_state, stride, key_dim),
            .second = columns_of(x.scores, kChunk, x.d_o, values, n, Part::upper),
            .first_factors = decays.to_end},
           ahead);
  // D <- (dO V^T) . L
  transpose(x.v, values, n, columns, scratch.values_t, kChunk);
  multiply_pairs(n, x.d_o, values, scratch.values_t, columns, scratch.d_scores);
  decayed_scores(decays, n, scratch.d_scores, scratch.d_scores);
  // dQ <- E dO S^T + D K
  transpose(x.state, stride, key_dim, columns, scratch.state_t, stride_t);
  multiply({.rows = n,
            .columns = keys,
            .out = x.d_q,
            .out_stride = keys,
            .first = rows_of(x.d_o, values, scratch.state_t, stride_t, columns),
            .second = rows_of(scratch.d_scores, kChunk, x.k, keys, n, Part::lower),
            .first_factors = decays.from_start});
  // dK <- F V dS'^T + D^T Q
  transpose(x.d_state, stride, key_dim, columns, scratch.state_t, stride_t);
  multiply({.rows = n,
            .columns = keys,
            .out = x.d_k,
            .out_stride = keys,
            .first = rows_of(x.v, values, scratch.state_t, stride_t, columns),
            .second = columns_of(scratch.d_scores, kChunk, x.q, keys, n, Part::upper),
            .first_factors = decays.to_end});
  for (int64_t i = 0; i < n; ++i) {
    x.d_sums[i] = static_cast<double>(dot(x.q + i * keys, x.d_q + i * keys, keys)) -
                  static_cast<double>(dot(x.k + i * keys, x.d_k + i * keys, keys));
  }
  x.d_sums[n - 1] += state_dot(x.d_state, x.next_state, key_dim, columns);
  // dS <- e^{G_n} dS' + (E Q)^T dO
  scale_rows(x.q, keys, decays.from_start, n, keys, scratch.scaled_keys);
  multiply({.rows = key_dim,
            .columns = values,
            .out = x.d_state,
            .out_stride = stride,
            .first = columns_of(scratch.scaled_keys, keys, x.d_o, values, n),
            .start = x.d_state,
            .start_stride = stride,
            .factor = decays.total},
           ahead);
}

struct LinearScratch {
  LinearScratch(const LinearCall& call, int64_t heads, float* data, bool backward)
      : keys(padded(call.q.dim)), values(padded(call.v.dim)), stride(state_stride(call.v.dim)) {
    const int64_t key_dim = call.q.dim;
    Carver carver(data);
    q = carver.take(kChunk, keys);
    k = carver.take(kChunk, keys);
    k_t = carver.take(key_dim, kChunk);
    scaled = carver.take(kChunk, keys);
    scores = carver.take(kChunk, kChunk);
    decayed = carver.take(kChunk, kChunk);
    v = carver.take(kChunk, values);
    o = carver.take(kChunk, values);
    state_floats = key_dim * stride;
    states = carver.take(heads, state_floats);
    if (backward) {
      d_q = carver.take(kChunk, keys);
      d_k = carver.take(kChunk, keys);
      all_d_q = carver.take(kChunk, keys);
      all_d_k = carver.take(kChunk, keys);
      d_v = carver.take(kChunk, values);
      rest = carver.take(0, 0);
      const LinearBackwardScratch counted(carver, key_dim, call.v.dim);
    }
    size = carver.used();
  }

  float* own_state(int64_t i) const { return states + i * state_floats; }

  int64_t keys, values;
  int64_t stride, state_floats;  // of states
  float *q, *k, *k_t, *scaled, *scores, *decayed, *v, *o, *states;
  float *d_q = nullptr, *d_k = nullptr, *all_d_q = nullptr, *all_d_k = nullptr, *d_v = nullptr, *rest = nullptr;
  int64_t size = 0;
};

// The inputs of one head in a chunk: decays, values.
struct LinearHead {
  LinearHead(const LinearCall& call, const Run& sequence, int64_t head)
      : v(series(call.v, sequence, head)),
        g(series(call.g, sequence, head)),
        steps(series(call.steps, sequence, head)),
        rate(call.rates == nullptr ? 0.0f : call.rates[head]),
        skip(call.skips == nullptr ? 0.0f : call.skips[head]) {}

  float step(int64_t t) const { return steps.data == nullptr ? 1.0f : *steps[t]; }
  HWY_INLINE void decays(int64_t first, int64_t n, Decays& to) const {
    fill_decays(
        n,
        [&](int64_t i) HWY_ATTR {
          if (g.data != nullptr) return *g[first + i];
          return rate * step(first + i);
        },
        to);
  }
  HWY_INLINE void load_values(int64_t first, int64_t n, int64_t size, float* to) const {
    for (int64_t i = 0; i < n; ++i) load_row(v[first + i], size, step(first + i), to + i * padded(size));
  }

  Series<const float> v, g, steps;
  float rate, skip;
};

HWY_INLINE void load_keys_and_scores(const LinearCall& call, const Run& sequence, int64_t group, int64_t first,
                                     int64_t n, const LinearScratch& x) {
  const int64_t key_dim = call.q.dim;
  load_rows(series(call.q, sequence, group), first, n, key_dim, call.scale, x.q);
  load_rows(series(call.k, sequence, group), first, n, key_dim, 1.0f, x.k);
  transpose(x.k, x.keys, n, key_dim, x.k_t, kChunk);
  multiply_pairs(n, x.q, x.keys, x.k_t, key_dim, x.scores);
}

// Prefetches a head's part of a chunk during two products; queries and keys too if it is the first of its group.
HWY_INLINE void fetch_linear_chunk(const LinearCall& call, const Run& sequence, int64_t head, bool first_of_group,
                                   int64_t chunk, const LinearScratch& x, Ahead& ahead) {
  const int64_t first = chunk * kChunk, n = chunk < 0 ? 0 : chunk_length(sequence, first);
  ahead.restart(tiles_of(kChunk, x.values) + tiles_of(call.q.dim, x.values));
  if (first_of_group) {
    ahead.add(series(call.q, sequence, head / call.group()), first, n, call.q.dim);
    ahead.add(series(call.k, sequence, head / call.group()), first, n, call.q.dim);
  }
  ahead.add(series(call.v, sequence, head), first, n, call.v.dim);
}

HWY_NOINLINE void linear_forward(const LinearCall& call, const Piece& piece, const HeadRange& range, float* memory) {
  const LinearScratch x(call, range.count, memory, false);
  const Run& sequence = piece.sequence;
  const int64_t key_dim = call.q.dim, value_dim = call.v.dim, group_heads = call.group();
  const int64_t end = range.first + range.count, chunks = chunks_of(sequence.length);
  Decays decays;
  Ahead ahead;
  for (int64_t head = range.first; head < end; ++head) {
    float* const state = x.own_state(head - range.first);
    load_state(call.state, piece.index, head, key_dim, value_dim, state);
    keep_state(state, call.borders.at(piece, head, 0), x.state_floats);
  }
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * kChunk, n = chunk_length(sequence, first);
    for (int64_t index = range.first; index < end; ++index) {
      const int64_t group = index / group_heads;
      const bool first_of_group = index == range.first || index % group_heads == 0;
      if (first_of_group) load_keys_and_scores(call, sequence, group, first, n, x);
      const LinearHead head(call, sequence, index);
      float* const state = x.own_state(index - range.first);
      head.decays(first, n, decays);
      head.load_values(first, n, value_dim, x.v);
      decayed_scores(decays, n, x.scores, x.decayed);
      fetch_linear_chunk(call, sequence, index, first_of_group, chunk + 1, x, ahead);
      // O <- skip V + E Q S + P V; in place if rows need no padding
      const Series<float> o = series(call.o, sequence, index);
      const bool in_place = value_dim == x.values;
      if (head.skip != 0.0f && !in_place) load_rows(head.v, first, n, value_dim, 1.0f, x.o);
      multiply({.rows = n,
                .columns = x.values,
                .out = in_place ? o[first] : x.o,
                .out_stride = in_place ? o.stride : x.values,
                .first = rows_of(x.q, x.keys, state, x.stride, key_dim),
                .second = rows_of(x.decayed, kChunk, x.v, x.values, n, Part::lower),
                .start = head.skip == 0.0f ? nullptr
                         : in_place        ? head.v[first]
                                           : x.o,
                .start_stride = in_place ? head.v.stride : x.values,
                .factor = head.skip,
                .first_factors = decays.from_start,
                .past_caches = o.past_caches},
               ahead);
      if (!in_place) store_rows(x.o, n, value_dim, 1.0f, o, first);
      // S' <- e^{G_n} S + (F K)^T V
      scale_rows(x.k, x.keys, decays.to_end, n, x.keys, x.scaled);
      multiply({.rows = key_dim,
                .columns = x.values,
                .out = state,
                .out_stride = x.stride,
                .first = columns_of(x.scaled, x.keys, x.v, x.values, n),
                .start = state,
                .start_stride = x.stride,
                .factor = decays.total,
                .copy = call.borders.at(piece, index, chunk + 1),
                .past_caches = call.borders.past_caches},
               ahead);
    }
  }
  for (int64_t head = range.first; head < end; ++head) {
    store_state(x.own_state(head - range.first), key_dim, value_dim, call.last_state, piece.index, head);
  }
  hwy::FlushStream();
}

// Stores the gradients of a head's values, steps and decays. x.o holds dO.
HWY_INLINE void store_value_gradients(const LinearCall& call, const Piece& piece, int64_t index, int64_t first,
                                      int64_t n, const LinearScratch& x, const double* d_gates) {
  const Run& sequence = piece.sequence;
  const LinearHead head(call, sequence, index);
  const int64_t value_dim = call.v.dim;
  const Series<float> d_v = series(call.d_v, sequence, index), d_g = series(call.d_g, sequence, index),
                      d_steps = series(call.d_steps, sequence, index);
  const Tag d;
  const Vector skip = hn::Set(d, head.skip);
  double d_rate = 0, d_skip = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t t = first + i;
    const float step = head.step(t);
    const float *const v = head.v[t], *const o = x.o + i * x.values;
    float* const own = x.d_v + i * x.values;
    if (call.d_skips != nullptr) d_skip += static_cast<double>(dot(o, v, value_dim));
    d_rate += d_gates[i] * static_cast<double>(step);
    if (d_g.data != nullptr) *d_g[t] = static_cast<float>(d_gates[i]);
    if (d_steps.data != nullptr) {
      const double d_step = static_cast<double>(dot(own, v, value_dim));
      *d_steps[t] = static_cast<float>(d_step + static_cast<double>(head.rate) * d_gates[i]);
    }
    const Vector by_step = hn::Set(d, step);
    for (int64_t j = 0; j < x.values; j += kLanes) {
      const Vector through_skip = hn::Mul(skip, hn::LoadU(d, o + j));
      hn::StoreU(hn::MulAdd(by_step, hn::LoadU(d, own + j), through_skip), d, own + j);
    }
    store_row(own, value_dim, 1.0f, d_v[t], d_v.past_caches);
  }
  if (call.d_rates != nullptr) call.d_rates[piece.index * call.v.heads + index] += d_rate;
  if (call.d_skips != nullptr) call.d_skips[piece.index * call.v.heads + index] += d_skip;
}

HWY_INLINE void add_rows(const float* from, int64_t n, int64_t columns, float* to) {
  const Tag d;
  for (int64_t j = 0; j < n * columns; j += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + j), hn::LoadU(d, from + j)), d, to + j);
  }
}

// Takes whole groups, because gradients of keys are sums over a group's heads.
HWY_NOINLINE void linear_backward(const LinearCall& call, const Piece& piece, const HeadRange& range, float* memory) {
  const LinearScratch x(call, range.count, memory, true);
  Carver rest(x.rest);
  const Run& sequence = piece.sequence;
  const int64_t key_dim = call.q.dim, value_dim = call.v.dim, group_heads = call.group();
  const int64_t end = range.first + range.count;
  const LinearBackwardScratch scratch(rest, key_dim, value_dim);
  Decays decays;
  Ahead ahead;
  double d_sums[kChunk];
  for (int64_t head = range.first; head < end; ++head) {
    load_state(call.d_last_state, piece.index, head, key_dim, value_dim, x.own_state(head - range.first));
  }
  for (int64_t chunk = chunks_of(sequence.length) - 1; chunk >= 0; --chunk) {
    const int64_t first = chunk * kChunk, n = chunk_length(sequence, first);
    for (int64_t group = range.first / group_heads; group < end / group_heads; ++group) {
      load_keys_and_scores(call, sequence, group, first, n, x);
      for (int64_t h = 0; h < group_heads; ++h) {
        const int64_t index = group * group_heads + h;
        const LinearHead head(call, sequence, index);
        head.decays(first, n, decays);
        head.load_values(first, n, value_dim, x.v);
        load_rows(series(call.d_o, sequence, index), first, n, value_dim, 1.0f, x.o);
        decayed_scores(decays, n, x.scores, x.decayed);
        fetch_linear_chunk(call, sequence, index, h == 0, chunk - 1, x, ahead);
        if (chunk > 0) {
          ahead.add(series(call.d_o, sequence, index), first - kChunk, kChunk, value_dim);
          ahead.add({call.borders.at(piece, index, chunk - 1), x.stride}, 0, key_dim, value_dim);
        }
        linear_backward_chunk({.n = n,
                               .key_dim = key_dim,
                               .columns = value_dim,
                               .q = x.q,
                               .k = x.k,
                               .v = x.v,
                               .scores = x.decayed,
                               .d_o = x.o,
                               .state = call.borders.at(piece, index, chunk),
                               .next_state = call.borders.at(piece, index, chunk + 1),
                               .d_state = x.own_state(index - range.first),
                               .d_q = h == 0 ? x.all_d_q : x.d_q,
                               .d_k = h == 0 ? x.all_d_k : x.d_k,
                               .d_v = x.d_v,
                               .d_sums = d_sums},
                              decays, scratch, ahead);
        sum_to_end(d_sums, n);
        store_value_gradients(call, piece, index, first, n, x, d_sums);
        if (h == 0) continue;
        add_rows(x.d_q, n, x.keys, x.all_d_q);
        add_rows(x.d_k, n, x.keys, x.all_d_k);
      }
      store_rows(x.all_d_q, n, key_dim, call.scale, series(call.d_q, sequence, group), first);
      store_rows(x.all_d_k, n, key_dim, 1.0f, series(call.d_k, sequence, group), first);
    }
  }
  for (int64_t head = range.first; head < end; ++head) {
    store_state(x.own_state(head - range.first), key_dim, value_dim, call.d_state, piece.index, head);
  }
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace ovq::kernels::recurrence
HWY_AFTER_NAMESPACE();

#endif
