// ovq generate: continues a prompt or a saved state with generated text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "cli/interrupts.h"
#include "cli/outputs.h"
#include "cli/show_text.h"
#include "cli/torch_setup.h"
#include "cli/validators.h"
#include "ovq/text/documents.h"
#include "ovq/train/checkpoint.h"
#include "ovq/train/keep.h"

namespace ovq::cli {
namespace {

struct GenerateArguments {
  std::string model, tokenizer, prompt, prompt_file, load_state, save_state;
  models::WriteOptions write;
  models::StorageOptions storage;
  int64_t centroids = 0;  // 0: the model's own
  bool json = false;
  int threads = 0;
};

std::string prompt_of(const GenerateArguments& arguments) {
  if (arguments.prompt_file.empty()) return arguments.prompt;
  if (arguments.prompt_file != "-") return text::read_text_file("generate", arguments.prompt_file);
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

models::TextModel load_model(const GenerateArguments& arguments) {
  models::TextModel loaded = models::load_text_model(train::model_directory(arguments.model, print_warning),
                                                     arguments.tokenizer, arguments.storage.weights);
  if (arguments.centroids > 0) {
    if (train::dictionary_of(loaded.model->config()) == nullptr)
      throw UsageError(fmt::format("--centroids: {} has no OVQ-attention", arguments.model));
    loaded.model->set_centroids(arguments.centroids);
  }
  return loaded;
}

std::string token_line(const models::WrittenToken& token) {
  return nlohmann::json({{"token", token.token}, {"text", token.text}, {"log_probability", token.log_probability}})
             .dump() +
         "\n";
}

nlohmann::json summary(const models::TextSession& session, const Timing& read, const Timing& written,
                       models::WritingEnd end, int64_t skipped) {
  return {{"read",
           {{"tokens", read.tokens}, {"unread", session.unread()}, {"seconds", read.seconds}, {"from_state", skipped}}},
          {"written", {{"tokens", written.tokens}, {"seconds", written.seconds}, {"end", name_of_end(end)}}},
          {"position", session.position()},
          {"weight_bytes", session.weight_bytes()},
          {"state_bytes", session.state_bytes()},
          {"kv_cache_bytes", session.kv_cache_bytes()}};
}

// Returns a message if the file holds only a part of the prompt.
std::string save_state(models::TextSession& session, const std::string& file, int64_t read) {
  if (file.empty()) return "";
  write_result(file, [&](const auto& path) { session.save(path); });
  if (session.unread() == 0) return "";
  return fmt::format("{} holds the first {} of {} tokens of the prompt", file, read, read + session.unread());
}

void generate(const GenerateArguments& arguments) {
  const std::string prompt = prompt_of(arguments);
  models::TextSession session(load_model(arguments), arguments.storage.states);
  catch_signals();
  int64_t skipped = 0;
  if (!arguments.load_state.empty()) {
    session.load(arguments.load_state);
    skipped = session.position();
    print_warning(fmt::format("restored {} tokens from {}", skipped, arguments.load_state));
    if (session.unread() > 0)
      print_warning(fmt::format("{} holds only part of a prompt: reading was interrupted {} tokens before its end",
                                arguments.load_state, session.unread()));
  }
  ReadingLine progress;
  const Timing read = timed([&] {
    return session.read(prompt, {.piece = arguments.write.generate.piece,
                                 .each = [&](int64_t tokens) { return progress.show(tokens); }});
  });
  progress.finish();
  models::WritingEnd end = models::WritingEnd::interrupted;
  Timing written;
  if (!interrupted()) {
    models::WriteOptions options = arguments.write;
    options.log_probabilities = arguments.json;
    options.each = [&](const models::WrittenToken& token) {
      return print_now(arguments.json ? token_line(token) : token.text) && !interrupted();
    };
    written = timed([&] {
      const models::Written result = session.write(options);
      end = result.end;
      if (!arguments.json) print_now(result.rest);
      return result.tokens;
    });
  }
  if (arguments.json) {
    print_now(summary(session, read, written, end, skipped).dump() + "\n");
  } else {
    print_now("\n");
    print_warning(timing_text("read", read));
    print_warning(timing_text("wrote", written));
    print_warning(state_text(session));
  }
  const std::string saved = save_state(session, arguments.save_state, read.tokens);
  if (interrupted()) stop_interrupted(saved);
}

void run_generate(const GenerateArguments& arguments) {
  set_up_torch(arguments.threads);
  // --save-state may name the same file as --load-state.
  if (!arguments.save_state.empty())
    check_output_file("--save-state", arguments.save_state,
                      {arguments.model, arguments.tokenizer, arguments.prompt_file});
  try {
    generate(arguments);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* generate = app.add_subcommand("generate", "Generate text that continues a prompt");
  const auto arguments = std::make_shared<GenerateArguments>();
  generate->add_option("model", arguments->model, "Directory of a model or run")->required()->type_name("DIR");
  CLI::Option* prompt = generate->add_option("--prompt", arguments->prompt, "Text to continue");
  generate->add_option("--prompt-file", arguments->prompt_file, "File with the text to continue, or - for stdin")
      ->type_name("FILE")
      ->excludes(prompt);
  add_fields(*generate, arguments->write.generate);
  add_fields(*generate, arguments->storage);
  generate
      ->add_option("--stop", arguments->write.stops, "End the text at this string, without showing it; may be repeated")
      ->allow_extra_args(false);
  generate->add_flag("--ignore-end", arguments->write.ignore_end, "Continue after the token that ends a document");
  generate->add_option("--load-state", arguments->load_state, "Continue from the state in this file")
      ->type_name("FILE");
  generate->add_option("--save-state", arguments->save_state, "Save the state to this file at the end")
      ->type_name("FILE");
  generate->add_option("--centroids", arguments->centroids, "Dictionary size; default: the model's")
      ->check(at_least(1));
  generate->add_option("--tokenizer", arguments->tokenizer,
                       "\"bytes\", or the path of a SentencePiece model; default: the model's own");
  generate->add_flag("--json", arguments->json, "Print a JSON object for each token, and one at the end");
  add_threads(*generate, arguments->threads);
  generate->callback([arguments] { run_generate(*arguments); });
}

}  // namespace ovq::cli
