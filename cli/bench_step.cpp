// ovq bench step [--quick] [--rounds N] [--without-mixers] [--json FILE] [--compare FILE] [--threads N] [--filter
// SUBSTRING]
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/train_step.h"
#include "cli/bench.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"

namespace ovq::cli {
namespace {

struct BenchStepArguments {
  BenchArguments common;
  bench::TrainStepOptions options;
};

}  // namespace

void add_bench_step(CLI::App& bench) {
  const auto arguments = std::make_shared<BenchStepArguments>();
  bench::TrainStepOptions& options = arguments->options;
  CLI::App* step = add_bench_command(bench, "step", "Time a training step of every preset at the scales tiny and small",
                                     arguments->common);
  step->add_option("--tokens", options.tokens, "Tokens per step, approximately")
      ->capture_default_str()
      ->check(at_least(1));
  step->add_option("--rounds", options.rounds, "Rounds, each through all models")
      ->capture_default_str()
      ->check(at_least(1));
  step->add_flag("--without-mixers", options.without_mixers, "Also time models without mixers");
  step->callback([arguments] {
    set_up_torch(arguments->common.threads);
    arguments->options.run = arguments->common.run;
    run_bench(arguments->common, [&] { return bench::run_train_step(arguments->options); });
  });
}

}  // namespace ovq::cli
