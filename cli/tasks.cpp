// ovq tasks: lists the tasks, or shows a sample of one.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/validators.h"
#include "ovq/base/field_table.h"
#include "ovq/tasks/example.h"
#include "ovq/tasks/registry.h"

namespace ovq::cli {
namespace {

using nlohmann::json;

struct TasksArguments {
  tasks::ExampleOptions example;
  bool test = false, as_json = false, options = false;
};

void show_task(TasksArguments arguments) {
  if (arguments.example.task.empty()) {
    for (const std::string& name : tasks::task_names()) print("{}\n", name);
    print("\novq tasks <name> shows a sample\n");
    return;
  }
  if (arguments.options) {
    try {
      const json fields = tasks::describe_task(arguments.example.task);
      print("{}", arguments.as_json ? fields.dump(2) + "\n" : field_table(fields));
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
    return;
  }
  arguments.example.split = arguments.test ? tasks::Split::test : tasks::Split::train;
  try {
    const tasks::Example example = tasks::draw_example(arguments.example);
    print("{}", arguments.as_json ? to_json(example).dump() + "\n" : to_text(example));
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_tasks(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tasks", "List the tasks, or show a sample of one");
  const auto arguments = std::make_shared<TasksArguments>();
  command->add_option("task", arguments->example.task, "Name of the task");
  command->add_option("--scale", arguments->example.scale, "tiny, small or paper")->capture_default_str();
  command
      ->add_option("--length", arguments->example.length,
                   "Tokens before the query section; default: the shortest training length")
      ->check(at_least(1));
  command->add_option("--seed", arguments->example.seed, "Seed of the sample")
      ->check(number<uint64_t>())
      ->capture_default_str();
  command->add_option("--step", arguments->example.step, "Training step of the sample")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--test", arguments->test, "Show a sample of the test split");
  command->add_flag("--options", arguments->options, "Show the task's options for --task-options instead");
  command->add_flag("--json", arguments->as_json, "Print tokens and targets as JSON");
  command
      ->add_option_function<std::string>(
          "--task-options",
          [arguments](const std::string& text) {
            arguments->example.options = json::parse(text, nullptr, false);
            if (!arguments->example.options.is_object())
              throw CLI::ValidationError("--task-options", "\"" + text + "\" is not a JSON object");
          },
          "Options that override those of the scale")
      ->type_name("JSON");
  command->callback([arguments] { show_task(*arguments); });
}

}  // namespace ovq::cli
