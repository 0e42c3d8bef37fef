#include "ovq/models/sampling.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "ovq/base/error.h"
#include "ovq/base/random.h"

namespace ovq::models {
namespace {

// Equal scores: the lower number first.
constexpr auto more_likely = [](const auto& a, const auto& b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
};

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options) { check_fields("generate", options); }

int32_t Sampler::choose(std::span<const float> logits, std::span<const int32_t> recent, int64_t position) {
  candidates_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates_[i] = {logits[i], static_cast<int32_t>(i)};
  penalize(recent);
  const Candidate best = *std::min_element(candidates_.begin(), candidates_.end(), more_likely);
  if (!std::isfinite(best.score)) throw std::runtime_error("[generate] the model's logits are not finite numbers");
  if (options_.temperature == 0) return best.token;

  keep_most_likely();
  // score <- exp((score - best) / temperature), of which sums and shares follow
  for (Candidate& one : candidates_) {
    one.score = static_cast<float>(std::exp((one.score - best.score) / options_.temperature));
  }
  double total = 0;
  if (options_.top_p < 1) {
    for (const Candidate& one : candidates_) total += one.score;
    std::sort(candidates_.begin(), candidates_.end(), more_likely);
    double sum = 0;
    size_t kept = 0;
    while (kept < candidates_.size() && sum < options_.top_p * total) sum += candidates_[kept++].score;
    candidates_.resize(std::max<size_t>(1, kept));
  }
  std::erase_if(candidates_, [&](const Candidate& one) { return !(one.score >= options_.min_p); });
  total = 0;
  for (const Candidate& one : candidates_) total += one.score;
  double left = Random(hash_numbers({options_.seed, static_cast<uint64_t>(position)})).uniform() * total;
  for (const Candidate& one : candidates_) {
    left -= one.score;
    if (left <= 0) return one.token;
  }
  return best.token;  // the shares sum to less than 1 because of rounding
}

// Counts each token once, however often it occurred.
void Sampler::penalize(std::span<const int32_t> recent) {
  if (options_.repetition_penalty == 1) return;
  recent = recent.last(std::min(recent.size(), static_cast<size_t>(options_.repetition_window)));
  for (size_t i = 0; i < recent.size(); ++i) {
    if (std::find(recent.begin(), recent.begin() + static_cast<int64_t>(i), recent[i]) !=
        recent.begin() + static_cast<int64_t>(i))
      continue;
    float& score = candidates_[static_cast<size_t>(recent[i])].score;
    const auto penalty = static_cast<float>(options_.repetition_penalty);
    score = score > 0 ? score / penalty : score * penalty;
  }
}

void Sampler::keep_most_likely() {
  const auto count = static_cast<size_t>(options_.top_k);
  if (count == 0 || count >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + options_.top_k - 1, candidates_.end(), more_likely);
  candidates_.resize(count);
}

double log_probability(std::span<const float> logits, int32_t token) {
  check(token >= 0 && static_cast<size_t>(token) < logits.size(), "generate", "token is ", token, "; there are ",
        logits.size());
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return logits[static_cast<size_t>(token)] - most - std::log(sum);
}

}  // namespace ovq::models
