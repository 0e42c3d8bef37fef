#include "ovq/ops/linear_attention/torch_chunked.h"

namespace ovq::ops {

using at::Tensor;

namespace {

Tensor scores(const ChunkedLinear& x) { return product(x.q, x.k.transpose(-1, -2)).mul_(x.decay.pairs).mul_(x.scale); }

Tensor before_chunks(const ChunkedLinear& x) { return x.states.narrow(1, 0, x.q.size(1)); }

// (d_o v^T . L) scale
Tensor score_gradients(const ChunkedLinear& x, const Tensor& d_o) {
  return product(d_o, x.v.transpose(-1, -2)).mul_(x.decay.pairs).mul_(x.scale);
}

Tensor query_gradients(const ChunkedLinear& x, const Tensor& d_o, const Tensor& d_scores) {
  const Tensor d_q = product(d_o, before_chunks(x).transpose(-1, -2)).mul_(x.decay.from_start * x.scale);
  add_product(d_q, d_scores, x.k);
  return d_q;
}

}  // namespace

void add_states(ChunkedLinear& x, const Tensor& start) {
  x.states = border_states(product((x.k * x.decay.to_end).transpose(-1, -2), x.v), x.decay.total, start);
}

Tensor chunked_linear_forward(const ChunkedLinear& x) {
  const Tensor o = product(x.q * (x.decay.from_start * x.scale), before_chunks(x));
  add_product(o, scores(x), x.v);
  return o;
}

Tensor chunked_linear_backward_q(const ChunkedLinear& x, const Tensor& d_o) {
  return query_gradients(x, d_o, score_gradients(x, d_o));
}

ChunkedLinearGradients chunked_linear_backward(const ChunkedLinear& x, const Tensor& d_o, const Tensor& d_end) {
  const int64_t chunks = x.q.size(1), last = x.q.size(2) - 1;
  const Tensor reads = x.q * (x.decay.from_start * x.scale);
  const Tensor d_states = border_gradients(product(reads.transpose(-1, -2), d_o), x.decay.total, d_end);
  const Tensor d_after = d_states.narrow(1, 1, chunks);
  const Tensor d_scores = score_gradients(x, d_o);

  const Tensor d_v = product(x.k * x.decay.to_end, d_after);
  add_product(d_v, scores(x).transpose(-1, -2), d_o);
  const Tensor d_q = query_gradients(x, d_o, d_scores);
  const Tensor d_k = product(x.v, d_after.transpose(-1, -2)).mul_(x.decay.to_end);
  add_product(d_k, d_scores.transpose(-1, -2), x.q);

  // G_i multiplies what q_i reads and divides what k_i writes; the last also multiplies the state after the chunk.
  const Tensor d_sums = row_dots(x.q, d_q).sub_(row_dots(x.k, d_k));
  d_sums.select(-1, last).add_(row_dots(d_after.flatten(2), x.states.narrow(1, 1, chunks).flatten(2)));
  return {.d_q = d_q, .d_k = d_k, .d_v = d_v, .d_g = sum_to_end(d_sums), .d_start = d_states.select(1, 0)};
}

}  // namespace ovq::ops
