// Shared by the subcommands of `ovq bench`: options, and printing and storing reports.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/comparison.h"
#include "bench/runner.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/outputs.h"
#include "ovq/base/files/durable.h"

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

// Prints the table of measure(), writes its JSON and compares it with an older report if asked. `reads`: further inputs
// of the command.
template <class Measure>
void run_bench(const BenchArguments& arguments, Measure&& measure, std::vector<std::string> reads = {}) {
  // Checked before the work; an existing file stays until the report is written.
  if (!arguments.json.empty()) {
    reads.push_back(arguments.compare);
    check_output_file("--json", arguments.json, reads);
  }
  std::ostringstream before;
  if (!arguments.compare.empty()) {
    if (std::filesystem::is_directory(arguments.compare))
      throw std::runtime_error(fmt::format("--compare: {} is a directory; expected a JSON file", arguments.compare));
    const std::ifstream file(arguments.compare);
    if (!file) throw std::runtime_error(fmt::format("cannot read {}", arguments.compare));
    before << file.rdbuf();
  }
  const auto report = measure();
  if (report.cases.empty()) throw UsageError(fmt::format("no case contains \"{}\"", arguments.run.filter));
  print("{}", to_table(report));
  if (!arguments.compare.empty()) {
    print("{}", bench::compare_reports(arguments.compare, before.str(), to_json(report)));
  }
  if (!arguments.json.empty()) {
    write_result(arguments.json, [&](const auto& file) { files::write_file_durably(file, to_json(report)); });
  }
  if (!report.matched()) throw std::runtime_error("some results did not match the reference and were not timed");
}

}  // namespace ovq::cli
