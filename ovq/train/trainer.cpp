#include "ovq/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

#include "ovq/base/error.h"
#include "ovq/nn/vq_attention.h"
#include "ovq/tasks/mixture.h"
#include "ovq/train/keep.h"

namespace ovq::train {
namespace {

using at::Tensor;

constexpr int64_t kMostSkippedInARow = 5;
constexpr int64_t kStepsUnused = 100;  // a codeword without a key for so many steps counts as unused

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::optional<CodebookReport> codebook_report(const models::LanguageModel& model) {
  CodebookReport report;
  int64_t layers = 0;
  for (const auto& block : model.blocks()) {
    auto* vq = dynamic_cast<nn::VqAttention*>(block->mixer.get());
    if (vq == nullptr || !vq->started()) continue;
    const nn::QuantizerOptions& options = vq->quantizer().options();
    ++layers;
    report.similarity += vq->quantizer().similarity();
    report.unused += static_cast<double>(vq->quantizer().dead(kStepsUnused)) /
                     static_cast<double>(options.heads * options.codewords);
  }
  if (layers == 0) return std::nullopt;
  report.similarity /= static_cast<double>(layers);
  report.unused /= static_cast<double>(layers);
  return report;
}

json metrics_line(const StepReport& report) {
  // JSON has no NaN.
  const auto finite = [](double value) { return std::isfinite(value) ? json(value) : json(); };
  json line = {
      {"step", report.step},         {"phase", report.phase},       {"kind", "step"},
      {"loss", finite(report.loss)}, {"accuracy", report.accuracy}, {"gradient_norm", finite(report.gradient_norm)},
      {"rate", report.rate},         {"tokens", report.tokens},     {"skipped", report.skipped},
      {"seconds", report.seconds}};
  if (report.codebooks)
    line["codebooks"] = {{"similarity", finite(report.codebooks->similarity)}, {"unused", report.codebooks->unused}};
  return line;
}

}  // namespace

Trainer::Trainer(Run run, TrainHooks hooks, const DataParallel& parallel)
    : run_(std::move(run)),
      replicas_(parallel.group),
      lock_(replicas_.first() ? run_.lock() : files::Descriptor()),
      hooks_(std::move(hooks)),
      task_(run_.task()),
      model_(models::make_model(model_config(run_.options(), task_->vocab()), run_.options().seed)),
      optimizer_(*model_, run_.options().adamw,
                 parallel.shard_optimizer ? Shard{replicas_.rank(), replicas_.ranks()} : Shard{}),
      gradient_sums_(model_->parameters()),
      phases_(phases_of(run_.options())),
      own_centroids_(model_->config().centroids()) {
  OptimizerState state;
  if (replicas_.first()) state = load();
  replicas_.start_alike(*model_, optimizer_, state, progress_);
  if (progress_.step > 0) saved_step_ = progress_.step;
  if (replicas_.first()) run_.rewind_metrics(progress_.step);
}

OptimizerState Trainer::load() {
  OptimizerState state{.moments = optimizer_.state()};
  if (const auto progress = load_checkpoint(run_.path(), *model_, task_->tokenizer(), state, hooks_.warn)) {
    progress_ = *progress;
    optimizer_.set_steps(state.updates);
  } else if (!run_.options().init_from.path.empty()) {
    load_initial_weights(*model_, run_.options().init_from);
  }
  return state;
}

void Trainer::enter_phase() {
  position_ = phase_at(phases_, progress_.step);
  if (phase().centroids)
    model_->set_centroids(*phase().centroids);
  else
    model_->set_centroids(own_centroids_);
}

// The step in the number of parts asked for, at most one per row, rounded up so that every rank has as many.
std::vector<Trainer::Part> Trainer::own_parts(StepReport& report) {
  const auto shapes = tasks::step_shapes(*task_, {phase().lengths, phase().tokens_per_step});
  int64_t all_rows = 0;
  for (const auto& [length, rows] : shapes) {
    all_rows += rows;
    report.tokens += rows * task_->row_length(length, tasks::Split::train);
  }
  const int64_t ranks = replicas_.ranks(), wanted = std::min(run_.options().accumulate, all_rows);
  const auto parts_of_rank = static_cast<size_t>((wanted + ranks - 1) / ranks);
  const auto ranges = tasks::rows_of_parts(*task_, shapes, static_cast<int64_t>(parts_of_rank) * ranks);
  std::vector<Part> parts(parts_of_rank);
  for (size_t part = 0; part < parts_of_rank; ++part) {
    const auto& own = ranges[static_cast<size_t>(replicas_.rank()) * parts_of_rank + part];
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (own[i].count == 0) continue;
      parts[part].push_back(to_tensors(task_->sample({.rows = shapes[i].rows,
                                                      .length = shapes[i].length,
                                                      .seed = run_.options().seed,
                                                      .step = progress_.step,
                                                      .first_row = own[i].first,
                                                      .row_count = own[i].count})));
    }
  }
  return parts;
}

// Adds to the report's loss; returns the number of targets that the model predicts correctly.
int64_t Trainer::compute_gradients(const std::vector<Part>& parts, int64_t targets, StepReport& report) {
  int64_t right = 0;
  for (const Part& part : parts) {
    for (const BatchTensors& batch : part) {
      const Tensor logits = model_->logits(model_->hidden_at(batch.tokens, batch.positions));
      Tensor loss = at::cross_entropy_loss(logits, batch.targets, {}, at::Reduction::Sum) / targets;
      report.loss += loss.item<double>();
      right += logits.argmax(-1).eq(batch.targets).sum().item<int64_t>();
      if (const Tensor auxiliary = model_->auxiliary_loss(); auxiliary.defined())
        loss = loss + auxiliary * (static_cast<double>(batch.tokens.numel()) / static_cast<double>(report.tokens));
      if (parts.size() == 1 && &batch == &part.back()) replicas_.expect_last_backward();
      loss.backward();
    }
    if (parts.size() > 1) gradient_sums_.end_part();
  }
  gradient_sums_.finish();
  replicas_.add_up_gradients();
  return right;
}

StepReport Trainer::step() {
  const auto start = std::chrono::steady_clock::now();
  const RunOptions& options = run_.options();
  const int64_t step = progress_.step;
  enter_phase();
  StepReport report{.step = step + 1,
                    .phase = static_cast<int64_t>(position_.index),
                    .rate = phase().schedule().rate(step - position_.first)};
  const std::vector<Part> parts = own_parts(report);
  int64_t targets = 0;
  for (const Part& part : parts) {
    for (const BatchTensors& batch : part) targets += batch.targets.size(0);
  }
  targets = std::max<int64_t>(1, replicas_.total(targets));

  model_->train();
  model_->begin_step(step, options.seed);
  optimizer_.zero_gradients();
  const int64_t right = compute_gradients(parts, targets, report);
  std::vector<double> sums = {report.loss, static_cast<double>(right)};
  replicas_.add_up(sums);
  report.loss = sums[0];
  report.accuracy = sums[1] / static_cast<double>(targets);
  report.gradient_norm = optimizer_.clip_gradients(options.clip);
  report.codebooks = codebook_report(*model_);  // before end_step, in which a codebook may start
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.gradient_norm);
  if (report.skipped) {
    model_->drop_step();
  } else {
    optimizer_.step(report.rate);
    replicas_.share_update(optimizer_);
    replicas_.add_up_statistics(*model_);
    model_->end_step();
  }
  ++progress_.step;
  progress_.tokens += report.tokens;
  progress_.skipped += report.skipped ? 1 : 0;
  report.seconds = seconds_since(start);
  return report;
}

Evaluation Trainer::evaluate_once(std::optional<double> keep) {
  const CentroidsKeeper centroids(*model_);
  const int64_t length = phase().longest();
  if (keep) {
    const int64_t row = task_->row_length(length, tasks::Split::test);
    model_->set_centroids(centroids_for_keep(*dictionary_of(model_->config()), *keep, length, row));
  }
  const Evaluation evaluation = replicas_.merged(evaluate(*model_, *task_,
                                                          {.length = length,
                                                           .rows = run_.options().eval_rows,
                                                           .seed = run_.options().seed,
                                                           .rank = replicas_.rank(),
                                                           .ranks = replicas_.ranks()}));
  if (!replicas_.first()) return evaluation;
  json line = to_json(evaluation);
  line.erase("groups");
  line.erase("tokens_per_second");
  line["step"] = progress_.step;
  line["phase"] = position_.index;
  line["kind"] = "evaluation";
  if (const auto* dictionary = dictionary_of(model_->config())) line["centroids"] = dictionary->centroids;
  if (keep) line["keep"] = *keep;
  run_.append_metrics(line);
  if (hooks_.on_evaluation) hooks_.on_evaluation(progress_.step, evaluation, keep);
  return evaluation;
}

bool Trainer::evaluate_now() {
  const RunOptions& options = run_.options();
  const Evaluation evaluation = evaluate_once(std::nullopt);
  for (const double keep : options.eval_keep) evaluate_once(keep);
  // Short contexts come first; a good score on them must not end the run.
  if (options.target <= 0 || position_.index + 1 < phases_.size()) return false;
  return task_->metric() == tasks::Metric::accuracy ? evaluation.total.accuracy() >= options.target
                                                    : evaluation.total.loss() <= options.target;
}

void Trainer::save() {
  if (saved_step_ == progress_.step) return;
  replicas_.check_alike(*model_);
  const OptimizerState state = replicas_.whole_state(optimizer_);
  if (replicas_.first())
    save_checkpoint(run_.path(), *model_, task_->tokenizer(), state, progress_, run_.options().keep_checkpoints);
  saved_step_ = progress_.step;
}

Outcome Trainer::train() {
  const Outcome outcome = train_steps();
  replicas_.any(false);  // all ranks wait until the last checkpoint is written
  return outcome;
}

Outcome Trainer::train_steps() {
  const RunOptions& options = run_.options();
  int64_t skipped_in_a_row = 0;
  while (progress_.step < options.steps) {
    const StepReport report = step();
    if (replicas_.first()) run_.append_metrics(metrics_line(report));
    if (replicas_.first() && hooks_.on_step) hooks_.on_step(report);
    skipped_in_a_row = report.skipped ? skipped_in_a_row + 1 : 0;
    if (skipped_in_a_row == kMostSkippedInARow) {
      throw DivergedError("loss or gradient was not finite in " + std::to_string(kMostSkippedInARow) +
                          " steps in a row, up to step " + std::to_string(report.step) +
                          "; try a lower --learning-rate. The last sound checkpoint is kept");
    }
    const bool last = progress_.step == options.steps;
    if (last || (options.eval_every > 0 && progress_.step % options.eval_every == 0)) {
      if (evaluate_now()) {
        save();
        return Outcome::target_reached;
      }
    }
    if (last || progress_.step % options.checkpoint_every == 0) save();
    if (replicas_.any(hooks_.stop && hooks_.stop())) {
      save();
      return Outcome::stopped;
    }
  }
  save();
  return Outcome::finished;
}

}  // namespace ovq::train
