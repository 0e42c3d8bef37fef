// TORCH_LIBRARY(ovq), continued: mixers, language models and their states as classes. The Python package wraps them in
// modules; their parameters and buffers are the C++ modules' own tensors, not copies.
#include <torch/library.h>

#include <nlohmann/json.hpp>

#include "ovq/base/error.h"
#include "ovq/base/json_fields.h"
#include "ovq/core/checks.h"
#include "ovq/models/generate.h"
#include "ovq/models/presets.h"
#include "ovq/models/state_file.h"
#include "ovq/models/storage.h"
#include "ovq/models/weights.h"
#include "ovq/ops/torch/packed.h"
#include "ovq/text/text_stream.h"
#include "ovq/text/utf8.h"

namespace ovq::models {
namespace {

using nlohmann::json;
using TensorDict = c10::Dict<std::string, Tensor>;
using TextDict = c10::Dict<std::string, std::string>;

// The state of a model, or of a mixer as a model with one layer.
struct LayerStates : torch::CustomClassHolder {
  LayerStates() = default;
  explicit LayerStates(ModelState from) : state(std::move(from)) {}

  ModelState state;
  Session::Continuation continuation;  // of the generation that left the state at this position
  int64_t continuation_position = 0;

  bool has_continuation() const { return continuation.logits.defined() && continuation_position == state.position(); }
  void set_continuation(Session::Continuation from) {
    continuation = std::move(from);
    continuation_position = state.position();
  }
};
using StatesPtr = c10::intrusive_ptr<LayerStates>;

// Torch turns every exception of a method into a RuntimeError; this makes bad input a ValueError.
template <class Body>
auto with_value_errors(Body&& body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

json parsed(const std::string& text) {
  try {
    return json::parse(text);
  } catch (const json::exception& error) {
    throw std::invalid_argument(std::string("[config] not valid JSON: ") + error.what());
  }
}

TensorDict to_dict(const torch::OrderedDict<std::string, Tensor>& tensors) {
  TensorDict dict;
  for (const auto& item : tensors) dict.insert(item.key(), item.value());
  return dict;
}

TensorDict to_dict(const NamedTensors& tensors) {
  TensorDict dict;
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor);
  return dict;
}

StateDtype dtype_named(const std::string& name) {
  const auto found = enum_named<StateDtype>(name);
  check(found.has_value(), "state", "dtype is '", name, "'; must be ", allowed_names(StateDtype{}));
  return *found;
}

std::vector<std::string> names_of(const nn::MixerState& state) {
  std::vector<std::string> names;
  if (state.ovq) names.emplace_back("the dictionary of ovq");
  for (const auto& [name, tensor] : state.tensors) names.push_back(name);
  return names;
}

// Detects the state of another mixer: a mixer that finds none of its own tensors in a state starts anew and adds its
// own beside them.
void check_kept_names(const nn::MixerState& state, const std::vector<std::string>& before) {
  if (names_of(state) == before) return;
  std::string text;
  for (const std::string& name : before) text += (text.empty() ? "" : ", ") + name;
  fail("mixer", "state is that of another mixer; it has ", text);
}

// The copy that a forward works on when it must leave `from` unchanged. With gradients, tensors are replaced, not
// written to, so they can be shared.
ModelState to_continue(const ModelState& from) {
  if (!at::GradMode::is_enabled()) return from.clone();
  ModelState copy(from.dtype());
  for (const nn::MixerState& layer : from.layers) {
    nn::MixerState& own = copy.layers.emplace_back();
    own.position = layer.position;
    own.dtype = layer.dtype;
    own.layout = layer.layout;
    own.tensors = layer.tensors;
    own.ovq = layer.ovq;
  }
  return copy;
}

class MixerHandle : public torch::CustomClassHolder {
 public:
  static constexpr const char* kOp = "mixer";

  MixerHandle(const std::string& options, int64_t width)
      : module_(make_mixer(mixer_from_json(parsed(options), width, ""))) {}

  nn::Mixer& module() const { return *module_; }
  json config() const { return to_json(options_of(*module_)); }
  Tensor forward(const Tensor& x, const OptionalTensor& cu_seqlens) const { return module_->forward(x, cu_seqlens); }
  Tensor forward(const Tensor& x, ModelState& state) const { return module_->forward(x, only_layer(state)); }
  Tensor step(const Tensor& x, ModelState& state) const { return module_->step(x, only_layer(state)); }
  void set_centroids(int64_t centroids) const {
    auto* ovq = dynamic_cast<nn::OvqAttention*>(module_.get());
    check(ovq != nullptr, "mixer", "set_centroids is for ovq mixers; this one has no centroids");
    ovq->set_centroids(centroids);
  }

 private:
  static nn::MixerState& only_layer(ModelState& state) {
    if (state.layers.empty()) {
      state.layers.resize(1);
      state.set_dtype(state.dtype());
    }
    check(state.layers.size() == 1, "mixer", "state has ", state.layers.size(), " layers; must have 1");
    return state.layers.front();
  }

  std::shared_ptr<nn::Mixer> module_;
};

class ModelHandle : public torch::CustomClassHolder {
 public:
  static constexpr const char* kOp = "model";

  explicit ModelHandle(const std::string& config)
      : module_(std::make_shared<LanguageModel>(config_from_json(parsed(config)))) {}
  explicit ModelHandle(std::shared_ptr<LanguageModel> module) : module_(std::move(module)) {}

  std::shared_ptr<const text::Tokenizer> tokenizer;  // nullptr: none

  void set_tokenizer(std::shared_ptr<const text::Tokenizer> other, const std::string& where = "") {
    check(other->vocab() == module_->config().vocab_size, kOp, "the tokenizer", where, " has ", other->vocab(),
          " tokens; the model has ", module_->config().vocab_size);
    tokenizer = std::move(other);
  }

  LanguageModel& module() const { return *module_; }
  json config() const { return to_json(module_->config()); }
  Tensor forward(const Tensor& tokens, const OptionalTensor& cu_seqlens) const {
    return module_->forward(tokens, cu_seqlens);
  }
  Tensor forward(const Tensor& tokens, ModelState& state) const { return module_->forward(tokens, state); }
  Tensor step(const Tensor& tokens, ModelState& state) const { return module_->logits(module_->step(tokens, state)); }
  void set_centroids(int64_t centroids) const { module_->set_centroids(centroids); }

 private:
  std::shared_ptr<LanguageModel> module_;
};

enum class Pass { forward, step };

template <class Handle>
Tensor run(const Handle& handle, const Tensor& x, ModelState& state, Pass pass) {
  std::vector<std::vector<std::string>> before;
  if (state.position() > 0) {
    for (const nn::MixerState& layer : state.layers) before.push_back(names_of(layer));
  }
  Tensor y = pass == Pass::step ? handle.step(x, state) : handle.forward(x, state);
  for (size_t i = 0; i < before.size(); ++i) check_kept_names(state.layers[i], before[i]);
  return y;
}

// `states`: one for the batch, or one per packed sequence. Outputs are concatenated along time.
template <class Handle>
Tensor run_all(const Handle& handle, const Tensor& x, const std::vector<StatesPtr>& states,
               const OptionalTensor& cu_seqlens, Pass pass) {
  constexpr const char* kOp = Handle::kOp;
  if (!cu_seqlens) {
    check(states.size() == 1, kOp, "states has ", states.size(), "; must be 1 for the batch");
    return run(handle, x, states.front()->state, pass);
  }
  check(x.dim() >= 2, kOp, "x has ", x.dim(), " dimensions; must have batch and time");
  const auto sequences = kernels::check_sequences(kOp, x.size(0), x.size(1), ops::offsets_of(kOp, cu_seqlens));
  check(states.size() == sequences.size(), kOp, "states has ", states.size(), "; must be ", sequences.size(),
        ", one per packed sequence");
  std::vector<Tensor> parts;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (size_t j = 0; j < i; ++j) check(states[i] != states[j], kOp, "states[", i, "] is states[", j, "]");
    parts.push_back(run(handle, x.narrow(1, sequences[i].first, sequences[i].length), states[i]->state, pass));
  }
  return parts.empty() ? handle.forward(x, cu_seqlens) : at::cat(parts, 1);
}

// Continues `states`, or starts new ones if there are none. Leaves them unchanged and returns the states after x.
template <class Handle>
std::tuple<Tensor, std::vector<StatesPtr>> forward_with_states(const Handle& handle, const Tensor& x,
                                                               const std::vector<StatesPtr>& states,
                                                               const OptionalTensor& cu_seqlens) {
  std::vector<StatesPtr> after;
  for (const StatesPtr& from : states) after.push_back(c10::make_intrusive<LayerStates>(to_continue(from->state)));
  if (states.empty()) {
    const int64_t count = cu_seqlens ? std::max<int64_t>(0, cu_seqlens->numel() - 1) : 1;
    for (int64_t i = 0; i < count; ++i) after.push_back(c10::make_intrusive<LayerStates>());
  }
  const Tensor y = run_all(handle, x, after, cu_seqlens, Pass::forward);
  return {y, after};
}

GenerateOptions generate_options(const std::string& text) {
  const json object = parsed(text);
  GenerateOptions options;
  FieldReader reader(object, FieldContext{.op = "generate"});
  reader.read(options);
  reader.finish();
  return options;
}

// Generates tokens one by one; keeps model and state alive.
struct GenerationHandle : torch::CustomClassHolder {
  GenerationHandle(c10::intrusive_ptr<ModelHandle> model, StatesPtr state, const std::vector<int64_t>& prompt,
                   const GenerateOptions& options)
      : model(std::move(model)),
        state(std::move(state)),
        generation(this->model->module(), this->state->state, prompt, options,
                   this->state->has_continuation() ? this->state->continuation : Session::Continuation()) {}

  // Reads the last token, so that the state includes it.
  void settle() { state->set_continuation(generation.continuation()); }

  c10::intrusive_ptr<ModelHandle> model;
  StatesPtr state;
  Generation generation;
};

// Converts a stream of tokens to text.
struct TextStreamHandle : torch::CustomClassHolder {
  TextStreamHandle(std::shared_ptr<const text::Tokenizer> tokenizer, text::Place place, std::vector<std::string> stops)
      : tokenizer(std::move(tokenizer)), stream(*this->tokenizer, place, std::move(stops)) {}

  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::TextStream stream;
};

const text::Tokenizer& tokenizer_of(const ModelHandle& model) {
  check(model.tokenizer != nullptr, "generate", "the model has no tokenizer; text requires one: call set_tokenizer");
  return *model.tokenizer;
}

void define_generation(torch::Library& library, torch::class_<ModelHandle>& model) {
  using Model = c10::intrusive_ptr<ModelHandle>;
  using GenerationPtr = c10::intrusive_ptr<GenerationHandle>;
  using Stream = c10::intrusive_ptr<TextStreamHandle>;
  library.class_<GenerationHandle>("Generation");
  library.class_<TextStreamHandle>("TextStream")
      .def("add", [](const Stream& self, int64_t token) { return self->stream.add(static_cast<int32_t>(token)); })
      .def("finish", [](const Stream& self) { return self->stream.finish(); })
      .def("stopped", [](const Stream& self) { return self->stream.stopped(); });
  model
      .def("generation",
           [](const Model& self, const std::vector<int64_t>& prompt, const StatesPtr& state,
              const std::string& options) {
             return with_value_errors(
                 [&] { return c10::make_intrusive<GenerationHandle>(self, state, prompt, generate_options(options)); });
           })
      // -1 after the last one
      .def("next_token",
           [](const Model&, const GenerationPtr& generation) {
             return with_value_errors([&] { return generation->generation.next().value_or(-1); });
           })
      .def("settle",
           [](const Model&, const GenerationPtr& generation) { with_value_errors([&] { generation->settle(); }); })
      .def("has_tokenizer", [](const Model& self) { return self->tokenizer != nullptr; })
      .def("set_tokenizer",
           [](const Model& self, const std::string& name) {
             with_value_errors([&] { self->set_tokenizer(text::make_tokenizer(name)); });
           })
      // Encodes a text that begins at `position`.
      .def("encode",
           [](const Model& self, const std::string& text, int64_t position) {
             return with_value_errors([&] {
               const text::Tokenizer& tokenizer = tokenizer_of(*self);
               const std::vector<int32_t> tokens =
                   tokenizer.encode(text, position == 0 ? text::Place::start : text::Place::middle);
               std::vector<int64_t> result(tokens.begin(), tokens.end());
               if (const auto begin = tokenizer.begin_token(); begin && position == 0)
                 result.insert(result.begin(), *begin);
               return result;
             });
           })
      .def("decode",
           [](const Model& self, const std::vector<int64_t>& tokens) {
             return with_value_errors([&] {
               const text::Tokenizer& tokenizer = tokenizer_of(*self);
               for (const int64_t token : tokens) {
                 check(token >= 0 && token < tokenizer.vocab(), "decode", "tokens has ", token, "; the vocabulary has ",
                       tokenizer.vocab());
               }
               return text::repaired(tokenizer.decode({tokens.begin(), tokens.end()}));
             });
           })
      .def("end_token", [](const Model& self) -> int64_t { return tokenizer_of(*self).end_token().value_or(-1); })
      .def("text_stream", [](const Model& self, const std::vector<std::string>& stops) {
        return with_value_errors([&] {
          tokenizer_of(*self);
          return c10::make_intrusive<TextStreamHandle>(self->tokenizer, text::Place::middle, stops);
        });
      });
  library.def("generate_options() -> str", [] { return describe_fields(GenerateOptions()).dump(); });
}

// Methods that mixers and models share.
template <class Handle>
void define_module(torch::class_<Handle>& definition) {
  using Self = c10::intrusive_ptr<Handle>;
  using States = std::vector<StatesPtr>;
  const auto cu_seqlens = torch::arg("cu_seqlens") = c10::IValue();
  const auto check_given = [](const Tensor& x) {
    TORCH_CHECK_TYPE(x.defined(), "[", Handle::kOp, "] the input is None; must be a tensor");
  };
  definition.def("config", [](const Self& self) { return self->config().dump(); })
      .def("parameters", [](const Self& self) { return to_dict(self->module().named_parameters()); })
      .def("buffers", [](const Self& self) { return to_dict(self->module().named_buffers()); })
      .def("train", [](const Self& self, bool on) { self->module().train(on); })
      .def("state_bytes",
           [](const Self& self, int64_t tokens, const std::string& dtype) {
             constexpr int64_t most = int64_t{1} << 48;
             return with_value_errors([&] {
               check(tokens >= 0 && tokens <= most, Handle::kOp, "tokens is ", tokens, "; must be in [0, ", most, "]");
               return self->module().state_bytes(tokens, dtype_named(dtype));
             });
           })
      .def("set_centroids",
           [](const Self& self, int64_t centroids) { with_value_errors([&] { self->set_centroids(centroids); }); })
      .def("begin_step", [](const Self& self, int64_t step,
                            int64_t seed) { self->module().begin_step(step, static_cast<uint64_t>(seed)); })
      .def("end_step", [](const Self& self) { self->module().end_step(); })
      .def("step_statistics",
           [](const Self& self, int64_t rank, int64_t ranks) { return self->module().step_statistics(rank, ranks); })
      .def("begins_own_step", [](const Self& self) { return self->module().begins_own_step(); })
      .def("auxiliary_loss",
           [](const Self& self) {
             const Tensor loss = with_value_errors([&] { return self->module().auxiliary_loss(); });
             return loss.defined() ? OptionalTensor(loss) : OptionalTensor();
           })
      .def("forward",
           [=](const Self& self, const Tensor& x, const OptionalTensor& cu) {
             check_given(x);
             return with_value_errors([&] { return self->forward(x, cu); });
           },
           "", {torch::arg("x"), cu_seqlens})
      .def("forward_with_states",
           [=](const Self& self, const Tensor& x, const States& states, const OptionalTensor& cu) {
             check_given(x);
             return with_value_errors([&] { return forward_with_states(*self, x, states, cu); });
           },
           "", {torch::arg("x"), torch::arg("states"), cu_seqlens})
      .def("step",
           [=](const Self& self, const Tensor& x, const States& states, const OptionalTensor& cu) {
             check_given(x);
             const torch::NoGradGuard no_grad;
             return with_value_errors([&] { return run_all(*self, x, states, cu, Pass::step); });
           },
           "", {torch::arg("x"), torch::arg("states"), cu_seqlens});
}

PackedState packed_states(const LayerStates& states) {
  PackedState packed = pack(states.state);
  if (states.has_continuation()) pack_continuation(packed, states.continuation);
  return packed;
}

StatesPtr unpacked_states(const PackedState& packed, const std::string& source) {
  auto states = c10::make_intrusive<LayerStates>(unpack(packed, source));
  if (has_continuation(packed)) states->set_continuation(unpack_continuation(packed, source));
  return states;
}

void define_states(torch::Library& library) {
  library.class_<LayerStates>("LayerStates")
      .def(torch::init([](const std::string& dtype) {
        return with_value_errors([&] { return c10::make_intrusive<LayerStates>(ModelState(dtype_named(dtype))); });
      }))
      .def("dtype", [](const StatesPtr& self) { return std::string(name_of(self->state.dtype())); })
      .def("set_dtype",
           [](const StatesPtr& self, const std::string& dtype) { self->state.set_dtype(dtype_named(dtype)); })
      .def("position", [](const StatesPtr& self) { return self->state.position(); })
      .def("nbytes", [](const StatesPtr& self) { return self->state.nbytes(); })
      .def("layers", [](const StatesPtr& self) { return static_cast<int64_t>(self->state.layers.size()); })
      .def("tensors", [](const StatesPtr& self,
                         int64_t layer) { return to_dict(self->state.layers.at(static_cast<size_t>(layer)).tensors); })
      .def("dictionary",
           [](const StatesPtr& self, int64_t layer) -> c10::optional<c10::intrusive_ptr<ops::State>> {
             const auto& ovq = self->state.layers.at(static_cast<size_t>(layer)).ovq;
             return ovq ? c10::optional<c10::intrusive_ptr<ops::State>>(ovq) : c10::nullopt;
           })
      .def("clone",
           [](const StatesPtr& self) {
             auto copy = c10::make_intrusive<LayerStates>(self->state.clone());
             if (self->has_continuation()) copy->set_continuation(self->continuation);
             return copy;
           })
      .def("save",
           [](const StatesPtr& self, const std::string& path, const std::string& of) {
             with_value_errors([&] {
               PackedState packed = packed_states(*self);
               set_state_of(packed, *enum_named<StateOf>(of));
               save_tensors(path, packed.tensors, packed.metadata);
             });
           })
      .def("pack", [](const StatesPtr& self) {
        const PackedState packed = with_value_errors([&] { return packed_states(*self); });
        TextDict metadata;
        for (const auto& [name, text] : packed.metadata) metadata.insert(name, text);
        return std::tuple(to_dict(packed.tensors), metadata);
      });
  library.def("load_states(str path, str of) -> __torch__.torch.classes.ovq.LayerStates",
              [](std::string path, std::string of) {
                LoadedTensors loaded = load_tensors(path);
                const PackedState packed{std::move(loaded.tensors), std::move(loaded.metadata)};
                check_state_of(packed, *enum_named<StateOf>(of), path);
                return unpacked_states(packed, path);
              });
  library.def(
      "unpack_states(Dict(str, Tensor) tensors, Dict(str, str) metadata) -> __torch__.torch.classes.ovq.LayerStates",
      [](const TensorDict& tensors, const TextDict& metadata) {
        PackedState packed;
        for (const auto& item : tensors) packed.tensors.emplace(item.key(), item.value());
        for (const auto& item : metadata) packed.metadata.emplace(item.key(), item.value());
        return unpacked_states(packed, "this");
      });
}

TORCH_LIBRARY_FRAGMENT(ovq, library) {
  define_states(library);

  // The fields of a mixer's options, as FieldDescriber has them.
  library.def("mixer_options(str type) -> str", [](std::string type) { return describe_mixer(type).dump(); });
  // A mixer's options, {"type": ..., options}, checked and with their defaults.
  library.def("mixer_config(str options, int width) -> str", [](std::string options, int64_t width) {
    return to_json(mixer_from_json(parsed(options), width, "")).dump();
  });
  auto mixer = library.class_<MixerHandle>("Mixer");
  mixer.def(torch::init<std::string, int64_t>(), "", {torch::arg("options"), torch::arg("width")});
  define_module(mixer);

  auto model = library.class_<ModelHandle>("LanguageModel");
  model.def(torch::init<std::string>(), "", {torch::arg("config")});
  define_module(model);
  using Model = c10::intrusive_ptr<ModelHandle>;
  model
      .def("hidden",
           [](const Model& self, const Tensor& tokens, const OptionalTensor& cu_seqlens) {
             TORCH_CHECK_TYPE(tokens.defined(), "[model] tokens is None; must be a tensor");
             return with_value_errors([&] { return self->module().hidden(tokens, cu_seqlens); });
           })
      .def("bfloat16_weights", [](const Model& self) { self->module().store_bfloat16_weights(); })
      .def("weight_bytes", [](const Model& self) { return self->module().weight_bytes(); })
      .def("save",
           [](const Model& self, const std::string& directory) {
             save_model(self->module(), directory);
             if (self->tokenizer) {
               text::save_tokenizer(*self->tokenizer, directory);
             } else {
               text::remove_tokenizer(directory);
             }
           })
      .def("generate", [](const Model& self, const std::vector<int64_t>& prompt, const StatesPtr& state,
                          const std::string& options) {
        return with_value_errors(
            [&] { return generate(self->module(), state->state, prompt, generate_options(options)); });
      });
  define_generation(library, model);
  library.def("load_model(str directory) -> __torch__.torch.classes.ovq.LanguageModel", [](std::string directory) {
    auto model = c10::make_intrusive<ModelHandle>(load_model(directory));
    if (auto tokenizer = text::load_tokenizer(directory)) {
      with_value_errors([&] { model->set_tokenizer(std::move(tokenizer), " in " + directory); });
    }
    return model;
  });
  // A model's configuration, checked and with its defaults.
  library.def("model_config(str config) -> str",
              [](std::string config) { return to_json(config_from_json(parsed(config))).dump(); });
  library.def("preset_names() -> str[]", preset_names);
  library.def("preset_config(str name) -> str",
              [](std::string name) { return to_json(model_preset(name).config).dump(); });
}

}  // namespace
}  // namespace ovq::models
