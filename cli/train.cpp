// ovq train: a model on a task, into a run directory; --resume goes on with one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.h"
#include "cli/progress_line.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/models/presets.h"
#include "ovq/train/prepare.h"
#include "ovq/train/profile.h"
#include "ovq/train/trainer.h"

namespace ovq::cli {
namespace {

using nlohmann::json;
using train::RunOptions;

volatile std::sig_atomic_t interrupted = 0;

struct TrainArguments {
  json flags = json::object();  // options given on the command line
  std::string config, out, resume;
  int threads = 0;
  bool profile = false;
};

json read_json(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot open " + file);
  try {
    return json::parse(in);
  } catch (const json::exception& error) {
    throw std::runtime_error(file + " is not valid JSON: " + error.what());
  }
}

// Defaults, then the file, then the flags.
train::PreparedRun prepare(const TrainArguments& arguments) {
  try {
    json options = arguments.config.empty() ? json::object() : read_json(arguments.config);
    if (!options.is_object()) throw std::invalid_argument(arguments.config + " must hold an object of options");
    options.merge_patch(arguments.flags);
    if (arguments.flags.contains("phases")) train::phases_from_json(arguments.flags["phases"]);  // null would be none
    if (arguments.flags.contains("phases") && arguments.flags.contains("steps"))
      throw UsageError("--steps and --phases exclude each other: every phase has steps of its own");
    return train::prepare_run(options, print_warning);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

train::Run open_or_create(const TrainArguments& arguments) {
  if (!arguments.resume.empty()) return train::Run::open(arguments.resume);
  train::PreparedRun prepared = prepare(arguments);
  const std::string out =
      !arguments.out.empty() ? arguments.out : fmt::format("runs/{}-{}", prepared.options.task, prepared.options.model);
  return train::Run::create(out, prepared.options, std::move(prepared.task));
}

std::string evaluation_text(int64_t step, const train::Evaluation& evaluation, tasks::Metric metric,
                            std::optional<double> keep) {
  const std::string where =
      fmt::format("at length {}{}", evaluation.length, keep ? fmt::format(", keep {}", *keep) : "");
  return metric == tasks::Metric::accuracy
             ? fmt::format("step {}: test accuracy {:.4f} {} (loss {:.4f})", step, evaluation.total.accuracy(), where,
                           evaluation.total.loss())
             : fmt::format("step {}: test loss {:.4f} {}", step, evaluation.total.loss(), where);
}

std::string phase_text(const RunOptions& options, int64_t index) {
  const train::Phase& phase = options.phases[static_cast<size_t>(index)];
  return fmt::format("phase {} of {}: {} steps at lengths {}{}, rate {:g}", index + 1, options.phases.size(),
                     phase.steps, json(phase.lengths).dump(),
                     phase.centroids ? fmt::format(", N {}", *phase.centroids) : "", phase.learning_rate);
}

void run_training(const TrainArguments& arguments) {
  if (!arguments.resume.empty() && (!arguments.out.empty() || !arguments.config.empty() || !arguments.flags.empty()))
    throw UsageError("--resume goes on with the options of the run; it takes no others but --threads and --profile");
  set_up_torch(arguments.threads);
  const train::Run run = open_or_create(arguments);
  const RunOptions& options = run.options();
  const std::string out = run.path().string();

  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  std::unique_ptr<ProgressLine> progress;
  train::TrainHooks hooks;
  int64_t phase = -1;  // the one shown last
  hooks.on_step = [&](const train::StepReport& report) {
    if (!options.phases.empty() && report.phase != phase) progress->message(phase_text(options, phase = report.phase));
    progress->step(report);
  };
  hooks.on_evaluation = [&](int64_t step, const train::Evaluation& evaluation, std::optional<double> keep) {
    progress->message(evaluation_text(step, evaluation, run.description().metric, keep));
  };
  hooks.warn = print_warning;
  hooks.stop = [] { return interrupted != 0; };
  train::Trainer trainer(run, hooks);
  int64_t parameters = 0;
  for (const auto& parameter : trainer.model().parameters()) parameters += parameter.numel();
  fmt::print("{} on {} ({}): {:.2f}M parameters, vocabulary {}, into {}\n", options.model, options.task, options.scale,
             static_cast<double>(parameters) / 1e6, trainer.task().vocab(), out);
  if (trainer.progress().step == 0 && !options.init_from.path.empty())
    fmt::print("starting from the weights of {}\n", options.init_from.path);
  if (trainer.progress().step > 0) fmt::print("going on after step {}\n", trainer.progress().step);
  progress = std::make_unique<ProgressLine>(options.steps, trainer.progress().step);
  std::optional<train::Profile> profile;
  if (arguments.profile) profile.emplace();
  const auto start = std::chrono::steady_clock::now();
  const train::Outcome outcome = trainer.train();
  progress->finish();
  if (profile) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    fmt::print("\n{}", to_table(*profile, spent.count()));
  }
  if (outcome == train::Outcome::stopped) {
    fmt::print("stopped after step {}; saved. Go on with: ovq train --resume {}\n", trainer.progress().step, out);
    return;
  }
  if (outcome == train::Outcome::target_reached) fmt::print("target {} reached\n", options.target);
  if (trainer.progress().skipped > 0)
    fmt::print("{} steps were skipped: loss or gradient not finite\n", trainer.progress().skipped);
  fmt::print("{} steps, {:.2f}M tokens. Evaluate with: ovq eval {}\n", trainer.progress().step,
             static_cast<double>(trainer.progress().tokens) / 1e6, out);
}

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* train = app.add_subcommand("train", "Train a model on a task, or go on with a run");
  const auto arguments = std::make_shared<TrainArguments>();
  const RunOptions defaults;
  const json shown = to_json(defaults);
  const auto option = [&]<class Value>(const char* flag, const char* name, Value, const std::string& help) {
    CLI::Option* added = train->add_option_function<Value>(
        flag, [arguments, name](const Value& value) { arguments->flags[name] = value; }, help);
    if (const json value = shown.value(name, json());
        value.is_string() || (value.is_number() && value != 0 && value != -1.0))
      added->default_str(value.is_string() ? value.get<std::string>() : value.dump());
    return added;
  };
  option("--task", "task", std::string(), "One of " + joined(tasks::task_names()));
  option("--model", "model", std::string(), "One of " + joined(models::pattern_names()) + ", or a preset's full name");
  option("--scale", "scale", std::string(), "Sizes of task and model: " + joined(tasks::scale_names()));
  train->add_option("--out", arguments->out, "Directory of the run; default: runs/<task>-<model>")->type_name("DIR");
  train->add_option("--resume", arguments->resume, "Go on with this run")->type_name("DIR");
  train->add_option("--config", arguments->config, "Options by name in a JSON file; flags override it")
      ->type_name("FILE");
  option("--steps", "steps", int64_t(), "Training steps; default: those of the scale");
  option("--tokens-per-step", "tokens_per_step", int64_t(), "Tokens of a step; default: those of the scale");
  train
      ->add_option_function<std::vector<int64_t>>(
          "--lengths", [arguments](const std::vector<int64_t>& value) { arguments->flags["lengths"] = value; },
          "Context lengths to mix; default: those of the scale")
      ->delimiter(',');
  train
      ->add_option_function<std::string>(
          "--phases", [arguments](const std::string& file) { arguments->flags["phases"] = read_json(file); },
          "A list of phases in a JSON file, each with steps and, where it differs from the run, lengths, centroids, "
          "learning_rate, min_learning_rate, warmup, tokens_per_step")
      ->type_name("FILE");
  option("--init-from", "init_from", std::string(), "Start from the weights of this model or run")->type_name("DIR");
  option("--learning-rate", "learning_rate", double(), "Peak rate; default: the model's");
  option("--min-learning-rate", "min_learning_rate", double(), "Where the cosine ends; default: the model's");
  option("--warmup", "warmup", int64_t(), "Steps of linear warm-up");
  option("--weight-decay", "weight_decay", double(), "Of matrices; norms, betas, gates and biases have none");
  option("--beta1", "beta1", double(), "AdamW's decay of the mean");
  option("--beta2", "beta2", double(), "AdamW's decay of the squares");
  option("--clip", "clip", double(), "Largest norm of the gradient; 0: no limit");
  option("--accumulate", "accumulate", int64_t(), "Parts a step's rows are computed in");
  option("--seed", "seed", int64_t(), "Of weights, data and noise; default: 0");
  option("--eval-every", "eval_every", int64_t(), "Steps between evaluations; 0: only at the end");
  option("--eval-rows", "eval_rows", int64_t(), "Test rows of an evaluation");
  train
      ->add_option_function<std::vector<double>>(
          "--eval-keep", [arguments](const std::vector<double>& value) { arguments->flags["eval_keep"] = value; },
          "Also evaluate with dictionaries that keep these shares of the longest length; default: none")
      ->delimiter(',')
      ->check(share());
  option("--target", "target", double(), "Stop when the test metric is this good; default: never");
  option("--checkpoint-every", "checkpoint_every", int64_t(), "Steps between checkpoints");
  option("--keep", "keep", int64_t(), "Checkpoints to keep");
  const auto object = [&](const char* flag, const char* name, const char* help) {
    train
        ->add_option_function<std::string>(
            flag,
            [arguments, flag, name](const std::string& text) {
              const json value = json::parse(text, nullptr, false);
              if (!value.is_object()) throw CLI::ValidationError(flag, "\"" + text + "\" is not a JSON object");
              arguments->flags[name] = value;
            },
            help)
        ->type_name("JSON");
  };
  object("--task-options", "task_options", "Over those of the scale, e.g. '{\"vocab\": 256}'");
  object("--model-options", "model_options",
         "Merged into the model's config.json, e.g. '{\"mixers\": {\"ovq\": {\"centroids\": 256}}}'");
  train->add_option("--threads", arguments->threads, "Threads to use; default: all cores")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  train->add_flag("--profile", arguments->profile,
                  "At the end, show the time in kernels, matrix products and everything else");
  train->callback([arguments] { run_training(*arguments); });
}

}  // namespace ovq::cli
