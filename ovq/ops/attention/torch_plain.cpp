#include "ovq/ops/attention/torch_plain.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace ovq::ops {
namespace {

using at::Tensor;

constexpr double kHiddenScore = -std::numeric_limits<double>::infinity();

// [B, T, Hq, D] -> [B, Hkv, G * T, D]: the rows of a kv head's group, head after head
Tensor group_rows(const Tensor& x, int64_t kv_heads) {
  const int64_t batch = x.size(0), time = x.size(1), group = x.size(2) / kv_heads;
  return x.transpose(1, 2).reshape({batch, kv_heads, group * time, x.size(3)});
}

// [B, Hkv, G * T, D] -> [B, T, Hq, D]
Tensor ungroup_rows(const Tensor& x, int64_t heads, int64_t time) {
  return x.reshape({x.size(0), heads, time, x.size(3)}).transpose(1, 2);
}

// beta [Hq] -> [Hkv, G * T, 1]
Tensor beta_rows(const Tensor& beta, int64_t kv_heads, int64_t time) {
  return beta.reshape({kv_heads, -1, 1}).expand({kv_heads, beta.numel() / kv_heads, time}).reshape({kv_heads, -1, 1});
}

}  // namespace

Tensor plain_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                       int64_t query_offset) {
  const int64_t queries = q.size(1), keys = k.size(1), kv_heads = k.size(2), group = q.size(2) / kv_heads;
  const Tensor rows = group_rows(q, kv_heads) * beta_rows(beta, kv_heads, queries);
  const Tensor scores = at::matmul(rows, k.permute({0, 2, 3, 1}));
  const auto index = at::TensorOptions().device(q.device()).dtype(at::kLong);
  const Tensor position = at::arange(query_offset, query_offset + queries, index).unsqueeze(1);
  const Tensor key = at::arange(keys, index).unsqueeze(0);
  Tensor hidden = key > position;
  if (window > 0) hidden = hidden.logical_or(key <= position - window);
  // In place: the backward of a product does not need it.
  scores.masked_fill_(group == 1 ? hidden : hidden.repeat({group, 1}), kHiddenScore);
  return ungroup_rows(at::matmul(at::softmax(scores, -1), v.transpose(1, 2)), q.size(2), queries);
}

}  // namespace ovq::ops
