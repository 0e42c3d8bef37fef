#include "ovq/experiments/result_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "ovq/base/format.h"
#include "ovq/base/json_fields.h"

namespace ovq::experiments {
namespace {

// A row: an experiment with one dictionary, or with the dictionaries that keep one share, on one kind of test.
struct RowKey {
  std::string experiment, options;
  bool by_keep = false;
  double size = 0;  // the share, or N; 0: no dictionary

  bool operator==(const RowKey&) const = default;
};

struct Row {
  RowKey key;
  std::map<int64_t, std::vector<double>> by_length;
  std::map<int64_t, double> state_bytes;
};

struct GroupTable {
  std::string group, shows, metric;
  bool differences = false;
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

void add_result(std::vector<GroupTable>& tables, const ExperimentResult& result) {
  GroupTable& table = find_or_add(
      tables, [&](const GroupTable& other) { return other.group == result.group && other.metric == result.metric; },
      GroupTable{.group = result.group, .shows = result.shows, .metric = result.metric});
  table.runs[result.name].push_back(&result);
  for (const json& evaluation : result.evaluations) {
    const RowKey key = key_of(result, evaluation);
    Row& row = find_or_add(
        table.rows, [&](const Row& other) { return other.key == key; }, Row{.key = key});
    const int64_t length = evaluation.at("length");
    row.by_length[length].push_back(number_or_nan(evaluation.at(result.metric)));
    row.state_bytes[length] = evaluation.at("state_bytes");
  }
}

// Whether to compare rows of two experiments. One without a dictionary is compared with all sizes.
bool compared(const RowKey& own, const RowKey& against) {
  const bool same_size = own.by_keep == against.by_keep && own.size == against.size;
  return (against.size == 0 || same_size) && own.options == against.options;
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
      evaluation[result.metric] = number_or_nan(evaluation.at(result.metric)) - number_or_nan(found->at(result.metric));
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
  const std::string mean = difference ? fmt::format("{:+.3f}", found.mean) : fmt::format("{:.3f}", found.mean);
  return found.runs == 1 ? mean : fmt::format("{} ± {:.3f}", mean, found.deviation);
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
  std::set<int64_t> lengths;
  for (const Row& row : table.rows) {
    for (const auto& [length, values] : row.by_length) lengths.insert(length);
  }
  std::string text = fmt::format("### {}{}\n\n| {} | dictionary |", table.group,
                                 table.shows.empty() ? "" : ": " + table.shows, table.metric);
  for (const int64_t length : lengths) text += " " + thousands(length) + " |";
  text += " state |\n|---|---|";
  for (size_t i = 0; i < lengths.size(); ++i) text += "---|";
  text += "---|\n";
  for (const Row& row : table.rows) {
    const std::string options = row.key.options.empty() ? "" : " " + row.key.options;
    text += fmt::format("| {}{} | {} |", row.key.experiment, options, dictionary_text(row.key));
    for (const int64_t length : lengths) {
      const auto at = row.by_length.find(length);
      text += at == row.by_length.end() ? " |" : " " + cell(at->second, table.differences) + " |";
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

std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    const bool search = entry.path().parent_path().filename() == "search";
    if (entry.is_regular_file() && entry.path().extension() == ".json" && !search) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<ExperimentResult> read_results(const std::filesystem::path& directory) {
  std::vector<ExperimentResult> results;
  for (const std::filesystem::path& file : result_files(directory)) results.push_back(read_result(file));
  return results;
}

std::string to_markdown(const std::vector<ExperimentResult>& results, const std::string& against) {
  const std::vector<ExperimentResult> shown = against.empty() ? results : differences_to(against, results);
  std::vector<GroupTable> tables;
  for (const ExperimentResult& result : shown) add_result(tables, result);
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
