// Runs small enough for tests, in directories that are removed afterwards.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "ovq/models/presets.h"
#include "ovq/train/trainer.h"
#include "tests/base/files/fixtures.h"

namespace ovq::train::test {

using files::test::TemporaryDirectory;

// Makes any preset small enough to train in milliseconds.
inline json miniature(const std::string& pattern) {
  json patch = {{"hidden_size", 32}, {"num_hidden_layers", 2}, {"intermediate_size", 48}};
  const json config = to_json(models::model_preset("tiny/" + pattern).config);
  for (const auto& [name, mixer] : config.at("mixers").items()) {
    const std::string type = mixer.at("type");
    json& own = patch["mixers"][name];
    own["heads"] = 1;
    if (type == "attention" || type == "ovq" || type == "vq") own["head_dim"] = 32;
    if (type == "attention" && mixer.at("window") != 0) own["window"] = 8;
    if (type == "ovq") own.update({{"chunk", 8}, {"centroids", 16}});
    if (type == "vq") own.update({{"chunk", 8}, {"codewords", 16}, {"warmup", 5}});
    if (type == "gdn" || type == "mesa" || type == "linear") own.update({{"key_dim", 16}, {"value_dim", 16}});
    if (type == "mesa") own["iterations"] = 12;
    if (type == "mamba2") own.update({{"head_dim", 32}, {"state", 8}, {"groups", 1}});
  }
  return patch;
}

inline RunOptions mini_run(const std::string& task, const std::string& pattern) {
  RunOptions options;
  options.task = task;
  options.model = pattern;
  options.model_options = miniature(pattern);
  options.lengths = {24, 48};
  if (task == "recall")
    options.task_options["vocab"] = 32;  // few enough that twenty steps teach which tokens are values
  options.tokens_per_step = 512;
  options.steps = 20;
  options.learning_rate = 2e-3;
  options.warmup = 4;
  options.eval_every = 10;
  options.eval_rows = 4;
  options.checkpoint_every = 5;
  return resolved(options);
}

inline std::vector<double> losses(const train::Run& run) {
  std::vector<double> values;
  for (const json& line : run.metrics()) {
    if (line.at("kind") == "step") values.push_back(line.at("loss"));
  }
  return values;
}

}  // namespace ovq::train::test
