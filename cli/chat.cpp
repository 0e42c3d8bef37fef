// ovq chat: a conversation whose state is kept between turns.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "cli/interrupts.h"
#include "cli/line_reader.h"
#include "cli/outputs.h"
#include "cli/show_text.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/models/chat.h"
#include "ovq/train/checkpoint.h"

namespace ovq::cli {
namespace {

constexpr const char* kHelp =
    "/save FILE  /load FILE  /state  /undo (remove the last turn)  /reset  /quit; Ctrl-C stops an answer";

struct ChatArguments {
  std::string model, tokenizer, load_state;
  models::ChatOptions chat;
  models::WriteOptions write;
  models::StorageOptions storage;
  int threads = 0;
};

void answer(models::Chat& chat, const ChatArguments& arguments, const std::string& line) {
  ReadingLine progress;
  models::WriteOptions write = arguments.write;
  write.each = [&](const models::WrittenToken& token) {
    progress.finish();
    return print_now(token.text) && !interrupted();
  };
  const models::Written written = chat.say(
      line, {.piece = write.generate.piece, .each = [&](int64_t tokens) { return progress.show(tokens); }}, write);
  print_now(written.rest);
  print_now("\n");
}

// Returns false to end the conversation.
bool run_slash_command(models::Chat& chat, const ChatArguments& arguments, const std::string& line) {
  const size_t space = line.find(' ');
  const std::string command = line.substr(0, space), file = space == std::string::npos ? "" : line.substr(space + 1);
  const bool needs_file = command == "/save" || command == "/load";
  if (needs_file && file.empty()) throw UsageError(command + " needs the name of a file");
  if (command == "/quit") return false;
  if (command == "/save") {
    check_output_file("/save", file, {arguments.model, arguments.tokenizer});
    write_result(file, [&](const auto& path) { chat.save(path); });
  } else if (command == "/load") {
    chat.load(file);
  } else if (command == "/undo") {
    if (!chat.undo()) throw UsageError("there is no turn to undo");
  } else if (command == "/reset") {
    chat.reset();
  } else if (command != "/state") {
    throw UsageError(kHelp);
  }
  print_warning(state_text(chat.session()));
  return true;
}

void talk(const ChatArguments& arguments) {
  models::Chat chat(models::load_text_model(train::model_directory(arguments.model, print_warning), arguments.tokenizer,
                                            arguments.storage.weights),
                    arguments.chat, arguments.storage.states);
  if (!arguments.load_state.empty()) chat.load(arguments.load_state);
  catch_signals();
  LineReader lines("> ");
  // On a terminal Ctrl-C stops the line or the answer, and the conversation continues.
  const auto end_if_interrupted = [&] {
    if (noted_signal() == SIGTERM || (interrupted() && !lines.on_terminal())) stop_interrupted();
    clear_interrupt();
  };
  while (const auto line = lines.next()) {
    end_if_interrupted();
    if (line->empty()) continue;
    try {
      if (!line->starts_with("/")) {
        answer(chat, arguments, *line);
      } else if (!run_slash_command(chat, arguments, *line)) {
        break;
      }
    } catch (const std::exception& error) {  // reported; the conversation continues
      print_warning(error.what());
    }
    end_if_interrupted();
    if (output_error()) break;
  }
}

void run_chat(const ChatArguments& arguments) {
  set_up_torch(arguments.threads);
  talk(arguments);
}

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App* chat = app.add_subcommand("chat", "Chat with a model that keeps its state between turns");
  const auto arguments = std::make_shared<ChatArguments>();
  arguments->write.generate.tokens = 256;
  arguments->write.generate.sampling.temperature = 0.8;
  chat->footer(kHelp);
  chat->add_option("model", arguments->model, "Directory of a model or run")->required()->type_name("DIR");
  add_fields(*chat, arguments->chat);
  add_fields(*chat, arguments->write.generate);
  add_fields(*chat, arguments->storage);
  chat->add_option("--stop", arguments->write.stops, "End the answer at this text, without showing it; may be repeated")
      ->allow_extra_args(false);
  chat->add_option("--load-state", arguments->load_state, "Continue from the state in this file")->type_name("FILE");
  chat->add_option("--tokenizer", arguments->tokenizer,
                   "\"bytes\", or the path of a SentencePiece model; default: the model's own");
  add_threads(*chat, arguments->threads);
  chat->callback([arguments] { run_chat(*arguments); });
}

}  // namespace ovq::cli
