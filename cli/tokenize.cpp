// ovq tokenize train|apply: trains a SentencePiece model on text, or writes text as a token file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/field_flags.h"
#include "cli/outputs.h"
#include "ovq/base/files/durable.h"
#include "ovq/base/format.h"
#include "ovq/text/token_file.h"
#include "ovq/text/tokenizer_training.h"

namespace ovq::cli {
namespace {

struct TokenizeArguments {
  std::vector<std::string> texts;
  std::string out, tokenizer = "bytes";
  text::TokenizerTraining training;
};

void train_tokenizer(const TokenizeArguments& arguments) {
  check_output_file("--out", arguments.out, arguments.texts);
  try {
    const std::string model = text::train_tokenizer(arguments.texts, arguments.training);
    write_result(arguments.out, [&](const auto& path) { files::write_file_durably(path, model); });
    const auto tokenizer = text::make_tokenizer(arguments.out);
    print("{}: {} tokens, SHA-256 {}\n", arguments.out, tokenizer->vocab(), tokenizer->identity());
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
}

void apply_tokenizer(const TokenizeArguments& arguments) {
  std::vector<std::string> reads = arguments.texts;
  reads.push_back(arguments.tokenizer);
  check_output_file("--out", arguments.out, reads);
  const auto tokenizer = text::make_tokenizer(arguments.tokenizer);
  const text::TokenizeReport report = text::write_token_file(arguments.out, *tokenizer, arguments.texts);
  print("{}: {} tokens of {} documents, {} of text, {:.3f} bytes per token\n", arguments.out, report.tokens,
        report.documents, bytes_text(static_cast<double>(report.text_bytes)),
        static_cast<double>(report.text_bytes) / static_cast<double>(report.tokens));
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App* tokenize = app.add_subcommand("tokenize", "Train a tokenizer, or turn text into tokens");
  tokenize->require_subcommand(1);
  const auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* train = tokenize->add_subcommand("train", "Train a SentencePiece model on text");
  CLI::App* apply = tokenize->add_subcommand("apply", "Write a file of tokens, which the task text reads");
  for (CLI::App* command : {train, apply}) {
    command->add_option("texts", arguments->texts, "Text files, and folders of .txt files")
        ->required()
        ->type_name("PATH");
    command->add_option("--out", arguments->out, "File to write")->required()->type_name("FILE");
  }
  add_fields(*train, arguments->training);
  apply->add_option("--tokenizer", arguments->tokenizer, "\"bytes\", or the path of a SentencePiece model")
      ->capture_default_str();
  train->callback([arguments] { train_tokenizer(*arguments); });
  apply->callback([arguments] { apply_tokenizer(*arguments); });
}

}  // namespace ovq::cli
