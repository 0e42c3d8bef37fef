#include "ovq/tasks/tokenizer.h"

#include <sentencepiece_processor.h>

#include <filesystem>

#include "ovq/kernels/error.h"

namespace ovq::tasks {

using kernels::check;

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (int32_t token : tokens) {
      check(token >= 0 && token < 256, "tokenizer", "token is ", token, "; bytes are within 0 and 255");
      text.push_back(static_cast<char>(token));
    }
    return text;
  }

  std::string token_name(int32_t token) const override {
    constexpr char kDigits[] = "0123456789abcdef";
    if (token == '\n') return "\\n";
    if (token == '\t') return "\\t";
    if (token == '\\') return "\\\\";
    if (token >= 0x20 && token < 0x7f) return std::string(1, static_cast<char>(token));
    return {'\\', 'x', kDigits[(token >> 4) & 15], kDigits[token & 15]};
  }
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    check(std::filesystem::is_regular_file(path), "tokenizer", path,
          " is not a file; expected \"bytes\" or a SentencePiece model");
    const auto status = processor_.Load(path);
    check(status.ok(), "tokenizer", path, " is not a SentencePiece model: ", status.message());
  }

  int64_t vocab() const override { return processor_.GetPieceSize(); }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int> tokens;
    const auto status = processor_.Encode({text.data(), text.size()}, &tokens);
    check(status.ok(), "tokenizer", "cannot encode: ", status.message());
    return {tokens.begin(), tokens.end()};
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    for (int32_t token : tokens) {
      check(token >= 0 && token < vocab(), "tokenizer", "token is ", token, "; the model has ", vocab());
    }
    std::string text;
    const auto status = processor_.Decode(std::vector<int>(tokens.begin(), tokens.end()), &text);
    check(status.ok(), "tokenizer", "cannot decode: ", status.message());
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
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_path) {
  return std::make_unique<SentencePieceTokenizer>(model_path);
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  return name == "bytes" ? make_byte_tokenizer() : make_sentencepiece_tokenizer(name);
}

}  // namespace ovq::tasks
