#include "ovq/models/weights.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ovq/base/checksum.h"
#include "ovq/base/files/durable.h"
#include "ovq/base/files/sha256.h"

namespace ovq::models {
namespace {

struct DtypePair {
  at::ScalarType torch;
  files::Dtype file;
};
constexpr DtypePair kDtypes[] = {
    {at::kFloat, files::Dtype::f32},     {at::kDouble, files::Dtype::f64}, {at::kHalf, files::Dtype::f16},
    {at::kBFloat16, files::Dtype::bf16}, {at::kLong, files::Dtype::i64},   {at::kInt, files::Dtype::i32},
    {at::kShort, files::Dtype::i16},     {at::kChar, files::Dtype::i8},    {at::kByte, files::Dtype::u8},
    {at::kBool, files::Dtype::boolean},
};

files::Dtype file_dtype(const std::string& name, at::ScalarType dtype) {
  for (const DtypePair& pair : kDtypes)
    if (pair.torch == dtype) return pair.file;
  throw std::invalid_argument(name + " has dtype " + std::string(c10::toString(dtype)) + "; files cannot store it");
}

at::ScalarType torch_dtype(const std::filesystem::path& file, const files::FileTensor& tensor) {
  for (const DtypePair& pair : kDtypes)
    if (pair.file == tensor.dtype) return pair.torch;
  throw std::runtime_error(file.string() + ": " + tensor.name + " has dtype " +
                           std::string(files::dtype_name(tensor.dtype)) + "; this torch does not support it");
}

std::string shape_text(at::IntArrayRef shape) {
  std::ostringstream out;
  out << shape;
  return out.str();
}

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kConfig = "config.json";
constexpr const char* kStateDtype = "ovq.state_dtype";
constexpr const char* kStateLayers = "ovq.state_layers";
constexpr const char* kStateOf = "ovq.state_of";

}  // namespace

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace(item.key(), item.value());
  return tensors;
}

void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors, const files::Metadata& metadata) {
  std::vector<Tensor> kept;  // contiguous copies that the entries point into
  std::vector<files::FileTensor> entries;
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().contiguous());
    const Tensor& x = kept.back();
    entries.push_back({.name = name,
                       .dtype = file_dtype(name, x.scalar_type()),
                       .shape = x.sizes().vec(),
                       .bytes = {static_cast<const std::byte*>(x.data_ptr()), x.nbytes()}});
  }
  files::save_safetensors(file, entries, {.metadata = metadata});
}

LoadedTensors load_tensors(const std::filesystem::path& file) {
  const files::Safetensors mapped(file);
  LoadedTensors loaded{.metadata = mapped.metadata(), .integrity = mapped.verify()};
  for (const files::FileTensor& entry : mapped.tensors()) {
    const Tensor x = at::empty(entry.shape, torch_dtype(file, entry));
    if (!entry.bytes.empty()) std::memcpy(x.data_ptr(), entry.bytes.data(), entry.bytes.size());
    loaded.tensors.emplace(entry.name, x);
  }
  return loaded;
}

void assign_tensors(const NamedTensors& to, const NamedTensors& from, const std::filesystem::path& file) {
  for (const auto& [name, tensor] : from) {
    if (!to.contains(name)) throw std::runtime_error(file.string() + " holds " + name + ", which the model lacks");
  }
  for (const auto& [name, tensor] : to) {
    const auto at = from.find(name);
    if (at == from.end()) throw std::runtime_error(file.string() + " lacks " + name);
    if (at->second.sizes() != tensor.sizes()) {
      throw std::runtime_error(file.string() + ": " + name + " is " + shape_text(at->second.sizes()) +
                               "; the model's is " + shape_text(tensor.sizes()));
    }
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : to) tensor.copy_(from.at(name));
}

std::string fingerprint(const LanguageModel& model) {
  std::string text = identity(model.config()) + "\n";
  for (const auto& [name, tensor] : named_tensors(model)) {
    const Tensor x = tensor.detach().contiguous();
    Crc32c checksum;
    checksum.add({static_cast<const std::byte*>(x.data_ptr()), x.nbytes()});
    text += name + " " + c10::toString(x.scalar_type()) + " " + shape_text(x.sizes()) + " " + checksum.text() + "\n";
  }
  return files::sha256(std::as_bytes(std::span(text)));
}

void save_model(const LanguageModel& model, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  files::write_file_durably(directory / kConfig, to_json(model.config()).dump(2) + "\n");
  save_tensors(directory / kWeights, named_tensors(model));
}

std::shared_ptr<LanguageModel> load_model(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory))
    throw std::runtime_error(directory.string() + " is not a directory with a model");
  const ModelConfig config = load_config(directory / kConfig);
  std::shared_ptr<LanguageModel> model;
  try {
    model = std::make_shared<LanguageModel>(config);
  } catch (const std::invalid_argument& error) {  // options that contradict each other
    throw std::runtime_error((directory / kConfig).string() + ": " + error.what());
  }
  const std::filesystem::path file = directory / kWeights;
  assign_tensors(named_tensors(*model), load_tensors(file).tensors, file);
  return model;
}

PackedState pack(const ModelState& state) {
  const std::vector<nn::MixerState>& layers = state.layers;
  PackedState packed{.metadata = {{kStateLayers, std::to_string(layers.size())}}};
  if (state.dtype() != kernels::StateDtype::float32) packed.metadata[kStateDtype] = name_of(state.dtype());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    packed.metadata[prefix + "position"] = std::to_string(layers[layer].position);
    if (!layers[layer].layout.empty()) packed.metadata[prefix + "layout"] = layers[layer].layout;
    for (const auto& [name, tensor] : layers[layer].tensors) packed.tensors[prefix + name] = tensor;
    if (layers[layer].ovq) packed.tensors[prefix + "ovq"] = layers[layer].ovq->to_bytes();
  }
  return packed;
}

ModelState unpack(const PackedState& packed, const std::string& source) {
  const auto number = [&](const std::string& key) {
    const auto at = packed.metadata.find(key);
    int64_t value = -1;
    try {
      if (at != packed.metadata.end()) value = std::stoll(at->second);
    } catch (const std::exception&) {
    }
    if (value < 0) throw std::runtime_error(source + " is not a model's state: no valid " + key);
    return value;
  };
  ModelState state;
  const int64_t layers = number(kStateLayers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    nn::MixerState& own = state.layers.emplace_back();
    own.position = number(prefix + "position");
    if (const auto at = packed.metadata.find(prefix + "layout"); at != packed.metadata.end()) own.layout = at->second;
    for (auto at = packed.tensors.lower_bound(prefix); at != packed.tensors.end() && at->first.starts_with(prefix);
         ++at) {
      const std::string name = at->first.substr(prefix.size());
      if (name == "ovq") {
        try {
          own.ovq = ops::State::from_bytes(at->second);
        } catch (const std::exception& error) {
          throw std::runtime_error(source + ": " + at->first + ": " + error.what());
        }
      } else {
        own.tensors[name] = at->second;
      }
    }
  }
  if (const auto at = packed.metadata.find(kStateDtype); at != packed.metadata.end()) {
    const auto dtype = enum_named<kernels::StateDtype>(at->second);
    if (!dtype) throw std::runtime_error(source + " has " + kStateDtype + " " + at->second + ", which is unknown");
    state.set_dtype(*dtype);
  }
  return state;
}

void set_state_of(PackedState& packed, StateOf of) { packed.metadata[kStateOf] = name_of(of); }

void check_state_of(const PackedState& packed, StateOf expected, const std::string& source) {
  const auto at = packed.metadata.find(kStateOf), layers = packed.metadata.find(kStateLayers);
  std::string found(name_of(expected));
  if (at != packed.metadata.end()) {
    found = at->second;
  } else if (layers != packed.metadata.end() && layers->second != "0" && layers->second != "1") {
    found = name_of(StateOf::model);  // older files do not say
  }
  if (found == name_of(expected)) return;
  throw std::runtime_error(source + " holds the state of a " + found + "; must be that of a " +
                           std::string(name_of(expected)));
}

void ModelState::save(const std::filesystem::path& path) const {
  PackedState packed = pack(*this);
  set_state_of(packed, StateOf::model);
  save_tensors(path, packed.tensors, packed.metadata);
}

ModelState ModelState::load(const std::filesystem::path& path) {
  LoadedTensors loaded = load_tensors(path);
  const PackedState packed{std::move(loaded.tensors), std::move(loaded.metadata)};
  check_state_of(packed, StateOf::model, path.string());
  return unpack(packed, path.string());
}

}  // namespace ovq::models
