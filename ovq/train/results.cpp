#include "ovq/train/results.h"

namespace ovq::train {

using nlohmann::json;

json to_json(const Result& result) {
  json line = to_json(result.evaluation);
  line["centroids"] = result.centroids;
  line["options"] = result.options;
  if (result.keep) line["keep"] = *result.keep;
  if (result.asked_keep) line["asked_keep"] = *result.asked_keep;
  return line;
}

bool same_question(const json& a, const json& b) {
  const auto same = [&](const char* key) { return a.value(key, json()) == b.value(key, json()); };
  return same("length") && same("options") && same("asked_keep") && (a.contains("asked_keep") || same("centroids"));
}

}  // namespace ovq::train
