// ovq reproduce: makes the runs of experiments/*.json, or repeats one finished run from its result.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "bench/machine.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/experiment_files.h"
#include "cli/interrupts.h"
#include "cli/outputs.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/closest.h"
#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"
#include "ovq/experiments/reproduce.h"
#include "ovq/experiments/result_tables.h"

namespace ovq::cli {
namespace {

namespace fs = std::filesystem;
using experiments::PlannedRun;
using nlohmann::json;

constexpr double kSecondsBetweenReports = 60;

struct ReproduceArguments {
  std::string set, out, runs, from, data;
  experiments::TableOptions table_options;
  experiments::Selection selection;
  int jobs = 0;
  bool dry_run = false, keep_runs = false, table = false;
};

std::vector<fs::path> all_sets() {
  std::vector<fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(experiment_directory(), none)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> set_files(const std::string& set) {
  if (set.ends_with(".json")) return {set};
  const std::vector<fs::path> files = all_sets();
  if (files.empty()) throw UsageError("found no experiments/*.json; name a file");
  if (set.empty()) return files;
  std::vector<std::string> names;
  for (const fs::path& file : files) {
    names.push_back(file.stem());
    if (names.back() == set) return {file};
  }
  throw UsageError(unknown_name("set of experiments", set, names));
}

void add_once(std::vector<std::string>& all, const std::string& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

// Names and claims that no set has are errors: an empty plan would hide a typing mistake.
void check_selection(const std::vector<experiments::ExperimentSet>& sets, const experiments::Selection& selection) {
  std::vector<std::string> names, claims;
  for (const auto& set : sets) {
    for (const std::string& name : selectable_names(set)) add_once(names, name);
    for (const auto& experiment : set.experiments) {
      for (const int64_t claim : experiment.claims) add_once(claims, std::to_string(claim));
    }
  }
  const auto lacks = [](const std::vector<std::string>& known, const std::string& one) {
    return std::find(known.begin(), known.end(), one) == known.end();
  };
  for (const std::string& name : selection.names) {
    if (lacks(names, name)) throw UsageError(unknown_name("experiment", name, names));
  }
  for (const int64_t claim : selection.claims) {
    if (lacks(claims, std::to_string(claim)))
      throw UsageError(
          fmt::format("no experiment supports claim {}; there are experiments for {}", claim, joined(claims)));
  }
}

std::vector<PlannedRun> make_plan(const ReproduceArguments& arguments) {
  std::vector<experiments::ExperimentSet> sets;
  for (const fs::path& file : set_files(arguments.set)) sets.push_back(experiments::read_experiment_set(file));
  if (sets.size() > 1 && !(arguments.out.empty() && arguments.runs.empty()))
    throw UsageError("--out and --runs require a single set of experiments; name one");
  check_selection(sets, arguments.selection);
  std::vector<PlannedRun> plan;
  for (const auto& set : sets) {
    const auto directory = [&](const std::string& given, const char* usual) {
      return given.empty() ? fs::path(usual) / set.name : fs::path(given);
    };
    const experiments::SetDirectories directories{.results = directory(arguments.out, "results"),
                                                  .runs = directory(arguments.runs, "runs")};
    for (PlannedRun& run : plan_runs(set, arguments.selection, directories)) plan.push_back(std::move(run));
  }
  if (plan.empty()) throw UsageError("no experiment matches both --claims and --only");
  return plan;
}

// Makes missing corpora; throws if the user must supply their text.
void make_corpora(const std::vector<PlannedRun>& plan, const std::string& data) {
  for (const PlannedRun& run : plan) {
    const auto& corpus = run.experiment.corpus;
    if (!corpus || run.finished()) continue;
    corpus->check_source(data);
    if (corpus->is_there()) continue;
    if (data.empty())
      throw UsageError(
          fmt::format("{} is trained on text, but {} does not exist yet; give a folder with train/ and valid/ "
                      "with --data",
                      run.label, corpus->directory.string()));
    corpus->make(data, [](const std::string& line) { print("{}\n", line); });
  }
}

experiments::RunEnvironment environment_of(const ReproduceArguments& arguments, const bench::Machine& machine) {
  const json described{{"cpu", machine.cpu},
                       {"cores", machine.cores},
                       {"isa", machine.isa},
                       {"compiler", machine.compiler},
                       {"blas", machine.blas.file},
                       {"blas_kernels", machine.blas.kernels},  // they affect the last bits
                       {"threads", 1}};
  return {.program = fs::read_symlink("/proc/self/exe"),
          .commit = machine.commit,
          .machine = described,
          .keep_runs = arguments.keep_runs};
}

// Progress: one updated line on a terminal, otherwise a line a minute. Events are printed above it.
class ReproduceLine {
 public:
  void show(const experiments::ReproduceProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ && shown_ && std::chrono::duration<double>(now - *shown_).count() < kSecondsBetweenReports) return;
    shown_ = now;
    std::string line = fmt::format("{} of {} done", progress.done, progress.runs);
    if (progress.failed > 0) line += fmt::format(", {} failed", progress.failed);
    for (const auto& running : progress.running) {
      const auto& at = running.position;
      line += at.training ? fmt::format(" | {} step {}/{}", running.label, at.step, at.steps)
                          : fmt::format(" | {} evaluation {}", running.label, at.evaluations + 1);
    }
    line += fmt::format(" | {} left", duration_text(progress.seconds_left));
    if (terminal_) {
      moving_.show(line);
    } else {
      print_now(line + "\n");
    }
  }
  void message(const std::string& text) {
    moving_.erase();
    print_now(text + "\n");
  }
  void finish() { moving_.finish(); }

 private:
  MovingLine moving_{STDOUT_FILENO};
  bool terminal_ = moving_.on_terminal();
  std::optional<std::chrono::steady_clock::time_point> shown_;
};

std::string result_text(const PlannedRun& run, const experiments::ExperimentResult& result) {
  const json& last = result.evaluations.back();
  return fmt::format("{}: {} {:.4f} at length {} ({} of training, {} of evaluation)", run.label, result.metric,
                     number_or_nan(last.at(result.metric)), last.at("length").get<int64_t>(),
                     duration_text(result.training.seconds), duration_text(result.evaluation_seconds));
}

void run_all(experiments::Reproduction& reproduction, int jobs) {
  catch_signals();
  ReproduceLine line;
  const auto outcome = reproduction.run(
      jobs, {.on_progress = [&](const auto& progress) { line.show(progress); },
             .on_result = [&](const auto& run, const auto& result) { line.message(result_text(run, result)); },
             .on_failure = [&](const auto& run, const auto& reason) { line.message(run.label + " failed: " + reason); },
             .stop = [] { return interrupted() || output_error(); }});
  line.finish();
  check_output();
  if (outcome == experiments::ReproduceOutcome::stopped) stop_interrupted("run the same command to continue");
  if (outcome == experiments::ReproduceOutcome::some_failed)
    throw std::runtime_error("some runs failed; run the same command to retry them");
}

void run_again(const ReproduceArguments& arguments, const bench::Machine& machine) {
  const experiments::ExperimentResult before = experiments::read_result(arguments.from);
  const PlannedRun planned = planned_again(before, arguments.runs.empty() ? "runs/again" : arguments.runs);
  const experiments::RunEnvironment here = environment_of(arguments, machine);
  for (const char* name : {"cpu", "isa", "blas", "blas_kernels", "threads"}) {
    if (before.machine.value(name, json()) != here.machine.value(name, json()))
      print_warning(fmt::format("{} was {}, is {}: the last digits may differ", name,
                                before.machine.value(name, json()).dump(), here.machine.value(name, json()).dump()));
  }
  make_corpora({planned}, arguments.data);
  if (planned.experiment.corpus && !experiments::same_text(planned.experiment.corpus->described(), before.corpus))
    print_warning("the text differs from that of the result");
  experiments::Reproduction reproduction({planned}, here);
  run_all(reproduction, 1);
  const std::vector<std::string> lines = differences(before, experiments::read_result(planned.result));
  fs::remove(planned.result);
  for (const std::string& line : lines) print("{}\n", line);
  if (!lines.empty()) throw std::runtime_error(planned.label + " gave different numbers");
  print("{}: {} evaluations, every number equal\n", planned.label, before.evaluations.size());
}

// One set after the other, because groups of two sets may have the same name.
std::string table_of(const std::vector<PlannedRun>& plan, const experiments::TableOptions& options = {}) {
  const std::string& against = options.against;
  std::vector<std::string> names, sets;
  std::map<std::string, std::vector<experiments::ExperimentResult>> results;
  for (const PlannedRun& run : plan) {
    if (run.tuning) continue;
    auto result = run.finished();
    if (!result) continue;
    add_once(names, result->name);
    add_once(sets, run.set);
    results[run.set].push_back(std::move(*result));
  }
  if (!against.empty() && std::find(names.begin(), names.end(), against) == names.end()) {
    throw UsageError(unknown_name("experiment with results", against, names));
  }
  std::string text;
  for (const std::string& set : sets) text += to_markdown(results[set], options);
  return text;
}

void reproduce(ReproduceArguments arguments) {
  set_up_torch(1);  // so that child processes use the BLAS kernels that are recorded
  const bench::Machine machine = bench::describe_machine();
  if (arguments.jobs == 0) arguments.jobs = machine.cores;
  if (!arguments.from.empty()) return run_again(arguments, machine);
  const std::vector<PlannedRun> plan = make_plan(arguments);
  if (arguments.table) {
    print("{}", table_of(plan, arguments.table_options));
    return;
  }
  experiments::Reproduction reproduction(plan, environment_of(arguments, machine));
  if (arguments.dry_run) print("{}\n", reproduction.plan_table());
  print("{} runs, {} of them done; the others take about {}, {} at a time\n", reproduction.runs(), reproduction.done(),
        duration_text(reproduction.seconds_left(arguments.jobs)), arguments.jobs);
  check_output();
  if (arguments.dry_run) return;
  for (const PlannedRun& run : plan) {
    check_output_directory("--out", run.result.parent_path());
    check_output_directory("--runs", run.directory.parent_path());
  }
  make_corpora(plan, arguments.data);
  run_all(reproduction, arguments.jobs);
  print("\n{}", table_of(plan));
}

}  // namespace

void add_reproduce(CLI::App& app) {
  CLI::App* command = app.add_subcommand("reproduce", "Run experiments, or print tables of their results");
  const auto arguments = std::make_shared<ReproduceArguments>();
  command->add_option("set", arguments->set,
                      "A set of experiments: a file, or its name in experiments/; default: all sets");
  command->add_option("--claims", arguments->selection.claims, "Only experiments for these claims of the paper")
      ->delimiter(',')
      ->check(at_least(1));
  command->add_option("--only", arguments->selection.names, "Only these groups or experiments")->delimiter(',');
  command->add_option("--seeds", arguments->selection.seeds, "Number of seeds, from the first on; default: all")
      ->check(at_least(1));
  command->add_option("--data", arguments->data, "Folder with train/ and valid/, for sets of experiments on text")
      ->type_name("DIR");
  command->add_option("--out", arguments->out, "Directory of the results; default: results/<set>")->type_name("DIR");
  command->add_option("--runs", arguments->runs, "Directory of the runs; default: runs/<set>")->type_name("DIR");
  command->add_option("--jobs", arguments->jobs, "Runs at the same time, one thread each; default: all cores")
      ->check(number<int>(ovq::at_least(1)));
  command->add_flag("--keep-runs", arguments->keep_runs, "Keep the directory of a run after writing its result");
  CLI::Option* dry_run = command->add_flag("--dry-run", arguments->dry_run, "Only list the runs that would be made");
  CLI::Option* table =
      command->add_flag("--table", arguments->table, "Only print the existing results, as Markdown")->excludes(dry_run);
  command
      ->add_option("--against", arguments->table_options.against,
                   "With --table: show differences to this experiment, paired by seed, with 95 % intervals")
      ->type_name("NAME")
      ->needs(table);
  command
      ->add_option("--groups", arguments->table_options.groups,
                   "With --table: add columns for these groups of targets; of text they are bins of positions")
      ->type_name("INT")
      ->delimiter(',')
      ->check(at_least(0))
      ->needs(table);
  command->add_option("--from", arguments->from, "Repeat the run of this result instead, and compare all numbers")
      ->type_name("FILE")
      ->excludes(dry_run, table);
  command->callback([arguments] {
    try {
      reproduce(*arguments);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  });
}

}  // namespace ovq::cli
