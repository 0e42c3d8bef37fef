// Results over seeds: for every group and metric a table in Markdown, with experiments and dictionaries as rows and
// lengths as columns. Entries are mean ± standard deviation, or the mean difference to one experiment with its 95 %
// interval, paired by seed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ovq/experiments/experiment_result.h"

namespace ovq::experiments {

// Over several runs.
struct Statistic {
  double mean = 0;
  double deviation = 0;  // of a sample: divided by n - 1; 0 for one run
  int64_t runs = 0;
};
Statistic statistic(const std::vector<double>& values);
// Half of the 95 % interval of the mean, by Student's t; infinite for one run.
double half_interval(const Statistic& found);

// The result files below a directory, sorted by name, without those of searches.
std::vector<std::filesystem::path> result_files(const std::filesystem::path& directory);

struct TableOptions {
  std::string against;  // an experiment: show differences to it between runs with the same seed
  // Groups of targets, such as bins of positions: a column each, at the shortest length that has it.
  std::vector<int64_t> groups;
};

// Groups and experiments in the order of their first result; the runs of one experiment share a row.
std::string to_markdown(const std::vector<ExperimentResult>& results, const TableOptions& options = {});

}  // namespace ovq::experiments
