// ovq eval: a trained model at several lengths and dictionary sizes, or on a multiple-choice benchmark.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/models/weights.h"
#include "ovq/train/choice_scores.h"
#include "ovq/train/results.h"
#include "ovq/train/trainer.h"

namespace ovq::cli {
namespace {

struct EvalArguments {
  std::string run, benchmark, questions;
  std::vector<int64_t> lengths, centroids;
  train::EvaluateOptions evaluate;
  bool json = false;
  int threads = 0;
};

void run_benchmark(const EvalArguments& arguments, const train::RunDirectory& run, models::LanguageModel& model) {
  if (arguments.benchmark.empty() || arguments.questions.empty())
    throw UsageError("--benchmark and --questions go together");
  if (run.options().task != "text")
    throw UsageError(fmt::format("--benchmark: {} was trained on {}, not on text", arguments.run, run.options().task));
  train::ChoiceScores scores;
  try {
    const auto questions = tasks::read_questions(tasks::benchmark_from_name(arguments.benchmark), arguments.questions);
    const auto options = tasks::task_options(run.options().task, run.options().task_options);
    const auto tokenizer = tasks::make_tokenizer(options.value("tokenizer", "bytes"));
    scores = train::score_choices(model, *tokenizer, questions);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  if (arguments.json) {
    fmt::print("{}\n", nlohmann::json{{"benchmark", arguments.benchmark},
                                      {"questions", scores.questions},
                                      {"accuracy", scores.accuracy()},
                                      {"accuracy_normalized", scores.accuracy_normalized()}}
                           .dump(2));
    return;
  }
  fmt::print("{} questions of {}: accuracy {:.4f}, by length-normalised score {:.4f}\n", scores.questions,
             arguments.benchmark, scores.accuracy(), scores.accuracy_normalized());
}

void run_evaluation(EvalArguments arguments) {
  set_up_torch(arguments.threads);
  const train::RunDirectory run = train::RunDirectory::open(arguments.run);
  const std::filesystem::path checkpoint = train::newest_checkpoint(run.path(), print_warning);
  const auto model = models::load_model(checkpoint);
  if (!arguments.benchmark.empty() || !arguments.questions.empty()) return run_benchmark(arguments, run, *model);
  const auto has_dictionary = train::centroids_of(model->config());
  if (!arguments.centroids.empty() && !has_dictionary)
    throw UsageError(fmt::format("--centroids: {} has no OVQ-attention", run.options().model));
  if (arguments.centroids.empty() && has_dictionary) arguments.centroids = {*has_dictionary};
  if (arguments.centroids.empty()) arguments.centroids = {0};

  std::vector<tasks::Evaluation> wanted;
  if (arguments.lengths.empty()) {
    wanted = tasks::preset(run.options().task, run.options().scale).evaluations;
  } else {
    for (const int64_t length : arguments.lengths) wanted.push_back({.length = length});
  }
  arguments.evaluate.seed = run.options().seed;
  std::vector<train::Result> results;
  std::unique_ptr<tasks::Task> task;  // kept while its options stay the same: a corpus is read once
  nlohmann::json made_with;
  for (const tasks::Evaluation& test : wanted) {
    nlohmann::json options = run.options().task_options;
    options.merge_patch(test.options);
    if (!task || options != made_with) task = tasks::make_task(run.options().task, made_with = options);
    for (const int64_t centroids : arguments.centroids) {
      if (centroids > 0) model->set_centroids(centroids);
      arguments.evaluate.length = test.length;
      try {
        results.push_back({.length = test.length,
                           .centroids = centroids,
                           .options = test.options,
                           .evaluation = train::evaluate(*model, *task, arguments.evaluate)});
      } catch (const std::invalid_argument& error) {
        throw UsageError(error.what());
      }
      train::store_result(run, results.back());
    }
  }
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const train::Result& result : results) all.push_back(to_json(result));
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("{} on {}, {}\n\n", run.options().model, run.options().task, checkpoint.filename().string());
  fmt::print("{:>8} {:>10} {:>10} {:>9} {:>10} {:>12}  {}\n", "length", "centroids", "accuracy", "loss", "state",
             "tokens/s", "options");
  for (const train::Result& result : results) {
    const train::Evaluation& e = result.evaluation;
    fmt::print("{:>8} {:>10} {:>10.4f} {:>9.4f} {:>10} {:>12.0f}  {}\n", result.length,
               result.centroids == 0 ? "-" : std::to_string(result.centroids), e.total.accuracy(), e.total.loss(),
               bytes_text(static_cast<double>(e.state_bytes)), static_cast<double>(e.tokens) / e.seconds,
               result.options.empty() ? "" : result.options.dump());
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "Test a trained model, also far beyond its training length");
  const auto arguments = std::make_shared<EvalArguments>();
  eval->add_option("run", arguments->run, "Directory of the run")->required()->type_name("DIR");
  eval->add_option("--lengths", arguments->lengths, "Context lengths; default: those of the scale")
      ->delimiter(',')
      ->check(at_least(1));
  eval->add_option("--centroids", arguments->centroids, "Dictionary sizes; default: that of training")
      ->delimiter(',')
      ->check(at_least(1));
  eval->add_option("--rows", arguments->evaluate.rows, "Test rows")->capture_default_str()->check(at_least(1));
  eval->add_option("--batch", arguments->evaluate.batch, "Rows read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  eval->add_option("--piece", arguments->evaluate.piece, "Tokens of a row read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  eval->add_option("--benchmark", arguments->benchmark,
                   "Instead: multiple choice, one of " + joined(tasks::benchmark_names()));
  eval->add_option("--questions", arguments->questions, "The benchmark's JSONL file")->type_name("FILE");
  eval->add_flag("--json", arguments->json, "Print the results as JSON");
  eval->add_option("--threads", arguments->threads, "Threads to use; default: all cores")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  eval->callback([arguments] { run_evaluation(*arguments); });
}

}  // namespace ovq::cli
