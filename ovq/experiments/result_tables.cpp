#include "ovq/experiments/result_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <iterator>
#include <limits>
#include <map>
#include <numbers>
#include <set>

#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"
#include "ovq/tasks/registry.h"

namespace ovq::experiments {
namespace {

// A row: an experiment with one dictionary, or with the dictionaries that keep one share, on one kind of test.
struct RowKey {
  std::string experiment, options;
  bool by_keep = false;
  double size = 0;  // the share, or N; 0: no dictionary

  bool operator==(const RowKey&) const = default;
};

// A column: all targets of a length, or one group of them.
struct ColumnKey {
  bool all = false;  // these columns come last
  int64_t length = 0, group = 0;

  auto operator<=>(const ColumnKey&) const = default;
};

struct Row {
  RowKey key;
  std::map<ColumnKey, std::vector<double>> cells;
  std::map<int64_t, double> state_bytes;  // by length
};

struct GroupTable {
  std::string group, shows, metric;
  bool differences = false;
  int64_t bin = 0;  // positions per group; 0: groups are not bins of positions
  std::vector<Row> rows;
  std::map<std::string, std::vector<const ExperimentResult*>> runs;  // by experiment
};

RowKey key_of(const ExperimentResult& result, const json& evaluation) {
  const json options = evaluation.value("options", json::object());
  RowKey key{.experiment = result.name, .options = options.empty() ? "" : options.dump()};
  key.by_keep = evaluation.contains("asked_keep");
  key.size = key.by_keep ? evaluation["asked_keep"].get<double>() : evaluation.value("centroids", 0.0);
  return key;
}

template <class Item, class Same>
Item& find_or_add(std::vector<Item>& items, Same&& same, Item item) {
  const auto found = std::find_if(items.begin(), items.end(), same);
  return found != items.end() ? *found : items.emplace_back(std::move(item));
}

// The groups in `wanted` that no shorter length has.
std::set<std::pair<int64_t, int64_t>> chosen_groups(const ExperimentResult& result,
                                                    const std::vector<int64_t>& wanted) {
  std::map<int64_t, int64_t> length_of;
  for (const json& evaluation : result.evaluations) {
    const int64_t length = evaluation.at("length");
    for (const json& group : evaluation.value("groups", json::array())) {
      const auto [at, is_new] = length_of.emplace(group.at("group"), length);
      if (!is_new) at->second = std::min(at->second, length);
    }
  }
  std::set<std::pair<int64_t, int64_t>> chosen;
  for (const int64_t group : wanted) {
    if (length_of.contains(group)) chosen.emplace(length_of[group], group);
  }
  return chosen;
}

void add_result(std::vector<GroupTable>& tables, const ExperimentResult& result, const std::vector<int64_t>& groups) {
  GroupTable& table = find_or_add(
      tables, [&](const GroupTable& other) { return other.group == result.group && other.metric == result.metric; },
      GroupTable{.group = result.group, .shows = result.shows, .metric = result.metric});
  table.runs[result.name].push_back(&result);
  if (result.options.task == "text") table.bin = tasks::task_options("text", result.options.task_options).at("bin");
  const auto chosen = chosen_groups(result, groups);
  for (const json& evaluation : result.evaluations) {
    const RowKey key = key_of(result, evaluation);
    Row& row = find_or_add(
        table.rows, [&](const Row& other) { return other.key == key; }, Row{.key = key});
    const int64_t length = evaluation.at("length");
    row.cells[{.all = true, .length = length}].push_back(number_or_nan(evaluation.at(result.metric)));
    for (const json& group : evaluation.value("groups", json::array())) {
      const int64_t number = group.at("group");
      if (chosen.contains({length, number}))
        row.cells[{.length = length, .group = number}].push_back(number_or_nan(group.at(result.metric)));
    }
    row.state_bytes[length] = evaluation.at("state_bytes");
  }
}

// Whether to compare rows of two experiments. One without a dictionary is compared with all sizes.
bool compared(const RowKey& own, const RowKey& against) {
  const bool same_size = own.by_keep == against.by_keep && own.size == against.size;
  return (against.size == 0 || same_size) && own.options == against.options;
}

// Subtracts the metric of `other`, over all targets and for each group.
void subtract(json& evaluation, const json& other, const std::string& metric) {
  const auto difference = [&](const json& a, const json& b) {
    return number_or_nan(a.at(metric)) - number_or_nan(b.at(metric));
  };
  evaluation[metric] = difference(evaluation, other);
  json groups = json::array();
  for (json group : evaluation.value("groups", json::array())) {
    for (const json& same : other.value("groups", json::array())) {
      if (same.at("group") != group.at("group")) continue;
      group[metric] = difference(group, same);
      groups.push_back(group);
      break;
    }
  }
  evaluation["groups"] = groups;
}

// The results other than `against`. Each evaluation is reduced by that of `against` in the same group with the same
// seed.
std::vector<ExperimentResult> differences_to(const std::string& against, const std::vector<ExperimentResult>& results) {
  std::vector<ExperimentResult> all;
  for (const ExperimentResult& result : results) {
    if (result.name == against) continue;
    const auto other = std::find_if(results.begin(), results.end(), [&](const ExperimentResult& candidate) {
      return candidate.name == against && candidate.group == result.group && candidate.metric == result.metric &&
             candidate.options.seed == result.options.seed;
    });
    if (other == results.end()) continue;
    ExperimentResult difference = result;
    difference.evaluations.clear();
    for (json evaluation : result.evaluations) {
      const RowKey key = key_of(result, evaluation);
      const auto found = std::find_if(other->evaluations.begin(), other->evaluations.end(), [&](const json& candidate) {
        return compared(key, key_of(*other, candidate)) && candidate.at("length") == evaluation.at("length");
      });
      if (found == other->evaluations.end()) continue;
      subtract(evaluation, *found, result.metric);
      difference.evaluations.push_back(std::move(evaluation));
    }
    if (!difference.evaluations.empty()) all.push_back(std::move(difference));
  }
  return all;
}

// Experiments in their order; for each one first the shares, largest first, then the sizes.
void sort_rows(GroupTable& table) {
  std::vector<std::string> order;
  for (const Row& row : table.rows) {
    if (std::find(order.begin(), order.end(), row.key.experiment) == order.end()) order.push_back(row.key.experiment);
  }
  const auto rank = [&](const Row& row) {
    const auto at = std::find(order.begin(), order.end(), row.key.experiment) - order.begin();
    return std::tuple(at, row.key.options, !row.key.by_keep, row.key.by_keep ? -row.key.size : row.key.size);
  };
  std::stable_sort(table.rows.begin(), table.rows.end(), [&](const Row& a, const Row& b) { return rank(a) < rank(b); });
}

std::string thousands(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string cell(const std::vector<double>& values, bool difference) {
  const Statistic found = statistic(values);
  if (found.runs == 1) return difference ? fmt::format("{:+.3f}", found.mean) : fmt::format("{:.3f}", found.mean);
  if (!difference) return fmt::format("{:.3f} ± {:.3f}", found.mean, found.deviation);
  const double half = half_interval(found);
  return fmt::format("{:+.3f} [{:+.3f}, {:+.3f}]", found.mean, found.mean - half, found.mean + half);
}

std::string title(const ColumnKey& column, const GroupTable& table) {
  if (column.all) return table.bin > 0 ? fmt::format("all {}", thousands(column.length)) : thousands(column.length);
  if (table.bin == 0) return fmt::format("group {} of {}", column.group, thousands(column.length));
  const int64_t first = column.group * table.bin;
  return fmt::format("{} to {}", thousands(first), thousands(first + table.bin - 1));
}

std::string dictionary_text(const RowKey& key) {
  if (key.by_keep) return fmt::format("keep {}", key.size);
  return key.size == 0 ? "" : fmt::format("N {}", key.size);
}

// The steps, tokens and rate that the runs share, their seeds and their time.
std::string cost_text(const std::string& name, const std::vector<const ExperimentResult*>& runs) {
  double seconds = 0;
  std::vector<std::string> seeds;
  for (const ExperimentResult* run : runs) {
    seconds += run->training.seconds / static_cast<double>(runs.size());
    seeds.push_back(std::to_string(run->options.seed));
  }
  const train::TrainingCost& training = runs.front()->training;
  return fmt::format("- {}: seeds {}; {} steps, {:.1f}M tokens at rate {:g}, {} of one core\n", name, joined(seeds),
                     training.steps, static_cast<double>(training.tokens) / 1e6, runs.front()->options.learning_rate,
                     duration_text(seconds));
}

// The factor from loss per token to bits per byte of the test text; empty if the results do not store it.
std::string bits_text(const GroupTable& table) {
  const json corpus = table.runs.begin()->second.front()->corpus;
  const json tested = corpus.is_object() ? corpus.value("valid", json::object()) : json::object();
  if (table.metric != "loss" || !tested.contains("bytes")) return "";
  const double bytes = tested["bytes"].get<double>() / tested.at("tokens").get<double>();
  return fmt::format("A token has {:.3f} bytes on average: bits per byte are {:.3f} times the loss.\n\n", bytes,
                     1 / (std::numbers::ln2 * bytes));
}

std::string to_markdown(GroupTable& table) {
  sort_rows(table);
  std::set<ColumnKey> columns;
  for (const Row& row : table.rows) {
    for (const auto& [column, values] : row.cells) columns.insert(column);
  }
  std::string text = fmt::format("### {}{}\n\n| {} | dictionary |", table.group,
                                 table.shows.empty() ? "" : ": " + table.shows, table.metric);
  for (const ColumnKey& column : columns) text += " " + title(column, table) + " |";
  text += " state |\n|---|---|";
  for (size_t i = 0; i < columns.size(); ++i) text += "---|";
  text += "---|\n";
  for (const Row& row : table.rows) {
    const std::string options = row.key.options.empty() ? "" : " " + row.key.options;
    text += fmt::format("| {}{} | {} |", row.key.experiment, options, dictionary_text(row.key));
    for (const ColumnKey& column : columns) {
      const auto at = row.cells.find(column);
      text += at == row.cells.end() ? " |" : " " + cell(at->second, table.differences) + " |";
    }
    text += " " + bytes_text(row.state_bytes.rbegin()->second) + " |\n";
  }
  text += "\n" + bits_text(table);
  for (const auto& [name, runs] : table.runs) text += cost_text(name, runs);
  return text + "\n";
}

}  // namespace

Statistic statistic(const std::vector<double>& values) {
  Statistic found{.runs = static_cast<int64_t>(values.size())};
  if (values.empty()) return found;
  const double count = static_cast<double>(values.size());
  for (const double value : values) found.mean += value / count;
  if (values.size() == 1) return found;
  double squares = 0;
  for (const double value : values) squares += (value - found.mean) * (value - found.mean);
  found.deviation = std::sqrt(squares / (count - 1));
  return found;
}

double half_interval(const Statistic& found) {
  // The 97.5 % point for 1, 2, ... degrees of freedom.
  constexpr double kPoints[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  constexpr double kNormal = 1.960;
  if (found.runs < 2) return std::numeric_limits<double>::infinity();
  const double freedom = static_cast<double>(found.runs - 1);
  // Beyond the table: two terms of the Cornish-Fisher expansion, off by less than 0.003.
  const double point =
      found.runs - 1 <= static_cast<int64_t>(std::size(kPoints))
          ? kPoints[found.runs - 2]
          : kNormal + (std::pow(kNormal, 3) + kNormal) / (4 * freedom) +
                (5 * std::pow(kNormal, 5) + 16 * std::pow(kNormal, 3) + 3 * kNormal) / (96 * freedom * freedom);
  return point * found.deviation / std::sqrt(static_cast<double>(found.runs));
}

std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const bool search = entry.path().parent_path().filename() == "search";
    if (entry.is_regular_file() && entry.path().extension() == ".json" && !search) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string to_markdown(const std::vector<ExperimentResult>& results, const TableOptions& options) {
  const std::string& against = options.against;
  const std::vector<ExperimentResult> shown = against.empty() ? results : differences_to(against, results);
  std::vector<GroupTable> tables;
  for (const ExperimentResult& result : shown) add_result(tables, result, options.groups);
  std::string text;
  for (GroupTable& table : tables) {
    if (!against.empty()) {
      table.differences = true;
      table.metric += " minus that of " + against;
    }
    text += to_markdown(table);
  }
  return text;
}

}  // namespace ovq::experiments
