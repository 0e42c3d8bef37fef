#include "ovq/train/replicas.h"

#include <algorithm>
#include <stdexcept>

#include "ovq/base/checksum.h"
#include "ovq/models/weights.h"

namespace ovq::train {
namespace {

using at::Tensor;

constexpr int64_t kScoreFields = 4;  // group, targets, right, loss

Tensor flat(const Tensor& x) { return x.detach().view(-1); }

uint32_t checksum(const models::LanguageModel& model) {
  Crc32c sum;
  for (const auto& [name, tensor] : models::named_tensors(model)) {
    const Tensor values = tensor.detach().contiguous();
    sum.add(std::span(static_cast<const std::byte*>(values.data_ptr()), values.nbytes()));
  }
  return sum.value();
}

// The totals are stored as the scores of all groups together.
Tensor scores_as_tensor(const Evaluation& evaluation) {
  std::vector<double> values;
  for (const auto& [group, score] : evaluation.groups) {
    for (const double value : {static_cast<double>(group), static_cast<double>(score.targets),
                               static_cast<double>(score.right), score.loss_sum})
      values.push_back(value);
  }
  return torch::tensor(values, at::kDouble);
}

}  // namespace

void Replicas::start_alike(models::LanguageModel& model, AdamW& optimizer, const OptimizerState& state,
                           Progress& progress) {
  if (!group_) return;
  const torch::NoGradGuard no_grad;
  const Tensor numbers = torch::tensor({progress.step, progress.skipped, progress.tokens, state.updates}, at::kLong);
  group_->broadcast(numbers, 0);
  const auto* const number = numbers.data_ptr<int64_t>();
  progress = {.step = number[0], .skipped = number[1], .tokens = number[2]};
  optimizer.set_steps(number[3]);
  for (const auto& [name, tensor] : models::named_tensors(model)) group_->broadcast(flat(tensor), 0);
  // One moment at a time; each rank keeps its own shard.
  std::map<std::string, std::vector<AdamW::ParameterShard>> pieces;
  for (AdamW::ParameterShard& piece : optimizer.parameter_shards()) pieces[piece.name].push_back(std::move(piece));
  for (const auto& [name, parts] : pieces) {
    for (const Tensor AdamW::ParameterShard::*moment : {&AdamW::ParameterShard::m, &AdamW::ParameterShard::v}) {
      const char* const prefix = moment == &AdamW::ParameterShard::m ? "m." : "v.";
      const AdamW::ParameterShard& last = parts.back();
      Tensor whole = first() ? flat(state.moments.at(prefix + name))
                             : at::empty({last.first + last.parameter.numel()}, last.parameter.options());
      group_->broadcast(whole, 0);
      for (const AdamW::ParameterShard& part : parts) {
        if ((part.*moment).defined()) (part.*moment).copy_(whole.narrow(0, part.first, part.parameter.numel()));
      }
    }
  }
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : model.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  buckets_ = std::make_unique<distributed::GradientBuckets>(group_, std::move(parameters));
}

int64_t Replicas::total(int64_t own) {
  if (!group_) return own;
  const Tensor sum = at::full({1}, own, at::kLong);
  group_->sum(sum);
  return sum.item<int64_t>();
}

void Replicas::add_up(std::vector<double>& values) {
  if (group_) group_->sum(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble));
}

void Replicas::expect_last_backward() {
  if (buckets_) buckets_->expect_last_backward();
}

void Replicas::add_up_gradients() {
  if (buckets_) buckets_->finish();
}

void Replicas::add_up_statistics(models::LanguageModel& model) {
  if (!group_) return;
  for (const Tensor& statistic : model.step_statistics(rank(), ranks())) group_->sum(statistic);
}

void Replicas::share_update(const AdamW& optimizer) {
  if (!group_ || optimizer.shard().ranks == 1) return;
  std::vector<distributed::ProcessGroup::Pending> pending;
  for (const AdamW::ParameterShard& piece : optimizer.parameter_shards())
    pending.push_back(group_->begin_broadcast(piece.parameter, piece.rank));
  for (auto& one : pending) one.wait();
}

OptimizerState Replicas::whole_state(const AdamW& optimizer) {
  OptimizerState state{.updates = optimizer.steps()};
  const bool sharded = group_ && optimizer.shard().ranks > 1;
  if (first()) state.moments = optimizer.state();
  if (!sharded) return state;
  for (const AdamW::ParameterShard& piece : optimizer.parameter_shards()) {
    if (piece.rank == 0) continue;  // already there
    for (const auto& [prefix, own] : {std::pair{"m.", piece.m}, {"v.", piece.v}}) {
      const int64_t count = piece.parameter.numel();
      const Tensor values = own.defined() ? own
                            : first()     ? flat(state.moments.at(prefix + piece.name)).narrow(0, piece.first, count)
                                          : at::empty({count}, piece.parameter.options());
      group_->broadcast(values, piece.rank);
    }
  }
  return state;
}

Evaluation Replicas::merged(Evaluation own) {
  if (!group_) return own;
  const Tensor scores = scores_as_tensor(own);
  const Tensor numbers =
      torch::tensor({static_cast<double>(own.rows), static_cast<double>(own.tokens),
                     static_cast<double>(own.state_bytes), own.seconds, static_cast<double>(scores.numel())},
                    at::kDouble);
  Evaluation all{.length = own.length};
  int64_t most = 0;
  for (const Tensor& one : group_->gather(numbers)) {
    const auto* const x = one.data_ptr<double>();
    all.rows += static_cast<int64_t>(x[0]);
    all.tokens += static_cast<int64_t>(x[1]);
    all.state_bytes = std::max(all.state_bytes, static_cast<int64_t>(x[2]));
    all.seconds = std::max(all.seconds, x[3]);
    most = std::max(most, static_cast<int64_t>(x[4]));
  }
  if (most == 0) return all;
  const Tensor padded = at::zeros({most}, at::kDouble);
  padded.narrow(0, 0, scores.numel()).copy_(scores);
  for (const Tensor& one : group_->gather(padded)) {
    const auto* x = one.data_ptr<double>();
    for (int64_t at = 0; at < most; at += kScoreFields, x += kScoreFields) {
      if (x[1] == 0) continue;  // padding
      const GroupScore score{static_cast<int64_t>(x[1]), static_cast<int64_t>(x[2]), x[3]};
      all.groups[static_cast<int64_t>(x[0])].add(score);
      all.total.add(score);
    }
  }
  return all;
}

void Replicas::check_alike(const models::LanguageModel& model) {
  if (!group_) return;
  const std::vector<Tensor> sums = group_->gather(at::full({1}, static_cast<int64_t>(checksum(model)), at::kLong));
  for (size_t rank = 1; rank < sums.size(); ++rank) {
    if (!at::equal(sums[rank], sums[0]))
      throw std::runtime_error("the weights of rank " + std::to_string(rank) + " differ from those of rank 0");
  }
}

}  // namespace ovq::train
