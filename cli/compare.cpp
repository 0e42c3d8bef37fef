// ovq compare: what `ovq eval` found, runs against lengths.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <set>

#include "cli/commands.h"
#include "cli/progress.h"
#include "ovq/base/format.h"
#include "ovq/tasks/registry.h"
#include "ovq/train/keep.h"
#include "ovq/train/results.h"

namespace ovq::cli {
namespace {

struct CompareArguments {
  std::vector<std::string> runs;
  bool json = false;
};

// What a run cost so far.
struct Cost {
  int64_t steps = 0, tokens = 0;
  double seconds = 0;  // of the steps; without evaluations and checkpoints
};

Cost cost_of(const train::RunDirectory& run) {
  Cost cost;
  for (const nlohmann::json& line : run.read_metrics()) {
    if (line.at("kind") != "step") continue;
    ++cost.steps;
    cost.tokens += line.at("tokens").get<int64_t>();
    cost.seconds += line.at("seconds").get<double>();
  }
  return cost;
}

struct Line {
  std::string label;
  std::map<int64_t, double> by_length;
  // At the longest length:
  int64_t centroids = 0;
  std::optional<double> keep;
  double state_bytes = 0, tokens_per_second = 0;
};

// Rows by N, then by what was asked to be kept; a row of the latter has another N at every length.
struct LineName {
  std::string key, label;
};

LineName line_name(const train::RunDirectory& run, const nlohmann::json& result) {
  const int64_t centroids = result.value("centroids", int64_t{0});
  LineName name{.label = fmt::format("{} [{}]", run.options().model, run.path().filename().string())};
  if (result.contains("asked_keep")) {
    const double keep = result["asked_keep"];
    name.label += fmt::format(" keep {}", keep);
    name.key = fmt::format("1 {:20.17f}", keep);
  } else {
    if (centroids > 0) name.label += fmt::format(" N {}", centroids);
    name.key = fmt::format("0 {:>20}", centroids);
  }
  if (result.contains("options") && !result["options"].empty()) name.label += " " + result["options"].dump();
  name.key += name.label;
  return name;
}

// What results from before it was stored are missing.
void add_keep(nlohmann::json& result, const std::optional<kernels::OvqOptions>& dictionary) {
  const int64_t centroids = result.value("centroids", int64_t{0});
  if (result.contains("keep") || centroids == 0 || !dictionary) return;
  kernels::OvqOptions used = *dictionary;
  used.centroids = centroids;
  result["keep"] = train::keep_of(used, result.at("length"));
}

void compare(const CompareArguments& arguments) {
  std::map<std::string, std::vector<Line>> tables;  // by task
  std::map<std::string, std::vector<std::string>> costs;
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& path : arguments.runs) {
    const train::RunDirectory run = train::RunDirectory::open(path);
    const bool accuracy = tasks::metric_of(run.options().task) == tasks::Metric::accuracy;
    const std::string title =
        fmt::format("{} ({}), {}", run.options().task, run.options().scale, accuracy ? "accuracy" : "loss");
    const Cost cost = cost_of(run);
    const models::ModelConfig config = train::model_config(run.options(), /*vocab=*/1);
    const auto* found = train::dictionary_of(config);
    const auto dictionary = found == nullptr ? std::nullopt : std::optional(*found);
    std::map<std::string, Line> lines;
    for (nlohmann::json& result : train::read_results(run)) {
      add_keep(result, dictionary);
      const LineName name = line_name(run, result);
      Line& line = lines[name.key];
      line.label = name.label;
      const int64_t length = result.at("length");
      line.by_length[length] = result.at(accuracy ? "accuracy" : "loss");
      if (line.by_length.rbegin()->first == length) {
        line.centroids = result.value("centroids", int64_t{0});
        if (result.contains("keep")) line.keep = result["keep"].get<double>();
        line.state_bytes = result.at("state_bytes");
        line.tokens_per_second = result.at("tokens_per_second");
      }
      all.push_back(result);
      all.back().erase("groups");
      all.back()["run"] = path;
      all.back()["model"] = run.options().model;
      all.back()["task"] = run.options().task;
      all.back()["seed"] = run.options().seed;
      all.back()["training"] = {{"steps", cost.steps}, {"tokens", cost.tokens}, {"seconds", cost.seconds}};
    }
    if (lines.empty()) fmt::print(stderr, "ovq: {} has no evaluations; run: ovq eval {}\n", path, path);
    for (auto& [key, line] : lines) tables[title].push_back(line);
    costs[title].push_back(fmt::format("{} [{}]: {} steps, {:.2f}M tokens, {}", run.options().model,
                                       run.path().filename().string(), cost.steps,
                                       static_cast<double>(cost.tokens) / 1e6, duration_text(cost.seconds)));
  }
  if (arguments.json) {
    fmt::print("{}\n", all.dump(2));
    return;
  }
  for (const auto& [title, lines] : tables) {
    std::set<int64_t> lengths;
    size_t width = 5;
    for (const Line& line : lines) {
      width = std::max(width, line.label.size());
      for (const auto& [length, value] : line.by_length) lengths.insert(length);
    }
    fmt::print("{}\n{:<{}}", title, "", width);
    for (const int64_t length : lengths) fmt::print(" {:>7}", length);
    fmt::print(" {:>9} {:>6} {:>10} {:>9}\n", "N", "keep", "state", "tokens/s");
    for (const Line& line : lines) {
      fmt::print("{:<{}}", line.label, width);
      for (const int64_t length : lengths) {
        const auto at = line.by_length.find(length);
        fmt::print(" {:>7}", at == line.by_length.end() ? "-" : fmt::format("{:.3f}", at->second));
      }
      fmt::print(" {:>9} {:>6} {:>10} {:>9.0f}\n", line.centroids == 0 ? "-" : std::to_string(line.centroids),
                 line.keep ? fmt::format("{:.3f}", *line.keep) : "-", bytes_text(line.state_bytes),
                 line.tokens_per_second);
    }
    fmt::print("N, what it keeps of the context, state per sequence and reading speed: at the longest length.\n");
    for (const std::string& cost : costs[title]) fmt::print("{}\n", cost);
    fmt::print("\n");
  }
}

}  // namespace

void add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "A table of runs against context lengths");
  const auto arguments = std::make_shared<CompareArguments>();
  command->add_option("runs", arguments->runs, "Directories of runs")->required()->type_name("DIR");
  command->add_flag("--json", arguments->json, "Print the results as JSON");
  command->callback([arguments] { compare(*arguments); });
}

}  // namespace ovq::cli
