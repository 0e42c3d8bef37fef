// ovq compare: what `ovq eval` found, runs against lengths.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/console.h"
#include "ovq/train/comparison.h"

namespace ovq::cli {
namespace {

struct CompareArguments {
  std::vector<std::string> runs;
  bool json = false;
};

void compare(const CompareArguments& arguments) {
  train::RunComparison comparison;
  for (const std::string& path : arguments.runs) comparison.add(train::Run::open(path), print_warning);
  print("{}", arguments.json ? comparison.results().dump(2) + "\n" : comparison.to_text());
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "Compare runs in a table, by context length");
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("runs", arguments->runs, "Directories of runs")->required()->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print the results as JSON");
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace ovq::cli
