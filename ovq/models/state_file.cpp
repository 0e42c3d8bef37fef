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

// A tensor of that dtype with one dimension.
Tensor row(const PackedState& packed, const char* name, at::ScalarType dtype, const std::string& source) {
  const auto at = packed.tensors.find(name);
  if (at == packed.tensors.end() || at->second.scalar_type() != dtype || at->second.dim() != 1)
    throw std::runtime_error(source + " is not the state of a session: no valid " + name);
  return at->second;
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

void pack_continuation(PackedState& packed, const Session::Continuation& continuation) {
  packed.tensors[kLogits] = continuation.logits;
  packed.tensors[kRecent] =
      torch::tensor(at::IntArrayRef(std::vector<int64_t>(continuation.recent.begin(), continuation.recent.end())))
          .to(at::kInt);
  if (continuation.unread > 0) packed.metadata[kUnreadKey] = std::to_string(continuation.unread);
}

bool has_continuation(const PackedState& packed) { return packed.tensors.contains(kLogits); }

Session::Continuation unpack_continuation(const PackedState& packed, const std::string& source) {
  const Tensor recent = row(packed, kRecent, at::kInt, source).contiguous();
  const std::string unread = value_of(packed.metadata, kUnreadKey);
  return {.logits = row(packed, kLogits, at::kFloat, source).contiguous(),
          .recent = {recent.data_ptr<int32_t>(), recent.data_ptr<int32_t>() + recent.numel()},
          .unread = unread.empty() ? 0 : std::stoll(unread)};
}

void save_session(const std::filesystem::path& path, const ModelState& state, const Session::Continuation& continuation,
                  const StateOwner& owner) {
  if (!continuation.logits.defined())
    throw std::invalid_argument("[session] nothing has been read; there is no state to save");
  PackedState packed = pack(state);
  pack_continuation(packed, continuation);
  packed.metadata[kVersionKey] = kVersion;
  packed.metadata[kModelKey] = owner.model;
  packed.metadata[kTokenizerKey] = owner.tokenizer;
  save_tensors(path, packed.tensors, packed.metadata);
}

StoredSession load_session(const std::filesystem::path& path, const StateOwner& owner) {
  const std::string source = path.string();
  LoadedTensors loaded = load_tensors(path);
  if (loaded.integrity != files::Integrity::verified) throw std::runtime_error(source + " has no checksum");
  check_owner(loaded.metadata, owner, source);
  StoredSession stored;
  const PackedState packed{std::move(loaded.tensors), std::move(loaded.metadata)};
  stored.continuation = unpack_continuation(packed, source);
  stored.state = unpack(packed, source);
  return stored;
}

}  // namespace ovq::models
