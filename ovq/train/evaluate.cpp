#include "ovq/train/evaluate.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "ovq/base/error.h"

namespace ovq::train {
namespace {

using at::Tensor;

Tensor to_long(const std::vector<int32_t>& values) {
  return at::from_blob(const_cast<int32_t*>(values.data()), {static_cast<int64_t>(values.size())}, at::kInt)
      .to(at::kLong);
}

// Scores the targets in the columns [first, first + count) of a batch.
void score(models::LanguageModel& model, const tasks::Batch& batch, const Tensor& hidden, int64_t first,
           Evaluation& result) {
  const int64_t count = hidden.size(1);
  std::vector<int64_t> rows, targets, groups;
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t column = first; column < first + count; ++column) {
      const auto at = static_cast<size_t>(row * batch.length + column);
      if (batch.targets[at] == tasks::kNoTarget) continue;
      rows.push_back(row * count + column - first);
      targets.push_back(batch.targets[at]);
      groups.push_back(batch.groups[at]);
    }
  }
  if (rows.empty()) return;
  const Tensor wanted = torch::tensor(targets, at::kLong);
  const Tensor logits = model.logits(hidden.flatten(0, 1).index_select(0, torch::tensor(rows, at::kLong)));
  const Tensor losses = at::cross_entropy_loss(logits, wanted, {}, at::Reduction::None);
  const Tensor right = logits.argmax(-1).eq(wanted);
  const float* loss = losses.data_ptr<float>();
  const bool* hit = right.data_ptr<bool>();
  for (size_t i = 0; i < targets.size(); ++i) {
    const GroupScore one{1, hit[i] ? 1 : 0, loss[i]};
    result.total.add(one);
    result.groups[groups[i]].add(one);
  }
}

}  // namespace

void GroupScore::add(const GroupScore& other) {
  targets += other.targets;
  right += other.right;
  loss_sum += other.loss_sum;
}

BatchTensors to_tensors(const tasks::Batch& batch) {
  BatchTensors tensors;
  tensors.tokens = to_long(batch.tokens).view({batch.rows, batch.length});
  const Tensor targets = to_long(batch.targets);
  tensors.positions = targets.ne(tasks::kNoTarget).nonzero().flatten();
  tensors.targets = targets.index_select(0, tensors.positions);
  return tensors;
}

Evaluation evaluate(models::LanguageModel& model, const tasks::Task& task, const EvaluateOptions& options) {
  check(options.length >= task.min_length(), "evaluate", "length is ", options.length, "; ", task.name(),
        " needs at least ", task.min_length());
  check(options.rows >= 1 && options.batch >= 1 && options.piece >= 1, "evaluate",
        "rows, batch and piece must be at least 1");
  const torch::NoGradGuard no_grad;
  const bool was_training = model.is_training();
  model.eval();
  const int64_t available = task.test_rows(options.length);
  const int64_t rows = available == 0 ? options.rows : std::min(options.rows, available);
  check(options.rank >= 0 && options.rank < options.ranks, "evaluate", "rank is ", options.rank,
        "; must be within 0 and ", options.ranks - 1);
  const int64_t begin = rows * options.rank / options.ranks, end = rows * (options.rank + 1) / options.ranks;
  Evaluation result{.length = options.length};
  const auto start = std::chrono::steady_clock::now();
  // The rows are sampled one by one, so that they do not depend on the batch size.
  for (int64_t first_row = begin; first_row < end; first_row += options.batch) {
    std::vector<tasks::Batch> parts;
    tasks::Batch batch;
    for (int64_t row = first_row; row < std::min(end, first_row + options.batch); ++row) {
      tasks::Batch one = task.sample(
          {.rows = 1, .length = options.length, .seed = options.seed, .step = row, .split = tasks::Split::test});
      batch.length = one.length;
      ++batch.rows;
      batch.tokens.insert(batch.tokens.end(), one.tokens.begin(), one.tokens.end());
      batch.targets.insert(batch.targets.end(), one.targets.begin(), one.targets.end());
      batch.groups.insert(batch.groups.end(), one.groups.begin(), one.groups.end());
    }
    const Tensor tokens = to_long(batch.tokens).view({batch.rows, batch.length});
    models::ModelState state;
    for (int64_t first = 0; first < batch.length; first += options.piece) {
      if (options.stop && options.stop()) throw std::runtime_error("evaluation was interrupted");
      const int64_t count = std::min(options.piece, batch.length - first);
      score(model, batch, model.hidden(tokens.narrow(1, first, count), state), first, result);
    }
    result.state_bytes = state.nbytes() / batch.rows;
    result.rows += batch.rows;
    result.tokens += batch.rows * batch.length;
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  model.train(was_training);
  return result;
}

nlohmann::json to_json(const Evaluation& evaluation) {
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& [group, score] : evaluation.groups) {
    groups.push_back(
        {{"group", group}, {"targets", score.targets}, {"accuracy", score.accuracy()}, {"loss", score.loss()}});
  }
  return {
      {"length", evaluation.length},
      {"rows", evaluation.rows},
      {"targets", evaluation.total.targets},
      {"accuracy", evaluation.total.accuracy()},
      {"loss", evaluation.total.loss()},
      {"state_bytes", evaluation.state_bytes},
      {"tokens_per_second", evaluation.seconds > 0 ? static_cast<double>(evaluation.tokens) / evaluation.seconds : 0},
      {"groups", groups}};
}

}  // namespace ovq::train
