#include "cli/show_training.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/interrupts.h"
#include "cli/progress_line.h"
#include "ovq/base/format.h"
#include "ovq/train/profile.h"
#include "ovq/train/trainer.h"

namespace ovq::cli {
namespace {

double millions(int64_t count) { return static_cast<double>(count) / 1e6; }

std::string evaluation_text(int64_t step, const train::Evaluation& evaluation, tasks::Metric metric,
                            std::optional<double> keep) {
  const std::string where =
      fmt::format("at length {}{}", evaluation.length, keep ? fmt::format(", keep {}", *keep) : "");
  return metric == tasks::Metric::accuracy
             ? fmt::format("step {}: test accuracy {:.4f} {} (loss {:.4f})", step, evaluation.total.accuracy(), where,
                           evaluation.total.loss())
             : fmt::format("step {}: test loss {:.4f} {}", step, evaluation.total.loss(), where);
}

std::string phase_text(const train::RunOptions& options, int64_t index) {
  const train::Phase& phase = options.phases[static_cast<size_t>(index)];
  return fmt::format("phase {} of {}: {} steps at lengths {}{}, rate {:g}", index + 1, options.phases.size(),
                     phase.steps, nlohmann::json(phase.lengths).dump(),
                     phase.centroids ? fmt::format(", N {}", *phase.centroids) : "", phase.learning_rate);
}

void print_beginning(const train::Run& run, train::Trainer& trainer, const train::DataParallel& parallel) {
  const train::RunOptions& options = run.options();
  int64_t parameters = 0;
  for (const auto& parameter : trainer.model().parameters()) parameters += parameter.numel();
  print("{} on {} ({}): {:.2f}M parameters, vocabulary {}, into {}\n", options.model, options.task, options.scale,
        millions(parameters), trainer.task().vocab(), run.path().string());
  if (parallel.group != nullptr)
    print("{} processes, {:.2f} MB of optimiser state in each\n", parallel.group->ranks(),
          millions(trainer.optimizer().state_bytes()));
  const int64_t done = trainer.progress().step;
  if (done == 0 && !options.init_from.path.empty()) print("starting from the weights of {}\n", options.init_from.path);
  if (done > 0) print("resuming after step {}\n", done);
}

void print_end(const train::Run& run, const train::Trainer& trainer, train::Outcome outcome) {
  const train::Progress& done = trainer.progress();
  if (outcome == train::Outcome::stopped) {
    print("stopped after step {}; saved. Continue with: ovq train --resume {}\n", done.step,
          shell_word(run.path().string()));
    return;
  }
  if (outcome == train::Outcome::target_reached) print("target {} reached\n", run.options().target);
  if (done.skipped > 0) print("{} steps were skipped: loss or gradient not finite\n", done.skipped);
  print("{} steps, {:.2f}M tokens. Evaluate with: ovq eval {}\n", done.step, millions(done.tokens),
        shell_word(run.path().string()));
}

}  // namespace

void train_and_show(const train::Run& run, const ShowOptions& show) {
  catch_signals();
  const train::RunOptions& options = run.options();
  std::unique_ptr<ProgressLine> progress;
  int64_t phase = -1;  // the last one shown
  train::TrainHooks hooks;
  hooks.on_step = [&](const train::StepReport& report) {
    if (!options.phases.empty() && report.phase != phase) progress->message(phase_text(options, phase = report.phase));
    progress->step(report);
  };
  hooks.on_evaluation = [&](int64_t step, const train::Evaluation& evaluation, std::optional<double> keep) {
    progress->message(evaluation_text(step, evaluation, run.description().metric, keep));
  };
  const bool first = show.parallel.group == nullptr || show.parallel.group->rank() == 0;
  if (first) hooks.warn = print_warning;
  hooks.stop = [] { return interrupted() || output_error(); };
  train::Trainer trainer(run, hooks, show.parallel);
  if (!first) {
    if (trainer.train() == train::Outcome::stopped)
      throw Interrupted{.signal = interrupted() ? noted_signal() : SIGTERM};  // the parent prints the message
    return;
  }
  print_beginning(run, trainer, show.parallel);
  progress = std::make_unique<ProgressLine>(options.steps, trainer.progress().step);

  std::optional<train::Profile> profile;
  if (show.profiling == Profiling::on) profile.emplace();
  const auto start = std::chrono::steady_clock::now();
  const train::Outcome outcome = trainer.train();
  progress->finish();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  if (profile) print("\n{}", to_table(*profile, spent.count()));
  print_end(run, trainer, outcome);
  check_output();
  if (outcome == train::Outcome::stopped) stop_interrupted();
}

}  // namespace ovq::cli
