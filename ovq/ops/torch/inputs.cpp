#include "ovq/ops/torch/inputs.h"

#include <ATen/Parallel.h>

#include "ovq/core/checks.h"
#include "ovq/core/parallel.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/sizes.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::ops {
namespace {

using at::Tensor;

void check_tensor(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK_TYPE(x.defined(), "[", op, "] ", name, " is None; must be a tensor");
  TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "[", op, "] ", name, " has dtype ", x.scalar_type(),
                   "; must be a floating one");
  check(x.dim() == 4, op, name, " has ", x.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
}

void check_weights(const char* op, const Tensor& weights, const Tensor& k) {
  TORCH_CHECK_TYPE(at::isFloatingType(weights.scalar_type()), "[", op, "] weights has dtype ", weights.scalar_type(),
                   "; must be a floating one");
  check(weights.device() == k.device(), op, "weights is on ", weights.device().str(), "; must be on k's ",
        k.device().str());
  check(weights.sym_sizes() == k.sym_sizes().slice(0, 3), op, "weights is ", ShapeText{weights}, "; must be [",
        SizeText{k, 0}, ", ", SizeText{k, 1}, ", ", SizeText{k, 2}, "], one for each token and kv head");
}

Tensor as_rows(const Tensor& x) { return with_contiguous_rows(x.to(at::kFloat)); }

}  // namespace

Inputs make_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const c10::optional<Tensor>& weights) {
  check_tensor(op, "q", q);
  check_tensor(op, "k", k);
  check_tensor(op, "v", v);
  for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}, {"beta", &beta}}) {
    check(x->device() == q.device() || x->dim() == 0, op, name, " is on ", x->device().str(), "; must be on q's ",
          q.device().str());
  }
  if (!autocast_on()) {  // autocast leaves a mix of dtypes behind
    for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}}) {
      TORCH_CHECK_TYPE(x->scalar_type() == q.scalar_type(), "[", op, "] ", name, " has dtype ", x->scalar_type(),
                       "; must equal q's ", q.scalar_type());
    }
  }
  check_has_kernels(op, "q", q);
  check(beta.dim() <= 1, op, "beta has ", beta.dim(), " dimensions; must have 1, one element per query head, or none");
  refuse_tangents(op, {q, k, v, beta, weights.value_or(Tensor())});

  Inputs inputs{.q = as_rows(q), .k = as_rows(k), .v = as_rows(v), .beta = {}, .weights = {}, .dtype = q.scalar_type()};
  if (weights && weights->defined()) {
    check_weights(op, *weights, k);
    inputs.weights = weights->to(at::kFloat);
  }
  inputs.beta = beta.to(q.device(), at::kFloat);
  if (beta.dim() == 0 || beta.sym_numel() == 1) {
    inputs.beta = inputs.beta.reshape({1}).expand_symint({q.sym_size(2)});
  }
  inputs.beta = inputs.beta.contiguous();
  return inputs;
}

void check_has_kernels(const char* op, const char* name, const Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  if (x.is_cpu() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16)) return;
  fail(op, name, " is ", c10::toString(type), " on ", x.device().str(),
       "; the kernels take float32, bfloat16 and half on the CPU (ovq.reference has the formula in Python)");
}

void use_torch_threads() { kernels::set_threads(at::get_num_threads()); }

}  // namespace ovq::ops
