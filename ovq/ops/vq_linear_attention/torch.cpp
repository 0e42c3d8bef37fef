#include "ovq/ops/vq_linear_attention/torch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace ovq::ops {
namespace {

using at::Tensor;

// [B, t, Hkv, ...] -> [B, Hkv, t, ...]
Tensor heads_first(const Tensor& x) { return x.transpose(1, 2); }

// counts [B, Hkv, K] and means [B, Hkv, K, D] with the tokens (index [B, t, Hkv], v [B, t, Hkv, D]) added
void add_tokens(VqState& state, const Tensor& index, const Tensor& v) {
  Tensor &counts = state.counts, &means = state.means;
  const Tensor where = heads_first(index);
  const Tensor ones = at::ones(where.sizes(), counts.options());
  const Tensor after = counts + at::zeros_like(counts).scatter_add_(2, where, ones);
  const Tensor sums =
      at::zeros_like(means).scatter_add(2, where.unsqueeze(-1).expand({-1, -1, -1, v.size(3)}), heads_first(v));
  means = (means * counts.unsqueeze(-1) + sums) / after.clamp_min(1).unsqueeze(-1);
  counts = after;
}

// Attention of q [B, t, H, D], whose first query sees all but the last t - 1 tokens of the window.
Tensor read(const Tensor& q, const Tensor& codewords, const Tensor& beta, const VqState& state) {
  const Tensor &counts = state.counts, &means = state.means;
  const Tensor index = heads_first(state.index), v = heads_first(state.values);
  const int64_t batch = q.size(0), time = q.size(1), heads = q.size(2), kv_heads = codewords.size(0);
  const int64_t group = heads / kv_heads, window = index.size(2), count = codewords.size(1), dim = q.size(3);
  // [B, Hkv, group t, D]
  const Tensor rows = (q * beta.view({1, 1, -1, 1}))
                          .view({batch, time, kv_heads, group, dim})
                          .permute({0, 2, 3, 1, 4})
                          .reshape({batch, kv_heads, group * time, dim});
  const Tensor logits = at::matmul(rows, codewords.transpose(1, 2));  // [B, Hkv, group t, K]
  const Tensor of_window = logits.gather(3, index.unsqueeze(2).expand({-1, -1, group * time, -1}));
  const Tensor last = at::arange(window - time, window, q.options().dtype(at::kLong)).repeat({group}).unsqueeze(1);
  const Tensor hidden = at::arange(window, last.options()).unsqueeze(0) > last;
  constexpr double kHidden = -std::numeric_limits<double>::infinity();
  const Tensor all = at::cat({logits + counts.log().unsqueeze(2), of_window.masked_fill(hidden, kHidden)}, 3);
  const Tensor p = all.softmax(3);
  const Tensor o = at::matmul(p.narrow(3, 0, count), means) + at::matmul(p.narrow(3, count, window), v);
  return o.view({batch, kv_heads, group, time, v.size(3)})
      .permute({0, 3, 1, 2, 4})
      .reshape({batch, time, heads, v.size(3)});
}

}  // namespace

Tensor vq_linear_attention(const Tensor& given_q, const Tensor& index, const Tensor& codewords, const Tensor& given_v,
                           const Tensor& beta, int64_t chunk, VqState& state) {
  // In the codebook's precision, also under autocast: counts outgrow eight bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor q = given_q.to(codewords.scalar_type()), v = given_v.to(codewords.scalar_type());
  const int64_t batch = q.size(0), kv_heads = codewords.size(0);
  if (!state.counts.defined()) {
    state.counts = at::zeros({batch, kv_heads, codewords.size(1)}, q.options());
    state.means = at::zeros({batch, kv_heads, codewords.size(1), v.size(3)}, q.options());
    state.index = index.narrow(1, 0, 0);
    state.values = v.narrow(1, 0, 0);
  }
  for (Tensor* x : {&state.counts, &state.means, &state.values}) *x = x->to(q.scalar_type());
  std::vector<Tensor> outputs;
  for (int64_t first = 0; first < q.size(1);) {
    const int64_t row = state.position % chunk, count = std::min(chunk - row, q.size(1) - first);
    Tensor &window_index = state.index, &window_values = state.values;
    if (row == 0 && window_index.size(1) == 2 * chunk) {  // the oldest chunk of the window goes into the dictionary
      add_tokens(state, window_index.narrow(1, 0, chunk), window_values.narrow(1, 0, chunk));
      window_index = window_index.narrow(1, chunk, chunk).contiguous();
      window_values = window_values.narrow(1, chunk, chunk).contiguous();
    }
    window_index = at::cat({window_index, index.narrow(1, first, count)}, 1);
    window_values = at::cat({window_values, v.narrow(1, first, count)}, 1);
    outputs.push_back(read(q.narrow(1, first, count), codewords, beta, state));
    state.position += count;
    first += count;
  }
  const Tensor o = outputs.empty() ? at::zeros({batch, 0, q.size(2), v.size(3)}, q.options()) : at::cat(outputs, 1);
  return o.to(given_q.scalar_type());
}

}  // namespace ovq::ops
