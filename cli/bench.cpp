// ovq bench kernels [--quick] [--json FILE] [--compare FILE] [--threads N] [--filter SUBSTRING] [--passes N]
#include "cli/bench.h"

#include <CLI/CLI.hpp>
#include <memory>

#include "bench/kernels.h"
#include "cli/validators.h"
#include "ovq/core/parallel.h"

namespace ovq::cli {

CLI::App* add_bench_command(CLI::App& bench, const std::string& name, const std::string& description,
                            BenchArguments& arguments) {
  CLI::App* command = bench.add_subcommand(name, description);
  command->add_flag("--quick", arguments.run.quick, "Reduced sizes, under a minute");
  command->add_option("--json", arguments.json, "Also write the results to this file")->type_name("FILE");
  command
      ->add_option("--compare", arguments.compare,
                   "Also print ratios to the results in this file, written by an earlier --json")
      ->type_name("FILE");
  add_threads(*command, arguments.threads);
  command->add_option("--filter", arguments.run.filter, "Only cases whose name contains this")->type_name("SUBSTRING");
  return command;
}

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory");
  bench->require_subcommand(1);
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = add_bench_command(*bench, "kernels", "Time the kernels against the machine's peak", *arguments);
  command
      ->add_option("--passes", arguments->run.passes,
                   "Passes over all cases; the best round counts. Use more on a busy machine. "
                   "Default: 3, or 1 with --quick")
      ->check(within(1, 1000))
      ->type_name("N");
  command->callback([arguments] {
    if (arguments->threads > 0) kernels::set_threads(arguments->threads);
    run_bench(*arguments, [&] { return bench::run_kernels(arguments->run); });
  });
#ifdef OVQ_WITH_TORCH
  add_bench_ops(*bench);
  add_bench_step(*bench);
  add_bench_generate(*bench);
#endif
}

}  // namespace ovq::cli
