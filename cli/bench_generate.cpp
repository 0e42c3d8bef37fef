// ovq bench generate [--model NAME] [--context N] [--tokens N] [--rounds N] [--no-composed] [--quick] [--json FILE]
//   [--compare FILE] [--threads N] [--filter SUBSTRING]
#include <CLI/CLI.hpp>
#include <memory>

#include "bench/generate.h"
#include "cli/bench.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"

namespace ovq::cli {
namespace {

struct BenchGenerateArguments {
  BenchArguments common;
  bench::GenerateBenchOptions options;
  bool no_composed = false;
};

}  // namespace

void add_bench_generate(CLI::App& bench) {
  const auto arguments = std::make_shared<BenchGenerateArguments>();
  bench::GenerateBenchOptions& options = arguments->options;
  CLI::App* command = add_bench_command(bench, "generate",
                                        "Reading a prompt and writing token by token, against the machine's own bounds",
                                        arguments->common);
  command->add_option("--model", options.model, "A preset; its weights are random")->capture_default_str();
  const auto number = [&](const char* name, auto& value, const char* text) {
    command->add_option(name, value, text)->capture_default_str()->check(at_least(1));
  };
  number("--context", options.context, "Tokens of the prompt");
  number("--tokens", options.tokens, "Tokens that follow");
  number("--piece", options.piece, "Tokens of the prompt read at a time");
  number("--rounds", options.rounds, "Repetitions of prompt and tokens");
  command->add_flag("--no-composed", arguments->no_composed, "Without the model composed of torch calls");
  command->callback([arguments] {
    set_up_torch(arguments->common.threads);
    arguments->options.run = arguments->common.run;
    arguments->options.composed = !arguments->no_composed;
    try {
      run_bench(arguments->common, [&] { return bench::run_generate(arguments->options); });
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  });
}

}  // namespace ovq::cli
