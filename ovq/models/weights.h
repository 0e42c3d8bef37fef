// Models as directories: config.json and model.safetensors.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "ovq/base/fields.h"
#include "ovq/base/files/safetensors.h"
#include "ovq/models/language_model.h"

namespace ovq::models {

using NamedTensors = std::map<std::string, Tensor>;

// Parameters and buffers by name; they are the model's own.
NamedTensors named_tensors(const torch::nn::Module& module);

// Tensors on the CPU to and from a file. Reading copies out of the mapped file and checks its checksum, if it has one.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors, const files::Metadata& metadata = {});
struct LoadedTensors {
  NamedTensors tensors;
  files::Metadata metadata;
  files::Integrity integrity = files::Integrity::absent;
};
LoadedTensors load_tensors(const std::filesystem::path& file);

// to <- from: the same names and shapes, or std::runtime_error naming `file` and what differs, and nothing has changed.
void assign_tensors(const NamedTensors& to, const NamedTensors& from, const std::filesystem::path& file);

// A state as what its file holds: tensors, which are the state's own, and numbers as text. `source` is what errors
// name.
struct PackedState {
  NamedTensors tensors;
  files::Metadata metadata;
};
PackedState pack(const ModelState& state);
// Files say whose state they hold; std::runtime_error if it is the other's.
enum class StateOf { model, mixer };
constexpr auto enum_names(StateOf) {
  return std::to_array<EnumName<StateOf>>({{StateOf::model, "model"}, {StateOf::mixer, "mixer"}});
}
void set_state_of(PackedState& packed, StateOf of);
void check_state_of(const PackedState& packed, StateOf expected, const std::string& source);
ModelState unpack(const PackedState& packed, const std::string& source);

// Names a model by what it computes: its configuration but for the number of centroids, which may change, and its
// weights. 64 hexadecimal digits.
std::string fingerprint(const LanguageModel& model);

void save_model(const LanguageModel& model, const std::filesystem::path& directory);
std::shared_ptr<LanguageModel> load_model(const std::filesystem::path& directory);

}  // namespace ovq::models
