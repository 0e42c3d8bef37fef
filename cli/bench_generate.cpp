// ovq bench generate [--model NAME | DIR [--data PATH...] [--windows N]] [--context N] [--tokens N] [--rounds N]
//   [--quick] [--json FILE] [--compare FILE] [--threads N] [--filter SUBSTRING]
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "bench/generate.h"
#include "cli/bench.h"
#include "cli/console.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/train/checkpoint.h"

namespace ovq::cli {
namespace {

struct BenchGenerateArguments {
  BenchArguments common;
  bench::GenerateBenchOptions options;
};

}  // namespace

void add_bench_generate(CLI::App& bench) {
  const auto arguments = std::make_shared<BenchGenerateArguments>();
  bench::GenerateBenchOptions& options = arguments->options;
  CLI::App* command =
      add_bench_command(bench, "generate", "Time reading a prompt and generating tokens, against the machine's bounds",
                        arguments->common);
  command
      ->add_option("--model", options.model,
                   "A preset (random weights), or the directory of a trained text model or run")
      ->capture_default_str();
  command->add_option("--data", options.data,
                      "Also measure a trained model's loss on these text files, folders or files of tokens");
  const auto number = [&](const char* name, auto& value, const char* text) {
    command->add_option(name, value, text)->capture_default_str()->check(at_least(1));
  };
  number("--context", options.context, "Tokens of the prompt");
  number("--tokens", options.tokens, "Tokens to generate");
  number("--piece", options.piece, "Tokens of the prompt read at a time");
  number("--rounds", options.rounds, "Repetitions of prompt and tokens");
  number("--windows", options.windows, "Windows of --context tokens to read, spread over --data");
  command->callback([arguments] {
    set_up_torch(arguments->common.threads);
    arguments->options.run = arguments->common.run;
    const std::string& model = arguments->options.model;
    if (!arguments->options.data.empty() && !std::filesystem::is_directory(model))
      throw UsageError(fmt::format("--data: the model is {}; must be the directory of a trained one", model));
    try {
      if (std::filesystem::is_directory(model))
        arguments->options.trained = models::load_text_model(train::model_directory(model, print_warning));
      std::vector<std::string> reads = arguments->options.data;
      reads.push_back(model);
      run_bench(
          arguments->common, [&] { return bench::run_generate(arguments->options); }, reads);
    } catch (const std::invalid_argument& error) {
      throw UsageError(error.what());
    }
  });
}

}  // namespace ovq::cli
