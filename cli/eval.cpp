// ovq eval: a trained model at several lengths and dictionary sizes, or on a multiple-choice benchmark.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>

#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/models/weights.h"
#include "ovq/train/choice_scores.h"
#include "ovq/train/keep.h"
#include "ovq/train/results.h"
#include "ovq/train/trainer.h"

namespace ovq::cli {
namespace {

struct EvalArguments {
  std::string run, benchmark, questions;
  std::vector<int64_t> lengths, centroids;
  std::vector<double> keeps;
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

// A dictionary size, or what it should keep of every length.
struct DictionaryChoice {
  int64_t centroids = 0;  // 0: the model has no dictionary
  std::optional<double> keep;
};

std::vector<DictionaryChoice> dictionaries(const EvalArguments& arguments, const std::string& name,
                                           const models::ModelConfig& config) {
  const auto* dictionary = train::dictionary_of(config);
  if (dictionary == nullptr && !(arguments.centroids.empty() && arguments.keeps.empty()))
    throw UsageError(
        fmt::format("{}: {} has no OVQ-attention", arguments.keeps.empty() ? "--centroids" : "--keep", name));
  std::vector<DictionaryChoice> choices;
  for (const int64_t centroids : arguments.centroids) choices.push_back({.centroids = centroids});
  for (const double keep : arguments.keeps) choices.push_back({.keep = keep});
  if (choices.empty()) choices.push_back({.centroids = dictionary == nullptr ? 0 : dictionary->centroids});
  return choices;
}

void run_evaluation(EvalArguments arguments) {
  set_up_torch(arguments.threads);
  const train::RunDirectory run = train::RunDirectory::open(arguments.run);
  const std::filesystem::path checkpoint = train::newest_checkpoint(run.path(), print_warning);
  const auto model = models::load_model(checkpoint);
  if (!arguments.benchmark.empty() || !arguments.questions.empty()) return run_benchmark(arguments, run, *model);
  const std::vector<DictionaryChoice> choices = dictionaries(arguments, run.options().model, model->config());

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
    for (const DictionaryChoice& choice : choices) {
      arguments.evaluate.length = test.length;
      try {
        const auto* dictionary = train::dictionary_of(model->config());
        const int64_t row = task->row_length(test.length, tasks::Split::test);
        const int64_t centroids =
            choice.keep ? train::centroids_for_keep(*dictionary, *choice.keep, test.length, row) : choice.centroids;
        if (centroids > 0) model->set_centroids(centroids);
        results.push_back({.length = test.length,
                           .centroids = centroids,
                           .keep = dictionary == nullptr ? std::nullopt
                                                         : std::optional(train::keep_of(
                                                               *train::dictionary_of(model->config()), test.length)),
                           .asked_keep = choice.keep,
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
  fmt::print("{:>8} {:>10} {:>6} {:>10} {:>9} {:>10} {:>12}  {}\n", "length", "centroids", "keep", "accuracy", "loss",
             "state", "tokens/s", "options");
  for (const train::Result& result : results) {
    const train::Evaluation& e = result.evaluation;
    fmt::print("{:>8} {:>10} {:>6} {:>10.4f} {:>9.4f} {:>10} {:>12.0f}  {}\n", result.length,
               result.centroids == 0 ? "-" : std::to_string(result.centroids),
               result.keep ? fmt::format("{:.3f}", *result.keep) : "-", e.total.accuracy(), e.total.loss(),
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
  CLI::Option* centroids =
      eval->add_option("--centroids", arguments->centroids, "Dictionary sizes; default: that of training")
          ->delimiter(',')
          ->check(at_least(1));
  eval->add_option("--keep", arguments->keeps,
                   "Instead: dictionaries that keep these shares of a context, N / (length + N), at every length; "
                   "1: a centroid for every token")
      ->delimiter(',')
      ->check(share())
      ->excludes(centroids);
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
