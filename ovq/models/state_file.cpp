#include "ovq/models/state_file.h"

#include <stdexcept>

#include "ovq/models/weights.h"

namespace ovq::models {
namespace {

constexpr const char* kVersionKey = "ovq.session";
constexpr const char* kVersion = "1";
constexpr const char* kModelKey = "ovq.model";
constexpr const char* kTokenizerKey = "ovq.tokenizer";
constexpr const char* kUnreadKey = "ovq.unread";  // absent: 0
constexpr const char* kLogits = "logits";
constexpr const char* kRecent = "recent";

std::string value_of(const files::Metadata& metadata, const char* key) {
  const auto at = metadata.find(key);
  return at == metadata.end() ? "" : at->second;
}

// Takes a tensor of that dtype with one dimension out of the file's.
Tensor taken(LoadedTensors& loaded, const char* name, at::ScalarType dtype, const std::string& source) {
  const auto at = loaded.tensors.find(name);
  if (at == loaded.tensors.end() || at->second.scalar_type() != dtype || at->second.dim() != 1)
    throw std::runtime_error(source + " is not the state of a session: no valid " + name);
  Tensor tensor = at->second;
  loaded.tensors.erase(at);
  return tensor;
}

void check_owner(const files::Metadata& metadata, const StateOwner& owner, const std::string& source) {
  const std::string version = value_of(metadata, kVersionKey);
  if (version.empty()) throw std::runtime_error(source + " is not the state of a session");
  if (version != kVersion)
    throw std::runtime_error(source + " has version " + version + "; this program reads " + kVersion);
  if (const std::string model = value_of(metadata, kModelKey); model != owner.model)
    throw std::runtime_error(source + " is the state of another model, " + model + "; this one is " + owner.model);
  if (const std::string tokenizer = value_of(metadata, kTokenizerKey); tokenizer != owner.tokenizer)
    throw std::runtime_error(source + " was read with another tokenizer, " + tokenizer + "; this one is " +
                             owner.tokenizer);
}

}  // namespace

void save_session(const std::filesystem::path& path, const ModelState& state, const Session::Place& place,
                  const StateOwner& owner) {
  if (!place.logits.defined())
    throw std::invalid_argument("[session] nothing has been read; there is no state to save");
  PackedState packed = pack(state);
  packed.tensors[kLogits] = place.logits;
  packed.tensors[kRecent] =
      torch::tensor(at::IntArrayRef(std::vector<int64_t>(place.recent.begin(), place.recent.end()))).to(at::kInt);
  packed.metadata[kVersionKey] = kVersion;
  packed.metadata[kModelKey] = owner.model;
  packed.metadata[kTokenizerKey] = owner.tokenizer;
  if (place.unread > 0) packed.metadata[kUnreadKey] = std::to_string(place.unread);
  save_tensors(path, packed.tensors, packed.metadata);
}

StoredSession load_session(const std::filesystem::path& path, const StateOwner& owner) {
  const std::string source = path.string();
  LoadedTensors loaded = load_tensors(path);
  if (loaded.integrity != files::Integrity::verified) throw std::runtime_error(source + " has no checksum");
  check_owner(loaded.metadata, owner, source);
  StoredSession stored;
  stored.place.logits = taken(loaded, kLogits, at::kFloat, source);
  const Tensor recent = taken(loaded, kRecent, at::kInt, source);
  stored.place.recent.assign(recent.data_ptr<int32_t>(), recent.data_ptr<int32_t>() + recent.numel());
  if (const std::string unread = value_of(loaded.metadata, kUnreadKey); !unread.empty())
    stored.place.unread = std::stoll(unread);
  stored.state = unpack({std::move(loaded.tensors), std::move(loaded.metadata)}, source);
  return stored;
}

}  // namespace ovq::models
