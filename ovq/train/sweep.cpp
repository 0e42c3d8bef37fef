#include "ovq/train/sweep.h"

#include <fmt/format.h>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/table.h"
#include "ovq/train/checkpoint.h"
#include "ovq/train/keep.h"

namespace ovq::train {
namespace {

// A dictionary size, or the share it should keep of every length.
struct DictionaryChoice {
  int64_t centroids = 0;  // 0: the model has no dictionary
  std::optional<double> keep;
};

std::vector<DictionaryChoice> dictionary_choices(const SweepOptions& options, const Run& run,
                                                 const models::ModelConfig& config) {
  const auto* dictionary = dictionary_of(config);
  check(dictionary != nullptr || (options.centroids.empty() && options.keeps.empty()), "sweep",
        options.keeps.empty() ? "centroids" : "keeps", " are given; ", run.options().model, " has no OVQ-attention");
  std::vector<DictionaryChoice> choices;
  for (const int64_t centroids : options.centroids) choices.push_back({.centroids = centroids});
  for (const double keep : options.keeps) choices.push_back({.keep = keep});
  if (choices.empty()) choices.push_back({.centroids = dictionary == nullptr ? 0 : dictionary->centroids});
  return choices;
}

std::vector<tasks::EvaluationSetting> settings(const SweepOptions& options, const Run& run) {
  if (options.lengths.empty()) return run.description().evaluations;
  std::vector<tasks::EvaluationSetting> settings;
  for (const int64_t length : options.lengths) settings.push_back({.length = length});
  return settings;
}

// One length with one dictionary.
Result evaluate_with(const DictionaryChoice& choice, models::LanguageModel& model, const tasks::Task& task,
                     const EvaluateOptions& options) {
  Result result{.length = options.length, .centroids = choice.centroids, .asked_keep = choice.keep};
  if (choice.keep) {
    const int64_t row = task.row_length(options.length, tasks::Split::test);
    result.centroids = centroids_for_keep(*dictionary_of(model.config()), *choice.keep, options.length, row);
  }
  if (result.centroids > 0) model.set_centroids(result.centroids);
  if (const auto* used = dictionary_of(model.config())) result.keep = keep_of(*used, options.length);
  result.evaluation = evaluate(model, task, options);
  return result;
}

}  // namespace

Sweep sweep(const Run& run, const TrainedModel& trained, const SweepOptions& options) {
  models::LanguageModel& model = *trained.model;
  const CentroidsKeeper centroids(model);
  const std::vector<DictionaryChoice> choices = dictionary_choices(options, run, model.config());
  Sweep sweep{
      .model = run.options().model, .task = run.options().task, .checkpoint = trained.checkpoint.filename().string()};
  for (const tasks::EvaluationSetting& setting : settings(options, run)) {
    const auto task = run.task(setting.options);
    if (task->tokenizer() != nullptr) check_tokenizer(trained.checkpoint, *task->tokenizer());
    EvaluateOptions evaluate = options.evaluate;
    evaluate.length = setting.length;
    evaluate.seed = run.options().seed;
    for (const DictionaryChoice& choice : choices) {
      Result result = evaluate_with(choice, model, *task, evaluate);
      result.options = setting.options;
      result.checkpoint = sweep.checkpoint;
      try {
        run.store_result(result);
      } catch (const std::runtime_error& error) {  // a full disk must not lose the results
        sweep.not_stored = error.what();
      }
      sweep.results.push_back(std::move(result));
    }
  }
  return sweep;
}

std::string to_table(const Sweep& sweep) {
  Table table({{.title = "length", .width = 8, .gap = 0},
               {.title = "centroids", .width = 10},
               {.title = "keep", .width = 6},
               {.title = "accuracy", .width = 10},
               {.title = "loss", .width = 9},
               {.title = "state", .width = 10},
               {.title = "tokens/s", .width = 12},
               {.title = "options", .align = Align::left, .gap = 2}});
  for (const Result& result : sweep.results) {
    const Evaluation& found = result.evaluation;
    table.add({std::to_string(result.length), centroids_text(result.centroids, result.asked_keep.value_or(0) == 1),
               result.keep ? fmt::format("{:.3f}", *result.keep) : "-", fmt::format("{:.4f}", found.total.accuracy()),
               fmt::format("{:.4f}", found.total.loss()), bytes_text(static_cast<double>(found.state_bytes)),
               fmt::format("{:.0f}", static_cast<double>(found.tokens) / found.seconds),
               result.options.empty() ? "" : result.options.dump()});
  }
  return fmt::format("{} on {}, {}\n\n{}", sweep.model, sweep.task, sweep.checkpoint, table.text());
}

json to_json(const Sweep& sweep) {
  json all = json::array();
  for (const Result& result : sweep.results) all.push_back(to_json(result));
  return all;
}

}  // namespace ovq::train
