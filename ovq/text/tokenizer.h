// Text to tokens and back: bytes, the pieces of a SentencePiece model, or the tokens of a tokenizer.json.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::text {

// Where a text stands in its document. Some SentencePiece models (Llama's, Mistral's) put a space before the first word
// of a document, and only there.
enum class Place { start, middle };

// The files of a tokenizer in a directory beside a model's weights.
inline constexpr const char* kSentencePieceModel = "tokenizer.model";
inline constexpr const char* kBytesMark = "tokenizer.bytes";  // tokens are bytes
inline constexpr const char* kTokenizerJson = "tokenizer.json";
inline constexpr const char* kTokenizerConfig = "tokenizer_config.json";  // may stand beside tokenizer.json, and so may
inline constexpr const char* kChatTemplate = "chat_template.jinja";       // this one

struct TokenizerFile {
  const char* name = nullptr;
  std::string_view content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab() const = 0;
  // std::invalid_argument if the tokenizer cannot encode the text.
  virtual std::vector<int32_t> encode(std::string_view text, Place place = Place::start) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
  virtual std::string token_name(int32_t token) const = 0;  // printable; line breaks and the like are escaped

  // The bytes that a token adds in the middle of a text; not always whole characters, empty for control tokens.
  virtual std::string token_bytes(int32_t token) const = 0;
  // Whether the first token of a text includes a space that is not part of the text.
  virtual bool adds_first_space() const { return false; }

  // The tokens that begin and end a document, if there are any.
  virtual std::optional<int32_t> begin_token() const { return std::nullopt; }
  virtual std::optional<int32_t> end_token() const { return std::nullopt; }

  virtual std::optional<int32_t> padding_token() const { return std::nullopt; }
  // The token that is written like this, for instance "<|im_end|>".
  virtual std::optional<int32_t> token_named(std::string_view /*name*/) const { return std::nullopt; }
  // The Jinja template of the model's conversations, as published with the tokenizer; see chat_template.h.
  virtual std::string_view chat_template() const { return {}; }

  // All that decides its tokens: the content of the file it was made from, for a tokenizer.json followed by the tokens
  // that begin and end a document. Empty for bytes.
  virtual std::string_view model() const { return {}; }
  // What save_tokenizer writes.
  virtual std::vector<TokenizerFile> files() const {
    if (model().empty()) return {{kBytesMark, "tokens are bytes\n"}};
    return {{kSentencePieceModel, model()}};
  }

  // Names the tokenizer by its content: "bytes", or the SHA-256 of the model.
  std::string identity() const;
  // Encodes a whole document: its text between the tokens that begin and end a document.
  std::vector<int32_t> encode_document(std::string_view text) const;
};

// 256 tokens, one for each byte. Decoding restores the encoded text exactly.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// The model's own normalisation applies: unless it was trained with the identity, decoding does not restore white space
// exactly. Text must be UTF-8. DataError if `model` is not a model; `name` stands for it in errors.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& name);

// "bytes", or a path: of a SentencePiece model, of a tokenizer.json, or of a directory that holds a tokenizer.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// A tokenizer in a directory beside a model's weights: tokenizer.json, tokenizer.model or tokenizer.bytes, the first of
// them that is there. nullptr if none is.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory);
void remove_tokenizer(const std::string& directory);  // of an earlier model
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory);

}  // namespace ovq::text
