#include "ovq/ops/attention/torch.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "ovq/ops/attention/attention.h"
#include "ovq/ops/products/torch_stored.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/tensor_view.h"
#include "ovq/ops/torch/torch_compat.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kAttention = "attention";

// Checked inputs of a call with data.
struct AttentionCall {
  Tensor q, k, v, beta;
  std::vector<int64_t> cu_seqlens;
  kernels::AttentionInputs inputs;
  kernels::AttentionPlan plan;

  AttentionCall(const Tensor& q_any, const Tensor& k_any, const Tensor& v_any, const Tensor& beta_any, int64_t window,
                int64_t query_offset, const c10::optional<Tensor>& packed)
      : q(with_contiguous_rows(q_any)),
        k(with_contiguous_rows(k_any)),
        v(with_contiguous_rows(v_any)),
        beta(beta_any.contiguous()),
        cu_seqlens(offsets_of(kAttention, packed)),
        inputs{.q = view_of(q),
               .k = view_of(k),
               .v = view_of(v),
               .beta = span_of(beta),
               .window = window,
               .query_offset = query_offset,
               .cu_seqlens = cu_seqlens},
        plan(kernels::plan_attention(kAttention, inputs)) {}
};

std::tuple<Tensor, Tensor> attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                                             int64_t window, int64_t query_offset,
                                             const c10::optional<Tensor>& cu_seqlens) {
  RECORD_USER_SCOPE("ovq::attention_forward");
  use_torch_threads();
  const AttentionCall call(q, k, v, beta, window, query_offset, cu_seqlens);
  const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
  const Tensor lse = at::empty({q.size(0), q.size(1), q.size(2), 1}, q.options());
  kernels::attention_forward(call.plan, call.inputs, {.o = view_of(o), .lse = view_of(lse)});
  return {o, lse};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(const Tensor& d_o_any, const Tensor& q, const Tensor& k,
                                                              const Tensor& v, const Tensor& beta, const Tensor& o,
                                                              const Tensor& lse, int64_t window, int64_t query_offset,
                                                              const c10::optional<Tensor>& cu_seqlens) {
  RECORD_USER_SCOPE("ovq::attention_backward");
  use_torch_threads();
  const AttentionCall call(q, k, v, beta, window, query_offset, cu_seqlens);
  const Tensor d_o = with_contiguous_rows(d_o_any), rows = with_contiguous_rows(o);
  const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
  const Tensor d_beta = empty_output(beta.sizes());
  kernels::attention_backward(
      call.plan, call.inputs, {.o = view_of(rows), .lse = view_of(lse)}, view_of(d_o),
      {.d_q = view_of(d_q), .d_k = view_of(d_k), .d_v = view_of(d_v), .d_beta = span_of(d_beta)});
  return {d_q, d_k, d_v, d_beta};
}

class AttentionFunction : public OnceDifferentiable<AttentionFunction> {
 public:
  static constexpr const char* kOp = kAttention;

  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                        int64_t window, int64_t query_offset, const c10::optional<Tensor>& cu_seqlens) {
    static const auto op = dispatched<decltype(attention_forward)>("ovq::attention_forward");
    const auto [o, lse] = call_dispatched(op, q, k, v, beta, window, query_offset, cu_seqlens);
    context->save_for_backward({q, k, v, beta, o, lse, or_undefined(cu_seqlens)});
    context->saved_data["window"] = window;
    context->saved_data["query_offset"] = query_offset;
    return o;
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(attention_backward)>("ovq::attention_backward");
    const variable_list saved = context->get_saved_variables();
    const auto [d_q, d_k, d_v, d_beta] = call_dispatched(
        op, gradients[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5],
        context->saved_data["window"].toInt(), context->saved_data["query_offset"].toInt(), optional(saved[6]));
    return {d_q, d_k, d_v, d_beta, Tensor(), Tensor(), Tensor()};
  }
};

// Without gradients: nothing is kept. q in float32, k and v both in that or both in bfloat16, on the CPU.
Tensor inferred_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                          int64_t query_offset) {
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
  const kernels::AttentionPlan plan = kernels::plan_attention(kAttention, in);
  const Tensor o = empty_output({q.size(0), q.size(1), q.size(2), v.size(3)});
  kernels::attention_forward(plan, in, {.o = view_of(o), .lse = {}});
  return o;
}

// Whether there is nothing to convert, to keep or to look up.
bool needs_no_preparation(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta,
                          const c10::optional<Tensor>& cu_seqlens) {
  const auto type = k.scalar_type();
  const bool types = q.scalar_type() == at::kFloat && beta.scalar_type() == at::kFloat && type == v.scalar_type() &&
                     (type == at::kFloat || type == at::kBFloat16);
  const bool shapes = q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && beta.dim() <= 1 && k.sym_numel() > 0;
  const bool packed = cu_seqlens && cu_seqlens->defined();
  return types && shapes && !packed && q.is_cpu() && k.is_cpu() && v.is_cpu() && beta.is_cpu() && !autocast_on_cpu() &&
         !is_recorded({q, k, v, beta});
}

}  // namespace

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                 int64_t query_offset, const c10::optional<Tensor>& cu_seqlens) {
  if (needs_no_preparation(q, k, v, beta, cu_seqlens)) return inferred_attention(q, k, v, beta, window, query_offset);
  if (q.scalar_type() == at::kFloat && k.scalar_type() == at::kBFloat16 && v.scalar_type() == at::kBFloat16) {
    check_inference(kAttention, q, {k, v});
    return attention(q, k.to(at::kFloat), v.to(at::kFloat), beta, window, query_offset, cu_seqlens);
  }
  const Inputs in = make_inputs(kAttention, q, k, v, beta);
  return AttentionFunction::apply(in.q, in.k, in.v, in.beta, window, query_offset, cu_seqlens).to(in.dtype);
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
#define OVQ_OPTIONS "int window=0, int query_offset=0, Tensor? cu_seqlens=None"
  library.def("attention_forward(Tensor q, Tensor k, Tensor v, Tensor beta, " OVQ_OPTIONS ") -> (Tensor o, Tensor lse)",
              torch::dispatch(c10::DispatchKey::CPU, attention_forward));
  library.def(
      "attention_backward(Tensor d_o, Tensor q, Tensor k, Tensor v, Tensor beta, Tensor o, Tensor lse, " OVQ_OPTIONS
      ") -> (Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_beta)",
      torch::dispatch(c10::DispatchKey::CPU, attention_backward));
#undef OVQ_OPTIONS
}

}  // namespace ovq::ops
