// TORCH_LIBRARY(ovq), continued: the sequence ops as functions of tensors. Recurrences take the state before the first
// token and give the one after the last, both new tensors; with packed sequences there is one for each of them.
#include <torch/library.h>

#include "ovq/ops/gated_delta_rule/torch.h"
#include "ovq/ops/linear_attention/torch.h"
#include "ovq/ops/mesa/torch.h"
#include "ovq/ops/norm/torch.h"
#include "ovq/ops/recurrence/kernel.h"
#include "ovq/ops/rotary/torch.h"
#include "ovq/ops/short_convolution/torch.h"
#include "ovq/ops/ssd/torch.h"
#include "ovq/ops/torch/dispatched.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/ops/torch/torch_compat.h"
#include "ovq/ops/vector_quantize/torch.h"

namespace ovq::ops {
namespace {

using at::Tensor;
using OptionalTensor = c10::optional<Tensor>;
using OutputAndState = std::tuple<Tensor, OptionalTensor>;

constexpr int kLikeFirst = 1;  // of the first one's dtype, but for autocast, which leaves a mix behind
constexpr int kOptional = 2;

struct Argument {
  const char* name;
  const Tensor& x;
  int flags = 0;
};

void check_arguments(const char* op, std::initializer_list<Argument> arguments) {
  const Argument& first = *arguments.begin();
  const bool autocast = autocast_on();
  for (const Argument& argument : arguments) {
    const Tensor& x = argument.x;
    if (!x.defined() && (argument.flags & kOptional) != 0) continue;
    TORCH_CHECK_TYPE(x.defined(), "[", op, "] ", argument.name, " is None; must be a tensor");
    TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()), "[", op, "] ", argument.name, " has dtype ", x.scalar_type(),
                     "; must be a floating one");
    TORCH_CHECK_TYPE((argument.flags & kLikeFirst) == 0 || autocast || x.scalar_type() == first.x.scalar_type(), "[",
                     op, "] ", argument.name, " has dtype ", x.scalar_type(), "; must equal ", first.name, "'s ",
                     first.x.scalar_type());
    check(x.device() == first.x.device(), op, argument.name, " is on ", x.device().str(), "; must be on ", first.name,
          "'s ", first.x.device().str());
  }
}

void check_dims(const char* op, const char* name, const Tensor& x, int64_t dims, const char* expected) {
  check(x.dim() == dims, op, name, " has ", x.dim(), " dimensions; must have ", dims, ": ", expected);
}

constexpr const char* kHeadDims = "[batch, time, heads, dim]";

// The first token of each sequence, the empty ones too, for a traced call.
Tensor sequence_starts(const Tensor& cu_seqlens, const Tensor& like, std::string op) {
  const std::vector<int64_t> offsets = offsets_of(op.c_str(), cu_seqlens);
  kernels::check_sequences(op.c_str(), like.size(0), like.size(1), offsets);
  return at::tensor(at::IntArrayRef(offsets).slice(0, offsets.size() - 1), at::kLong);
}

// A recurrence over `like`'s batch and time: run(cut, state, starts), where cut(x [B, T, ...]) is what a run sees of x.
// `shape` is that of a state but for its first dimension.
struct Sequences {
  const char* op;
  const Tensor& like;  // [B, T, ...]
  const OptionalTensor& initial_state;
  const OptionalTensor& cu_seqlens;
  bool return_state;
  std::vector<int64_t> shape;

  template <class Run>
  OutputAndState run(Run&& run) const {
    if (is_traced({like, or_undefined(initial_state), or_undefined(cu_seqlens)})) return traced(run);
    const std::vector<int64_t> offsets = offsets_of(op, cu_seqlens);
    const auto sequences = kernels::check_sequences(op, like.size(0), like.size(1), offsets);
    const Tensor before = or_undefined(initial_state);
    std::vector<int64_t> expected{offsets.empty() ? like.size(0) : static_cast<int64_t>(sequences.size())};
    expected.insert(expected.end(), shape.begin(), shape.end());
    check(!before.defined() || before.sizes() == at::IntArrayRef(expected), op, "initial_state has shape ",
          before.defined() ? before.sizes() : at::IntArrayRef(), "; must be ", at::IntArrayRef(expected));
    // Without gradients one token overwrites its state.
    const auto own = [&](const Tensor& state) {
      return state.defined() && !at::GradMode::is_enabled() ? state.clone() : state;
    };
    if (offsets.empty() || sequences.empty() || (!before.defined() && !return_state)) {
      const RecurrenceResult result =
          run([](const Tensor& x) { return x; }, own(before), starts_of(op, like, cu_seqlens));
      if (!return_state) return {result.o, c10::nullopt};
      return {result.o, sequences.empty() && !offsets.empty() ? result.state.narrow(0, 0, 0) : result.state};
    }
    std::vector<Tensor> outputs, states;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const auto cut = [&](const Tensor& x) { return x.narrow(1, sequences[i].first, sequences[i].length); };
      const Tensor state = before.defined() ? before.narrow(0, static_cast<int64_t>(i), 1) : Tensor();
      const RecurrenceResult result = run(cut, own(state), Tensor());
      outputs.push_back(result.o);
      states.push_back(result.state);
    }
    return {at::cat(outputs, 1), return_state ? OptionalTensor(at::cat(states, 0)) : c10::nullopt};
  }

 private:
  // Without a look at data. What the numbers in cu_seqlens decide the shapes of cannot be.
  template <class Run>
  OutputAndState traced(Run&& run) const {
    const Tensor before = or_undefined(initial_state);
    std::vector<c10::SymInt> expected{like.sym_size(0)};
    expected.insert(expected.end(), shape.begin(), shape.end());
    const bool packed = cu_seqlens && cu_seqlens->defined();
    if (packed && (before.defined() || return_state)) offsets_of(op, cu_seqlens);
    check(!before.defined() || before.sym_sizes() == c10::SymIntArrayRef(expected), op, "initial_state has shape ",
          ShapeText{before}, "; must be ", c10::SymIntArrayRef(expected));
    static const auto starts_op = dispatched<decltype(sequence_starts)>("ovq::sequence_starts");
    const Tensor starts = packed ? starts_op.call(*cu_seqlens, like.detach(), op) : Tensor();
    const RecurrenceResult result = run([](const Tensor& x) { return x; }, before, starts);
    return {result.o, return_state ? OptionalTensor(result.state) : c10::nullopt};
  }
};

OutputAndState gated_delta_rule_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                   const Tensor& beta, const OptionalTensor& initial_state, bool return_state,
                                   const OptionalTensor& cu_seqlens, int64_t chunk) {
  constexpr const char* op = "gated_delta_rule";
  check_arguments(op, {{"q", q},
                       {"k", k, kLikeFirst},
                       {"v", v, kLikeFirst},
                       {"g", g},
                       {"beta", beta},
                       {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(op, q, k, v, {}, chunk);
  check_gate(op, "g", g, q);
  check_gate(op, "beta", beta, q);
  const Sequences sequences{
      op, q, initial_state, cu_seqlens, return_state, {fixed_size(q, 2), fixed_size(q, 3), fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return gated_delta_rule({.q = cut(q),
                             .k = cut(k),
                             .v = cut(v),
                             .g = cut(g),
                             .beta = cut(beta),
                             .state = state,
                             .starts = starts,
                             .chunk = chunk});
  });
}

OutputAndState linear_attention_op(const Tensor& q, const Tensor& k, const Tensor& v, const OptionalTensor& g,
                                   c10::optional<double> scale, const OptionalTensor& initial_state, bool return_state,
                                   const OptionalTensor& cu_seqlens, int64_t chunk) {
  constexpr const char* op = "linear_attention";
  const Tensor gate = or_undefined(g);
  check_arguments(op, {{"q", q},
                       {"k", k, kLikeFirst},
                       {"v", v, kLikeFirst},
                       {"g", gate, kOptional},
                       {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(op, q, k, v, {}, chunk);
  if (gate.defined()) check_gate(op, "g", gate, q);
  const Sequences sequences{
      op, q, initial_state, cu_seqlens, return_state, {fixed_size(q, 2), fixed_size(q, 3), fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return linear_attention({.q = cut(q),
                             .k = cut(k),
                             .v = cut(v),
                             .g = gate.defined() ? cut(gate) : gate,
                             .state = state,
                             .scale = scale,
                             .starts = starts,
                             .chunk = chunk});
  });
}

OutputAndState ssd_op(const Tensor& x, const Tensor& dt, const Tensor& a, const Tensor& b, const Tensor& c,
                      const OptionalTensor& d, const OptionalTensor& initial_state, bool return_state,
                      const OptionalTensor& cu_seqlens, int64_t chunk) {
  constexpr const char* op = "ssd";
  check_arguments(op, {{"x", x},
                       {"dt", dt},
                       {"a", a},
                       {"b", b, kLikeFirst},
                       {"c", c, kLikeFirst},
                       {"d", or_undefined(d), kOptional},
                       {"initial_state", or_undefined(initial_state), kOptional}});
  const Tensor skip = d ? *d : at::zeros_like(a);
  check_ssd({.x = x, .dt = dt, .a = a, .b = b, .c = c, .d = skip, .chunk = chunk});
  const Sequences sequences{
      op, x, initial_state, cu_seqlens, return_state, {fixed_size(x, 2), fixed_size(b, 3), fixed_size(x, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return ssd({.x = cut(x),
                .dt = cut(dt),
                .a = a,
                .b = cut(b),
                .c = cut(c),
                .d = skip,
                .state = state,
                .starts = starts,
                .chunk = chunk});
  });
}

OutputAndState mesa_op(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                       const Tensor& lambda, const OptionalTensor& initial_state, bool return_state,
                       const OptionalTensor& cu_seqlens, int64_t chunk, int64_t iterations) {
  constexpr const char* op = "mesa";
  check_arguments(op, {{"q", q},
                       {"k", k, kLikeFirst},
                       {"v", v, kLikeFirst},
                       {"g", g},
                       {"beta", beta},
                       {"lambda", lambda},
                       {"initial_state", or_undefined(initial_state), kOptional}});
  check_recurrence(op, q, k, v, {}, chunk);
  check_gate(op, "g", g, q);
  check_gate(op, "beta", beta, q);
  const Sequences sequences{op,
                            q,
                            initial_state,
                            cu_seqlens,
                            return_state,
                            {fixed_size(q, 2), fixed_size(q, 3), fixed_size(q, 3) + fixed_size(v, 3)}};
  return sequences.run([&](const auto& cut, const Tensor& state, const Tensor& starts) {
    return mesa({.q = cut(q),
                 .k = cut(k),
                 .v = cut(v),
                 .g = cut(g),
                 .beta = cut(beta),
                 .lambda = lambda,
                 .state = state,
                 .iterations = iterations,
                 .starts = starts,
                 .chunk = chunk});
  });
}

constexpr const char* kConvolution = "short_convolution";

Tensor short_convolution_op(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                            const OptionalTensor& before, const OptionalTensor& cu_seqlens) {
  return short_convolution(
      {.x = x, .weight = weight, .bias = or_undefined(bias), .before = or_undefined(before), .cu_seqlens = cu_seqlens});
}

OutputAndState short_convolution_with_state(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                            const OptionalTensor& initial_state, bool return_state,
                                            const OptionalTensor& cu_seqlens) {
  check_arguments(kConvolution, {{"x", x},
                                 {"weight", weight, kLikeFirst},
                                 {"bias", or_undefined(bias), kOptional | kLikeFirst},
                                 {"initial_state", or_undefined(initial_state), kOptional | kLikeFirst}});
  check_dims(kConvolution, "x", x, 3, "[batch, time, channels]");
  check_dims(kConvolution, "weight", weight, 2, "[channels, width]");
  if (!initial_state && !return_state) return {short_convolution_op(x, weight, bias, {}, cu_seqlens), c10::nullopt};
  const Sequences sequences{
      kConvolution, x, initial_state, cu_seqlens, return_state, {fixed_size(weight, 1) - 1, fixed_size(x, 2)}};
  return sequences.run([&](const auto& cut, const Tensor& before, const Tensor&) -> RecurrenceResult {
    const Tensor part = cut(x);
    return {.o = short_convolution_op(part, weight, bias, before.defined() ? OptionalTensor(before) : c10::nullopt, {}),
            .state = inputs_after(part, before, fixed_size(weight, 1))};
  });
}

Tensor rms_norm_op(const Tensor& x, const Tensor& weight, double eps, int64_t groups) {
  check_arguments("rms_norm", {{"x", x}, {"weight", weight}});
  return rms_norm(x, weight, eps, groups);
}

Tensor l2_norm_op(const Tensor& x, double eps) {
  check_arguments("l2_norm", {{"x", x}});
  check(x.dim() >= 1, "l2_norm", "x has 0 dimensions; must have at least 1");
  return l2_norm(x, eps);
}

Tensor rotary_op(const Tensor& x, double base, int64_t first_position, const OptionalTensor& cu_seqlens) {
  check_arguments("rotary", {{"x", x}});
  check(base > 0, "rotary", "base is ", base, "; must be positive");
  return rotary(x, {.base = base, .first_position = first_position, .cu_seqlens = cu_seqlens});
}

QuantizerGradient gradient_from(const std::string& name) {
  if (name == "straight_through") return QuantizerGradient::straight_through;
  if (name == "diveq") return QuantizerGradient::diveq;
  if (name == "sf_diveq") return QuantizerGradient::sf_diveq;
  fail("vector_quantize", "gradient is '", name, "'; must be 'straight_through', 'diveq' or 'sf_diveq'");
}

std::tuple<Tensor, Tensor> vector_quantize_op(const Tensor& z, const Tensor& codewords, std::string gradient,
                                              const OptionalTensor& bonus, double noise, int64_t seed) {
  constexpr const char* op = "vector_quantize";
  check_arguments(op, {{"z", z}, {"codewords", codewords, kLikeFirst}, {"bonus", or_undefined(bonus), kOptional}});
  check_dims(op, "z", z, 4, kHeadDims);
  const VectorQuantized result = vector_quantize({.z = by_head(z),
                                                  .codewords = codewords.to(z.scalar_type()),
                                                  .bonus = bonus ? bonus->to(z.scalar_type()) : Tensor(),
                                                  .gradient = gradient_from(gradient),
                                                  .noise = noise,
                                                  .seed = static_cast<uint64_t>(seed)});
  return {by_token(result.z_q, z.sym_size(0), z.sym_size(1)), by_token(result.index, z.sym_size(0), z.sym_size(1))};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(ovq, library) {
#define OVQ_SEQUENCES "Tensor? initial_state=None, bool return_state=False, Tensor? cu_seqlens=None"
  library.def("gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, " OVQ_SEQUENCES
              ", int chunk=64) -> (Tensor, Tensor?)",
              gated_delta_rule_op);
  library.def("linear_attention(Tensor q, Tensor k, Tensor v, Tensor? g=None, float? scale=None, " OVQ_SEQUENCES
              ", int chunk=64) -> (Tensor, Tensor?)",
              linear_attention_op);
  library.def("ssd(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d=None, " OVQ_SEQUENCES
              ", int chunk=64) -> (Tensor, Tensor?)",
              ssd_op);
  library.def("mesa(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor lambda_, " OVQ_SEQUENCES
              ", int chunk=64, int iterations=30) -> (Tensor, Tensor?)",
              mesa_op);
  library.def(
      "short_convolution(Tensor x, Tensor weight, Tensor? bias=None, Tensor? before=None, Tensor? cu_seqlens=None)"
      " -> Tensor",
      short_convolution_op);
  library.def("short_convolution_with_state(Tensor x, Tensor weight, Tensor? bias=None, " OVQ_SEQUENCES
              ") -> (Tensor, Tensor?)",
              short_convolution_with_state);
#undef OVQ_SEQUENCES
  library.def("recurrence_chunk() -> int", [] { return kernels::recurrence::kChunk; });
  library.def("sequence_starts(Tensor cu_seqlens, Tensor like, str op) -> Tensor",
              torch::dispatch(c10::DispatchKey::CPU, sequence_starts));
  library.def("rms_norm(Tensor x, Tensor weight, float eps=1e-06, int groups=1) -> Tensor", rms_norm_op);
  library.def("l2_norm(Tensor x, float eps=1e-06) -> Tensor", l2_norm_op);
  library.def("rotary(Tensor x, float base=10000., int first_position=0, Tensor? cu_seqlens=None) -> Tensor",
              rotary_op);
  library.def(
      "vector_quantize(Tensor z, Tensor codewords, str gradient='straight_through', Tensor? bonus=None, "
      "float noise=0.001, int seed=0) -> (Tensor, Tensor)",
      vector_quantize_op);
}

}  // namespace ovq::ops
