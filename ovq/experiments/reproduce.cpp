#include "ovq/experiments/reproduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/table.h"

namespace ovq::experiments {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(100);
constexpr auto kBetweenReports = std::chrono::seconds(1);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The steps that an earlier, interrupted run has completed; 0 if there is none.
int64_t steps_before(const PlannedRun& run) {
  if (!std::filesystem::exists(run.directory / "run.json")) return 0;
  return train::training_cost(train::Run::open(run.directory).metrics()).steps;
}

}  // namespace

Reproduction::Reproduction(std::vector<PlannedRun> plan, RunEnvironment environment)
    : environment_(std::move(environment)) {
  for (PlannedRun& planned : plan) jobs_.push_back(make_job(std::move(planned)));
}

Reproduction::Job Reproduction::make_job(PlannedRun planned) {
  const train::RunOptions options = planned.options();
  const double begun = static_cast<double>(steps_before(planned)) / static_cast<double>(options.steps);
  Job job{.estimate = estimate_run(planned.experiment, options)};
  job.seconds_before = std::min(1.0, begun) * job.estimate.training;
  if (planned.finished()) job.state = State::done;
  job.planned = std::move(planned);
  return job;
}

size_t Reproduction::count(State state) const {
  return static_cast<size_t>(
      std::count_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.state == state; }));
}

double Reproduction::work_done(const Job& job) const {
  if (!job.active) return job.state == State::waiting ? job.seconds_before : job.estimate.total();
  const ActiveRun::Position at = job.active->position();
  if (at.training)
    return job.estimate.training * static_cast<double>(at.step) / static_cast<double>(std::max<int64_t>(1, at.steps));
  return job.estimate.training + job.estimate.evaluation * static_cast<double>(at.evaluations) /
                                     static_cast<double>(job.planned.experiment.evaluations.size());
}

double Reproduction::correction() const {
  constexpr double kEnough = 20;  // seconds of work before the estimate is corrected by the clock
  double real = real_seconds_, estimated = estimated_seconds_;
  for (const Job& job : jobs_) {
    if (!job.active) continue;
    real += seconds_since(job.began);
    estimated += work_done(job) - job.seconds_before;
  }
  return real > kEnough && estimated > 0 ? real / estimated : 1;
}

double Reproduction::seconds_left(int parallel) const {
  double left = 0, longest = 0;
  for (const Job& job : jobs_) {
    const double own = job.estimate.total() - work_done(job);
    left += own;
    longest = std::max(longest, own);
  }
  return correction() * std::max(longest, left / parallel);
}

std::string Reproduction::plan_table() const {
  Table table({{.title = "run", .align = Align::left, .gap = 0},
               {.title = "model", .align = Align::left, .gap = 2},
               {.title = "steps", .width = 7},
               {.title = "Mtokens", .width = 8},
               {.title = "time", .width = 8},
               {.title = "", .align = Align::left, .gap = 2}});
  for (const Job& job : jobs_) {
    const train::RunOptions options = job.planned.options();
    const int64_t begun = job.state == State::done ? 0 : steps_before(job.planned);
    table.add({job.planned.label, options.model, std::to_string(options.steps),
               fmt::format("{:.1f}", static_cast<double>(job.estimate.tokens) / 1e6),
               duration_text(job.estimate.total()),
               job.state == State::done ? "done"
               : begun > 0              ? fmt::format("{} steps done", begun)
                                        : ""});
  }
  return table.text();
}

std::vector<const Reproduction::Job*> Reproduction::search_of(const Job& job) const {
  std::vector<const Job*> search;
  for (const Job& other : jobs_) {
    const bool same =
        other.planned.set == job.planned.set && other.planned.experiment.id() == job.planned.experiment.id();
    if (same && other.planned.tuning) search.push_back(&other);
  }
  return search;
}

// A run without a learning rate waits until its search has ended, successfully or not.
bool Reproduction::may_start(const Job& job) const {
  if (job.state != State::waiting) return false;
  if (job.planned.has_rate()) return true;
  const std::vector<const Job*> search = search_of(job);
  return std::all_of(search.begin(), search.end(),
                     [](const Job* other) { return other->state == State::done || other->state == State::failed; });
}

std::vector<ExperimentResult> Reproduction::results_of_search(const Job& job) const {
  std::vector<ExperimentResult> results;
  for (const Job* run : search_of(job)) {
    if (run->state == State::failed)
      throw std::runtime_error("a run of its learning-rate search failed: " + run->planned.label);
    if (!run->diverged) results.push_back(read_result(run->planned.result));
  }
  return results;
}

// If a search has ended with its best rate at an edge, inserts the runs of the next rate before the job at `index`.
// Returns how many. Nothing changes if it throws.
size_t Reproduction::extend_search_of(size_t index) {
  const PlannedRun waiting = jobs_[index].planned;
  if (waiting.has_rate() || waiting.experiment.search->extend == 0 || !may_start(jobs_[index])) return 0;
  const std::vector<const Job*> search = search_of(jobs_[index]);
  if (std::any_of(search.begin(), search.end(), [](const Job* run) { return run->state == State::failed; })) return 0;
  const std::optional<double> rate = next_rate(*waiting.experiment.search, results_of_search(jobs_[index]));
  if (!rate) return 0;
  Experiment extended = waiting.experiment;
  extended.search->learning_rates.push_back(*rate);
  --extended.search->extend;
  std::vector<Job> added;
  for (const uint64_t seed : extended.search->seeds) {
    PlannedRun run = planned_search_run(extended, seed, *rate, waiting.directories);
    run.set = waiting.set;
    added.push_back(make_job(std::move(run)));
  }
  for (Job& job : jobs_) {
    if (job.planned.set == waiting.set && job.planned.experiment.id() == waiting.experiment.id())
      job.planned.experiment.search = extended.search;
  }
  jobs_.insert(jobs_.begin() + static_cast<int64_t>(index), std::make_move_iterator(added.begin()),
               std::make_move_iterator(added.end()));
  return added.size();
}

// Reads the results of searches, so it only runs after a change.
void Reproduction::extend_searches(const ReproduceHooks& hooks) {
  if (!std::exchange(changed_, false)) return;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    try {
      const size_t added = extend_search_of(i);
      if (added > 0) changed_ = true;
      i += added;
    } catch (const std::exception& error) {
      fail(jobs_[i], error.what(), hooks);
    }
  }
}

// All seeds of an experiment use the rate that its search chose; repeats runs with another rate.
void Reproduction::repeat_others(const PlannedRun& chosen) {
  for (Job& job : jobs_) {
    const bool same = job.planned.set == chosen.set && job.planned.experiment.id() == chosen.experiment.id();
    if (!same || job.planned.tuning || job.state != State::done) continue;
    PlannedRun with_rate = job.planned;
    with_rate.learning_rate = chosen.learning_rate;
    if (with_rate.finished()) continue;
    job.state = State::waiting;
    changed_ = true;
  }
}

void Reproduction::start(Job& job) {
  json record;
  if (!job.planned.has_rate()) {
    const std::vector<ExperimentResult> tuning = results_of_search(job);
    json diverged = json::array();
    for (const Job* other : search_of(job)) {
      if (other->diverged) diverged.push_back({{"learning_rate", *other->planned.learning_rate}, {"diverged", true}});
    }
    if (tuning.empty()) throw std::runtime_error("all runs of its learning-rate search diverged");
    const RateChoice choice = choose_rate(tuning);
    job.planned.learning_rate = choice.learning_rate;
    repeat_others(job.planned);
    record = choice.record;
    record.insert(record.end(), diverged.begin(), diverged.end());
  }
  job.began = std::chrono::steady_clock::now();
  job.active = std::make_unique<ActiveRun>(job.planned, environment_, record);
  job.state = State::running;
}

void Reproduction::fail(Job& job, const std::string& reason, const ReproduceHooks& hooks) {
  job.active.reset();
  job.state = State::failed;
  changed_ = true;
  if (hooks.on_failure) hooks.on_failure(job.planned, reason);
}

void Reproduction::start_some(int parallel, const ReproduceHooks& hooks) {
  for (Job& job : jobs_) {
    if (count(State::running) >= static_cast<size_t>(parallel)) return;
    if (!may_start(job)) continue;
    try {
      start(job);
    } catch (const std::exception& error) {
      fail(job, error.what(), hooks);
    }
  }
}

void Reproduction::advance(Job& job, const ReproduceHooks& hooks) {
  std::optional<ExperimentResult> result;
  try {
    if (!job.active->advance()) return;
    result = read_result(job.planned.result);
  } catch (const DivergedError& error) {
    fail(job, error.what(), hooks);
    job.diverged = true;
    if (job.planned.tuning) job.state = State::done;  // the rate cannot be chosen
    return;
  } catch (const std::exception& error) {
    if (hooks.stop && hooks.stop()) return;  // Ctrl-C also ended the child process
    fail(job, error.what(), hooks);
    return;
  }
  real_seconds_ += seconds_since(job.began);
  estimated_seconds_ += job.estimate.total() - job.seconds_before;
  job.active.reset();
  job.state = State::done;
  changed_ = true;
  if (hooks.on_result) hooks.on_result(job.planned, *result);
}

ReproduceProgress Reproduction::progress(int parallel) const {
  ReproduceProgress progress{.runs = jobs_.size(),
                             .done = count(State::done),
                             .failed = count(State::failed),
                             .seconds_left = seconds_left(parallel)};
  for (const Job& job : jobs_) {
    if (job.active) progress.running.push_back({job.planned.label, job.active->position()});
  }
  return progress;
}

ReproduceOutcome Reproduction::run(int parallel, const ReproduceHooks& hooks) {
  auto reported = std::chrono::steady_clock::now() - kBetweenReports;
  while (count(State::waiting) + count(State::running) > 0) {
    if (hooks.stop && hooks.stop()) {
      for (Job& job : jobs_) {
        if (job.active) job.active->stop();
      }
      for (Job& job : jobs_) job.active.reset();
      return ReproduceOutcome::stopped;
    }
    extend_searches(hooks);
    start_some(parallel, hooks);
    for (Job& job : jobs_) {
      if (job.active) advance(job, hooks);
    }
    const auto now = std::chrono::steady_clock::now();
    if (hooks.on_progress && now - reported >= kBetweenReports) {
      hooks.on_progress(progress(parallel));
      reported = now;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return count(State::failed) > 0 ? ReproduceOutcome::some_failed : ReproduceOutcome::finished;
}

PlannedRun planned_again(const ExperimentResult& result, const std::filesystem::path& runs) {
  json options = to_json(result.options);
  options.erase("seed");
  PlannedRun run{.experiment = {.group = result.group,
                                .name = result.name,
                                .shows = result.shows,
                                .claims = result.claims,
                                .options = options,
                                .evaluations = result.requests,
                                .seeds = {result.options.seed}},
                 .seed = result.options.seed};
  if (!result.corpus.is_null()) {
    run.experiment.corpus = corpus_of_result(result.corpus, result.options.task_options);
    run.experiment.corpus->questions = result.answered();
  }
  run.label = fmt::format("{}-{}", run.experiment.id(), run.seed);
  run.directory = runs / run.label;
  run.result = runs / (run.label + ".json");
  return run;
}

}  // namespace ovq::experiments
