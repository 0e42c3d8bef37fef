// ovq report: a page of the paper's claims, or of the runs in progress.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/experiment_files.h"
#include "cli/interrupts.h"
#include "cli/validators.h"
#include "ovq/base/files/durable.h"
#include "ovq/report/live.h"
#include "ovq/report/report.h"

namespace ovq::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::string results = "results", out = "report", claims, png, watch;
  int every = 5;
  bool once = false;
};

void report(const ReportArguments& arguments) {
  const report::ReportSummary summary =
      report::write_report({.claims = arguments.claims.empty() ? claims_file() : fs::path(arguments.claims),
                            .results = arguments.results,
                            .out = arguments.out,
                            .png = arguments.png},
                           print_warning);
  print("{}: {} claims, {} hold, {} do not, {} open; {} of {} figures have lines; {} runs\n",
        (fs::path(arguments.out) / "index.html").string(), summary.claims, summary.hold, summary.fail,
        summary.claims - summary.hold - summary.fail, summary.charts_with_lines, summary.charts, summary.runs);
}

void watch(const ReportArguments& arguments) {
  const fs::path page = fs::path(arguments.out) / "live.html";
  fs::create_directories(arguments.out);
  catch_signals();
  print("{} shows the runs in {}{}\n", page.string(), arguments.watch,
        arguments.once ? "" : fmt::format(", updated every {} s; Ctrl-C ends it", arguments.every));
  check_output();
  while (!interrupted()) {
    files::write_file_durably(
        page, report::live_page(arguments.watch, {.refresh_seconds = arguments.once ? 0 : arguments.every}));
    if (arguments.once) return;
    for (int second = 0; second < arguments.every && !interrupted(); ++second)
      std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  stop_interrupted();
}

}  // namespace

void add_report(CLI::App& app) {
  CLI::App* command = app.add_subcommand("report", "Make a page of experiment results, or of runs in progress");
  const auto arguments = std::make_shared<ReportArguments>();
  command->add_option("results", arguments->results, "Directory of the results")
      ->type_name("DIR")
      ->capture_default_str();
  command->add_option("--out", arguments->out, "Directory of the page")->type_name("DIR")->capture_default_str();
  command->add_option("--png", arguments->png, "Also write the figures as PNG to this directory; needs gnuplot")
      ->type_name("DIR");
  command
      ->add_option(
          "--claims", arguments->claims,
          "Claims and the checks that decide them; default: experiments/report/claims.json, or the built-in ones")
      ->type_name("FILE");
  CLI::Option* watch_option =
      command
          ->add_option("--watch", arguments->watch, "Show the runs below this directory instead, updated until Ctrl-C")
          ->type_name("DIR");
  command->add_option("--every", arguments->every, "Seconds between updates of --watch")
      ->check(number<int>(ovq::at_least(1)))
      ->needs(watch_option)
      ->capture_default_str();
  command->add_flag("--once", arguments->once, "With --watch: write the page once")->needs(watch_option);
  command->callback([arguments] { arguments->watch.empty() ? report(*arguments) : watch(*arguments); });
}

}  // namespace ovq::cli
