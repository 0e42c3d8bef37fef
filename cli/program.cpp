#include "cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "bench/commit.h"
#include "cli/commands.h"
#include "ovq/base/closest.h"
#include "ovq/base/error.h"

namespace ovq::cli {
namespace {

int report(std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "ovq: {}\n", message);
  return status;
}

}  // namespace

void print_warning(const std::string& text) { fmt::print(stderr, "ovq: {}\n", text); }

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
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(what_is_wrong(app, error), 2);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const DivergedError& error) {
    return report(error.what(), kDivergedStatus);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
  return 0;
}

}  // namespace ovq::cli
