#include "ovq/report/evidence.h"

#include <algorithm>
#include <fstream>

#include "ovq/base/error.h"
#include "ovq/experiments/corpus.h"
#include "ovq/experiments/result_tables.h"

namespace ovq::report {
namespace fs = std::filesystem;

namespace {

using experiments::ExperimentResult;

// The options in which two results differ apart from the seed; empty: none.
std::string difference(const ExperimentResult& a, const ExperimentResult& b) {
  train::RunOptions options = b.options;
  options.seed = a.options.seed;
  const std::string differing = experiments::differing_options(a.options, options);
  const bool texts = !a.corpus.is_null() && !b.corpus.is_null();
  const bool same = texts ? experiments::same_text(a.corpus, b.corpus) : a.corpus == b.corpus;
  return differing.empty() && !same ? "corpus" : differing;
}

// Results of an experiment with different options cannot be averaged: keeps the largest group with equal options.
void leave_odd_ones_out(const std::string& id, std::vector<ExperimentResult>& results,
                        const std::function<void(const std::string&)>& warn) {
  const auto like = [&](const ExperimentResult& one) {
    return std::count_if(results.begin(), results.end(),
                         [&](const ExperimentResult& other) { return difference(one, other).empty(); });
  };
  const auto usual =
      std::max_element(results.begin(), results.end(), [&](const auto& a, const auto& b) { return like(a) < like(b); });
  const ExperimentResult kept = *usual;
  std::erase_if(results, [&](const ExperimentResult& one) {
    const std::string differing = difference(kept, one);
    if (!differing.empty() && warn)
      warn(id + ": seed " + std::to_string(one.options.seed) + " differs from the others in " + differing +
           "; left out");
    return !differing.empty();
  });
}

}  // namespace

size_t Evidence::runs() const {
  size_t count = 0;
  for (const auto& [id, results] : experiments) count += results.size();
  return count;
}

Evidence read_evidence(const fs::path& results, const std::function<void(const std::string&)>& warn) {
  check_data(fs::is_directory(results), "report", results.string(), " is not a directory");
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
  for (auto& [id, runs] : evidence.experiments) leave_odd_ones_out(id, runs, warn);
  return evidence;
}

}  // namespace ovq::report
