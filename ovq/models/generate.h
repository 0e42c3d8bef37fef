// Text from a model: the prompt is read in pieces, then one token at a time follows; memory is that of the state.
#pragma once

#include <functional>
#include <vector>

#include "ovq/models/language_model.h"

namespace ovq::models {

struct GenerateOptions {
  int64_t tokens = 64;
  double temperature = 0;  // 0: the most likely token
  int64_t top_k = 0;       // of the most likely ones only; 0: all
  uint64_t seed = 0;
  int64_t piece = 512;  // tokens of the prompt read at a time
};

// Continues `state` with prompt [T] and appends `tokens` new ones, which it returns; `each`, if given, sees each as it
// comes and stops the generation by returning false. The last token returned has not been read yet.
std::vector<int64_t> generate(LanguageModel& model, ModelState& state, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& each = {});

// Reads tokens [B, T] in pieces; returns hidden [B, 1, width] of the last one.
Tensor prefill(LanguageModel& model, ModelState& state, const Tensor& tokens, int64_t piece);

}  // namespace ovq::models
