// The results that a report shows: those of experiments and benchmarks, as stored in results/.
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

// Reads results/<set>/... and those results/*.json that have cases. Other files are skipped; `warn` receives a message
// for each one below a set. A missing directory is a DataError.
Evidence read_evidence(const std::filesystem::path& results, const std::function<void(const std::string&)>& warn);

}  // namespace ovq::report
