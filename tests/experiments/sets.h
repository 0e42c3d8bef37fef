// Sets of experiments and results small enough for tests.
#pragma once

#include <fstream>
#include <string>

#include "ovq/experiments/experiment_result.h"
#include "ovq/experiments/experiment_set.h"
#include "tests/train/runs.h"

namespace ovq::experiments::test {

using train::test::TemporaryDirectory;

inline json short_set() {
  return json::parse(R"({"groups": [{
    "name": "pair", "shows": "two runs", "claims": [1, 2], "seeds": [3, 4],
    "options": {"scale": "tiny", "steps": 4, "lengths": [16], "task_options": {"vocab": 64}},
    "evaluations": [{"lengths": [16, 32], "rows": 4, "keep": [1, 0.2]}, {"lengths": [16, 32], "rows": 4, "centroids": [8]}],
    "experiments": [
      {"name": "sw-ovq", "options": {"model": "sw-ovq", "task_options": {"key_length": 1}}},
      {"name": "sw-nope", "claims": [1], "seeds": [3], "options": {"model": "sw-nope", "steps": 5}}]}]})");
}

inline std::filesystem::path write_set(const TemporaryDirectory& directory, const json& set) {
  const std::filesystem::path file = directory.path() / "short.json";
  std::ofstream(file) << set;
  return file;
}

// The result of a run with this accuracy at one length with one share.
inline ExperimentResult result_of(const Experiment& experiment, uint64_t seed, double accuracy) {
  return {.group = experiment.group,
          .name = experiment.name,
          .shows = experiment.shows,
          .claims = experiment.claims,
          .options = experiment.run_options(seed),
          .requests = experiment.evaluations,
          .commit = "abc",
          .evaluated_by = "abc",
          .machine = {{"cpu", "one"}},
          .training = {.steps = 4, .tokens = 1000, .seconds = 2},
          .metric = "accuracy",
          .evaluations = {{{"length", 16},
                           {"asked_keep", 0.2},
                           {"keep", 0.2},
                           {"centroids", 4},
                           {"options", json::object()},
                           {"accuracy", accuracy},
                           {"loss", 1 - accuracy},
                           {"state_bytes", 1500},
                           {"tokens_per_second", 1e3 * accuracy}}}};
}

}  // namespace ovq::experiments::test
