// The command-line program. One line on stderr when something is wrong; exit 2 for usage, 1 for failure.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "bench/commit.h"
#include "cli/commands.h"
#include "ovq/base/closest.h"

namespace {

int report(std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "ovq: {}\n", message);
  return status;
}

// What the parser found wrong; where it was a name nobody knows, the ones that could have been meant: options of the
// subcommand that was reached, or the subcommands there are.
std::string unexpected(const CLI::App& app, const std::string& fallback) {
  const CLI::App* reached = &app;
  while (!reached->get_subcommands().empty()) reached = reached->get_subcommands().front();
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (extras.empty()) return fallback;
  std::vector<std::string> names;
  const bool option = extras.front().starts_with("-");
  if (option) {
    for (const CLI::Option* known : reached->get_options()) names.push_back("--" + known->get_single_name());
  } else {
    for (const CLI::App* known : reached->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(known->get_name());
  }
  const std::string name = extras.front().substr(0, extras.front().find('='));
  return names.empty() ? fallback : ovq::unknown_name(option ? "option" : "command", name, names);
}

}  // namespace

void ovq::cli::print_warning(const std::string& text) { fmt::print(stderr, "ovq: {}\n", text); }

int main(int argc, char** argv) {
  CLI::App app("Online vector-quantized attention on the CPU", "ovq");
  app.set_version_flag("--version", fmt::format("ovq {} ({})", OVQ_VERSION, OVQ_COMMIT));
  app.require_subcommand(1);
  ovq::cli::add_bench(app);
  ovq::cli::add_completion(app);
#ifdef OVQ_WITH_TORCH
  ovq::cli::add_chat(app);
  ovq::cli::add_compare(app);
  ovq::cli::add_eval(app);
  ovq::cli::add_generate(app);
  ovq::cli::add_inspect(app);
  ovq::cli::add_report(app);
  ovq::cli::add_reproduce(app);
  ovq::cli::add_tasks(app);
  ovq::cli::add_tokenize(app);
  ovq::cli::add_train(app);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(unexpected(app, error.what()), 2);
  } catch (const ovq::cli::UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
  return 0;
}
