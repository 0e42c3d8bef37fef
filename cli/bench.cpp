// ovq bench kernels [--quick] [--json FILE] [--threads N] [--filter SUBSTRING]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "bench/kernels.h"
#include "cli/commands.h"
#include "ovq/kernels/parallel.h"

namespace ovq::cli {
namespace {

struct KernelsArguments {
  bench::RunOptions run;
  std::string json;
  int threads = 0;
};

void bench_kernels(const KernelsArguments& arguments) {
  std::ofstream json;
  if (!arguments.json.empty()) {
    json.open(arguments.json);
    if (!json) throw std::runtime_error(fmt::format("cannot write {}", arguments.json));
  }
  if (arguments.threads > 0) kernels::set_threads(arguments.threads);

  const bench::Report report = bench::run_kernels(arguments.run);
  if (report.cases.empty()) throw UsageError(fmt::format("no case contains \"{}\"", arguments.run.filter));
  fmt::print("{}", bench::to_table(report));
  if (json.is_open() && !(json << bench::to_json(report) << std::flush))
    throw std::runtime_error(fmt::format("cannot write {}", arguments.json));
  if (!report.matched()) throw std::runtime_error("some results did not match the reference and were not timed");
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed and memory");
  bench->require_subcommand(1);
  CLI::App* kernels = bench->add_subcommand("kernels", "The fused kernels, against the machine's own peak");
  const auto arguments = std::make_shared<KernelsArguments>();
  kernels->add_flag("--quick", arguments->run.quick, "Reduced sizes, under a minute");
  kernels->add_option("--json", arguments->json, "Also write the results to this file")->type_name("FILE");
  kernels->add_option("--threads", arguments->threads, "Threads to use; default: all cores")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  kernels->add_option("--filter", arguments->run.filter, "Only cases whose name contains this")->type_name("SUBSTRING");
  kernels->callback([arguments] { bench_kernels(*arguments); });
}

}  // namespace ovq::cli
