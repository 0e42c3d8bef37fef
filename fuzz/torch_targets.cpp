// Readers that need torch: configurations of models, run.json, sets of experiments and results, claims.
#include <fstream>

#include "fuzz/targets.h"
#include "ovq/experiments/experiment_result.h"
#include "ovq/models/config.h"
#include "ovq/models/presets.h"
#include "ovq/report/claims.h"
#include "ovq/train/options.h"

namespace ovq::fuzz {
namespace {

using nlohmann::json;

void read_config(std::string_view bytes) {
  const models::ModelConfig config = models::load_config(file_of(bytes));
  const json again = to_json(config);
  if (to_json(models::config_from_json(again)) != again) throw std::logic_error("a configuration is not given back");
}

std::vector<std::string> config_seeds() {
  std::vector<std::string> seeds;
  for (const char* preset : {"tiny/sw-ovq", "tiny/sw-vq", "tiny/gdn", "tiny/mamba2", "tiny/mesa-net", "tiny/linear"})
    seeds.push_back(to_json(models::model_preset(preset).config).dump(1));
  return seeds;
}

// run.json, and all that follows from it before a file is touched.
void read_run_options(std::string_view bytes) {
  const json object = json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return;
  const train::RunOptions options = train::resolved(train::run_options_from_json(object));
  if (options.task == "text") return;  // whose tokenizer is a file
  const auto task = train::make_task(options);
  (void)train::model_config(options, task->vocab());
  (void)train::phases_of(options);
}

std::vector<std::string> run_options_seeds() {
  std::vector<std::string> seeds;
  for (const char* task : {"recall", "positional-recall", "icl", "mqar"}) {
    json options = {{"task", task}, {"scale", "tiny"}, {"model", "sw-ovq"}, {"lengths", {32, 64}}};
    options["phases"] = json::array({{{"steps", 3}, {"lengths", {16}}, {"centroids", 8}}, {{"steps", 4}}});
    seeds.push_back(options.dump(1));
    seeds.push_back(to_json(train::resolved(train::run_options_from_json({{"task", task}}))).dump(1));
  }
  return seeds;
}

void read_experiments(std::string_view bytes) { (void)experiments::read_experiment_set(file_of(bytes)); }

std::vector<std::string> experiment_seeds() {
  return {R"({"groups": [{"name": "pair", "shows": "two", "claims": [1], "seeds": [3],
    "options": {"scale": "tiny", "steps": 4, "lengths": [16], "task_options": {"vocab": 64}},
    "evaluations": [{"lengths": [16], "rows": 4, "keep": [1, 0.2]}],
    "experiments": [{"name": "a", "options": {"model": "sw-ovq"}}, {"name": "b", "options": {"model": "sw-nope"}}]}]})"};
}

void read_claims(std::string_view bytes) { (void)report::read_claims(file_of(bytes)); }

std::vector<std::string> claim_seeds() {
  return {
      R"({"charts": [{"name": "r", "title": "t", "x": {"of": "length", "label": "x"}, "y": {"of": "accuracy", "label": "y"},
    "lines": [{"label": "a", "results": "recall/small/sw-ovq", "centroids": [256, 1024]}]}],
    "claims": [{"number": 1, "title": "t", "paper": "p", "where": "w", "charts": ["r"],
      "checks": [{"text": "c", "of": "accuracy", "value": {"results": "a/b/c", "length": 512}, "is": "at least", "than": 0.5}]}]})"};
}

}  // namespace

std::vector<Target> torch_targets() {
  return {{"config", read_config, config_seeds},
          {"run_options", read_run_options, run_options_seeds},
          {"experiments", read_experiments, experiment_seeds},
          {"claims", read_claims, claim_seeds}};
}

}  // namespace ovq::fuzz
