#include "ovq/experiments/experiment_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"
#include "ovq/base/json_file.h"
#include "ovq/train/results.h"

namespace ovq::experiments {
namespace {

ExperimentResult result_from_json(const json& object) {
  const auto training = object.at("training");
  return {
      .group = object.at("group"),
      .name = object.at("name"),
      .shows = object.at("shows"),
      .claims = object.at("claims"),
      .options = train::run_options_from_json(object.at("options")),
      .requests = requests_from_json(object.at("requests"), "result", "requests"),
      .search = object.value("search", json()),
      .commit = object.value("commit", json()).is_string() ? object["commit"].get<std::string>() : "",
      .evaluated_by = object.at("evaluated_by"),
      .machine = object.at("machine"),
      .corpus = object.value("corpus", json()),
      .training = {.steps = training.at("steps"), .tokens = training.at("tokens"), .seconds = training.at("seconds")},
      .evaluation_seconds = object.at("evaluation_seconds"),
      .metric = object.at("metric"),
      .codebooks = object.value("codebooks", std::vector<json>()),
      .evaluations = object.at("evaluations").get<std::vector<json>>(),
      .identifiers = object.value("identifiers", std::vector<json>()),
      .choices = object.value("choices", json())};
}

std::string question_text(const json& evaluation) {
  std::string text = "length " + evaluation.at("length").dump();
  if (evaluation.contains("asked_keep"))
    text += ", keep " + evaluation["asked_keep"].dump();
  else if (evaluation.value("centroids", 0) > 0)
    text += ", N " + evaluation["centroids"].dump();
  const json options = evaluation.value("options", json::object());
  return options.empty() ? text : text + ", " + options.dump();
}

}  // namespace

json to_json(const ExperimentResult& result) {
  json object = {
      {"group", result.group},
      {"name", result.name},
      {"shows", result.shows},
      {"claims", result.claims},
      {"seed", result.options.seed},
      {"options", to_json(result.options)},
      {"requests", to_json(result.requests)},
      {"commit", result.commit.empty() ? json() : json(result.commit)},
      {"evaluated_by", result.evaluated_by},
      {"machine", result.machine},
      {"training",
       {{"steps", result.training.steps}, {"tokens", result.training.tokens}, {"seconds", result.training.seconds}}},
      {"evaluation_seconds", result.evaluation_seconds},
      {"metric", result.metric},
      {"evaluations", result.evaluations}};
  if (!result.codebooks.empty()) object["codebooks"] = result.codebooks;
  if (!result.search.is_null()) object["search"] = result.search;
  if (!result.corpus.is_null()) object["corpus"] = result.corpus;
  if (!result.choices.is_null()) object["choices"] = result.choices;
  if (!result.identifiers.empty()) object["identifiers"] = result.identifiers;
  return object;
}

std::string to_file_text(const ExperimentResult& result) { return to_lines(to_json(result), "evaluations"); }

ExperimentResult read_result(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) fail_data("results", "cannot open ", file.string());
  try {
    return result_from_json(json::parse(in));
  } catch (const std::exception& error) {
    fail_data("results", file.string(), " is not the result of an experiment: ", error.what());
  }
}

std::vector<json> codebook_curve(const std::vector<json>& metrics) {
  constexpr size_t kPoints = 60;
  std::vector<json> all;
  for (const json& line : metrics) {
    if (!line.contains("codebooks")) continue;
    all.push_back(line["codebooks"]);
    all.back()["step"] = line.at("step");
  }
  // Counted from the end so that the last step is included.
  const size_t stride = 1 + all.size() / kPoints;
  std::vector<json> some;
  for (size_t i = all.empty() ? 0 : (all.size() - 1) % stride; i < all.size(); i += stride) some.push_back(all[i]);
  return some;
}

bool answers(const ExperimentResult& result, const train::RunOptions& options,
             const std::vector<EvaluationRequest>& requests) {
  return differing_options(result.options, options).empty() && result.requests == requests;
}

std::vector<std::string> differences(const ExperimentResult& before, const ExperimentResult& now) {
  std::vector<std::string> lines;
  if (before.choices != now.choices)
    lines.push_back("choices were " + before.choices.dump() + ", are " + now.choices.dump());
  if (before.identifiers != now.identifiers) lines.push_back("the losses of identifiers differ");
  for (const json& old : before.evaluations) {
    const auto same = std::find_if(now.evaluations.begin(), now.evaluations.end(),
                                   [&](const json& evaluation) { return train::same_question(old, evaluation); });
    if (same == now.evaluations.end()) {
      lines.push_back(question_text(old) + ": not evaluated");
      continue;
    }
    for (const auto& [name, value] : old.items()) {
      if (name == "tokens_per_second" || same->value(name, json()) == value) continue;
      const bool is_short = value.is_number();
      lines.push_back(question_text(old) + ": " + name +
                      (is_short ? " was " + value.dump() + ", is " + same->value(name, json()).dump() : " differ"));
    }
  }
  return lines;
}

std::string differing_options(const train::RunOptions& a, const train::RunOptions& b) {
  const json left = to_comparable_json(a), right = to_comparable_json(b);
  std::vector<std::string> names;
  for (const auto& [name, value] : left.items()) {
    if (right.value(name, json()) != value) names.push_back(name);
  }
  for (const auto& [name, value] : right.items()) {
    if (!left.contains(name)) names.push_back(name);
  }
  return joined(names);
}

}  // namespace ovq::experiments
