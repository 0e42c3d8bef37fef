// Text to tokens and back: bytes, or the pieces of a SentencePiece model.
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

  // The content of the file it was made from; empty for bytes.
  virtual std::string_view model() const { return {}; }

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

// "bytes", or the path of a SentencePiece model.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

// A tokenizer in a directory beside a model's weights: tokenizer.model holds a SentencePiece model; tokenizer.bytes
// marks byte tokens. nullptr if there is neither.
void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory);
void remove_tokenizer(const std::string& directory);  // of an earlier model
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory);

}  // namespace ovq::text
