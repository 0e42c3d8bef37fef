// The command-line program: its subcommands and the handling of its arguments.
#pragma once

#include <memory>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace ovq::cli {

std::unique_ptr<CLI::App> make_program();

// The parser's error as a message. For an unknown name it suggests options of the current subcommand, or subcommands.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error);

// Runs the command. Returns the exit status and prints errors in one line on stderr: 2 for usage, 1 for failure, also
// if stdout did not accept all output. Ctrl-C, SIGTERM and a closed pipe end the program by that signal, so that a
// shell sees 130, 143 or 141.
int run(CLI::App& app, int argc, char** argv);

}  // namespace ovq::cli
