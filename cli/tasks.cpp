// ovq tasks: what there is to learn, and how a sample of it looks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "ovq/tasks/registry.h"
#include "ovq/tasks/render.h"

namespace ovq::cli {
namespace {

using nlohmann::json;

struct TasksArguments {
  std::string task, scale = "tiny";
  json options = json::object();
  int64_t length = 0, step = 0;
  uint64_t seed = 0;
  bool test = false, as_json = false;
};

void show_task(TasksArguments arguments) {
  if (arguments.task.empty()) {
    for (const std::string& name : tasks::task_names()) fmt::print("{}\n", name);
    fmt::print("\novq tasks <name> shows a sample\n");
    return;
  }
  try {
    const tasks::Preset preset = tasks::preset(arguments.task, arguments.scale);
    arguments.options["scale"] = arguments.scale;
    const auto task = tasks::make_task(arguments.task, arguments.options);
    if (arguments.length == 0) arguments.length = preset.train_lengths.front();
    const tasks::Batch batch = task->sample({.rows = 1,
                                             .length = arguments.length,
                                             .seed = arguments.seed,
                                             .step = arguments.step,
                                             .split = arguments.test ? tasks::Split::test : tasks::Split::train});
    if (arguments.as_json) {
      fmt::print("{}\n", json{{"task", task->name()},
                              {"vocab", task->vocab()},
                              {"tokens", batch.tokens},
                              {"targets", batch.targets},
                              {"groups", batch.groups}}
                             .dump());
      return;
    }
    const auto asked = std::count_if(batch.targets.begin(), batch.targets.end(),
                                     [](int32_t target) { return target != tasks::kNoTarget; });
    fmt::print("{} ({}): vocabulary {}, {} tokens, {} targets\n\n{}\n", task->name(), arguments.scale, task->vocab(),
               batch.length, asked, tasks::render(*task, batch, 0));
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_tasks(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tasks", "List the tasks, or show a sample of one");
  const auto arguments = std::make_shared<TasksArguments>();
  command->add_option("task", arguments->task, "Name of the task");
  command->add_option("--scale", arguments->scale, "tiny, small or paper")->capture_default_str();
  command->add_option("--length", arguments->length, "Tokens before the query section; default: the shortest trained");
  command->add_option("--seed", arguments->seed, "Which sample")->capture_default_str();
  command->add_option("--step", arguments->step, "Which sample")->capture_default_str();
  command->add_flag("--test", arguments->test, "From the test split");
  command->add_flag("--json", arguments->as_json, "Print tokens and targets as JSON");
  command
      ->add_option_function<std::string>(
          "--task-options",
          [arguments](const std::string& text) {
            arguments->options = json::parse(text, nullptr, false);
            if (!arguments->options.is_object())
              throw CLI::ValidationError("--task-options", "\"" + text + "\" is not a JSON object");
          },
          "Over those of the scale")
      ->type_name("JSON");
  command->callback([arguments] { show_task(*arguments); });
}

}  // namespace ovq::cli
