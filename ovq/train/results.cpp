#include "ovq/train/results.h"

#include "ovq/base/files/durable.h"
#include "ovq/base/json_lines.h"

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

std::vector<json> read_results(const RunDirectory& run) { return read_json_lines(results_file(run)); }

void store_result(const RunDirectory& run, const Result& result) {
  const json added = to_json(result);
  std::string lines;
  for (const json& line : read_results(run)) {
    if (!same_question(line, added)) lines += line.dump() + "\n";
  }
  files::write_file_durably(results_file(run), lines + added.dump() + "\n");
}

}  // namespace ovq::train
