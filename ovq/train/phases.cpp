#include "ovq/train/phases.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace ovq::train {
namespace {

using nlohmann::json;

// Reads an optional number and checks it if it is there.
template <class Allowed>
void read_number(FieldReader& reader, const char* name, double& value, const char* expected, Allowed allowed) {
  double found = NAN;
  reader(name, found, "");
  if (std::isnan(found)) return;
  if (!allowed(found)) reader.fail(name, found, expected);
  value = found;
}

Phase phase_from_json(const json& object, const std::string& path) {
  FieldReader reader(object, path);
  Phase phase;
  reader("steps", phase.steps, "", at_least(1));
  if (phase.steps == 0) reader.fail("steps", json(), "an integer of at least 1");
  read_lengths(reader, phase.lengths, 1);
  int64_t centroids = 0;
  reader("centroids", centroids, "", at_least(1));
  if (centroids > 0) phase.centroids = centroids;
  read_number(reader, "learning_rate", phase.learning_rate, "a positive number", [](double x) { return x > 0; });
  read_number(reader, "min_learning_rate", phase.min_learning_rate, "a number of at least 0",
              [](double x) { return x >= 0; });
  reader("warmup", phase.warmup, "", at_least(0));
  reader("tokens_per_step", phase.tokens_per_step, "", at_least(1));
  reader.finish();
  return phase;
}

}  // namespace

int64_t Phase::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

void read_lengths(FieldReader& reader, std::vector<int64_t>& lengths, size_t fewest) {
  const json* field = reader.find("lengths");
  if (field == nullptr) return;
  const bool good =
      field->is_array() && field->size() >= fewest && std::all_of(field->begin(), field->end(), [](const json& length) {
        return length.is_number_integer() && length.get<int64_t>() >= 1;
      });
  if (!good) reader.fail("lengths", *field, "a list of integers of at least 1");
  lengths = field->get<std::vector<int64_t>>();
}

std::vector<Phase> phases_from_json(const json& list) {
  if (!list.is_array() || list.empty())
    throw std::invalid_argument("[config] phases is " +
                                (list.is_array() ? "an empty list" : "of type " + std::string(list.type_name())) +
                                "; must be a list of phases such as {\"steps\": 500, \"centroids\": 256}");
  std::vector<Phase> phases;
  for (size_t i = 0; i < list.size(); ++i) {
    phases.push_back(phase_from_json(list[i], "phases[" + std::to_string(i) + "]"));
  }
  return phases;
}

json to_json(const std::vector<Phase>& phases) {
  json list = json::array();
  for (const Phase& phase : phases) {
    json& object = list.emplace_back(json{{"steps", phase.steps}});
    if (!phase.lengths.empty()) object["lengths"] = phase.lengths;
    if (phase.centroids) object["centroids"] = *phase.centroids;
    if (phase.learning_rate > 0) object["learning_rate"] = phase.learning_rate;
    if (phase.min_learning_rate >= 0) object["min_learning_rate"] = phase.min_learning_rate;
    if (phase.warmup >= 0) object["warmup"] = phase.warmup;
    if (phase.tokens_per_step > 0) object["tokens_per_step"] = phase.tokens_per_step;
  }
  return list;
}

PhasePosition phase_at(const std::vector<Phase>& phases, int64_t step) {
  PhasePosition position;
  while (position.index + 1 < phases.size() && step >= position.first + phases[position.index].steps) {
    position.first += phases[position.index].steps;
    ++position.index;
  }
  return position;
}

}  // namespace ovq::train
