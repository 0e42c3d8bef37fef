// TORCH_LIBRARY(ovq): the ops and the state class as TorchScript and Python see them. What options there are, the list
// of OvqOptions' fields says: schemas are made of it, and the ops that take options read them off the stack by it.
#include <torch/library.h>

#include "ovq/base/blas.h"
#include "ovq/base/json_fields.h"
#include "ovq/ops/attention/torch.h"
#include "ovq/ops/ovq_attention/state.h"
#include "ovq/ops/ovq_attention/torch.h"
#include "ovq/ops/torch/option_schema.h"

namespace {

using at::Tensor;
using c10::IValue;
using ovq::kernels::OvqOptions;
using ovq::kernels::StateDtype;
using ovq::ops::State;
using ovq::ops::StatePtr;
using torch::jit::Stack;

constexpr const char* kOp = "ovq_attention";

constexpr const char* kInputs = "Tensor q, Tensor k, Tensor v, Tensor beta";
constexpr const char* kLast = ", Tensor? cu_seqlens=None, Tensor? weights=None";
constexpr const char* kStates = "__torch__.torch.classes.ovq.State[]";
constexpr size_t kInputCount = 4, kLastCount = 2;

std::string schema(const std::string& name, const std::string& returns, const std::string& more = "") {
  return name + "(" + kInputs + ovq::ops::option_arguments<OvqOptions>() + kLast + more + ") -> " + returns;
}

// The arguments of such a schema, taken off the stack.
struct OvqArguments {
  explicit OvqArguments(Stack& stack)
      : values(torch::jit::pop(stack, kInputCount + ovq::ops::option_count<OvqOptions>() + kLastCount)) {
    ovq::ops::StackReader reader(kOp, c10::ArrayRef<IValue>(values).slice(kInputCount));
    list_fields(reader, options);
    const size_t last = kInputCount + reader.read();
    cu_seqlens = values[last].toOptional<Tensor>();
    weights = values[last + 1].toOptional<Tensor>();
  }
  const Tensor& tensor(size_t i) const { return values[i].toTensor(); }

  std::vector<IValue> values;
  OvqOptions options;
  c10::optional<Tensor> cu_seqlens, weights;
};

StateDtype state_dtype_named(const char* op, const char* argument, const std::string& name) {
  const auto found = ovq::enum_named<StateDtype>(name);
  ovq::check(found.has_value(), op, argument, " is '", name, "'; must be ", ovq::allowed_names(StateDtype{}));
  return *found;
}

void ovq_attention(const c10::OperatorHandle&, Stack* stack) {
  const OvqArguments in(*stack);
  torch::jit::push(*stack, ovq::ops::ovq_attention(in.tensor(0), in.tensor(1), in.tensor(2), in.tensor(3), in.options,
                                                   in.cu_seqlens, in.weights));
}

void ovq_attention_start(const c10::OperatorHandle&, Stack* stack) {
  const std::string dtype = torch::jit::pop(*stack).toStringRef();
  const OvqArguments in(*stack);
  auto result =
      ovq::ops::ovq_attention_with_state(in.tensor(0), in.tensor(1), in.tensor(2), in.tensor(3), in.options,
                                         in.cu_seqlens, {}, in.weights, state_dtype_named(kOp, "state_dtype", dtype));
  torch::jit::push(*stack, result.o, result.states);
}

// "ovq_state_bytes(int kv_heads, int key_dim, int value_dim, <options>, bool weighted, int tokens, str dtype) -> int":
// memory of the state of one sequence. Checks the options, too.
constexpr size_t kSizeCount = 3, kBytesLastCount = 3;

std::string state_bytes_schema() {
  return "ovq_state_bytes(int kv_heads, int key_dim, int value_dim" + ovq::ops::option_arguments<OvqOptions>() +
         ", bool weighted=False, int tokens=0, str dtype='float32') -> int";
}

void ovq_state_bytes(const c10::OperatorHandle&, Stack* stack) {
  const size_t options_count = ovq::ops::option_count<OvqOptions>();
  const std::vector<IValue> values = torch::jit::pop(*stack, kSizeCount + options_count + kBytesLastCount);
  OvqOptions options;
  ovq::ops::StackReader reader("ovq", c10::ArrayRef<IValue>(values).slice(kSizeCount));
  list_fields(reader, options);
  const size_t last = kSizeCount + options_count;
  options.weighted = values[last].toBool();
  const ovq::kernels::OvqShape shape = {1, values[0].toInt(), values[1].toInt(), values[2].toInt()};
  ovq::kernels::check_options("ovq", options, shape.key_dim);
  const int64_t bytes = ovq::kernels::OvqState::nbytes_after(
      shape, options, values[last + 1].toInt(), state_dtype_named("ovq", "dtype", values[last + 2].toStringRef()));
  torch::jit::push(*stack, bytes);
}

// The states bring the options; `centroids`, if given, applies from the next write.
std::tuple<Tensor, std::vector<StatePtr>> ovq_attention_continue(const Tensor& q, const Tensor& k, const Tensor& v,
                                                                 const Tensor& beta, std::vector<StatePtr> states,
                                                                 c10::optional<int64_t> centroids,
                                                                 const c10::optional<Tensor>& cu_seqlens,
                                                                 const c10::optional<Tensor>& weights) {
  OvqOptions options;
  if (!centroids) {
    options = ovq::ops::options_of(kOp, states);
  } else {
    if (!states.empty()) options = states.front()->options();
    options.centroids = *centroids;
  }
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

// In place of torch.func.vmap's loop over an op, which is as slow as it says.
void refuse_vmap(const c10::OperatorHandle& op, Stack*) {
  std::string name = op.operator_name().name;
  name = name.substr(name.find("::") + 2);
  TORCH_CHECK_NOT_IMPLEMENTED(false, "[", name,
                              "] does not go with torch.func.vmap; fold the mapped dimension into the batch: "
                              "x.flatten(0, 1) before the op, unflatten after it");
}

}  // namespace

TORCH_LIBRARY_IMPL(ovq, FuncTorchBatched, library) {
  for (const char* op : {"attention", "ovq_attention", "gated_delta_rule", "linear_attention", "ssd", "mesa",
                         "short_convolution", "rms_norm", "l2_norm", "rotary", "vector_quantize"}) {
    library.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse_vmap>());
  }
}

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
      .def("shrinkage",
           [](const StatePtr& self) -> c10::optional<Tensor> {
             const Tensor shrinkage = self->shrinkage();
             return shrinkage.defined() ? c10::optional<Tensor>(shrinkage) : c10::nullopt;
           })
      .def("position", [](const StatePtr& self) { return self->position(); })
      .def("nbytes", [](const StatePtr& self) { return self->nbytes(); })
      .def("to", [](const StatePtr& self,
                    std::string dtype) { return self->to(state_dtype_named("State.to", "dtype", dtype)); })
      .def("options", [](const StatePtr& self) { return ovq::fields_to_json(self->options()).dump(); })
      .def("clone", [](const StatePtr& self) { return self->clone(); })
      .def("detach", [](const StatePtr& self) { return self->detach(); })
      .def("save", [](const StatePtr& self, std::string path) { self->save(path); })
      .def("to_bytes", [](const StatePtr& self) { return self->to_bytes(); });
  library.def("load_state(str path) -> __torch__.torch.classes.ovq.State",
              [](std::string path) { return State::load(path); });
  library.def("state_from_bytes(Tensor bytes) -> __torch__.torch.classes.ovq.State",
              [](const Tensor& bytes) { return State::from_bytes(bytes); });
  library.def("blas_advice() -> str", [] { return ovq::missing_kernels_text(ovq::loaded_blas()); });
  // The fields of the options, as FieldDescriber has them.
  library.def("ovq_options() -> str", [] { return ovq::describe_fields<OvqOptions>().dump(); });
  library.def(
      "attention(Tensor q, Tensor k, Tensor v, Tensor beta, int window=0, int query_offset=0, Tensor? cu_seqlens=None) "
      "-> Tensor",
      attention);
  const std::string inputs = kInputs, states = kStates, last = kLast;
  library.def(schema("ovq_attention", "Tensor").c_str(), torch::CppFunction::makeFromBoxedFunction<&ovq_attention>());
  library.def(schema("ovq_attention_start", "(Tensor, " + states + ")", ", str state_dtype='float32'").c_str(),
              torch::CppFunction::makeFromBoxedFunction<&ovq_attention_start>());
  library.def(state_bytes_schema().c_str(), torch::CppFunction::makeFromBoxedFunction<&ovq_state_bytes>());
  library.def(("ovq_attention_continue(" + inputs + ", " + states + " states, int? centroids=None" + last +
               ") -> (Tensor, " + states + ")")
                  .c_str(),
              ovq_attention_continue);
  library.def(
      ("ovq_step(" + inputs + ", " + states + " states, Tensor? cu_seqlens=None, Tensor? weights=None) -> Tensor")
          .c_str(),
      ovq_step);
}
