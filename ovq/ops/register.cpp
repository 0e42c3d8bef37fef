// TORCH_LIBRARY(ovq): the ops and the state class as TorchScript and Python see them.
#include <torch/library.h>

#include "ovq/ops/attention.h"
#include "ovq/ops/ovq_attention.h"

namespace {

using at::Tensor;
using ovq::kernels::OvqOptions;
using ovq::ops::State;
using ovq::ops::StatePtr;

// The options in the order of the schemas below.
OvqOptions make_options(int64_t chunk, int64_t centroids, const std::string& growth, int64_t total_tokens,
                        const std::string& new_centroids, c10::optional<double> rate, bool normalize, bool rope,
                        double rope_base, int64_t seed) {
  OvqOptions options;
  options.chunk = chunk;
  options.centroids = centroids;
  options.growth = ovq::ops::growth_from(growth);
  options.total_tokens = total_tokens;
  options.new_centroids = ovq::ops::new_centroids_from(new_centroids);
  if (rate) options.rate = static_cast<float>(*rate);
  options.normalize = normalize;
  options.rope = rope;
  options.rope_base = static_cast<float>(rope_base);
  options.seed = static_cast<uint64_t>(seed);
  return options;
}

Tensor ovq_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t chunk,
                     int64_t centroids, std::string growth, int64_t total_tokens, std::string new_centroids,
                     c10::optional<double> rate, bool normalize, bool rope, double rope_base, int64_t seed,
                     const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights) {
  return ovq::ops::ovq_attention(
      q, k, v, beta,
      make_options(chunk, centroids, growth, total_tokens, new_centroids, rate, normalize, rope, rope_base, seed),
      cu_seqlens, weights);
}

std::tuple<Tensor, std::vector<StatePtr>> ovq_attention_start(const Tensor& q, const Tensor& k, const Tensor& v,
                                                              const Tensor& beta, int64_t chunk, int64_t centroids,
                                                              std::string growth, int64_t total_tokens,
                                                              std::string new_centroids, c10::optional<double> rate,
                                                              bool normalize, bool rope, double rope_base, int64_t seed,
                                                              const c10::optional<Tensor>& cu_seqlens,
                                                              const c10::optional<Tensor>& weights) {
  auto result = ovq::ops::ovq_attention_with_state(
      q, k, v, beta,
      make_options(chunk, centroids, growth, total_tokens, new_centroids, rate, normalize, rope, rope_base, seed),
      cu_seqlens, {}, weights);
  return {result.o, result.states};
}

// The states bring the options; `centroids`, if given, applies from the next write.
std::tuple<Tensor, std::vector<StatePtr>> ovq_attention_continue(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                 const Tensor& beta, std::vector<StatePtr> states,
                                                                 c10::optional<int64_t> centroids,
                                                                 const c10::optional<Tensor>& cu_seqlens,
                                                                 const c10::optional<Tensor>& weights) {
  OvqOptions options = states.empty() ? OvqOptions{} : states.front()->options();
  if (centroids) options.centroids = *centroids;
  auto result = ovq::ops::ovq_attention_with_state(q, k, v, beta, options, cu_seqlens, states, weights);
  return {result.o, result.states};
}

Tensor ovq_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, std::vector<StatePtr> states,
                const c10::optional<Tensor>& cu_seqlens, const c10::optional<Tensor>& weights) {
  return ovq::ops::ovq_step(q, k, v, beta, states, cu_seqlens, weights);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& beta, int64_t window,
                 int64_t query_offset, const c10::optional<Tensor>& cu_seqlens) {
  return ovq::ops::attention(q, k, v, beta, window, query_offset, cu_seqlens);
}

}  // namespace

TORCH_LIBRARY(ovq, library) {
  library.class_<State>("State")
      .def("keys", [](const StatePtr& self) { return self->tensors().keys; })
      .def("values", [](const StatePtr& self) { return self->tensors().values; })
      .def("pending_keys", [](const StatePtr& self) { return self->tensors().pending_keys; })
      .def("pending_values", [](const StatePtr& self) { return self->tensors().pending_values; })
      .def("counts", [](const StatePtr& self) { return self->counts(); })
      .def("weighted", [](const StatePtr& self) { return self->options().weighted; })
      .def("pending_weights",
           [](const StatePtr& self) -> c10::optional<Tensor> {
             const Tensor weights = self->pending_weights();
             return weights.defined() ? c10::optional<Tensor>(weights) : c10::nullopt;
           })
      .def("position", [](const StatePtr& self) { return self->position(); })
      .def("nbytes", [](const StatePtr& self) { return self->nbytes(); })
      .def("fused", [](const StatePtr& self) { return self->fused(); })
      .def("chunk", [](const StatePtr& self) { return self->options().chunk; })
      .def("centroids", [](const StatePtr& self) { return self->options().centroids; })
      .def("growth", [](const StatePtr& self) { return ovq::ops::to_string(self->options().growth); })
      .def("total_tokens", [](const StatePtr& self) { return self->options().total_tokens; })
      .def("new_centroids", [](const StatePtr& self) { return ovq::ops::to_string(self->options().new_centroids); })
      .def("rate",
           [](const StatePtr& self) -> c10::optional<double> {
             const auto& rate = self->options().rate;
             return rate ? c10::optional<double>(*rate) : c10::nullopt;
           })
      .def("normalize", [](const StatePtr& self) { return self->options().normalize; })
      .def("rope", [](const StatePtr& self) { return self->options().rope; })
      .def("rope_base", [](const StatePtr& self) { return static_cast<double>(self->options().rope_base); })
      .def("seed", [](const StatePtr& self) { return static_cast<int64_t>(self->options().seed); })
      .def("clone", [](const StatePtr& self) { return self->clone(); })
      .def("detach", [](const StatePtr& self) { return self->detach(); })
      .def("save", [](const StatePtr& self, std::string path) { self->save(path); })
      .def("to_bytes", [](const StatePtr& self) { return self->to_bytes(); });
  library.def("load_state(str path) -> __torch__.torch.classes.ovq.State",
              [](std::string path) { return State::load(path); });
  library.def("state_from_bytes(Tensor bytes) -> __torch__.torch.classes.ovq.State",
              [](const Tensor& bytes) { return State::from_bytes(bytes); });
  library.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor beta, int window=0, int query_offset=0, Tensor? cu_seqlens=None)"
      " -> Tensor",
      attention);
#define OVQ_INPUTS "Tensor q, Tensor k, Tensor v, Tensor beta"
#define OVQ_OPTIONS                                                                                           \
  "int chunk=128, int centroids=2048, str growth='plateau', int total_tokens=0, str new_centroids='spread', " \
  "float? rate=None, bool normalize=False, bool rope=False, float rope_base=10000., int seed=0, Tensor? "     \
  "cu_seqlens=None, Tensor? weights=None"
#define OVQ_STATES "__torch__.torch.classes.ovq.State[]"
  library.def("ovq_attention(" OVQ_INPUTS ", " OVQ_OPTIONS ") -> Tensor", ovq_attention);
  library.def("ovq_attention_start(" OVQ_INPUTS ", " OVQ_OPTIONS ") -> (Tensor, " OVQ_STATES ")", ovq_attention_start);
  library.def("ovq_attention_continue(" OVQ_INPUTS ", " OVQ_STATES
              " states, int? centroids=None, Tensor? cu_seqlens=None, Tensor? weights=None) -> (Tensor, " OVQ_STATES
              ")",
              ovq_attention_continue);
  library.def("ovq_step(" OVQ_INPUTS ", " OVQ_STATES
              " states, Tensor? cu_seqlens=None, Tensor? weights=None) -> Tensor",
              ovq_step);
#undef OVQ_INPUTS
#undef OVQ_OPTIONS
#undef OVQ_STATES
}
