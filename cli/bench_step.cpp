// ovq bench step [--model PRESET] [--lengths ...] [--threads N] [--json]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

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
  const auto cases = bench::run_train_step(arguments.options);
  if (arguments.json) {
    nlohmann::json all = nlohmann::json::array();
    for (const auto& c : cases) {
      all.push_back({{"model", arguments.options.preset},
                     {"length", c.length},
                     {"rows", c.rows},
                     {"fused_seconds", c.fused},
                     {"plain_seconds", c.plain},
                     {"without_mixers_seconds", c.without}});
    }
    fmt::print("{}\n", all.dump(2));
    return;
  }
  fmt::print("a training step of {}, best of {}\n\n", arguments.options.preset, arguments.options.rounds);
  fmt::print("{:>7} {:>6} {:>11} {:>11} {:>8} {:>16} {:>9}\n", "length", "rows", "fused", "plain", "ratio",
             "without mixers", "ceiling");
  for (const auto& c : cases) {
    fmt::print("{:>7} {:>6} {:>8.1f} ms {:>8.1f} ms {:>7.2f}x {:>13.1f} ms {:>8.2f}x\n", c.length, c.rows,
               1e3 * c.fused, 1e3 * c.plain, c.plain / c.fused, 1e3 * c.without, c.plain / c.without);
  }
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
  step->add_option("--threads", arguments->threads, "Threads to use; default: all cores")->check(CLI::Range(1, 1024));
  step->add_flag("--json", arguments->json, "Print the results as JSON");
  step->callback([arguments] { run(*arguments); });
}

}  // namespace ovq::cli
