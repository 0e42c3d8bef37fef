// What there is to show: the results of experiments and what benchmarks measured, as they lie in results/.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ovq/experiments/experiment_result.h"

namespace ovq::report {

using nlohmann::json;

struct Evidence {
  std::map<std::string, std::vector<experiments::ExperimentResult>> experiments;  // by "set/group/name", over seeds
  std::map<std::string, json> benches;                                            // by the file's name

  size_t runs() const;
};

// results/<set>/... and results/*.json that have cases. Files that are something else are passed over; `warn` hears of
// those below a set. A directory that is not there is a DataError.
Evidence read_evidence(const std::filesystem::path& results, const std::function<void(const std::string&)>& warn);

}  // namespace ovq::report
