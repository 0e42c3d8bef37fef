// The command-line program. One line on stderr when something is wrong; exit 2 for usage, 1 for failure.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "bench/commit.h"
#include "cli/commands.h"

namespace {

int report(std::string message, int status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "ovq: {}\n", message);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Online vector-quantized attention on the CPU", "ovq");
  app.set_version_flag("--version", fmt::format("ovq {} ({})", OVQ_VERSION, OVQ_COMMIT));
  app.require_subcommand(1);
  ovq::cli::add_bench(app);
#ifdef OVQ_WITH_TORCH
  ovq::cli::add_inspect(app);
#endif
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(error.what(), 2);
  } catch (const ovq::cli::UsageError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
  return 0;
}
