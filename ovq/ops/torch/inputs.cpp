#include "ovq/ops/torch/inputs.h"

#include <ATen/Parallel.h>

#include "ovq/core/parallel.h"
#include "ovq/ops/attention/checks.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/packed.h"
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

void check_weights(const char* op, const Tensor& weights, const Tensor& k, bool fused) {
  TORCH_CHECK_TYPE(at::isFloatingType(weights.scalar_type()), "[", op, "] weights has dtype ", weights.scalar_type(),
                   "; must be a floating one");
  check(weights.device() == k.device(), op, "weights is on ", weights.device().str(), "; must be on k's ",
        k.device().str());
  check(weights.sym_sizes() == k.sym_sizes().slice(0, 3), op, "weights is ", ShapeText{weights}, "; must be [",
        SizeText{k, 0}, ", ", SizeText{k, 1}, ", ", SizeText{k, 2}, "], one for each token and kv head");
  if (weights.is_meta() || fused) return;  // the plan looks at the values
  const Tensor values = weights.detach();
  check(at::logical_and(values > 0, values <= kernels::kLargestWeight).all().item<bool>(), op,
        "weights has an element that is not positive and finite, at most ", kernels::kLargestWeight);
}

Path path_of(const char* op, const Tensor& q, Backend backend) {
  if (q.is_meta()) return Path::meta;
  const at::ScalarType type = q.scalar_type();
  const bool kernels = q.is_cpu() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16);
  backend = resolved(backend);
  check(kernels || backend != Backend::fused, op, "backend is 'fused'; q is ", c10::toString(type), " on ",
        q.device().str(), ", and there are kernels for float32, bfloat16 and half on the CPU only");
  return kernels && backend != Backend::composed ? Path::fused : Path::plain;
}

}  // namespace

Inputs make_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights, Backend backend) {
  check_tensor(op, "q", q);
  check_tensor(op, "k", k);
  check_tensor(op, "v", v);
  for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}, {"beta", &beta}}) {
    check(x->device() == q.device() || x->dim() == 0, op, name, " is on ", x->device().str(), "; must be on q's ",
          q.device().str());
  }
  const bool traced = is_traced({q, k, v, beta, weights.value_or(Tensor()), cu_seqlens.value_or(Tensor())});
  const bool autocast = autocast_on();
  if (!autocast) {  // autocast leaves a mix of dtypes behind
    for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}}) {
      TORCH_CHECK_TYPE(x->scalar_type() == q.scalar_type(), "[", op, "] ", name, " has dtype ", x->scalar_type(),
                       "; must equal q's ", q.scalar_type());
    }
  }
  check(beta.dim() <= 1, op, "beta has ", beta.dim(), " dimensions; must have 1, one element per query head, or none");

  Inputs inputs;
  inputs.dtype = q.scalar_type();
  const bool weighted = weights && weights->defined();
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  inputs.path = path_of(op, q, backend);
  if (inputs.path != Path::fused || !traced) inputs.cu_seqlens = offsets_of(op, cu_seqlens);
  if (inputs.path == Path::fused) refuse_tangents(op, {q, k, v, beta, weights.value_or(Tensor())});
  // On the CPU torch has no products of halves.
  const at::ScalarType inside = inputs.path == Path::fused || (half && q.is_cpu()) ? at::kFloat : q.scalar_type();
  const auto prepare = [&](const Tensor& x) {
    return inputs.path == Path::fused ? with_contiguous_rows(x.to(inside)) : x.to(inside);
  };
  inputs.q = prepare(q);
  inputs.k = prepare(k);
  inputs.v = prepare(v);
  if (weighted) {
    check_weights(op, *weights, k, inputs.path == Path::fused);
    inputs.weights = weights->to(inside);
  }
  inputs.beta = beta.to(q.device(), inside);
  if (beta.dim() == 0 || beta.sym_numel() == 1) {
    inputs.beta = inputs.beta.reshape({1}).expand_symint({q.sym_size(2)});
  }
  inputs.beta = inputs.beta.contiguous();
  return inputs;
}

kernels::View<const float> plan_view(const Inputs& inputs, const Tensor& x) {
  if (inputs.path == Path::fused) return view_of(x);
  static const float anything = 1.0f;  // a weight that passes
  return {&anything, x.size(0), x.size(1), x.size(2), x.size(3), 0, 0, 0};
}

Tensor plan_beta(const Inputs& inputs) {
  if (inputs.path == Path::fused) return inputs.beta;
  if (inputs.path == Path::meta) return at::zeros({inputs.beta.numel()});
  return inputs.beta.detach().to(at::kCPU, at::kFloat).contiguous();
}

void check_has_kernels(const char* op, const char* name, const Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  check(x.is_cpu() && (type == at::kFloat || type == at::kHalf || type == at::kBFloat16), op, name, " is ",
        c10::toString(type), " on ", x.device().str(),
        "; the kernels take float32, bfloat16 and half on the CPU (ovq.reference has the formula in Python)");
}

void use_torch_threads() { kernels::set_threads(at::get_num_threads()); }

}  // namespace ovq::ops
