#include "ovq/text/tokenizer.h"

#include <filesystem>

#include "ovq/base/error.h"
#include "ovq/base/files/durable.h"
#include "ovq/base/files/sha256.h"
#include "ovq/text/documents.h"
#include "ovq/text/sentencepiece_plugin.h"

namespace ovq::text {

namespace {

constexpr const char* kBytes = "bytes";
constexpr const char* kModelFile = "tokenizer.model";
constexpr const char* kBytesFile = "tokenizer.bytes";

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text, Place) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (int32_t token : tokens) text += token_bytes(token);
    return text;
  }

  std::string token_bytes(int32_t token) const override {
    check(token >= 0 && token < 256, "tokenizer", "token is ", token, "; bytes are within 0 and 255");
    return {static_cast<char>(token)};
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

}  // namespace

std::string Tokenizer::identity() const {
  return model().empty() ? kBytes : files::sha256(std::as_bytes(std::span(model())));
}

std::vector<int32_t> Tokenizer::encode_document(std::string_view text) const {
  std::vector<int32_t> tokens = encode(text);
  if (const auto begin = begin_token()) tokens.insert(tokens.begin(), *begin);
  if (const auto end = end_token()) tokens.push_back(*end);
  return tokens;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& name) {
  return std::unique_ptr<Tokenizer>(sentencepiece_plugin().make_tokenizer(std::move(model), name));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == kBytes) return make_byte_tokenizer();
  check_data(std::filesystem::is_regular_file(name), "tokenizer", name,
             " is not a file; expected \"bytes\" or a SentencePiece model");
  return make_sentencepiece_tokenizer(read_text_file("tokenizer", name), name);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory) {
  const std::filesystem::path folder = directory;
  const bool bytes = tokenizer.model().empty();
  if (bytes) {
    files::write_file_durably(folder / kBytesFile, "tokens are bytes\n");
  } else {
    files::write_file_durably(folder / kModelFile, tokenizer.model());
  }
  files::remove_durably(folder / (bytes ? kModelFile : kBytesFile));  // of an earlier model
}

void remove_tokenizer(const std::string& directory) {
  for (const char* file : {kModelFile, kBytesFile}) files::remove_durably(std::filesystem::path(directory) / file);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory) {
  const std::filesystem::path folder = directory;
  if (std::filesystem::exists(folder / kModelFile)) return make_tokenizer((folder / kModelFile).string());
  return std::filesystem::exists(folder / kBytesFile) ? make_byte_tokenizer() : nullptr;
}

}  // namespace ovq::text
