#include "ovq/ops/attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "ovq/kernels/attention.h"
#include "ovq/ops/inputs.h"
#include "ovq/ops/once_differentiable.h"
#include "ovq/ops/output_memory.h"
#include "ovq/ops/plain_attention.h"
#include "ovq/ops/stored_weights.h"
#include "ovq/ops/tensor_view.h"
#include "ovq/ops/torch_compat.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What forward tells backward, besides tensors.
struct AttentionCall : torch::CustomClassHolder {
  int64_t window = 0, query_offset = 0;
  std::vector<int64_t> cu_seqlens;
  kernels::AttentionPlan plan;
};
using AttentionCallPtr = c10::intrusive_ptr<AttentionCall>;

kernels::AttentionInputs kernel_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                       const AttentionCall& call) {
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .beta = span_of(beta),
          .window = call.window,
          .query_offset = call.query_offset,
          .cu_seqlens = call.cu_seqlens};
}

class FusedAttention : public OnceDifferentiable<FusedAttention> {
 public:
  static constexpr const char* kOp = "attention";

  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                        const AttentionCallPtr& call) {
    RECORD_USER_SCOPE("ovq::attention_forward");
    use_torch_threads();
    const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
    const Tensor lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options());
    kernels::attention_forward(call->plan, kernel_inputs(q, k, v, beta, *call), {.o = view_of(o), .lse = view_of(lse)});
    context->save_for_backward({q, k, v, beta, o, lse});
    context->saved_data["call"] = c10::IValue::make_capsule(call);
    return o;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::attention_backward");
    use_torch_threads();
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &beta = saved[3], &o = saved[4], &lse = saved[5];
    const auto capsule = context->saved_data["call"].toCapsule();
    const AttentionCall& call = static_cast<const AttentionCall&>(*capsule);
    const Tensor d_o = with_contiguous_rows(gradients[0]);
    const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
    const Tensor d_beta = empty_output(beta.sizes());
    kernels::attention_backward(
        call.plan, kernel_inputs(q, k, v, beta, call), {.o = view_of(o), .lse = view_of(lse)}, view_of(d_o),
        {.d_q = view_of(d_q), .d_k = view_of(d_k), .d_v = view_of(d_v), .d_beta = span_of(d_beta)});
    return {d_q, d_k, d_v, d_beta, Tensor()};
  }
};

// Without gradients: nothing is kept. q in float32, k and v both in that or both in bfloat16, on the CPU.
Tensor inferred_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                          int64_t query_offset) {
  constexpr const char* op = "attention";
  RECORD_USER_SCOPE("ovq::attention_forward");
  use_torch_threads();
  const Tensor queries = with_contiguous_rows(q), keys = with_contiguous_rows(k), values = with_contiguous_rows(v);
  const Tensor factors = (beta.numel() == 1 ? beta.reshape({1}).expand({q.size(2)}) : beta).contiguous();
  kernels::AttentionInputs in{
      .q = view_of(queries), .beta = span_of(factors), .window = window, .query_offset = query_offset};
  if (k.scalar_type() == at::kBFloat16) {
    in.narrow_k = narrow_view_of(keys);
    in.narrow_v = narrow_view_of(values);
  } else {
    in.k = view_of(keys);
    in.v = view_of(values);
  }
  const kernels::AttentionPlan plan = kernels::plan_attention(op, in);
  const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
  kernels::attention_forward(plan, in, {.o = view_of(o), .lse = {}});
  return o;
}

// Whether there is nothing to convert, to keep or to look up.
bool plainly_fused(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                   const c10::optional<Tensor>& cu_seqlens, Backend backend) {
  const auto type = k.scalar_type();
  const bool types = q.scalar_type() == at::kFloat && beta.scalar_type() == at::kFloat && type == v.scalar_type() &&
                     (type == at::kFloat || type == at::kBFloat16);
  const bool shapes = q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && beta.dim() <= 1 && k.numel() > 0;
  const bool packed = cu_seqlens && cu_seqlens->defined();
  return types && shapes && !packed && q.is_cpu() && k.is_cpu() && v.is_cpu() && beta.is_cpu() && !autocast_on_cpu() &&
         resolved(backend) != Backend::composed && !needs_gradient({q, k, v, beta});
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                 int64_t query_offset, const c10::optional<Tensor>& cu_seqlens, Backend backend) {
  constexpr const char* op = "attention";
  if (plainly_fused(q, k, v, beta, cu_seqlens, backend)) {
    return inferred_attention(q, k, v, beta, window, query_offset);
  }
  if (q.scalar_type() == at::kFloat && k.scalar_type() == at::kBFloat16 && v.scalar_type() == at::kBFloat16) {
    check_inference(op, q, {k, v});
    return attention(q, k.to(at::kFloat), v.to(at::kFloat), beta, window, query_offset, cu_seqlens, backend);
  }
  const Inputs in = make_inputs(op, q, k, v, beta, cu_seqlens, {}, backend);
  const AttentionCallPtr call = c10::make_intrusive<AttentionCall>();
  call->window = window;
  call->query_offset = query_offset;
  call->cu_seqlens = in.cu_seqlens;
  const Tensor beta_values = plan_beta(in);
  call->plan = kernels::plan_attention(op, {.q = plan_view(in, in.q),
                                            .k = plan_view(in, in.k),
                                            .v = plan_view(in, in.v),
                                            .beta = span_of(beta_values),
                                            .window = window,
                                            .query_offset = query_offset,
                                            .cu_seqlens = in.cu_seqlens});
  switch (in.path) {
    case Path::meta:
      return at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options());
    case Path::fused:
      return FusedAttention::apply(in.q, in.k, in.v, in.beta, call).to(in.dtype);
    case Path::plain:
      break;
  }
  if (in.cu_seqlens.empty()) return plain_attention(in.q, in.k, in.v, in.beta, window, query_offset).to(in.dtype);
  std::vector<Tensor> parts;
  for (size_t i = 0; i + 1 < in.cu_seqlens.size(); ++i) {
    const auto part = [&](const Tensor& x) { return x.slice(1, in.cu_seqlens[i], in.cu_seqlens[i + 1]); };
    parts.push_back(plain_attention(part(in.q), part(in.k), part(in.v), in.beta, window, 0));
  }
  return parts.empty() ? at::empty({q.size(0), 0, q.size(2), v.size(3)}, q.options()) : at::cat(parts, 1).to(in.dtype);
}

}  // namespace ovq::ops
