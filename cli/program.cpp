#include "cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <sstream>

#include "bench/commit.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/interrupts.h"
#include "ovq/base/closest.h"
#include "ovq/base/error.h"

namespace ovq::cli {
namespace {

constexpr int kFailureStatus = 1, kUsageStatus = 2;

int report(std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  print_warning(message);
  return status;
}

// Opens /dev/null for closed standard streams: otherwise a file opened later would get that number and receive output.
void occupy_closed_streams() {
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(file, F_GETFD) < 0) ::open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

// Returns the exit status and prints errors in one line on stderr.
int parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& success) {  // from --help and --version
      std::ostringstream text;
      app.exit(success, text, text);
      print_text(text.str());
    }
    check_output();
    return 0;
  } catch (const CLI::ParseError& error) {
    return report(what_is_wrong(app, error), kUsageStatus);
  } catch (const UsageError& error) {
    return report(error.what(), kUsageStatus);
  } catch (const DivergedError& error) {
    return report(error.what(), kDivergedStatus);
  } catch (const std::exception& error) {
    return report(error.what(), kFailureStatus);
  }
}

}  // namespace

std::unique_ptr<CLI::App> make_program() {
  auto program = std::make_unique<CLI::App>("Online vector-quantized attention on the CPU", "ovq");
  CLI::App& app = *program;
  app.set_version_flag("--version", fmt::format("ovq {} ({})", OVQ_VERSION, OVQ_COMMIT));
  app.require_subcommand(1);
  add_bench(app);
  add_completion(app);
#ifdef OVQ_WITH_TORCH
  add_chat(app);
  add_compare(app);
  add_eval(app);
  add_generate(app);
  add_inspect(app);
  add_report(app);
  add_reproduce(app);
  add_tasks(app);
  add_tokenize(app);
  add_train(app);
#endif
  return program;
}

std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* reached = &app;
  while (!reached->get_subcommands().empty()) reached = reached->get_subcommands().front();
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (extras.empty()) return error.what();
  std::vector<std::string> names;
  const bool option = extras.front().starts_with("-");
  if (option) {
    for (const CLI::Option* known : reached->get_options()) names.push_back("--" + known->get_single_name());
  } else {
    for (const CLI::App* known : reached->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(known->get_name());
  }
  const std::string name = extras.front().substr(0, extras.front().find('='));
  return names.empty() ? error.what() : unknown_name(option ? "option" : "command", name, names);
}

int run(CLI::App& app, int argc, char** argv) {
  occupy_closed_streams();
  std::signal(SIGPIPE, SIG_IGN);  // writing to a closed pipe then fails with an error, so the command can save its work
  end_on_signals();
  try {
    return parse_and_run(app, argc, argv);
  } catch (const Interrupted& interruption) {
    if (started_by_ovq()) return kStoppedStatus;
    if (!interruption.message.empty()) print_warning(interruption.message);
    end_by_signal(interruption.signal);
  }
}

}  // namespace ovq::cli
