#include "ovq/tasks/sentencepiece_plugin.h"

#include <sentencepiece_processor.h>

#include "ovq/base/error.h"

namespace ovq::tasks {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    const auto status = processor_.Load(path);
    check_data(status.ok(), "tokenizer", path, " is not a SentencePiece model: ", status.message());
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
}  // namespace ovq::tasks

extern "C" ovq::tasks::Tokenizer* ovq_make_sentencepiece_tokenizer(const char* model_path) {
  return new ovq::tasks::SentencePieceTokenizer(model_path);
}
