// How much of a context an OVQ dictionary keeps: the share of the context's T tokens that have a centroid of their own
// at its end,
//   keep = n / T;  under plateau growth n = T N / (T + N), so keep = N / (T + N) and N = keep T / (1 - keep).
// Models are compared at equal keep over lengths. No single N gives that.
#pragma once

#include <map>
#include <string>

#include "ovq/models/language_model.h"

namespace ovq::train {

// The dictionary of a model's OVQ-attention; nullptr if it has none. A model with several kinds returns the first by
// name.
const kernels::OvqOptions* dictionary_of(const models::ModelConfig& config);

// For a context of `length` tokens: N / (length + N) under plateau growth, 1 where every token has its own centroid.
double keep_of(const kernels::OvqOptions& dictionary, int64_t length);

// For tables: N, "all" if every token has a centroid of its own, "-" without a dictionary.
std::string centroids_text(int64_t centroids, bool every_token);

// The N that keeps this share of `length` tokens, at least 1. keep 1 gives every token of the row a centroid of its
// own; the row has `row` tokens and may extend beyond the context. std::invalid_argument unless 0 < keep <= 1.
int64_t centroids_for_keep(const kernels::OvqOptions& dictionary, double keep, int64_t length, int64_t row);

// Restores the model's numbers of centroids when it is destroyed.
class CentroidsKeeper {
 public:
  explicit CentroidsKeeper(models::LanguageModel& model) : model_(model), before_(model.config().centroids()) {}
  ~CentroidsKeeper() { model_.set_centroids(before_); }
  CentroidsKeeper(const CentroidsKeeper&) = delete;
  CentroidsKeeper& operator=(const CentroidsKeeper&) = delete;

 private:
  models::LanguageModel& model_;
  std::map<std::string, int64_t> before_;
};

}  // namespace ovq::train
