// ovq completion: a script for shell completion, generated from the declared commands and options.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"

namespace ovq::cli {
namespace {

// The words that can follow a command: its subcommands and options.
std::string words_of(const CLI::App& command) {
  std::string words;
  for (const CLI::App* next : command.get_subcommands([](const CLI::App*) { return true; }))
    words += next->get_name() + " ";
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  }
  return words;
}

void print_cases(const CLI::App& command, const std::string& path) {
  for (const CLI::App* next : command.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string name = path.empty() ? next->get_name() : path + " " + next->get_name();
    print_cases(*next, name);  // longer patterns first because the first match wins
    print("    \"{}\"*) words=\"{}\" ;;\n", name, words_of(*next));
  }
}

void print_bash(const CLI::App& app) {
  print(
      "# bash completion for ovq: source <(ovq completion bash)\n"
      "_ovq() {{\n"
      "  local words current=\"${{COMP_WORDS[COMP_CWORD]}}\"\n"
      "  case \"${{COMP_WORDS[*]:1:COMP_CWORD-1}}\" in\n");
  print_cases(app, "");
  print(
      "    *) words=\"{}\" ;;\n"
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
      "}}\n"
      "complete -o default -F _ovq ovq\n",
      words_of(app));
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* completion = app.add_subcommand("completion", "Print a script that completes commands and options");
  CLI::App* bash = completion->add_subcommand("bash", "Use it with: source <(ovq completion bash)");
  completion->require_subcommand(1);
  bash->callback([&app] { print_bash(app); });
}

}  // namespace ovq::cli
