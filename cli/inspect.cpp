// ovq inspect [MODEL] [--json] [--context TOKENS ...] [--weights DTYPE] [--state-dtype DTYPE] [--processes P]
//   | --options MIXER
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "ovq/base/field_table.h"
#include "ovq/base/format.h"
#include "ovq/models/inspect.h"
#include "ovq/models/mixer_options.h"
#include "ovq/train/checkpoint.h"
#include "ovq/train/rank_memory.h"

namespace ovq::cli {
namespace {

struct InspectArguments {
  std::string model;
  std::vector<int64_t> contexts = models::default_contexts();
  models::StorageOptions storage;
  bool json = false;
  std::string options;
  int64_t processes = 0;
};

void show_model(const InspectArguments& arguments) {
  if (!arguments.options.empty()) {
    try {
      const nlohmann::json fields = models::describe_mixer(arguments.options);
      print("{}", arguments.json ? fields.dump(2) + "\n" : field_table(fields));
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
    return;
  }
  if (arguments.model.empty()) {
    print("{}\novq inspect <preset or directory> shows one\n", models::preset_table());
    return;
  }
  try {
    models::Inspection inspection = models::inspect(train::model_directory(arguments.model, print_warning).string(),
                                                    arguments.contexts, arguments.storage);
    inspection.name = arguments.model;
    nlohmann::json object = models::to_json(inspection);
    std::string table = models::to_table(inspection);
    if (arguments.processes > 0) {
      const train::RankMemory memory = train::rank_memory(inspection.total, arguments.processes);
      object["training_memory"] = to_json(memory);
      table += to_table(memory);
    }
    print("{}", arguments.json ? object.dump(2) + "\n" : table);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show parameters, state size and FLOPs of a model, or list the presets");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("model", arguments->model, "A preset, a directory with config.json, or a run");
  command->add_flag("--json", arguments->json, "Print JSON");
  command->add_option("--context", arguments->contexts, "Context lengths to show; default: 1024 to 1048576")
      ->check(within(1, int64_t{1} << 30))
      ->type_name("TOKENS");
  add_fields(*command, arguments->storage);
  command
      ->add_option("--processes", arguments->processes, "Also show the memory of each process when P processes train")
      ->check(within(1, int64_t{1} << 20))
      ->type_name("P");
  command
      ->add_option("--options", arguments->options,
                   "Show the options of a mixer instead: one of " + joined(models::mixer_types()))
      ->type_name("MIXER");
  command->callback([arguments] { show_model(*arguments); });
}

}  // namespace ovq::cli
