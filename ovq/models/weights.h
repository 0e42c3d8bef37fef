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

// The model's own parameters and buffers by name.
NamedTensors named_tensors(const torch::nn::Module& module);

// Writes and reads tensors on the CPU. Reading copies them out of the mapped file and verifies its checksum, if any.
void save_tensors(const std::filesystem::path& file, const NamedTensors& tensors, const files::Metadata& metadata = {});
struct LoadedTensors {
  NamedTensors tensors;
  files::Metadata metadata;
  files::Integrity integrity = files::Integrity::absent;
};
LoadedTensors load_tensors(const std::filesystem::path& file);

// to <- from. Names and shapes must be the same: otherwise std::runtime_error names `file` and the difference, and
// nothing changes.
void assign_tensors(const NamedTensors& to, const NamedTensors& from, const std::filesystem::path& file);

// A state as its file holds it: the state's own tensors, and numbers as text. `source` names the file in errors.
struct PackedState {
  NamedTensors tensors;
  files::Metadata metadata;
};
PackedState pack(const ModelState& state);
// Marks a file as the state of a mixer or of a model; std::runtime_error if it is the other kind.
enum class StateOf { model, mixer };
constexpr auto enum_names(StateOf) {
  return std::to_array<EnumName<StateOf>>({{StateOf::model, "model"}, {StateOf::mixer, "mixer"}});
}
void set_state_of(PackedState& packed, StateOf of);
void check_state_of(const PackedState& packed, StateOf expected, const std::string& source);
ModelState unpack(const PackedState& packed, const std::string& source);

// SHA-256 (64 hexadecimal digits) of the model's weights and of its configuration without the number of centroids,
// which may change.
std::string fingerprint(const LanguageModel& model);

void save_model(const LanguageModel& model, const std::filesystem::path& directory);
std::shared_ptr<LanguageModel> load_model(const std::filesystem::path& directory);

}  // namespace ovq::models
