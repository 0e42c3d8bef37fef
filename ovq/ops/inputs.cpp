#include "ovq/ops/inputs.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>

#include <cstdlib>
#include <cstring>

#include "ovq/kernels/checks.h"
#include "ovq/kernels/parallel.h"
#include "ovq/ops/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;

bool reference_forced() {
  const char* value = std::getenv("OVQ_FORCE_REFERENCE");
  return value != nullptr && std::strcmp(value, "") != 0 && std::strcmp(value, "0") != 0;
}

void check_tensor(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "[", op, "] ", name, " has dtype ", x.scalar_type(),
                   "; must be a floating one");
  check(x.dim() == 4, op, name, " has ", x.dim(), " dimensions; must have 4: [batch, time, heads, dim]");
}

std::vector<int64_t> offsets(const char* op, const c10::optional<Tensor>& cu_seqlens) {
  if (!cu_seqlens || !cu_seqlens->defined()) return {};
  TORCH_CHECK_TYPE(at::isIntegralType(cu_seqlens->scalar_type(), false), "[", op, "] cu_seqlens has dtype ",
                   cu_seqlens->scalar_type(), "; must be an integer one");
  check(cu_seqlens->dim() == 1 && cu_seqlens->numel() >= 1, op, "cu_seqlens has ", cu_seqlens->dim(),
        " dimensions; must have 1, with at least one element");
  const Tensor flat = cu_seqlens->to(at::kCPU, at::kLong).contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

void check_weights(const char* op, const Tensor& weights, const Tensor& k) {
  TORCH_CHECK_TYPE(at::isFloatingType(weights.scalar_type()), "[", op, "] weights has dtype ", weights.scalar_type(),
                   "; must be a floating one");
  check(weights.device() == k.device(), op, "weights is on ", weights.device().str(), "; must be on k's ",
        k.device().str());
  check(weights.sizes() == k.sizes().slice(0, 3), op, "weights is ", weights.sizes(), "; must be ",
        k.sizes().slice(0, 3), ", one for each token and kv head");
  if (weights.is_meta()) return;
  if (weights.is_cpu() && weights.scalar_type() == at::kFloat) {
    return kernels::check_weights(op, view_of(weights.unsqueeze(-1)));
  }
  const Tensor values = weights.detach();
  check(at::logical_and(values > 0, at::isfinite(values)).all().item<bool>(), op,
        "weights has an element that is not positive and finite");
}

kernels::View<const float> shape_of(const Tensor& x) {
  static const float anything = 0.0f;
  return {&anything, x.size(0), x.size(1), x.size(2), x.size(3), 0, 0, 0};
}

}  // namespace

Inputs make_inputs(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights) {
  check_tensor(op, "q", q);
  check_tensor(op, "k", k);
  check_tensor(op, "v", v);
  for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}, {"beta", &beta}}) {
    check(x->device() == q.device() || x->dim() == 0, op, name, " is on ", x->device().str(), "; must be on q's ",
          q.device().str());
  }
  const bool autocast = at::autocast::is_enabled() || at::autocast::is_cpu_enabled();
  if (!autocast) {  // autocast leaves a mix of dtypes behind
    for (const auto& [name, x] : {std::pair{"k", &k}, {"v", &v}}) {
      TORCH_CHECK_TYPE(x->scalar_type() == q.scalar_type(), "[", op, "] ", name, " has dtype ", x->scalar_type(),
                       "; must equal q's ", q.scalar_type());
    }
  }
  check(beta.dim() <= 1, op, "beta has ", beta.dim(), " dimensions; must have 1, one element per query head, or none");

  Inputs inputs;
  inputs.dtype = q.scalar_type();
  inputs.cu_seqlens = offsets(op, cu_seqlens);
  const bool weighted = weights && weights->defined();
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (q.is_meta()) {
    inputs.path = Path::meta;
  } else if (q.is_cpu() && (half || q.scalar_type() == at::kFloat) && !reference_forced()) {
    inputs.path = Path::fused;
  } else {
    inputs.path = Path::plain;
  }
  // On the CPU torch has no products of halves.
  const at::ScalarType inside = inputs.path == Path::fused || (half && q.is_cpu()) ? at::kFloat : q.scalar_type();
  const auto prepare = [&](const Tensor& x) {
    return inputs.path == Path::fused ? with_contiguous_rows(x.to(inside)) : x.to(inside);
  };
  inputs.q = prepare(q);
  inputs.k = prepare(k);
  inputs.v = prepare(v);
  if (weighted) {
    check_weights(op, *weights, k);
    inputs.weights = weights->to(inside);
  }
  inputs.beta = beta.to(q.device(), inside).reshape({-1});
  if (beta.dim() == 0 || beta.numel() == 1) inputs.beta = inputs.beta.expand({q.size(2)});
  inputs.beta = inputs.beta.contiguous();
  const Tensor values = inputs.path == Path::meta ? at::zeros({inputs.beta.numel()})
                                                  : inputs.beta.detach().to(at::kCPU, at::kFloat).contiguous();
  kernels::check_inputs(op, shape_of(q), shape_of(k), shape_of(v),
                        {values.data_ptr<float>(), static_cast<size_t>(values.numel())});
  kernels::check_sequences(op, q.size(0), q.size(1), inputs.cu_seqlens);
  return inputs;
}

void use_torch_threads() { kernels::set_threads(at::get_num_threads()); }

torch::autograd::variable_list once_differentiable(const char* op, torch::autograd::variable_list gradients) {
  if (!at::GradMode::is_enabled()) return gradients;
  const auto error = std::make_shared<torch::autograd::DelayedError>(
      std::string("[") + op +
          "] the fused backward cannot be differentiated again; OVQ_FORCE_REFERENCE=1 selects the plain "
          "path, which can",
      static_cast<int>(gradients.size()));
  // The error hangs on what requires a gradient.
  for (Tensor& x : gradients) {
    if (x.defined()) x = x.detach().requires_grad_();
  }
  return (*error)(std::move(gradients));
}

}  // namespace ovq::ops
