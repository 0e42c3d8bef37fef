// A run as a list of phases, each with its own steps, lengths, dictionary size and learning rate. For example, first
// short contexts, then long ones compressed as in the test.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ovq/base/json_fields.h"
#include "ovq/train/schedule.h"

namespace ovq::train {

// Values left at their default come from the run.
struct Phase {
  int64_t steps = 0;
  std::vector<int64_t> lengths;      // empty: the run's
  std::optional<int64_t> centroids;  // of every OVQ mixer; empty: the model's own
  double learning_rate = 0;          // 0: the run's
  double min_learning_rate = -1;     // negative: the run's
  int64_t warmup = -1;               // negative: the run's
  int64_t tokens_per_step = 0;       // 0: the run's

  // Each phase has its own warm-up and cosine.
  Schedule schedule() const { return {learning_rate, min_learning_rate, warmup, steps}; }
  int64_t longest() const;
};

// Errors name phase and field: "phases[1].steps is 0; must be ...".
std::vector<Phase> phases_from_json(const nlohmann::json& list);
nlohmann::json to_json(const std::vector<Phase>& phases);

// Reads the field `lengths` of `reader` if it is there; it must have at least `fewest` elements.
void read_lengths(FieldReader& reader, std::vector<int64_t>& lengths, size_t fewest);

// The phase of step 0, 1, ... (after the end, the last phase) and the step it began with.
struct PhasePosition {
  size_t index = 0;
  int64_t first = 0;
};
PhasePosition phase_at(const std::vector<Phase>& phases, int64_t step);

}  // namespace ovq::train
