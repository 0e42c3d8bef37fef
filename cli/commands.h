// The subcommands, one file each: it declares its options and makes one call. Errors are thrown: UsageError for errors
// in the user's input, anything else for failures.
#pragma once

#include <stdexcept>
#include <string>

namespace CLI {
class App;
}

namespace ovq::cli {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_compare(CLI::App& app);
void add_completion(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_report(CLI::App& app);
void add_reproduce(CLI::App& app);
void add_tasks(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_train(CLI::App& app);

}  // namespace ovq::cli
