// Chooses the next token from its logits and the recent tokens.
//   repetition penalty -> temperature -> top_k -> top_p -> min_p -> draw
// The draw is a function of (seed, position), so a text that is interrupted and continued is the same text. Cost:
// O(vocabulary), with top_p a sort of the tokens that top_k leaves. Only the first choice allocates memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ovq/base/fields.h"

namespace ovq::models {

inline constexpr int64_t kMostRecent = 1024;  // number of recent tokens that a repetition penalty can use

struct SamplingOptions {
  double temperature = 0;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  int64_t repetition_window = 64;
  uint64_t seed = 0;
};

template <class Fields>
void list_fields(Fields& field, SamplingOptions& o) {
  field("temperature", o.temperature, "randomness of the choice; 0: always the most likely token", at_least(0));
  field("top_k", o.top_k, "choose among this many of the most likely tokens", or_zero(at_least(1), "all"));
  field("top_p", o.top_p, "choose among the most likely tokens that together have this probability", above_up_to(0, 1));
  field("min_p", o.min_p, "choose among tokens with at least this share of the highest probability", within(0, 1));
  field("repetition_penalty", o.repetition_penalty, "divisor of the scores of recent tokens", above(0));
  field("repetition_window", o.repetition_window, "number of recent tokens that the penalty applies to",
        within(1, kMostRecent));
  field("seed", o.seed, "random seed of the choice");
}

class Sampler {
 public:
  // std::invalid_argument names the wrong option.
  explicit Sampler(const SamplingOptions& options);

  // Chooses the token at `position`, after the tokens `recent`. std::runtime_error if no logit is finite.
  int32_t choose(std::span<const float> logits, std::span<const int32_t> recent, int64_t position);

 private:
  struct Candidate {
    float score;
    int32_t token;
  };

  void penalize(std::span<const int32_t> recent);
  void keep_most_likely();

  SamplingOptions options_;
  std::vector<Candidate> candidates_;
};

// Log-probability of a token under the model, independent of the sampling options.
double log_probability(std::span<const float> logits, int32_t token);

}  // namespace ovq::models
