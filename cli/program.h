// The command-line program: all its subcommands, and what becomes of its arguments.
#pragma once

#include <memory>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace ovq::cli {

std::unique_ptr<CLI::App> make_program();

// What the parser found wrong; where it was a name nobody knows, the ones that could have been meant: options of the
// subcommand that was reached, or the subcommands there are.
std::string what_is_wrong(const CLI::App& app, const CLI::ParseError& error);

// Does what the arguments say. The exit status, with one line on stderr if something is wrong: 2 for usage, 1 for
// failure, also if stdout has not taken all that was printed. What Ctrl-C, SIGTERM or a closed pipe has ended ends by
// that signal, in a shell with 130, 143 or 141.
int run(CLI::App& app, int argc, char** argv);

}  // namespace ovq::cli
