#include "ovq/train/results.h"

#include <fstream>

#include "ovq/models/files/durable.h"

namespace ovq::train {
namespace {

std::filesystem::path results_file(const RunDirectory& run) { return run.path() / "evaluations.jsonl"; }

bool same_question(const json& a, const json& b) {
  const auto same = [&](const char* key) { return a.value(key, json()) == b.value(key, json()); };
  return same("length") && same("options") && same("asked_keep") && (a.contains("asked_keep") || same("centroids"));
}

}  // namespace

json to_json(const Result& result) {
  json line = to_json(result.evaluation);
  line["centroids"] = result.centroids;
  line["options"] = result.options;
  if (result.keep) line["keep"] = *result.keep;
  if (result.asked_keep) line["asked_keep"] = *result.asked_keep;
  return line;
}

std::vector<json> read_results(const RunDirectory& run) {
  std::vector<json> results;
  std::ifstream in(results_file(run));
  for (std::string line; std::getline(in, line);) {
    json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) results.push_back(std::move(parsed));
  }
  return results;
}

void store_result(const RunDirectory& run, const Result& result) {
  const json added = to_json(result);
  std::string lines;
  for (const json& line : read_results(run)) {
    if (!same_question(line, added)) lines += line.dump() + "\n";
  }
  files::write_file_durably(results_file(run), lines + added.dump() + "\n");
}

}  // namespace ovq::train
