#include "ovq/train/comparison.h"

#include <fmt/format.h>

#include <compare>
#include <set>

#include "ovq/base/error.h"
#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"
#include "ovq/base/table.h"
#include "ovq/tasks/registry.h"
#include "ovq/train/keep.h"

namespace ovq::train {
namespace {

int64_t centroids_of(const json& result) { return result.value("centroids", int64_t{0}); }

// Results with the same key share a row. Rows by N come first, then rows by the share asked for, whose N differs with
// the length.
struct RowKey {
  bool by_share = false;
  double value = 0;  // N, or the share
  std::string label;

  auto operator<=>(const RowKey&) const = default;
};

RowKey row_key(const Run& run, const json& result) {
  RowKey key{.by_share = result.contains("asked_keep"), .label = run.label()};
  if (key.by_share) {
    key.value = result["asked_keep"];
    key.label += fmt::format(" keep {}", key.value);
  } else {
    const int64_t centroids = centroids_of(result);
    key.value = static_cast<double>(centroids);
    if (centroids > 0) key.label += fmt::format(" N {}", centroids);
  }
  if (result.contains("options") && !result["options"].empty()) key.label += " " + result["options"].dump();
  return key;
}

// Fills in `keep` in results from before it was stored.
void add_keeps(std::vector<json>& results, const Run& run, const Warn& warn) {
  std::optional<models::ModelConfig> config;
  for (json& result : results) {
    if (result.contains("keep") || centroids_of(result) == 0) continue;
    if (!config) config = run.config(warn);
    const auto* dictionary = dictionary_of(*config);
    if (dictionary == nullptr) return;
    kernels::OvqOptions used = *dictionary;
    used.centroids = centroids_of(result);
    result["keep"] = keep_of(used, result.at("length"));
  }
}

void add_result(ComparisonRow& row, const json& result, const char* metric) {
  const int64_t length = result.at("length");
  row.by_length[length] = number_or_nan(result.at(metric));
  if (row.by_length.rbegin()->first != length) return;
  row.centroids = centroids_of(result);
  row.every_token = result.value("asked_keep", 0.0) == 1;
  if (result.contains("keep")) row.keep = result["keep"].get<double>();
  row.state_bytes = result.at("state_bytes");
  row.tokens_per_second = result.at("tokens_per_second");
}

json with_run(json result, const Run& run, const TrainingCost& cost) {
  result.erase("groups");
  result["run"] = run.path().string();
  result["model"] = run.options().model;
  result["task"] = run.options().task;
  result["seed"] = run.options().seed;
  result["training"] = {{"steps", cost.steps}, {"tokens", cost.tokens}, {"seconds", cost.seconds}};
  return result;
}

PositionLoss position_loss(const Run& run, const json& result) {
  PositionLoss loss{.label = row_key(run, result).label,
                    .length = result.at("length"),
                    .bin = tasks::task_options("text", run.description().options).at("bin"),
                    .mean = number_or_nan(result.at("loss")),
                    .state_bytes = result.at("state_bytes")};
  for (const json& group : result.at("groups")) loss.losses.push_back(number_or_nan(group.at("loss")));
  return loss;
}

std::string cost_text(const Run& run, const TrainingCost& cost) {
  return fmt::format("{}: {} steps, {:.2f}M tokens, {}", run.label(), cost.steps,
                     static_cast<double>(cost.tokens) / 1e6, duration_text(cost.seconds));
}

std::string to_text(const std::string& title, const ComparisonTable& comparison) {
  std::set<int64_t> lengths;
  for (const ComparisonRow& row : comparison.rows) {
    for (const auto& [length, value] : row.by_length) lengths.insert(length);
  }
  std::vector<Column> columns{{.title = "", .width = 5, .align = Align::left, .gap = 0}};
  for (const int64_t length : lengths) columns.push_back({.title = std::to_string(length), .width = 7});
  columns.insert(columns.end(), {{.title = "N", .width = 9},
                                 {.title = "keep", .width = 6},
                                 {.title = "state", .width = 10},
                                 {.title = "tokens/s", .width = 9}});
  Table table(columns);
  for (const ComparisonRow& row : comparison.rows) {
    std::vector<std::string> cells{row.label};
    for (const int64_t length : lengths) {
      const auto at = row.by_length.find(length);
      cells.push_back(at == row.by_length.end() ? "-" : fmt::format("{:.3f}", at->second));
    }
    cells.push_back(centroids_text(row.centroids, row.every_token));
    cells.push_back(row.keep ? fmt::format("{:.3f}", *row.keep) : "-");
    cells.push_back(bytes_text(row.state_bytes));
    cells.push_back(fmt::format("{:.0f}", row.tokens_per_second));
    table.add(cells);
  }
  std::string text = title + "\n" + table.text();
  text +=
      "N, the share of the context that it keeps, state per sequence and reading speed are those at the longest "
      "length.\n";
  for (const std::string& cost : comparison.costs) text += cost + "\n";
  return text + "\n";
}

}  // namespace

TrainingCost training_cost(const std::vector<json>& metrics) {
  TrainingCost cost;
  for (const json& line : metrics) {
    if (line.at("kind") != "step") continue;
    ++cost.steps;
    cost.tokens += line.at("tokens").get<int64_t>();
    cost.seconds += line.at("seconds").get<double>();
  }
  return cost;
}

void RunComparison::add(const Run& run, const Warn& warn) {
  const TrainingCost cost = training_cost(run.metrics());
  std::vector<json> results = run.results();
  if (results.empty() && warn)
    warn(fmt::format("{} has no evaluations; run: ovq eval {}", run.path().string(), shell_word(run.path().string())));
  add_keeps(results, run, warn);

  const char* metric = tasks::metric_name(run.description().metric);
  std::map<RowKey, ComparisonRow> rows;
  for (const json& result : results) {
    const RowKey key = row_key(run, result);
    ComparisonRow& row = rows[key];
    row.label = key.label;
    add_result(row, result, metric);
    results_.push_back(with_run(result, run, cost));
  }
  // A run without evaluations has no row of its own in the tables.
  const std::string title = fmt::format("{} ({}), {}", run.options().task, run.options().scale, metric);
  ComparisonTable& table = tables_[title];
  for (auto& [key, row] : rows) table.rows.push_back(std::move(row));
  table.costs.push_back(cost_text(run, cost));
  if (run.options().task != "text") {
    not_text_ = run.path().string() + " is a run on " + run.options().task;
    return;
  }
  std::map<std::pair<int64_t, RowKey>, PositionLoss> losses;  // in the order of the table
  for (const json& result : results) {
    const std::pair key(result.at("length").get<int64_t>(), row_key(run, result));
    if (result.contains("groups")) losses[key] = position_loss(run, result);
  }
  auto& own = positions_.emplace_back();
  for (auto& [key, loss] : losses) own.push_back(std::move(loss));
}

std::vector<PositionLoss> RunComparison::by_position() const {
  check(not_text_.empty(), "compare", not_text_, "; only text has a loss by position");
  std::map<int64_t, size_t> runs_with;  // by length
  for (const auto& run : positions_) {
    std::set<int64_t> lengths;
    for (const PositionLoss& loss : run) lengths.insert(loss.length);
    for (const int64_t length : lengths) ++runs_with[length];
  }
  int64_t longest = 0;
  for (const auto& [length, runs] : runs_with) {
    if (runs == positions_.size()) longest = length;
  }
  std::vector<PositionLoss> all;
  for (const auto& run : positions_) {
    for (const PositionLoss& loss : run) {
      if (loss.length == longest) all.push_back(loss);
    }
  }
  for (const PositionLoss& loss : all) {
    check(loss.bin == all.front().bin, "compare", loss.label, " has bins of ", loss.bin, " positions; must be ",
          all.front().bin, " as in ", all.front().label);
  }
  return all;
}

std::string to_table(const std::vector<PositionLoss>& losses) {
  if (losses.empty()) return "";
  constexpr size_t kColumns = 4;
  const size_t bins = losses.front().losses.size();
  std::set<size_t> shown;  // the first bin, then bins at doubling distances
  for (size_t end = bins; end > 0 && shown.size() + 1 < kColumns; end /= 2) shown.insert(end - 1);
  shown.insert(0);
  std::vector<Column> columns{{.title = "loss at", .width = 5, .align = Align::left, .gap = 0}};
  const int64_t bin = losses.front().bin;
  for (const size_t i : shown) {
    const int64_t first = static_cast<int64_t>(i) * bin;
    columns.push_back({.title = fmt::format("{}-{}", first, first + bin - 1), .width = 7});
  }
  columns.insert(columns.end(), {{.title = "all", .width = 7}, {.title = "state", .width = 10}});
  Table table(columns);
  for (const PositionLoss& loss : losses) {
    std::vector<std::string> cells{loss.label};
    for (const size_t i : shown) cells.push_back(i < loss.losses.size() ? fmt::format("{:.3f}", loss.losses[i]) : "-");
    cells.push_back(fmt::format("{:.3f}", loss.mean));
    cells.push_back(bytes_text(loss.state_bytes));
    table.add(cells);
  }
  return table.text();
}

std::string RunComparison::to_text() const {
  std::string text;
  for (const auto& [title, table] : tables_) {
    if (!table.rows.empty()) text += train::to_text(title, table);
  }
  return text;
}

}  // namespace ovq::train
