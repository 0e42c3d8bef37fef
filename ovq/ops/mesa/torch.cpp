#include "ovq/ops/mesa/torch.h"

#include <torch/library.h>

#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "ovq/ops/linear_attention/torch_chunked.h"
#include "ovq/ops/mesa/mesa.h"
#include "ovq/ops/torch/cpu_loops.h"
#include "ovq/ops/torch/inputs.h"
#include "ovq/ops/torch/once_differentiable.h"
#include "ovq/ops/torch/output_memory.h"
#include "ovq/ops/torch/tensor_view.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kMesa = "mesa";

// The matrices H_t + diag(lambda) of all tokens.
struct System {
  Tensor k;           // [M, N, C, dk]
  Tensor weights;     // [M, N, C, C]: e^{G_i - G_j} beta_j, zero above the diagonal
  Tensor from_start;  // [M, N, C, 1]
  Tensor states;      // H before each chunk, [M, N, dk, dk]
  Tensor lambda;      // [H, dk]
  int64_t iterations;
};

// One chunk of right sides at a time: all of it stays in the cache.
template <class T>
class ChunkSolver {
 public:
  ChunkSolver(const System& system, int64_t m, int64_t n)
      : k_(system.k[m][n]),
        weights_(system.weights[m][n]),
        tokens_(k_.size(0)),
        dim_(k_.size(1)),
        from_start_(system.from_start[m][n].data_ptr<T>()),
        lambda_(system.lambda.data_ptr<T>() + m % system.lambda.size(0) * dim_),
        // one product with both of what p meets
        state_and_keys_(at::cat({system.states[m][n], k_.t()}, 1)),
        met_(at::empty({tokens_, dim_ + tokens_}, k_.options())),
        scores_(met_.narrow(1, dim_, tokens_)),
        p_(at::empty_like(k_)),
        ap_(at::empty_like(k_)),
        r_(at::empty_like(k_)) {}

  // right sides [C, dk] -> x [C, dk]. A token whose residual is down to rounding rests: its neighbours, which may be
  // in its future, have no say in that.
  void solve(const T* right, T* x, int64_t iterations) {
    constexpr T kTiny = std::numeric_limits<T>::min(), kDone = std::numeric_limits<T>::epsilon();
    std::fill_n(x, tokens_ * dim_, T(0));
    std::copy_n(right, tokens_ * dim_, data(r_));
    std::copy_n(right, tokens_ * dim_, data(p_));
    std::vector<T> norms(tokens_), enough(tokens_);
    for (int64_t i = 0; i < tokens_; ++i) {
      norms[i] = dot(row(r_, i), row(r_, i), dim_);
      enough[i] = kDone * kDone * norms[i];
    }
    bool done = false;
    for (int64_t iteration = 0; iteration < iterations && !done; ++iteration) {
      multiply();
      done = true;
      for (int64_t i = 0; i < tokens_; ++i) {
        if (norms[i] <= enough[i]) continue;
        T *const p = row(p_, i), *const ap = row(ap_, i), *const r = row(r_, i), *const to = x + i * dim_;
        const T alpha = norms[i] / (dot(p, ap, dim_) + kTiny);
        for (int64_t d = 0; d < dim_; ++d) to[d] += alpha * p[d];
        for (int64_t d = 0; d < dim_; ++d) r[d] -= alpha * ap[d];
        const T norm = dot(r, r, dim_), beta = norm / (norms[i] + kTiny);
        for (int64_t d = 0; d < dim_; ++d) p[d] = r[d] + beta * p[d];
        norms[i] = norm;
        done = done && norm <= enough[i];
      }
    }
  }

 private:
  static T* data(const Tensor& x) { return x.data_ptr<T>(); }
  T* row(const Tensor& x, int64_t i) const { return data(x) + i * dim_; }

  // ap <- A p
  void multiply() {
    at::mm_out(met_, p_, state_and_keys_);
    for (int64_t i = 0; i < tokens_; ++i) {
      T* const met = data(met_) + i * (dim_ + tokens_);
      const T *const p = row(p_, i), *const weight = data(weights_) + i * tokens_;
      T* const ap = row(ap_, i);
      for (int64_t d = 0; d < dim_; ++d) ap[d] = from_start_[i] * met[d] + lambda_[d] * p[d];
      for (int64_t j = 0; j < tokens_; ++j) met[dim_ + j] *= weight[j];
    }
    ap_.addmm_(scores_, k_);
  }

  Tensor k_, weights_;
  int64_t tokens_, dim_;
  const T *from_start_, *lambda_;
  Tensor state_and_keys_, met_, scores_, p_, ap_, r_;
};

// right [M, N, C, dk] -> (H + diag(lambda))^(-1) right
Tensor solve(const System& system, const Tensor& right) {
  const Tensor x = at::empty_like(right);
  const int64_t chunks = right.size(1), size = right.size(2) * right.size(3);
  AT_DISPATCH_FLOATING_TYPES(right.scalar_type(), kMesa, [&] {
    parallel_blocks(right.size(0) * chunks, 1, size * system.iterations, [&](int64_t index, int64_t) {
      const at::NoGradGuard no_grad;
      ChunkSolver<scalar_t>(system, index / chunks, index % chunks)
          .solve(right.data_ptr<scalar_t>() + index * size, x.data_ptr<scalar_t>() + index * size, system.iterations);
    });
  });
  return x;
}

// Chunked tensors (see chunks.h).
struct MesaChunks {
  Tensor k, v, g, beta;   // [M, N, C, dk], [M, N, C, dv], [M, N, C], [M, N, C, 1]
  Tensor lambda, states;  // [H, dk], [M, N + 1, dk, dk + dv]
  int64_t iterations;

  System system(const Decay& decay) const {
    return {.k = k,
            .weights = decay.pairs * beta.transpose(-1, -2),
            .from_start = decay.from_start,
            .states = states.narrow(1, 0, k.size(1)).narrow(-1, 0, k.size(3)),
            .lambda = lambda,
            .iterations = iterations};
  }

  // What reads [H | G] with the solutions as queries, and what reads G alone.
  ChunkedLinear both(const Tensor& solution, const Decay& decay) const {
    return {.q = solution, .k = k * beta, .v = at::cat({k, v}, -1), .decay = decay, .states = states};
  }
  ChunkedLinear values(const Tensor& solution, const Decay& decay) const {
    return {.q = solution,
            .k = k * beta,
            .v = v,
            .decay = decay,
            .states = states.defined() ? states.narrow(-1, k.size(3), v.size(3)) : Tensor()};
  }
};

class MesaFunction : public torch::autograd::Function<MesaFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& beta, const Tensor& lambda, const Tensor& state,
                               int64_t iterations, int64_t chunk) {
    RECORD_USER_SCOPE("ovq::mesa_forward");
    MesaChunks x{.k = to_chunks(k, chunk),
                 .v = to_chunks(v, chunk),
                 .g = to_chunks(g, chunk),
                 .beta = to_chunks(beta, chunk).unsqueeze(-1),
                 .lambda = lambda.contiguous(),
                 .iterations = iterations};
    const Decay decay = make_decay(x.g);
    ChunkedLinear written = x.both({}, decay);
    add_states(written, state.flatten(0, 1));
    x.states = written.states;
    const Tensor solution = solve(x.system(decay), to_chunks(q, chunk));
    const Tensor o = chunked_linear_forward(x.values(solution, decay));
    context->save_for_backward({x.k, x.v, x.g, x.beta, x.lambda, x.states, solution, q, k, v, g, beta, lambda, state});
    context->saved_data["iterations"] = iterations;
    context->saved_data["batch"] = q.size(0);
    context->saved_data["time"] = q.size(1);
    return {from_chunks(o, q.size(0), q.size(1)), x.states.select(1, x.k.size(1)).clone().view_as(state)};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    RECORD_USER_SCOPE("ovq::mesa_backward");
    const variable_list saved = context->get_saved_variables();
    if (at::GradMode::is_enabled()) {
      return formula_gradients(
          by_formula, {saved[7], saved[8], saved[9], saved[10], saved[11], saved[12], saved[13], {}, {}}, gradients);
    }
    const MesaChunks x{
        saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], context->saved_data["iterations"].toInt()};
    const Tensor& solution = saved[6];
    const int64_t batch = context->saved_data["batch"].toInt(), time = context->saved_data["time"].toInt();
    const Decay decay = make_decay(x.g);
    const Tensor d_o = to_chunks(gradients[0], x.k.size(2));
    const Tensor y = solve(x.system(decay), chunked_linear_backward_q(x.values(solution, decay), d_o));
    const Tensor d_lambda =
        (y * solution).view({batch, x.lambda.size(0), -1, x.k.size(3)}).sum(at::IntArrayRef{0, 2}).neg_();
    const ChunkedLinearGradients d =
        chunked_linear_backward(x.both(solution, decay), at::cat({y.neg(), d_o}, -1), gradients[1].flatten(0, 1));
    const Tensor d_k = (d.d_k * x.beta).add_(d.d_v.narrow(-1, 0, x.k.size(3)));
    const auto back = [&](const Tensor& z) { return from_chunks(z, batch, time); };
    return {back(y),
            back(d_k),
            back(d.d_v.narrow(-1, x.k.size(3), x.v.size(3))),
            back(d.d_g),
            back(row_dots(x.k, d.d_k)),
            d_lambda,
            d.d_start.reshape(gradients[1].sizes()),
            Tensor(),
            Tensor()};
  }

 private:
  static variable_list by_formula(const variable_list& x) {
    const RecurrenceResult result =
        mesa_recurrent({.q = x[0], .k = x[1], .v = x[2], .g = x[3], .beta = x[4], .lambda = x[5], .state = x[6]});
    return {result.o, result.state};
  }
};

// Tensors that the kernels take: q, k, v, g, beta, lambda and the state.
using MesaTensors = std::array<Tensor, 7>;

kernels::MesaInputs mesa_views(const MesaTensors& t, int64_t iterations, const std::vector<int64_t>& borders) {
  const auto& [q, k, v, g, beta, lambda, state] = t;
  return {.q = view_of(q),
          .k = view_of(k),
          .v = view_of(v),
          .g = gate_view_of(g),
          .beta = gate_view_of(beta),
          .lambda = span_of(lambda),
          .iterations = iterations,
          .state = borders.empty() ? state_view_of(state) : kernels::View<float>(),
          .cu_seqlens = borders};
}

MesaTensors mesa_rows(const MesaTensors& t) {
  const auto& [q, k, v, g, beta, lambda, state] = t;
  return {with_contiguous_rows(q), with_contiguous_rows(k),    with_contiguous_rows(v), g, beta,
          lambda.contiguous(),     with_contiguous_rows(state)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> mesa_forward(const Tensor& q, const Tensor& k, const Tensor& v,
                                                        const Tensor& g, const Tensor& beta, const Tensor& lambda,
                                                        const Tensor& state, const c10::optional<Tensor>& starts,
                                                        int64_t iterations) {
  RECORD_USER_SCOPE("ovq::mesa_forward");
  use_torch_threads();
  const MesaTensors tensors = mesa_rows({q, k, v, g, beta, lambda, state});
  const std::vector<int64_t> borders = borders_of(kMesa, or_undefined(starts), q.size(1));
  const kernels::MesaInputs in = mesa_views(tensors, iterations, borders);
  const int64_t floats = kernels::saved_floats(in);
  const Tensor o = empty_output(v.sizes()), solution = empty_output(q.sizes());
  const Tensor after = state_after(tensors.back(), borders), saved = saved_memory(floats, borders);
  kernels::mesa_forward(in, {.o = view_of(o),
                             .solution = view_of(solution),
                             .state = optional_state_view_of(after),
                             .saved = span_of(saved).first(floats)});
  return {o, defined_or_absent(after, v), solution, saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> mesa_backward(
    const c10::optional<Tensor>& d_o, const c10::optional<Tensor>& d_after, const Tensor& q, const Tensor& k,
    const Tensor& v, const Tensor& g, const Tensor& beta, const Tensor& lambda, const Tensor& state,
    const Tensor& solution_any, const Tensor& saved, const c10::optional<Tensor>& starts, int64_t iterations,
    bool wants_d_state) {
  RECORD_USER_SCOPE("ovq::mesa_backward");
  use_torch_threads();
  const MesaTensors tensors = mesa_rows({q, k, v, g, beta, lambda, state});
  const std::vector<int64_t> borders = borders_of(kMesa, or_undefined(starts), q.size(1));
  const kernels::MesaInputs in = mesa_views(tensors, iterations, borders);
  const Tensor solution = with_contiguous_rows(solution_any);
  const Tensor d_rows = rows_or_zeros(d_o, v), d_last = rows_or_none(d_after);
  const Tensor d_q = empty_output(q.sizes()), d_k = empty_output(k.sizes()), d_v = empty_output(v.sizes());
  const Tensor d_g = at::empty(g.sizes(), g.options()), d_beta = at::empty(g.sizes(), g.options());
  const Tensor d_lambda = at::empty(lambda.sizes(), lambda.options());
  const Tensor d_state = wants_d_state ? at::empty(state.sizes(), state.options()) : Tensor();
  kernels::mesa_backward(in, {.solution = view_of(solution), .states = span_of(saved).first(kernels::saved_floats(in))},
                         view_of(d_rows), optional_state_view_of(d_last),
                         {.d_q = view_of(d_q),
                          .d_k = view_of(d_k),
                          .d_v = view_of(d_v),
                          .d_g = gate_view_of(d_g),
                          .d_beta = gate_view_of(d_beta),
                          .d_lambda = span_of(d_lambda),
                          .d_state = optional_state_view_of(d_state)});
  return {d_q, d_k, d_v, d_g, d_beta, d_lambda, defined_or_absent(d_state, v)};
}

int64_t mesa_saved(int64_t heads, int64_t key_dim, int64_t value_dim) {
  const kernels::View<const float> keys = no_tokens(heads, key_dim), gate = no_tokens(heads, 1);
  const std::vector<float> lambda(heads * key_dim);
  return kernels::saved_floats({.q = keys,
                                .k = keys,
                                .v = no_tokens(heads, value_dim),
                                .g = gate,
                                .beta = gate,
                                .lambda = lambda,
                                .iterations = 1});
}

class FusedMesa : public OnceDifferentiable<FusedMesa> {
 public:
  static constexpr const char* kOp = kMesa;

  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& g, const Tensor& beta, const Tensor& lambda, const Tensor& state,
                               int64_t iterations, const c10::optional<Tensor>& starts) {
    static const auto op = dispatched<decltype(mesa_forward)>("ovq::mesa_forward");
    const auto [o, after, solution, saved] = call_dispatched(op, q, k, v, g, beta, lambda, state, starts, iterations);
    context->save_for_backward({q, k, v, g, beta, lambda, state, solution, saved, or_undefined(starts)});
    context->saved_data["iterations"] = iterations;
    context->saved_data["d_state"] = !starts && state.requires_grad();
    context->set_materialize_grads(false);
    return with_state(o, after, starts.has_value());
  }

  static variable_list backward_once(AutogradContext* context, variable_list gradients) {
    static const auto op = dispatched<decltype(mesa_backward)>("ovq::mesa_backward");
    const variable_list s = context->get_saved_variables();
    const bool wants_d_state = context->saved_data["d_state"].toBool();
    const auto [d_q, d_k, d_v, d_g, d_beta, d_lambda, d_state] =
        call_dispatched(op, gradient_at(gradients, 0), gradient_at(gradients, 1), s[0], s[1], s[2], s[3], s[4], s[5],
                        s[6], s[7], s[8], optional(s[9]), context->saved_data["iterations"].toInt(), wants_d_state);
    return {d_q, d_k, d_v, d_g, d_beta, d_lambda, wants_d_state ? d_state : Tensor(), Tensor(), Tensor()};
  }
};

RecurrenceResult fused_mesa(const MesaInputs& in, const Tensor& starts) {
  const Tensor q = with_contiguous_rows(in.q), k = with_contiguous_rows(in.k), v = with_contiguous_rows(in.v);
  const Tensor lambda = in.lambda.contiguous(), state = with_contiguous_rows(in.state);
  if (is_recorded({q, k, v, in.g, in.beta, lambda, state, starts})) {
    return result_of(FusedMesa::apply(q, k, v, in.g, in.beta, lambda, state, in.iterations, packed_starts(starts)));
  }
  const std::vector<int64_t> borders = borders_of(kMesa, starts, q.size(1));
  use_torch_threads();
  const RecurrenceResult result{.o = empty_output(v.sizes()), .state = next_state(q, state, borders)};
  kernels::mesa_forward(
      mesa_views({q, k, v, in.g, in.beta, lambda, state}, in.iterations, borders),
      {.o = view_of(result.o), .solution = {}, .state = optional_state_view_of(result.state), .saved = {}});
  return result;
}

MesaInputs prepare(const MesaInputs& in) {
  check_recurrence(kMesa, in.q, in.k, in.v, {}, in.chunk);
  check_gate(kMesa, "g", in.g, in.q);
  check_gate(kMesa, "beta", in.beta, in.q);
  const int64_t heads = fixed_size(in.q, 2), dim = fixed_size(in.q, 3), width = dim + fixed_size(in.v, 3);
  check(in.lambda.sym_sizes() == c10::SymIntArrayRef({heads, dim}), kMesa, "lambda has shape ", ShapeText{in.lambda},
        "; must be [", heads, ", ", dim, "]");
  check(in.iterations >= 1, kMesa, "iterations is ", in.iterations, "; must be at least 1");
  const std::vector<c10::SymInt> shape{in.q.sym_size(0), heads, dim, width};
  check(!in.state.defined() || in.state.sym_sizes() == c10::SymIntArrayRef(shape), kMesa, "state has shape ",
        ShapeText{in.state}, "; must be [", SizeText{in.q, 0}, ", ", heads, ", ", dim, ", ", width, "]");
  const at::ScalarType type = wide_type(in.q);
  return {.q = in.q.to(type),
          .k = in.k.to(type),
          .v = in.v.to(type),
          .g = in.g.to(type),
          .beta = in.beta.to(type),
          .lambda = in.lambda.to(type),
          .state = in.state.defined() ? in.state.to(type) : at::zeros_symint(shape, in.q.options().dtype(type)),
          .iterations = in.iterations,
          .chunk = in.chunk};
}

MesaInputs part_of(const MesaInputs& in, int64_t begin, int64_t end) {
  const auto cut = [&](const Tensor& x) { return x.slice(1, begin, end); };
  return {.q = cut(in.q),
          .k = cut(in.k),
          .v = cut(in.v),
          .g = cut(in.g),
          .beta = cut(in.beta),
          .lambda = in.lambda,
          .iterations = in.iterations,
          .chunk = in.chunk};
}

}  // namespace

RecurrenceResult mesa(const MesaInputs& inputs) {
  const MesaInputs in = prepare(inputs);
  if (is_empty(in.q) || is_empty(in.v) || !has_loops(in.q)) return mesa_recurrent(inputs);
  if (runs_fused(kMesa, in.q) && takes_packed(in.q, inputs.starts)) {
    RecurrenceResult result = fused_mesa(in, inputs.starts);
    result.o = result.o.to(inputs.q.scalar_type());
    return result;
  }
  if (const auto borders = borders_of(kMesa, inputs.starts, fixed_size(in.q, 1)); !borders.empty()) {
    return one_by_one(borders, [&](int64_t begin, int64_t end) { return mesa(part_of(inputs, begin, end)); });
  }
  if (has_tangents({in.q, in.k, in.v, in.g, in.beta, in.lambda, in.state}) || is_traced({in.q})) {
    return mesa_recurrent(inputs);
  }
  const variable_list outputs = MesaFunction::apply(in.q, in.k, in.v, in.g, in.beta, in.lambda, in.state, in.iterations,
                                                    std::min(in.chunk, in.q.size(1)));
  return {.o = outputs[0].to(inputs.q.scalar_type()), .state = outputs[1]};
}

RecurrenceResult mesa_recurrent(const MesaInputs& inputs) {
  const MesaInputs in = prepare(inputs);
  if (const auto borders = borders_of(kMesa, inputs.starts, in.q.size(1)); !borders.empty()) {
    return one_by_one(borders, [&](int64_t begin, int64_t end) { return mesa_recurrent(part_of(inputs, begin, end)); });
  }
  const int64_t dim = in.q.size(3);
  Tensor state = in.state;
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < in.q.size(1); ++t) {
    const auto gate = [&](const Tensor& x) { return x.select(1, t).unsqueeze(-1).unsqueeze(-1); };
    const Tensor k = in.k.select(1, t), written = at::cat({k, in.v.select(1, t)}, -1);
    state = gate(in.g).exp() * state + gate(in.beta) * k.unsqueeze(-1) * written.unsqueeze(-2);
    const Tensor h = state.narrow(-1, 0, dim).transpose(-1, -2) + at::diag_embed(in.lambda);
    const Tensor solution = at::linalg_solve(h, in.q.select(1, t).unsqueeze(-1));
    outputs.push_back(at::matmul(solution.transpose(-1, -2), state.narrow(-1, dim, in.v.size(3))).squeeze(-2));
  }
  const Tensor o = outputs.empty() ? at::zeros_like(in.v) : at::stack(outputs, 1);
  return {.o = o.to(inputs.q.scalar_type()), .state = outputs.empty() ? state.clone() : state};
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
#define OVQ_INPUTS "Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor lambda_, Tensor state"
  library.def("mesa_forward(" OVQ_INPUTS
              ", Tensor? starts, int iterations) -> (Tensor o, Tensor after, Tensor solution, Tensor saved)",
              torch::dispatch(c10::DispatchKey::CPU, mesa_forward));
  library.def("mesa_backward(Tensor? d_o, Tensor? d_after, " OVQ_INPUTS
              ", Tensor solution, Tensor saved, Tensor? starts, int iterations, bool wants_d_state) -> (Tensor d_q, "
              "Tensor d_k, Tensor d_v, Tensor d_g, Tensor d_beta, Tensor d_lambda, Tensor d_state)",
              torch::dispatch(c10::DispatchKey::CPU, mesa_backward));
  library.def("mesa_saved(int heads, int key_dim, int value_dim) -> int", mesa_saved);
#undef OVQ_INPUTS
}

}  // namespace ovq::ops
