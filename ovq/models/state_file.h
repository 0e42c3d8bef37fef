// Sessions on disk: a safetensors file with the state (ModelState::save), the logits of the next token and the recent
// tokens. Its metadata hold a version, the model's fingerprint, the tokenizer's identity and, if reading was
// interrupted, the number of unread tokens. The file has a checksum. A file of another model or tokenizer is refused.
#pragma once

#include <filesystem>
#include <string>

#include "ovq/models/session.h"
#include "ovq/models/weights.h"

namespace ovq::models {

// Stores a continuation among the tensors of a state.
void pack_continuation(PackedState& packed, const Session::Continuation& continuation);
bool has_continuation(const PackedState& packed);
Session::Continuation unpack_continuation(const PackedState& packed, const std::string& source);

struct StateOwner {
  std::string model;      // fingerprint
  std::string tokenizer;  // Tokenizer::identity(); empty: tokens only
};

void save_session(const std::filesystem::path& path, const ModelState& state, const Session::Continuation& continuation,
                  const StateOwner& owner);

struct StoredSession {
  ModelState state;
  Session::Continuation continuation;
};
// std::runtime_error names the file and the problem.
StoredSession load_session(const std::filesystem::path& path, const StateOwner& owner);

}  // namespace ovq::models
