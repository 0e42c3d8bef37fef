// ovq train: a model on a task, into a run directory; --resume goes on with one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/show_training.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/models/presets.h"
#include "ovq/train/prepare.h"

namespace ovq::cli {
namespace {

using nlohmann::json;
using train::RunOptions;

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

void run_training(const TrainArguments& arguments) {
  if (!arguments.resume.empty() && (!arguments.out.empty() || !arguments.config.empty() || !arguments.flags.empty()))
    throw UsageError("--resume goes on with the options of the run; it takes no others but --threads and --profile");
  set_up_torch(arguments.threads);
  train_and_show(open_or_create(arguments), arguments.profile ? Profiling::on : Profiling::off);
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
    // 0 and -1 mean that something else decides; the help says what.
    const json value = shown.value(name, json());
    if (value.is_string())
      added->default_str(value.get<std::string>());
    else if (value.is_number() && value != 0 && value != -1.0)
      added->default_str(value.dump());
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
  add_threads(*train, arguments->threads);
  train->add_flag("--profile", arguments->profile,
                  "At the end, show the time in kernels, matrix products and everything else");
  train->callback([arguments] { run_training(*arguments); });
}

}  // namespace ovq::cli
