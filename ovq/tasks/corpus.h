// The documents of a text file or of a folder of .txt files, as tokens in memory: one, two or four bytes per token,
// depending on the vocabulary. Or the documents of a token file (text/token_file.h), which stay on disk.
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

  // Reads `path`: a file is one document; in a folder every .txt file is one, in the order of their names. Leaves out
  // documents of fewer than `min_tokens` tokens. A token file of another tokenizer is a DataError.
  Corpus(const std::string& path, const text::Tokenizer& tokenizer, int64_t min_tokens);
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  const std::vector<Document>& documents() const { return documents_; }
  int64_t tokens() const;  // of all documents

  // Copies the tokens of `document` from `offset` on.
  void read(const Document& document, int64_t offset, std::span<int32_t> out) const;

  // The position of a window of `size` tokens, which lies within one document.
  struct Window {
    const Document* document = nullptr;
    int64_t offset = 0;
  };
  // Windows at every start, numbered 0 <= index < overlapping_windows(size); neighbours are one token apart.
  int64_t overlapping_windows(int64_t size) const;
  Window overlapping_window(int64_t size, int64_t index) const;
  // Windows side by side, document after document. The last token of a window is also the first of the next, because in
  // the former it is only a target.
  int64_t adjacent_windows(int64_t size) const;
  Window adjacent_window(int64_t size, int64_t index) const;

 private:
  void map_tokens(const text::Tokenizer& tokenizer);
  void read_texts(const text::Tokenizer& tokenizer);
  void check_window(int64_t size) const;

  std::string path_;
  int64_t vocab_ = 0, token_bytes_ = 1;
  std::vector<std::byte> memory_;        // tokens of texts, or
  std::optional<text::TokenFile> file_;  // a token file
  const std::byte* tokens_ = nullptr;    // in `memory_` or in `file_`
  std::vector<Document> documents_;
};

}  // namespace ovq::tasks
