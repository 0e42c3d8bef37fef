#include "ovq/ops/mesa/mesa.h"

#include "ovq/ops/recurrence/run.h"

namespace ovq::kernels {

namespace recurrence {
namespace {

constexpr const char* kMesa = "mesa";

struct MesaPlan {
  Sizes sizes;
  std::vector<Piece> pieces;
  MesaCall call;

  template <class T>
  void check_state(const char* name, const View<T>& state) const {
    check_shape(kMesa, name, state, static_cast<int64_t>(pieces.size()), sizes.key_dim, sizes.heads,
                sizes.key_dim + sizes.value_dim, true);
  }
  Borders borders() const {
    return {.heads = sizes.heads, .key_dim = sizes.key_dim, .columns = padded(sizes.key_dim) + sizes.value_dim};
  }
  int64_t cost() const { return call.iterations / 2 * sizes.key_dim * (sizes.key_dim + kChunk); }
};

MesaPlan plan_mesa(const MesaInputs& in) {
  MesaPlan plan;
  plan.sizes = check_queries_keys_values(kMesa, in.q, in.k, in.v);
  check(in.v.heads == in.q.heads, kMesa, "v has ", in.v.heads, " heads; must equal q's ", in.q.heads);
  check_gate(kMesa, "g", in.g, plan.sizes);
  check_gate(kMesa, "beta", in.beta, plan.sizes);
  check(static_cast<int64_t>(in.lambda.size()) == in.q.heads * in.q.dim, kMesa, "lambda has ", in.lambda.size(),
        " elements; must have ", in.q.heads * in.q.dim);
  check(in.iterations >= 1, kMesa, "iterations is ", in.iterations, "; must be at least 1");
  plan.pieces = check_pieces(kMesa, plan.sizes, in.cu_seqlens);
  plan.check_state("state", in.state);
  plan.call = {.q = in.q,
               .k = in.k,
               .v = in.v,
               .g = in.g,
               .beta = in.beta,
               .lambda = in.lambda.data(),
               .iterations = in.iterations,
               .state = in.state};
  return plan;
}

}  // namespace
}  // namespace recurrence

int64_t saved_floats(const MesaInputs& in) {
  using namespace recurrence;
  const MesaPlan plan = plan_mesa(in);
  return saved_floats(plan.pieces, plan.borders());
}

void mesa_forward(const MesaInputs& in, const MesaOutputs& out) {
  using namespace recurrence;
  MesaPlan plan = plan_mesa(in);
  const Sizes& s = plan.sizes;
  check_shape(kMesa, "o", out.o, s.batch, s.time, s.heads, s.value_dim);
  check_shape(kMesa, "solution", out.solution, s.batch, s.time, s.heads, s.key_dim, true);
  plan.check_state("state", out.state);
  MesaCall& call = plan.call;
  call.o = out.o;
  call.solution = out.solution;
  call.last_state = out.state;
  call.borders = check_borders<float>(kMesa, plan.pieces, plan.borders(), out.saved);
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, {.heads = s.heads, .cost = plan.cost()}, [&](int64_t) { return kernels.mesa_scratch(call, false); },
      [&](const Piece& piece, const HeadRange& head, float* scratch) {
        kernels.mesa_forward(call, piece, head.first, scratch);
      });
}

void mesa_backward(const MesaInputs& in, const MesaSaved& saved, View<const float> d_o, View<const float> d_state,
                   const MesaGradients& gradients) {
  using namespace recurrence;
  MesaPlan plan = plan_mesa(in);
  const Sizes& s = plan.sizes;
  const auto check_like = [&](const char* name, const auto& view, int64_t dim) {
    check_shape(kMesa, name, view, s.batch, s.time, s.heads, dim);
  };
  check_like("solution", saved.solution, s.key_dim);
  check_like("d_o", d_o, s.value_dim);
  check_like("d_q", gradients.d_q, s.key_dim);
  check_like("d_k", gradients.d_k, s.key_dim);
  check_like("d_v", gradients.d_v, s.value_dim);
  check_like("d_g", gradients.d_g, 1);
  check_like("d_beta", gradients.d_beta, 1);
  check(gradients.d_lambda.size() == in.lambda.size(), kMesa, "d_lambda has ", gradients.d_lambda.size(),
        " elements; must have ", in.lambda.size());
  plan.check_state("d_state", d_state);
  plan.check_state("d_state", gradients.d_state);
  check(!saved.states.empty() || plan.pieces.empty(), kMesa, "saved is missing");
  std::vector<double> d_lambda(plan.pieces.size() * in.lambda.size(), 0.0);
  MesaCall& call = plan.call;
  call.borders = check_borders<const float>(kMesa, plan.pieces, plan.borders(), saved.states);
  call.solved = saved.solution;
  call.d_o = d_o;
  call.d_last_state = d_state;
  call.d_q = gradients.d_q;
  call.d_k = gradients.d_k;
  call.d_v = gradients.d_v;
  call.d_g = gradients.d_g;
  call.d_beta = gradients.d_beta;
  call.d_lambda = d_lambda.data();
  call.d_state = gradients.d_state;
  const RecurrenceKernels& kernels = recurrence_kernels();
  for_each_task(
      plan.pieces, {.heads = s.heads, .cost = plan.cost()}, [&](int64_t) { return kernels.mesa_scratch(call, true); },
      [&](const Piece& piece, const HeadRange& head, float* scratch) {
        kernels.mesa_backward(call, piece, head.first, scratch);
      });
  add_up(d_lambda, gradients.d_lambda);
}

}  // namespace ovq::kernels
