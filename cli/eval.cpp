// ovq eval: evaluates a trained model at several lengths and dictionary sizes, on text of any length, or on a
// multiple-choice benchmark.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/base/format.h"
#include "ovq/train/choice_scores.h"
#include "ovq/train/keep.h"
#include "ovq/train/sweep.h"
#include "ovq/train/text_loss.h"

namespace ovq::cli {
namespace {

struct EvalArguments {
  std::string run, task, tokenizer, benchmark, questions;
  std::vector<std::string> data;
  train::SweepOptions sweep;
  train::TextLossOptions text;
  models::StorageOptions storage;
  bool json = false;
  int threads = 0;
};

// The options of each way to evaluate; the other ways reject them.
struct EvalFlags {
  std::vector<const CLI::Option*> lengths, dictionaries, benchmark, text;

  static void refuse(const std::vector<const CLI::Option*>& flags, const std::string& why) {
    for (const CLI::Option* flag : flags) {
      if (flag->count() > 0) throw UsageError(fmt::format("{} {}", flag->get_name(), why));
    }
  }
};

void answer_questions(const EvalArguments& arguments, const train::Run& run, const train::TrainedModel& trained) {
  if (arguments.benchmark.empty() || arguments.questions.empty())
    throw UsageError("--benchmark and --questions must be given together");
  if (run.options().task != "text")
    throw UsageError(fmt::format("--benchmark: {} was trained on {}, not on text", arguments.run, run.options().task));
  const train::ChoiceScores scores = train::score_benchmark(run, trained, arguments.benchmark, arguments.questions);
  if (arguments.json) {
    nlohmann::json object = to_json(scores);
    object["benchmark"] = arguments.benchmark;
    print("{}\n", object.dump(2));
    return;
  }
  print("{} questions of {}: accuracy {:.4f}, by length-normalised score {:.4f}\n", scores.questions,
        arguments.benchmark, scores.accuracy(), scores.accuracy_normalized());
}

void test_lengths(const EvalArguments& arguments, const train::Run& run, const train::TrainedModel& trained) {
  const bool by_keep = !arguments.sweep.keeps.empty(), by_size = !arguments.sweep.centroids.empty();
  if ((by_keep || by_size) && train::dictionary_of(trained.model->config()) == nullptr)
    throw UsageError(
        fmt::format("{}: {} has no OVQ-attention", by_keep ? "--keep" : "--centroids", run.options().model));
  const train::Sweep sweep = train::sweep(run, trained, arguments.sweep);
  print("{}", arguments.json ? to_json(sweep).dump(2) + "\n" : to_table(sweep));
  if (!sweep.not_stored.empty())
    throw std::runtime_error("the results are printed, but some could not be stored in the run: " + sweep.not_stored);
}

// Works with a model directory that is not a run.
void measure_text(const EvalArguments& arguments) {
  if (arguments.task.empty()) throw UsageError("--data requires --task text");
  if (arguments.task != "text") throw UsageError(fmt::format("--task: {}; must be text", arguments.task));
  if (arguments.data.empty()) throw UsageError("--task text requires --data");
  const models::TextModel model = models::load_text_model(train::model_directory(arguments.run, print_warning),
                                                          arguments.tokenizer, arguments.storage.weights);
  train::TextLossOptions options = arguments.text;
  options.state_dtype = arguments.storage.states;
  options.batch = arguments.sweep.evaluate.batch;
  options.piece = arguments.sweep.evaluate.piece;
  const std::vector<int64_t>& sizes = arguments.sweep.centroids;
  const auto has_dictionary = [&] { return train::dictionary_of(model.model->config()) != nullptr; };
  if (!sizes.empty() && !has_dictionary())
    throw UsageError(fmt::format("--centroids: {} has no OVQ-attention", arguments.run));
  nlohmann::json all = nlohmann::json::array();
  for (size_t i = 0; i < std::max<size_t>(1, sizes.size()); ++i) {
    if (!sizes.empty()) model.model->set_centroids(sizes[i]);
    const train::TextLoss loss = train::text_loss(model, arguments.data, options);
    if (arguments.json) {
      nlohmann::json& object = all.emplace_back(to_json(loss));
      if (has_dictionary()) object["centroids"] = train::dictionary_of(model.model->config())->centroids;
    } else {
      if (sizes.size() > 1) print("{}N {}\n", i == 0 ? "" : "\n", sizes[i]);
      print("{}", to_table(loss));
    }
  }
  if (arguments.json) print("{}\n", (sizes.size() > 1 ? all : all.front()).dump(2));
}

void evaluate_run(const EvalArguments& arguments, const EvalFlags& flags) {
  set_up_torch(arguments.threads);
  if (!arguments.task.empty() || !arguments.data.empty()) {
    EvalFlags::refuse(flags.lengths, "cannot be used with --task text; use --length");
    EvalFlags::refuse(flags.benchmark, "cannot be used with --task text");
    try {
      measure_text(arguments);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
    return;
  }
  EvalFlags::refuse(flags.text, "requires --task text");
  const bool questions = !arguments.benchmark.empty() || !arguments.questions.empty();
  if (questions) {
    EvalFlags::refuse(flags.lengths, "cannot be used with --benchmark");
    EvalFlags::refuse(flags.dictionaries, "cannot be used with --benchmark");
  }
  const train::Run run = train::Run::open(arguments.run);
  const train::TrainedModel trained = run.load_model(print_warning);
  try {
    if (questions)
      answer_questions(arguments, run, trained);
    else
      test_lengths(arguments, run, trained);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

// Returns the options that are only for text.
std::vector<const CLI::Option*> add_text_options(CLI::App& eval, EvalArguments& arguments) {
  eval.add_option("--task", arguments.task, "text: measure the loss on --data by position");
  eval.add_option("--data", arguments.data, "Text files, folders of .txt files, or files of tokens")->type_name("PATH");
  std::vector<const CLI::Option*> options;
  const auto positive = [&](const char* name, int64_t& value, const char* text) {
    options.push_back(eval.add_option(name, value, text)->check(at_least(1)));
  };
  positive("--length", arguments.text.length, "Tokens per window of text; default: whole documents");
  positive("--stride", arguments.text.stride, "Tokens between the starts of windows of text; default: side by side");
  options.push_back(eval.add_option("--bin", arguments.text.bin, "Positions of text per bin of the loss")
                        ->capture_default_str()
                        ->check(at_least(1)));
  positive("--windows", arguments.text.windows, "Windows of text to read; default: all");
  options.push_back(eval.add_flag("--identifiers", arguments.text.identifiers,
                                  "Also measure the loss of identifiers by the distance to their last occurrence"));
  add_fields(eval, arguments.storage);
  for (const char* name : {"--weights", "--state-dtype"}) options.push_back(eval.get_option(name));
  options.push_back(eval.add_option("--tokenizer", arguments.tokenizer,
                                    "\"bytes\", or the path of a SentencePiece model; default: the model's own"));
  return options;
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* eval = app.add_subcommand("eval", "Test a trained model, at any context length");
  const auto arguments = std::make_shared<EvalArguments>();
  eval->add_option("run", arguments->run, "Directory of the run, or with --task text of a model")
      ->required()
      ->type_name("DIR");
  EvalFlags flags;
  flags.lengths.push_back(
      eval->add_option("--lengths", arguments->sweep.lengths, "Context lengths; default: those of the scale")
          ->delimiter(',')
          ->check(at_least(1)));
  CLI::Option* centroids =
      eval->add_option("--centroids", arguments->sweep.centroids, "Dictionary sizes; default: that of training")
          ->delimiter(',')
          ->check(at_least(1));
  CLI::Option* keep =
      eval->add_option("--keep", arguments->sweep.keeps,
                       "Instead of --centroids: the shares of a context to keep, N / (length + N), at every length; "
                       "1: a centroid for every token")
          ->delimiter(',')
          ->check(share())
          ->excludes(centroids);
  flags.lengths.push_back(keep);
  flags.dictionaries = {centroids, keep};
  flags.lengths.push_back(eval->add_option("--rows", arguments->sweep.evaluate.rows, "Test rows")
                              ->capture_default_str()
                              ->check(at_least(1)));
  eval->add_option("--batch", arguments->sweep.evaluate.batch, "Rows read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  eval->add_option("--piece", arguments->sweep.evaluate.piece, "Tokens of a row read at a time")
      ->capture_default_str()
      ->check(at_least(1));
  flags.benchmark = {
      eval->add_option("--benchmark", arguments->benchmark,
                       "Answer multiple-choice questions instead: one of " + joined(tasks::benchmark_names())),
      eval->add_option("--questions", arguments->questions, "The benchmark's JSONL file")->type_name("FILE")};
  flags.text = add_text_options(*eval, *arguments);
  eval->add_flag("--json", arguments->json, "Print the results as JSON");
  add_threads(*eval, arguments->threads);
  eval->callback([arguments, flags] { evaluate_run(*arguments, flags); });
}

}  // namespace ovq::cli
