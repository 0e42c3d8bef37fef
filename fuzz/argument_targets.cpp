// The program's arguments, one per line: everything up to the call that the command would make.
#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "fuzz/targets.h"

namespace ovq::fuzz {
namespace {

struct Callbacks : CLI::App {
  static std::function<void()> of(const CLI::App& app) { return app.*(&Callbacks::final_callback_); }
};

// Commands do nothing; what they would do stays, since it owns what the options are stored in.
void make_harmless(CLI::App& app) {
  app.callback([unused = Callbacks::of(app)] {});
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) make_harmless(*command);
}

void read_arguments(std::string_view bytes) {
  std::vector<std::string> words;
  for (size_t first = 0; first <= bytes.size();) {
    const size_t last = std::min(bytes.find('\n', first), bytes.size());
    words.emplace_back(bytes.substr(first, last - first));
    first = last + 1;
  }
  std::reverse(words.begin(), words.end());  // the order that the parser takes
  const auto program = cli::make_program();
  make_harmless(*program);
  try {
    program->parse(std::move(words));
  } catch (const CLI::Success&) {
    (void)program->help();
  } catch (const CLI::ParseError& error) {
    const std::string wrong = cli::what_is_wrong(*program, error);
    if (wrong.empty()) throw std::logic_error("refused without a word");
    throw std::runtime_error(wrong);
  }
}

std::vector<std::string> argument_seeds() {
  return {"--version",
          "bench\nkernels\n--passes\n2\n--compare\nold.json",
          "train\n--task\nrecall\n--model=sw-ovq\n--steps\n10\n--lengths\n16,32\n--task-options\n{\"vocab\": 64}",
          "train\n--resume\nruns/x\n--processes\n2\n--restarts\n3\n--timeout\n5.5",
          "eval\nruns/x\n--keep\n0.2,0.33\n--lengths\n128,256\n--rows\n4",
          "generate\nmodel\n--prompt\nOnce\n--temperature\n0.8\n--top-k\n40\n--stop\nend\n--json",
          "reproduce\nrecall\n--only\nsmall/sw-ovq\n--jobs\n1",
          "tasks\nrecall\n--length\n64\n--test",
          "inspect\ntiny/sw-ovq\n--context\n1024",
          "tokenize\ntrain\nbooks\n--vocab\n1000\n--out\nt.model",
          "completion\nbash"};
}

}  // namespace

std::vector<Target> argument_targets() { return {{"arguments", read_arguments, argument_seeds}}; }

}  // namespace ovq::fuzz
