// ovq train: trains a model on a task in a run directory; --resume continues a run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "cli/outputs.h"
#include "cli/processes.h"
#include "cli/show_training.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"
#include "ovq/base/json_file.h"
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
  ProcessOptions processes;
  bool shard_optimizer = false;
};

bool holds_null(const json& value) {
  return value.is_null() || (value.is_structured() && std::any_of(value.begin(), value.end(), holds_null));
}

// When options are merged, a null would remove a field or vanish.
void refuse_nulls(const json& options, const std::string& where) {
  if (holds_null(options)) throw UsageError(where + " holds null; give a value, or leave the field out to keep it");
}

// The flags override the file, which overrides the defaults.
train::PreparedRun prepare(const TrainArguments& arguments) {
  try {
    json options = arguments.config.empty() ? json::object() : read_json_file(arguments.config);
    if (!options.is_object()) throw std::invalid_argument(arguments.config + " must hold an object of options");
    for (const char* name : {"task_options", "model_options"}) {
      if (options.contains(name)) refuse_nulls(options[name], arguments.config + ": " + name);
    }
    update_retired_fields(options, RunOptions());  // before the flags, which have the present names
    options.merge_patch(arguments.flags);
    if (arguments.flags.contains("phases"))
      train::phases_from_json(arguments.flags["phases"]);  // a null would mean no phases
    if (arguments.flags.contains("phases") && arguments.flags.contains("steps"))
      throw UsageError("--steps and --phases exclude each other: every phase has steps of its own");
    return train::prepare_run(options, print_warning);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

// `restarted`: the launcher starts the same command again, so an existing run is accepted if its options are the same.
train::Run open_or_create(const TrainArguments& arguments, bool restarted = false) {
  if (!arguments.resume.empty()) return train::Run::open(arguments.resume);
  // Checked before data and weights are read, which may take minutes.
  const auto check_out = [&](const std::string& out) {
    check_output_directory("--out", out);
    if (!restarted) train::Run::check_new(out);
  };
  if (!arguments.out.empty()) check_out(arguments.out);
  train::PreparedRun prepared = prepare(arguments);
  const std::string out =
      !arguments.out.empty() ? arguments.out : fmt::format("runs/{}-{}", prepared.options.task, prepared.options.model);
  if (restarted && std::filesystem::exists(out)) {
    train::Run run = train::Run::open(out);
    if (to_json(run.options()) == to_json(prepared.options)) return run;
  }
  check_out(out);
  return train::Run::create(out, prepared.options, std::move(prepared.task));
}

// --processes 1 trains in one process even under a launcher.
std::optional<distributed::Rendezvous> rendezvous_of(const ProcessOptions& options) {
  if (options.processes == 1) return std::nullopt;
  try {
    return distributed::rendezvous_from_environment();
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

void run_training(const TrainArguments& arguments) {
  if (!arguments.resume.empty() && (!arguments.out.empty() || !arguments.config.empty() || !arguments.flags.empty()))
    throw UsageError(
        "--resume uses the options of the run; it accepts only --threads, --profile and the options of multiple "
        "processes");
  const ProcessOptions& processes = arguments.processes;
  if (processes.restarts > 0 && processes.processes == 0) throw UsageError("--restarts requires --processes");
  ShowOptions show{.profiling = arguments.profile ? Profiling::on : Profiling::off,
                   .parallel = {.shard_optimizer = arguments.shard_optimizer}};
  if (processes.processes > 1 || processes.restarts > 0) {
    set_up_torch(arguments.threads);
    std::vector<std::string> flags;
    if (arguments.profile) flags.push_back("--profile");
    if (arguments.shard_optimizer) flags.push_back("--shard-optimizer");
    train_in_processes(open_or_create(arguments).path(), processes, arguments.threads, flags);
  } else if (const auto rendezvous = rendezvous_of(processes)) {
    set_up_torch(threads_of(*rendezvous, arguments.threads),
                 rendezvous->rank == 0 ? Warnings::shown : Warnings::hidden);
    train_as_one_of(
        *rendezvous, processes, [&] { return open_or_create(arguments, rendezvous->attempt > 0); }, show);
  } else {
    set_up_torch(arguments.threads);
    train_and_show(open_or_create(arguments), show);
  }
}

size_t given_options(const CLI::App& command) {
  const std::vector<const CLI::Option*> options = command.get_options();
  return static_cast<size_t>(
      std::count_if(options.begin(), options.end(), [](const CLI::Option* option) { return option->count() > 0; }));
}

// A flag for each field of the run's options, "--eval-every" for eval_every.
class FlagAdder {
 public:
  FlagAdder(CLI::App& command, json& flags) : command_(command), flags_(flags) {}

  template <class T>
  void operator()(const char* name, const T& value, const char* text, const Range& range = {}) {
    std::string flag = std::string("--") + name, help = text;
    std::replace(flag.begin(), flag.end(), '_', '-');
    help[0] = static_cast<char>(std::toupper(help[0]));
    if (range.zero != nullptr) help += std::string(value == T() ? "; default: " : "; 0: ") + range.zero;
    CLI::Option* added = command_.add_option_function<T>(
        flag, [&flags = flags_, name](const T& given) { flags[name] = given; }, help);
    if constexpr (std::is_arithmetic_v<T>) added->check(number<T>());  // ranges are checked with the options of files
    // 0 and -1 stand for a default that is chosen elsewhere; the description names it.
    const json shown = field_value(value);
    if (shown.is_string() || (shown != 0 && shown != -1.0)) {
      added->default_str(shown.is_string() ? shown.get<std::string>() : shown.dump());
    }
  }

 private:
  CLI::App& command_;
  json& flags_;  // outlives this object because the command owns it
};

}  // namespace

void add_train(CLI::App& app) {
  CLI::App* train = app.add_subcommand("train", "Train a model on a task, or resume a run");
  const auto arguments = std::make_shared<TrainArguments>();
  FlagAdder flags(*train, arguments->flags);
  RunOptions defaults;
  list_fields(flags, defaults);
  train->get_option("--task")->description("One of " + joined(tasks::task_names()));
  train->get_option("--model")->description("One of " + joined(models::pattern_names()) + ", or a preset's full name");
  train->get_option("--scale")->description("Sizes of task and model: " + joined(tasks::scale_names()));
  train->add_option("--out", arguments->out, "Directory of the run; default: runs/<task>-<model>")->type_name("DIR");
  train->add_option("--resume", arguments->resume, "Resume this run")->type_name("DIR");
  train->add_option("--config", arguments->config, "JSON file of options by name; flags override it")
      ->type_name("FILE");
  train
      ->add_option_function<std::vector<int64_t>>(
          "--lengths", [arguments](const std::vector<int64_t>& value) { arguments->flags["lengths"] = value; },
          "Context lengths to mix; default: those of the scale")
      ->delimiter(',')
      ->check(at_least(1));
  train
      ->add_option_function<std::string>(
          "--phases", [arguments](const std::string& file) { arguments->flags["phases"] = read_json_file(file); },
          "JSON file with a list of phases, each with steps and its own lengths, centroids, learning_rate, "
          "min_learning_rate, warmup or tokens_per_step where they differ from the run's")
      ->type_name("FILE");
  train
      ->add_option_function<std::string>(
          "--init-from", [arguments](const std::string& path) { arguments->flags["init_from"] = path; },
          "Start from the weights of this model or run")
      ->type_name("DIR");
  train
      ->add_option_function<std::vector<double>>(
          "--eval-keep", [arguments](const std::vector<double>& value) { arguments->flags["eval_keep"] = value; },
          "Also evaluate with dictionaries that keep these shares of the longest length; default: none")
      ->delimiter(',')
      ->check(share());
  const auto object = [&](const char* flag, const char* name, const char* help) {
    train
        ->add_option_function<std::string>(
            flag,
            [arguments, flag, name](const std::string& text) {
              const json value = json::parse(text, nullptr, false);
              if (!value.is_object()) throw CLI::ValidationError(flag, "\"" + text + "\" is not a JSON object");
              refuse_nulls(value, flag);
              arguments->flags[name] = value;
            },
            help)
        ->type_name("JSON");
  };
  object("--task-options", "task_options", "Options that override those of the scale, e.g. '{\"vocab\": 256}'");
  object("--model-options", "model_options",
         "Merged into the model's config.json, e.g. '{\"mixers\": {\"ovq\": {\"centroids\": 256}}}'");
  add_threads(*train, arguments->threads);
  train->add_flag("--profile", arguments->profile,
                  "At the end, show the time in kernels, matrix products and everything else");
  add_fields(*train, arguments->processes);
  train->add_flag("--shard-optimizer", arguments->shard_optimizer,
                  "Keep only a share of the optimiser's state in each of several processes");
  train->callback([arguments, train] {
    if (given_options(*train) == 0) {
      print("{}", train->help());
      throw UsageError("train needs options; `ovq train --task recall` begins a run with the defaults shown above");
    }
    run_training(*arguments);
  });
}

}  // namespace ovq::cli
