// ovq bench step [--model PRESET] [--lengths ...] [--threads N] [--json]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/train_step.h"
#include "cli/bench.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"

namespace ovq::cli {
namespace {

struct BenchStepArguments {
  bench::TrainStepOptions options;
  int threads = 0;
  bool json = false;
};

void run(const BenchStepArguments& arguments) {
  set_up_torch(arguments.threads);
  const bench::TrainStepReport report = bench::run_train_step(arguments.options);
  fmt::print("{}", arguments.json ? to_json(report) : to_table(report));
}

}  // namespace

void add_bench_step(CLI::App& bench) {
  const auto arguments = std::make_shared<BenchStepArguments>();
  CLI::App* step = bench.add_subcommand("step", "A training step on the fused mixers, against the plain ones");
  step->add_option("--model", arguments->options.preset, "Preset of the model")->capture_default_str();
  step->add_option("--lengths", arguments->options.lengths, "Tokens of a row")
      ->delimiter(',')
      ->capture_default_str()
      ->check(at_least(1));
  step->add_option("--tokens", arguments->options.tokens, "Tokens of a step")
      ->capture_default_str()
      ->check(at_least(1));
  step->add_option("--rounds", arguments->options.rounds, "Repetitions")->capture_default_str()->check(at_least(1));
  add_threads(*step, arguments->threads);
  step->add_flag("--json", arguments->json, "Print the results as JSON");
  step->callback([arguments] { run(*arguments); });
}

}  // namespace ovq::cli
