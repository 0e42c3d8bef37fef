// Text to tokens and back: bytes, or the pieces of a SentencePiece model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::tasks {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab() const = 0;
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(const std::vector<int32_t>& tokens) const = 0;
  virtual std::string token_name(int32_t token) const = 0;  // printable; line breaks and the like escaped
};

// 256 tokens: the bytes. Decoding gives back exactly what was encoded.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// The model's own normalisation applies: unless it was trained with the identity, white space is not given back
// exactly.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_path);

// "bytes", or the path of a SentencePiece model.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

}  // namespace ovq::tasks
