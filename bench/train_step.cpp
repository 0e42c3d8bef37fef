#include "bench/train_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/machine_report.h"
#include "bench/other_isa.h"
#include "ovq/base/format.h"
#include "ovq/base/json_file.h"
#include "ovq/base/table.h"
#include "ovq/models/language_model.h"
#include "ovq/models/presets.h"
#include "ovq/tasks/mixture.h"
#include "ovq/tasks/registry.h"
#include "ovq/train/adamw.h"
#include "ovq/train/evaluate.h"

namespace ovq::bench {
namespace {

using at::Tensor;

constexpr double kLossTolerance = 1e-4;  // relative: same weights and tokens, different rounding
constexpr const char* kTask = "recall";
constexpr const char* kReference = "sw-nope";  // the preset that others are compared with

// A mixer that does nothing: gives the cost of a step without mixing, a bound on any speed-up.
class NoMixer : public nn::Mixer {
 public:
  int64_t state_bytes(int64_t, kernels::StateDtype = {}) const override { return 0; }

 protected:
  Tensor mix(const Tensor& x, nn::MixerState*, const nn::OptionalTensor&) override { return x; }
};

std::vector<train::BatchTensors> batches_of(const std::string& scale, int64_t tokens) {
  const auto task = tasks::make_task(kTask, {{"scale", scale}});
  std::vector<train::BatchTensors> batches;
  for (const tasks::StepShape& shape : tasks::step_shapes(*task, {tasks::preset(kTask, scale).train_lengths, tokens})) {
    batches.push_back(train::to_tensors(task->sample({.rows = shape.rows, .length = shape.length, .seed = 1})));
  }
  return batches;
}

class Step {
 public:
  Step(const models::ModelConfig& config, std::vector<train::BatchTensors> batches)
      : model_(models::make_model(config, 1)), batches_(std::move(batches)), optimizer_(*model_, {}) {
    for (const train::BatchTensors& batch : batches_) {
      tokens_ += batch.tokens.numel();
      targets_ += batch.targets.numel();
    }
  }

  void remove_mixers() {
    for (const auto& block : model_->blocks()) block->mixer = std::make_shared<NoMixer>();
  }

  int64_t tokens() const { return tokens_; }

  double loss() {
    const torch::NoGradGuard no_grad;
    double sum = 0;
    for (const train::BatchTensors& batch : batches_) sum += loss_of(batch).item<double>();
    return sum;
  }

  void run() {
    model_->begin_step(0, 1);
    optimizer_.zero_gradients();
    for (const train::BatchTensors& batch : batches_) loss_of(batch).backward();
    optimizer_.clip_gradients(1.0);
    optimizer_.step(1e-5);
    model_->end_step();
  }

 private:
  Tensor loss_of(const train::BatchTensors& batch) {
    const Tensor logits = model_->logits(model_->hidden_at(batch.tokens, batch.positions));
    return at::cross_entropy_loss(logits, batch.targets, {}, at::Reduction::Sum) / targets_;
  }

  std::shared_ptr<models::LanguageModel> model_;
  std::vector<train::BatchTensors> batches_;
  train::AdamW optimizer_;
  int64_t tokens_ = 0, targets_ = 0;
};

// The steps of one preset and their measurements.
struct Candidate {
  TrainStepCase result;
  std::unique_ptr<Step> step, without;
  std::vector<double> seconds_of_step, seconds_without;
  double busy = 0, seconds = 0;
};

Candidate make_candidate(const std::string& name, const TrainStepOptions& options,
                         const std::vector<train::BatchTensors>& batches) {
  const models::ModelConfig config = models::model_preset(name).config;
  Candidate candidate{.result = {.name = name}, .step = std::make_unique<Step>(config, batches)};
  candidate.result.tokens = candidate.step->tokens();
  const double loss = candidate.step->loss();
  {
    const OtherIsa other;
    const double expected = candidate.step->loss();
    if (!(std::abs(loss - expected) <= kLossTolerance * std::abs(expected))) {
      candidate.result.mismatch = fmt::format("the loss is {}, with {} it is {}", loss, other.name(), expected);
    }
  }
  if (options.without_mixers) {
    candidate.without = std::make_unique<Step>(config, batches);
    candidate.without->remove_mixers();
  }
  return candidate;
}

void measure(Candidate& candidate) {
  const Bystanders bystanders;
  const auto start = Clock::now();
  candidate.seconds_of_step.push_back(time_once([&] { candidate.step->run(); }));
  if (candidate.without) candidate.seconds_without.push_back(time_once([&] { candidate.without->run(); }));
  const double seconds = seconds_since(start);
  candidate.busy += bystanders.busy_cores() * seconds;
  candidate.seconds += seconds;
}

// Profiling has a small cost, so it gets a round of its own.
train::Profile::Shares shares_of(Step& step) {
  const train::Profile profile;
  const double seconds = time_once([&] { step.run(); });
  return profile.shares(seconds);
}

std::vector<std::string> names_of(const TrainStepOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : models::preset_names()) {
    const bool tiny = name.starts_with("tiny/"), small = name.starts_with("small/");
    if ((!tiny && !small) || name.ends_with("-plain") || (options.run.quick && small)) continue;
    if (options.run.wanted(name)) names.push_back(name);
  }
  return names;
}

const TrainStepCase* reference_of(const TrainStepReport& report, const TrainStepCase& result) {
  const std::string wanted = result.name.substr(0, result.name.find('/') + 1) + kReference;
  for (const TrainStepCase& other : report.cases) {
    if (other.name == wanted && other.mismatch.empty()) return &other;
  }
  return nullptr;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::vector<std::string> cells(const TrainStepReport& report, const TrainStepCase& result) {
  const TrainStepCase* reference = reference_of(report, result);
  const auto seconds = [](const Timing& timing) { return timing.seconds.empty() ? "" : seconds_text(timing.best); };
  return {
      result.name,
      seconds_text(result.step.best),
      seconds_text(result.step.median),
      fmt::format("{:.1f}k", 1e-3 * result.tokens_per_second()),
      reference == nullptr ? "" : fmt::format("{:.2f}", result.tokens_per_second() / reference->tokens_per_second()),
      percent(result.shares.matrix_products),
      percent(result.shares.kernels),
      percent(result.shares.rest),
      seconds(result.without),
      fmt::format("{:.2f}", result.bystander_cores)};
}

nlohmann::ordered_json to_json(const TrainStepReport& report, const TrainStepCase& result) {
  nlohmann::ordered_json json{{"name", result.name}, {"matches_other_isa", result.mismatch.empty()}};
  if (!result.mismatch.empty()) {
    json["mismatch"] = result.mismatch;
    return json;
  }
  const auto add = [](nlohmann::ordered_json& to, const Timing& timing) {
    to["seconds_best"] = timing.best;
    to["seconds_median"] = timing.median;
    to["rounds"] = timing.seconds.size();
  };
  add(json, result.step);
  json["tokens"] = result.tokens;
  json["tokens_per_second"] = result.tokens_per_second();
  if (const TrainStepCase* reference = reference_of(report, result)) {
    json[fmt::format("times_the_speed_of_{}", kReference)] =
        result.tokens_per_second() / reference->tokens_per_second();
  }
  json["shares"] = {{"matrix_products", result.shares.matrix_products},
                    {"kernels", result.shares.kernels},
                    {"rest", result.shares.rest}};
  if (!result.without.seconds.empty()) add(json["without_mixers"], result.without);
  json["bystander_cores"] = result.bystander_cores;
  return json;
}

}  // namespace

bool TrainStepReport::matched() const {
  return std::all_of(cases.begin(), cases.end(), [](const TrainStepCase& result) { return result.mismatch.empty(); });
}

TrainStepReport run_train_step(const TrainStepOptions& options) {
  const auto start = Clock::now();
  const Bystanders bystanders;
  TrainStepReport report{.machine = describe_machine()};
  std::map<std::string, std::vector<train::BatchTensors>> batches;
  std::vector<Candidate> candidates;
  for (const std::string& name : names_of(options)) {
    const CurrentCase shown(name);
    const std::string scale = name.substr(0, name.find('/'));
    if (!batches.contains(scale)) batches[scale] = batches_of(scale, options.tokens);
    candidates.push_back(make_candidate(name, options, batches[scale]));
    if (candidates.back().result.mismatch.empty()) {
      candidates.back().step->run();  // warm-up
      candidates.back().result.shares = shares_of(*candidates.back().step);
    }
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (Candidate& candidate : candidates) {
      const CurrentCase shown(candidate.result.name);
      if (candidate.result.mismatch.empty()) measure(candidate);
    }
  }
  for (Candidate& candidate : candidates) {
    TrainStepCase& result = candidate.result;
    if (!candidate.seconds_of_step.empty()) {
      result.step = summary(candidate.seconds_of_step);
      result.bystander_cores = candidate.busy / candidate.seconds;
    }
    if (!candidate.seconds_without.empty()) result.without = summary(candidate.seconds_without);
    report.cases.push_back(result);
  }
  report.bystander_cores = bystanders.busy_cores();
  report.seconds = seconds_since(start);
  return report;
}

std::string to_table(const TrainStepReport& report) {
  Table table = Table::of_named_rows({"training step", "best", "median", "tokens/s", std::string("/ ") + kReference,
                                      "products", "kernels", "rest", "no mixers", "others"});
  for (const TrainStepCase& result : report.cases)
    if (result.mismatch.empty()) table.add(cells(report, result));
  std::string text = describe(report.machine) + describe_blas(report.machine.blas);
  text += describe_load(report.machine, report.bystander_cores, report.seconds) + "\n" + table.text();
  for (const TrainStepCase& result : report.cases)
    if (!result.mismatch.empty()) text += fmt::format("{}: NOT TIMED: {}\n", result.name, result.mismatch);
  for (const std::string& note : machine_notes(report.machine, report.bystander_cores))
    text += fmt::format("note: {}\n", note);
  return text;
}

std::string to_json(const TrainStepReport& report) {
  nlohmann::ordered_json json{{"version", OVQ_VERSION},
                              {"machine", to_json(report.machine, report.bystander_cores)},
                              {"seconds", report.seconds},
                              {"cases", nlohmann::ordered_json::array()},
                              {"notes", machine_notes(report.machine, report.bystander_cores)}};
  for (const TrainStepCase& result : report.cases) json["cases"].push_back(to_json(report, result));
  return to_lines(json, "cases");
}

}  // namespace ovq::bench
