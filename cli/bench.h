// What the subcommands of `ovq bench` have in common: their options, and how a report leaves the program.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

#include "bench/comparison.h"
#include "bench/runner.h"
#include "cli/commands.h"

namespace ovq::cli {

struct BenchArguments {
  bench::BenchOptions run;
  std::string json, compare;
  int threads = 0;  // 0: all cores
};

CLI::App* add_bench_command(CLI::App& bench, const std::string& name, const std::string& description,
                            BenchArguments& arguments);

#ifdef OVQ_WITH_TORCH
void add_bench_generate(CLI::App& bench);
void add_bench_ops(CLI::App& bench);
void add_bench_step(CLI::App& bench);
#endif

// Prints the table of measure(), writes its JSON and compares it with an older one, if asked for.
template <class Measure>
void run_bench(const BenchArguments& arguments, Measure&& measure) {
  std::ofstream json;
  if (!arguments.json.empty()) {
    json.open(arguments.json);
    if (!json) throw std::runtime_error(fmt::format("cannot write {}", arguments.json));
  }
  std::ostringstream before;
  if (!arguments.compare.empty()) {
    const std::ifstream file(arguments.compare);
    if (!file) throw std::runtime_error(fmt::format("cannot read {}", arguments.compare));
    before << file.rdbuf();
  }
  const auto report = measure();
  if (report.cases.empty()) throw UsageError(fmt::format("no case contains \"{}\"", arguments.run.filter));
  fmt::print("{}", to_table(report));
  if (!arguments.compare.empty()) {
    fmt::print("{}", bench::compare_reports(arguments.compare, before.str(), to_json(report)));
  }
  if (json.is_open() && !(json << to_json(report) << std::flush))
    throw std::runtime_error(fmt::format("cannot write {}", arguments.json));
  if (!report.matched()) throw std::runtime_error("some results did not match the reference and were not timed");
}

}  // namespace ovq::cli
