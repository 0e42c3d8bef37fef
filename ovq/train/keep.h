// How much of a context an OVQ dictionary keeps: the share of its T tokens that have a centroid of their own at its
// end,
//   keep = n / T;  under plateau growth n = T N / (T + N), so keep = N / (T + N) and N = keep T / (1 - keep).
// Models are compared at equal keep over lengths, which one N cannot give.
#pragma once

#include <map>
#include <string>

#include "ovq/models/language_model.h"

namespace ovq::train {

// The dictionary of a model's OVQ-attention; nullptr if it has none. If it has several kinds, the first by name.
const kernels::OvqOptions* dictionary_of(const models::ModelConfig& config);

// Of a context of `length` tokens: N / (length + N) under plateau growth, and 1 where every token has its own.
double keep_of(const kernels::OvqOptions& dictionary, int64_t length);

// For tables: N, "all" if every token has a centroid of its own, "-" without a dictionary.
std::string centroids_text(int64_t centroids, bool every_token);

// The N that keeps that share of `length` tokens, at least 1. keep 1: every token of the row of `row` tokens, which may
// go on after the context, has a centroid of its own. std::invalid_argument unless 0 < keep <= 1.
int64_t centroids_for_keep(const kernels::OvqOptions& dictionary, double keep, int64_t length, int64_t row);

// Puts back, at its end, how many centroids the model's mixers may have.
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
