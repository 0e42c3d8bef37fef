#include "ovq/experiments/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "ovq/base/closest.h"
#include "ovq/base/error.h"
#include "ovq/base/json_fields.h"

namespace ovq::experiments {
namespace {

bool contains(const auto& list, const auto& value) { return std::find(list.begin(), list.end(), value) != list.end(); }

bool chosen(const Experiment& experiment, const Selection& selection) {
  const auto claimed = [&](int64_t claim) { return contains(selection.claims, claim); };
  const bool by_claim =
      selection.claims.empty() || std::any_of(experiment.claims.begin(), experiment.claims.end(), claimed);
  const bool by_name = selection.names.empty() || contains(selection.names, experiment.group) ||
                       contains(selection.names, experiment.name) || contains(selection.names, experiment.id());
  return by_claim && by_name;
}

PlannedRun planned_run(const Experiment& experiment, uint64_t seed, std::optional<double> tuned_rate,
                       const SetDirectories& directories) {
  PlannedRun run{.experiment = experiment,
                 .seed = seed,
                 .tuning = tuned_rate.has_value(),
                 .learning_rate = tuned_rate,
                 .directories = directories};
  run.label = run.tuning ? fmt::format("{}/search/{}-rate-{}-{}", experiment.group, experiment.name, *tuned_rate, seed)
                         : fmt::format("{}-{}", experiment.id(), seed);
  run.directory = directories.runs / run.label;
  run.result = directories.results / (run.label + ".json");
  return run;
}

// Adds the rates by which the search has been extended so far, as its results show.
void extend_by_results(Experiment& experiment, const SetDirectories& directories) {
  RateSearch& search = *experiment.search;
  while (search.extend > 0) {
    std::vector<ExperimentResult> tuning;
    for (const double rate : search.learning_rates) {
      for (const uint64_t seed : search.seeds) {
        auto found = planned_search_run(experiment, seed, rate, directories).finished();
        if (!found) return;
        tuning.push_back(std::move(*found));
      }
    }
    const std::optional<double> rate = next_rate(search, tuning);
    if (!rate) return;
    search.learning_rates.push_back(*rate);
    --search.extend;
  }
}

void add_group(std::vector<PlannedRun>& runs, std::vector<Experiment> group, const Selection& selection,
               const SetDirectories& directories) {
  size_t most_seeds = 0;
  for (Experiment& experiment : group) {
    most_seeds = std::max(most_seeds, experiment.seeds.size());
    check(selection.seeds <= static_cast<int64_t>(experiment.seeds.size()), "reproduce", selection.seeds,
          " seeds were requested; ", experiment.id(), " has ", experiment.seeds.size());
    if (!experiment.search) continue;
    extend_by_results(experiment, directories);
    for (const uint64_t seed : experiment.search->seeds) {
      for (const double rate : experiment.search->learning_rates)
        runs.push_back(planned_search_run(experiment, seed, rate, directories));
    }
  }
  if (selection.seeds > 0) most_seeds = static_cast<size_t>(selection.seeds);
  for (size_t i = 0; i < most_seeds; ++i) {
    for (const Experiment& experiment : group) {
      if (i < experiment.seeds.size()) runs.push_back(planned_run(experiment, experiment.seeds[i], {}, directories));
    }
  }
}

// Whether the result's rate belongs to the search. Rates added later are listed only in the result.
bool was_tried(const RateSearch& search, const ExperimentResult& result) {
  const double rate = result.options.learning_rate;
  const auto is_it = [&](const json& tried) { return tried.at("learning_rate") == rate; };
  return contains(search.learning_rates, rate) || std::any_of(result.search.begin(), result.search.end(), is_it);
}

// A search is skipped if all its experiments are done.
void drop_needless_searches(std::vector<PlannedRun>& runs) {
  std::set<std::string> open;
  for (const PlannedRun& run : runs) {
    if (!run.tuning && !run.finished()) open.insert(run.experiment.id());
  }
  std::erase_if(runs, [&](const PlannedRun& run) { return run.tuning && !open.contains(run.experiment.id()); });
}

}  // namespace

std::optional<ExperimentResult> PlannedRun::finished() const {
  if (!std::filesystem::exists(result)) return std::nullopt;
  ExperimentResult found = read_result(result);
  // Until the search has ended, any of its rates is accepted.
  const bool any_rate = !has_rate() && was_tried(*experiment.search, found);
  const train::RunOptions wanted = any_rate ? experiment.run_options(seed, found.options.learning_rate) : options();
  if (!answers(found, wanted, experiment.evaluations)) return std::nullopt;
  if (has_questions() && found.answered() != experiment.corpus->questions) return std::nullopt;
  if (experiment.corpus && found.corpus.value("made_with", json()) != fields_to_json(experiment.corpus->tokenizer))
    return std::nullopt;
  return found;
}

PlannedRun planned_search_run(const Experiment& experiment, uint64_t seed, double learning_rate,
                              const SetDirectories& directories) {
  PlannedRun run = planned_run(experiment, seed, learning_rate, directories);
  if (!experiment.search->evaluations.empty()) run.experiment.evaluations = experiment.search->evaluations;
  return run;
}

std::vector<std::string> selectable_names(const ExperimentSet& set) {
  std::vector<std::string> names;
  for (const Experiment& experiment : set.experiments) {
    for (const std::string& name : {experiment.group, experiment.name, experiment.id()}) {
      if (!contains(names, name)) names.push_back(name);
    }
  }
  return names;
}

std::vector<PlannedRun> plan_runs(const ExperimentSet& set, const Selection& selection,
                                  const SetDirectories& directories) {
  std::vector<PlannedRun> runs;
  for (size_t i = 0; i < set.experiments.size();) {
    std::vector<Experiment> group;
    const std::string name = set.experiments[i].group;
    for (; i < set.experiments.size() && set.experiments[i].group == name; ++i) {
      if (chosen(set.experiments[i], selection)) group.push_back(set.experiments[i]);
    }
    add_group(runs, group, selection, directories);
  }
  drop_needless_searches(runs);
  for (PlannedRun& run : runs) run.set = set.name;
  return runs;
}

RateChoice choose_rate(const std::vector<ExperimentResult>& tuning) {
  struct Score {
    double metric = 0, loss = 0;
    int64_t evaluations = 0, runs = 0;
  };
  std::map<double, Score> scores;
  for (const ExperimentResult& result : tuning) {
    Score& score = scores[result.options.learning_rate];
    ++score.runs;
    for (const json& evaluation : result.evaluations) {
      score.metric += number_or_nan(evaluation.at(result.metric));
      score.loss += number_or_nan(evaluation.at("loss"));
      ++score.evaluations;
    }
  }
  RateChoice choice{.record = json::array()};
  std::optional<std::tuple<double, double, double>> best;  // smaller is better
  for (const auto& [rate, score] : scores) {
    const double count = static_cast<double>(score.evaluations), metric = score.metric / count;
    choice.record.push_back(
        {{"learning_rate", rate}, {"score", metric}, {"loss", score.loss / count}, {"runs", score.runs}});
    const auto worst_if_nan = [](double x) { return std::isnan(x) ? std::numeric_limits<double>::infinity() : x; };
    const std::tuple key(worst_if_nan(tuning.front().metric == "accuracy" ? -metric : metric),
                         worst_if_nan(score.loss / count), rate);
    if (best && !(key < *best)) continue;
    best = key;
    choice.learning_rate = rate;
  }
  return choice;
}

std::optional<double> next_rate(const RateSearch& search, const std::vector<ExperimentResult>& tuning) {
  std::vector<double> rates = search.learning_rates;
  if (search.extend == 0 || tuning.empty() || rates.size() < 2) return std::nullopt;
  std::sort(rates.begin(), rates.end());
  const double best = choose_rate(tuning).learning_rate;
  if (best != rates.front() && best != rates.back()) return std::nullopt;
  const double neighbour = best == rates.front() ? rates[1] : rates[rates.size() - 2];
  return std::stod(fmt::format("{:.6g}", best * best / neighbour));  // rounded for a short name
}

}  // namespace ovq::experiments
