#include "ovq/report/evidence.h"

#include <fstream>

#include "ovq/base/error.h"
#include "ovq/experiments/result_tables.h"

namespace ovq::report {
namespace fs = std::filesystem;

size_t Evidence::runs() const {
  size_t count = 0;
  for (const auto& [id, results] : experiments) count += results.size();
  return count;
}

Evidence read_evidence(const fs::path& results, const std::function<void(const std::string&)>& warn) {
  check_data(fs::is_directory(results), "report", results.string(), " is no directory");
  Evidence evidence;
  for (const auto& entry : fs::directory_iterator(results)) {
    if (entry.is_directory()) {
      for (const fs::path& file : experiments::result_files(entry.path())) {
        try {
          experiments::ExperimentResult result = experiments::read_result(file);
          evidence.experiments[entry.path().filename().string() + "/" + result.id()].push_back(std::move(result));
        } catch (const DataError& error) {
          if (warn) warn(error.what());
        }
      }
    } else if (entry.path().extension() == ".json") {
      std::ifstream in(entry.path());
      json object = json::parse(in, nullptr, /*allow_exceptions=*/false);
      if (object.is_object() && object.contains("cases"))
        evidence.benches[entry.path().stem().string()] = std::move(object);
    }
  }
  return evidence;
}

}  // namespace ovq::report
