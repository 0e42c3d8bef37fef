// ovq compare: evaluations of several runs by length; for text, also by position.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/outputs.h"
#include "ovq/base/files/durable.h"
#include "ovq/plot/terminal.h"
#include "ovq/train/comparison.h"

namespace ovq::cli {
namespace {

struct CompareArguments {
  std::vector<std::string> runs;
  std::string svg;
  bool json = false, by_position = false;
};

plot::Figure figure_of(const std::vector<train::PositionLoss>& losses) {
  plot::Figure figure{.title = "Loss by position",
                      .x = {.label = "position in the text, in tokens", .numbers = plot::Numbers::tokens, .from = 0},
                      .y = {.label = "loss"}};
  for (const train::PositionLoss& loss : losses) {
    auto& series = figure.series.emplace_back(plot::Series{.label = loss.label});
    for (size_t i = 0; i < loss.losses.size(); ++i) {
      const double middle = (static_cast<double>(i) + 0.5) * static_cast<double>(loss.bin);
      series.points.push_back({.x = middle, .y = loss.losses[i], .runs = 1});
    }
  }
  return figure;
}

void show_positions(const train::RunComparison& comparison, const CompareArguments& arguments) {
  std::vector<train::PositionLoss> losses;
  try {
    losses = comparison.by_position();
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  if (losses.empty())
    throw std::runtime_error("these runs have no evaluation at a common length; run ovq eval with the same --lengths");
  const plot::Figure figure = figure_of(losses);
  if (!arguments.svg.empty())
    write_result(arguments.svg, [&](const auto& file) { files::write_file_durably(file, plot::to_svg_file(figure)); });
  print("{}\n{}", plot::to_terminal(figure, {.colours = isatty(STDOUT_FILENO) != 0}), to_table(losses));
}

void compare(const CompareArguments& arguments) {
  if (!arguments.svg.empty()) check_output_file("--svg", arguments.svg, arguments.runs);
  train::RunComparison comparison;
  for (const std::string& path : arguments.runs) comparison.add(train::Run::open(path), print_warning);
  if (arguments.by_position) return show_positions(comparison, arguments);
  print("{}", arguments.json ? comparison.results().dump(2) + "\n" : comparison.to_text());
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "Compare runs in a table, by context length");
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("runs", arguments->runs, "Directories of runs")->required()->type_name("DIR");
  CLI::Option* json = command->add_flag("--json", arguments->json, "Print the results as JSON");
  CLI::Option* by_position =
      command->add_flag("--by-position", arguments->by_position, "Show the loss on text by position, as a picture")
          ->excludes(json);
  command->add_option("--svg", arguments->svg, "Also write the picture to this file")
      ->type_name("FILE")
      ->needs(by_position);
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace ovq::cli
