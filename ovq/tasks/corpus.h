// The documents of a text file or of a folder of .txt files, as tokens in memory: one, two or four bytes a token, as
// the vocabulary needs. Or those of a file of tokens (text/token_file.h), which stay in the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ovq/text/token_file.h"
#include "ovq/text/tokenizer.h"

namespace ovq::tasks {

class Corpus {
 public:
  struct Document {
    std::string path;
    int64_t start = 0, tokens = 0;
    int64_t text_bytes = 0;
  };

  // Reads `path`: a file is one document, of a folder every .txt file in it, by name. Documents of fewer than
  // `min_tokens` are left out. Tokens of another tokenizer are a DataError.
  Corpus(const std::string& path, const text::Tokenizer& tokenizer, int64_t min_tokens);
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::vector<Document>& documents() const { return documents_; }
  int64_t tokens() const;  // of all documents

  // Copies the tokens of `document` from `offset` on.
  void read(const Document& document, int64_t offset, std::span<int32_t> out) const;

  // The document and offset of a window of `size` tokens that lie in one document.
  struct Window {
    const Document* document = nullptr;
    int64_t offset = 0;
  };
  // All starts are numbered: 0 <= index < overlapping_windows(size), neighbours one token apart.
  int64_t overlapping_windows(int64_t size) const;
  Window overlapping_window(int64_t size, int64_t index) const;
  // Windows side by side, document after document: the last token of one is the first of the next, since that one is
  // only ever a target of the former.
  int64_t adjacent_windows(int64_t size) const;
  Window adjacent_window(int64_t size, int64_t index) const;

 private:
  void map_tokens(const text::Tokenizer& tokenizer);
  void read_texts(const text::Tokenizer& tokenizer);
  void check_window(int64_t size) const;

  std::string path_;
  int64_t vocab_ = 0, token_bytes_ = 1;
  std::vector<std::byte> memory_;        // of texts
  std::optional<text::TokenFile> file_;  // instead
  const std::byte* tokens_ = nullptr;    // in either
  std::vector<Document> documents_;
};

}  // namespace ovq::tasks
