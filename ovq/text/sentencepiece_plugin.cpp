#include "ovq/text/sentencepiece_plugin.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "ovq/base/error.h"
#include "ovq/text/model_check.h"
#include "ovq/text/sentencepiece_compat.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, how pieces spell a space

// Appends an option that removes the space before the first word. Protobuf merges a repeated message into the first
// one: here field 3 of the model, normalizer_spec, with its field 3, add_dummy_prefix, set to false.
std::string without_first_space(const std::string& model) { return model + std::string("\x1a\x02\x18\x00", 4); }

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string model, const std::string& name) : model_(std::move(model)) {
    load(processor_, model_, name);
    const std::string probe = " a\n  b ";
    adds_first_space_ = token_count("a") != 0 && piece(processor_, "a").starts_with(kSpace);
    load(middle_, without_first_space(model_), name);
    std::string back;
    const bool decoded = decode_tokens(middle_, ids(middle_, probe), &back).ok();
    splits_at_lines_ = decoded && back == probe && no_piece_crosses_lines();
  }

  int64_t vocab() const override { return processor_.GetPieceSize(); }
  bool adds_first_space() const override { return adds_first_space_; }
  std::optional<int32_t> begin_token() const override { return optional(processor_.bos_id()); }
  std::optional<int32_t> end_token() const override { return optional(processor_.eos_id()); }
  std::string_view model() const override { return model_; }

  std::vector<int32_t> encode(std::string_view text, Place place) const override {
    const size_t valid = valid_prefix(text);
    check(valid == text.size(), "tokenizer", "the text is not UTF-8 at byte ", valid, "; SentencePiece models need it");
    std::vector<int32_t> tokens;
    for (const sentencepiece::SentencePieceProcessor* processor = place == Place::start ? &processor_ : &middle_;
         !text.empty(); processor = &middle_) {
      const size_t end = block_end(text);
      for (const int token : ids(*processor, text.substr(0, end))) tokens.push_back(token);
      text.remove_prefix(end);
    }
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    for (int32_t token : tokens) check_token(token);
    std::string text;
    const auto status = decode_tokens(processor_, {tokens.begin(), tokens.end()}, &text);
    check(status.ok(), "tokenizer", "cannot decode: ", status.message());
    return text;
  }

  std::string token_bytes(int32_t token) const override {
    check_token(token);
    if (processor_.IsControl(token)) return {};
    if (processor_.IsUnknown(token)) return " \xe2\x81\x87 ";  // same as Decode
    const std::string& spelled = processor_.IdToPiece(token);
    if (processor_.IsByte(token)) return {static_cast<char>(std::stoi(spelled.substr(3, 2), nullptr, 16))};  // <0x0A>
    std::string text;
    for (size_t at = 0; at < spelled.size();) {
      const bool space = spelled.compare(at, kSpace.size(), kSpace) == 0;
      text += space ? ' ' : spelled[at];
      at += space ? kSpace.size() : 1;
    }
    return text;
  }

  std::string token_name(int32_t token) const override {
    std::string name;
    for (char c : processor_.IdToPiece(token)) {
      if (c == '\n')
        name += "\\n";
      else
        name += c;
    }
    return name;
  }

 private:
  static constexpr size_t kBlock = 1 << 16;

  static void load(sentencepiece::SentencePieceProcessor& processor, const std::string& model,
                   const std::string& name) {
    const std::string wrong = wrong_pieces(model);
    check_data(wrong.empty(), "tokenizer", name, " is not a SentencePiece model: ", wrong);
    const auto status = processor.LoadFromSerializedProto(model);
    check_data(status.ok() && processor.GetPieceSize() > 0, "tokenizer", name,
               " is not a SentencePiece model: ", status.ok() ? "it has no pieces" : status.message());
  }
  static std::optional<int32_t> optional(int token) { return token < 0 ? std::nullopt : std::optional<int32_t>(token); }
  static std::vector<int> ids(const sentencepiece::SentencePieceProcessor& processor, std::string_view text) {
    std::vector<int> tokens;
    const auto status = processor.Encode({text.data(), text.size()}, &tokens);
    check(status.ok(), "tokenizer", "cannot encode: ", status.message());
    return tokens;
  }
  size_t token_count(std::string_view text) const { return ids(processor_, text).size(); }
  static std::string piece(const sentencepiece::SentencePieceProcessor& processor, std::string_view text) {
    return processor.IdToPiece(ids(processor, text).front());
  }
  void check_token(int32_t token) const {
    check(token >= 0 && token < vocab(), "tokenizer", "token is ", token, "; the model has ", vocab());
  }
  bool no_piece_crosses_lines() const {
    for (int token = 0; token < processor_.GetPieceSize(); ++token) {
      const std::string& spelled = processor_.IdToPiece(token);
      const size_t line = spelled.find('\n');
      if (line != std::string::npos && line + 1 < spelled.size()) return false;
    }
    return true;
  }

  // Where the first block of a text ends. If no piece spans the end of a line, lines are tokenised independently.
  // Blocks of whole lines then save memory, because a lattice of the whole text is large.
  size_t block_end(std::string_view text) const {
    if (!splits_at_lines_ || text.size() <= kBlock) return text.size();
    size_t line = text.rfind('\n', kBlock - 1);
    if (line == std::string_view::npos) line = text.find('\n', kBlock);
    return line == std::string_view::npos ? text.size() : line + 1;
  }

  std::string model_;
  sentencepiece::SentencePieceProcessor processor_, middle_;  // with and without the space before the first word
  bool adds_first_space_ = false, splits_at_lines_ = false;
};

class LineIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const std::function<bool(std::string&)>& next) : next_(next) { Next(); }
  bool done() const override { return done_; }
  void Next() override { done_ = !next_(line_); }
  const std::string& value() const override { return line_; }
  SentencePieceStatus status() const override { return {}; }

 private:
  const std::function<bool(std::string&)>& next_;
  std::string line_;
  bool done_ = false;
};

// The trainer's messages begin with its source line and the failed condition, and name options that do not exist here.
std::string refusal_text(const std::string& message, const TokenizerTraining& options) {
  const auto number_after = [&](std::string_view mark) {
    const size_t at = message.find(mark);
    return at == std::string::npos ? 0 : std::atoll(message.c_str() + at + mark.size());
  };
  const std::string vocab = "vocab is " + std::to_string(options.vocab) + "; ";
  if (const auto most = number_after("set it to a value <= "))
    return vocab + "must be at most " + std::to_string(most) + ", the number of pieces in this text";
  if (const auto least = number_after(" vs "))
    return vocab + "must be at least " + std::to_string(least) +
           ", which includes a token for each character of this text";
  if (message.find("!sentences_.empty()") != std::string::npos) return "the text has no line to learn from";
  const size_t condition = message.rfind("] ");
  return "cannot train: " + (condition == std::string::npos ? message : message.substr(condition + 2));
}

std::string train(const TokenizerTraining& options, const std::function<bool(std::string&)>& next) {
  constexpr unsigned kMostThreads = 16;
  sentencepiece::SetRandomGeneratorSeed(static_cast<unsigned>(options.seed));
  LineIterator lines(next);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"minloglevel", "2"},
       {"model_type", std::string(name_of(options.type))},
       {"vocab_size", std::to_string(options.vocab)},
       {"input_sentence_size", std::to_string(options.lines)},
       {"byte_fallback", "true"},
       {"normalization_rule_name", "identity"},
       {"add_dummy_prefix", "false"},
       {"remove_extra_whitespaces", "false"},
       {"num_threads", std::to_string(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads))}},
      &lines, &model);
  check(status.ok(), "tokenizer", refusal_text(std::string(status.message()), options));
  return model;
}

Tokenizer* make_sentencepiece(std::string model, const std::string& name) {
  return new SentencePieceTokenizer(std::move(model), name);
}

}  // namespace
}  // namespace ovq::text

extern "C" const ovq::text::SentencePiecePlugin* ovq_sentencepiece_plugin() {
  static constexpr ovq::text::SentencePiecePlugin plugin = {ovq::text::make_sentencepiece, ovq::text::train};
  return &plugin;
}
