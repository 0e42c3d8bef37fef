// ovq eval: a trained model at several lengths and dictionary sizes, or on a multiple-choice benchmark.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/commands.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/train/choice_scores.h"
#include "ovq/train/keep.h"
#include "ovq/train/sweep.h"

namespace ovq::cli {
namespace {

struct EvalArguments {
  std::string run, benchmark, questions;
  train::SweepOptions sweep;
  bool json = false;
  int threads = 0;
};

void answer_questions(const EvalArguments& arguments, const train::Run& run, models::LanguageModel& model) {
  if (arguments.benchmark.empty() || arguments.questions.empty())
    throw UsageError("--benchmark and --questions go together");
  if (run.options().task != "text")
    throw UsageError(fmt::format("--benchmark: {} was trained on {}, not on text", arguments.run, run.options().task));
  const train::ChoiceScores scores = train::score_benchmark(run, model, arguments.benchmark, arguments.questions);
  if (arguments.json) {
    nlohmann::json object = to_json(scores);
    object["benchmark"] = arguments.benchmark;
    fmt::print("{}\n", object.dump(2));
    return;
  }
  fmt::print("{} questions of {}: accuracy {:.4f}, by length-normalised score {:.4f}\n", scores.questions,
             arguments.benchmark, scores.accuracy(), scores.accuracy_normalized());
}

void test_lengths(const EvalArguments& arguments, const train::Run& run, const train::TrainedModel& trained) {
  const bool by_keep = !arguments.sweep.keeps.empty(), by_size = !arguments.sweep.centroids.empty();
  if ((by_keep || by_size) && train::dictionary_of(trained.model->config()) == nullptr)
    throw UsageError(
        fmt::format("{}: {} has no OVQ-attention", by_keep ? "--keep" : "--centroids", run.options().model));
  const train::Sweep sweep = train::sweep(run, trained, arguments.sweep);
  fmt::print("{}", arguments.json ? to_json(sweep).dump(2) + "\n" : to_table(sweep));
}

void evaluate_run(const EvalArguments& arguments) {
  set_up_torch(arguments.threads);
  const train::Run run = train::Run::open(arguments.run);
  const train::TrainedModel trained = run.load_model(print_warning);
  try {
    if (arguments.benchmark.empty() && arguments.questions.empty())
      test_lengths(arguments, run, trained);
    else
      answer_questions(arguments, run, *trained.model);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "Test a trained model, also far beyond its training length");
  const auto arguments = std::make_shared<EvalArguments>();
  eval->add_option("run", arguments->run, "Directory of the run")->required()->type_name("DIR");
  eval->add_option("--lengths", arguments->sweep.lengths, "Context lengths; default: those of the scale")
      ->delimiter(',')
      ->check(at_least(1));
  CLI::Option* centroids =
      eval->add_option("--centroids", arguments->sweep.centroids, "Dictionary sizes; default: that of training")
          ->delimiter(',')
          ->check(at_least(1));
  eval->add_option("--keep", arguments->sweep.keeps,
                   "Instead: dictionaries that keep these shares of a context, N / (length + N), at every length; "
                   "1: a centroid for every token")
      ->delimiter(',')
      ->check(share())
      ->excludes(centroids);
  eval->add_option("--rows", arguments->sweep.evaluate.rows, "Test rows")->capture_default_str()->check(at_least(1));
  eval->add_option("--batch", arguments->sweep.evaluate.batch, "Rows read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  eval->add_option("--piece", arguments->sweep.evaluate.piece, "Tokens of a row read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  eval->add_option("--benchmark", arguments->benchmark,
                   "Instead: multiple choice, one of " + joined(tasks::benchmark_names()));
  eval->add_option("--questions", arguments->questions, "The benchmark's JSONL file")->type_name("FILE");
  eval->add_flag("--json", arguments->json, "Print the results as JSON");
  add_threads(*eval, arguments->threads);
  eval->callback([arguments] { evaluate_run(*arguments); });
}

}  // namespace ovq::cli
