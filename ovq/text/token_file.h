// Documents as tokens in a file, little-endian, written once and memory-mapped by readers:
//   header, 128 bytes | tokens, 1, 2 or 4 bytes each | documents
//   header: "OVQTOKEN", version u32, bytes per token u32, vocabulary i64, tokens i64, documents i64, bytes of the
//   list of documents i64, tokenizer [64] (its SHA-256, or "bytes"), 8 zero bytes, CRC-32C of all after the header u32,
//   CRC-32C of the header before this field u32
//   document: tokens i64, bytes of its text i64, length of its name u32, name
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ovq/base/files/mapped_file.h"
#include "ovq/text/tokenizer.h"

namespace ovq::text {

struct TokenDocument {
  std::string name;
  int64_t start = 0, tokens = 0;  // position among all tokens of the file
  int64_t text_bytes = 0;         // of the text it was made from
};

// The fewest bytes that hold any token of the vocabulary: 1, 2 or 4.
int64_t bytes_of_tokens(int64_t vocab);
// Converts tokens to and from `token_bytes` bytes each.
void append_tokens(std::vector<std::byte>& to, std::span<const int32_t> tokens, int64_t token_bytes);
void copy_tokens(std::span<int32_t> to, const std::byte* from, int64_t token_bytes);

class TokenFile {
 public:
  // Checks every field, the checksums and the borders of the documents, which reads the whole file once. Invalid files
  // are a DataError.
  explicit TokenFile(const std::string& path);

  int64_t vocab() const { return vocab_; }
  int64_t token_bytes() const { return token_bytes_; }
  int64_t tokens() const { return tokens_; }
  const std::string& tokenizer() const { return tokenizer_; }  // Tokenizer::identity() of the tokenizer used
  const std::vector<TokenDocument>& documents() const { return documents_; }
  const std::byte* data() const { return data_; }

 private:
  files::MappedFile file_;
  int64_t vocab_ = 0, token_bytes_ = 0, tokens_ = 0;
  std::string tokenizer_;
  std::vector<TokenDocument> documents_;
  const std::byte* data_ = nullptr;
};

// Whether the file at `path` begins like a token file.
bool is_token_file(const std::string& path);

struct TokenizeReport {
  int64_t documents = 0, tokens = 0, text_bytes = 0;
};

// Writes the documents of text files and folders of .txt files durably, holding one document in memory at a time.
// `each` is called after every document.
TokenizeReport write_token_file(const std::string& path, const Tokenizer& tokenizer,
                                const std::vector<std::string>& texts,
                                const std::function<void(const TokenDocument&)>& each = {});

}  // namespace ovq::text
