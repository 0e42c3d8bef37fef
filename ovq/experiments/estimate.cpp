#include "ovq/experiments/estimate.h"

#include "ovq/models/inspect.h"
#include "ovq/train/keep.h"

namespace ovq::experiments {
namespace {

// Of one core, including all work around the matrix products.
constexpr double kTrainingFlopsPerSecond = 5e10;
constexpr double kEvaluationFlopsPerSecond = 5e10;

models::ContextCost cost_of_token(const models::ModelConfig& config, int64_t context) {
  return models::inspect(config, {context}).contexts.front();
}

double training_flops(const train::RunOptions& options, const models::ModelConfig& config) {
  double flops = 0;
  for (const train::Phase& phase : train::phases_of(options)) {
    models::ModelConfig used = config;
    if (phase.centroids) used.set_centroids(*phase.centroids);
    const double tokens_of_a_length = static_cast<double>(phase.steps) * static_cast<double>(phase.tokens_per_step) /
                                      static_cast<double>(phase.lengths.size());
    for (const int64_t length : phase.lengths) {
      const models::ContextCost cost = cost_of_token(used, length);
      flops += tokens_of_a_length * (cost.forward + cost.backward);
    }
  }
  return flops;
}

// The models to evaluate at one length, one for each dictionary.
std::vector<models::ModelConfig> variants(const EvaluationRequest& request, const models::ModelConfig& config,
                                          int64_t length, int64_t row) {
  std::vector<models::ModelConfig> all;
  const auto add = [&](int64_t centroids) { all.emplace_back(config).set_centroids(centroids); };
  for (const int64_t centroids : request.centroids) add(centroids);
  for (const double keep : request.keep)
    add(train::centroids_for_keep(*train::dictionary_of(config), keep, length, row));
  if (all.empty()) all.push_back(config);
  return all;
}

double evaluation_flops(const EvaluationRequest& request, const train::RunOptions& options,
                        const models::ModelConfig& config, const tasks::Task& task) {
  std::vector<int64_t> lengths = request.lengths;
  if (lengths.empty()) {
    for (const auto& setting : tasks::describe_task(options.task, options.task_options).evaluations)
      lengths.push_back(setting.length);
  }
  double flops = 0;
  for (const int64_t length : lengths) {
    const int64_t row = task.row_length(length, tasks::Split::test);
    for (const models::ModelConfig& used : variants(request, config, length, row))
      flops += static_cast<double>(request.rows * row) * cost_of_token(used, row).forward;
  }
  return flops;
}

}  // namespace

RunEstimate estimate_run(const Experiment& experiment, const train::RunOptions& options) {
  const auto task = experiment.task_for_sizes(options);
  const models::ModelConfig config = experiment.model_config(options);
  RunEstimate estimate{.training = training_flops(options, config) / kTrainingFlopsPerSecond};
  for (const train::Phase& phase : train::phases_of(options)) estimate.tokens += phase.steps * phase.tokens_per_step;
  for (const EvaluationRequest& request : experiment.evaluations)
    estimate.evaluation += evaluation_flops(request, options, config, *task) / kEvaluationFlopsPerSecond;
  return estimate;
}

}  // namespace ovq::experiments
