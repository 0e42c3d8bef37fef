// The documents of a text file or of a folder of .txt files, as tokens in memory: one, two or four bytes a token, as
// the vocabulary needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ovq/tasks/tokenizer.h"

namespace ovq::tasks {

// Whole content; errors begin with "[op]".
std::string read_text_file(const char* op, const std::string& path);

class Corpus {
 public:
  struct Document {
    std::string path;
    int64_t start = 0, tokens = 0;
  };

  // Reads `path`: a file is one document, of a folder every .txt file in it, by name. Documents of fewer than
  // `min_tokens` are left out.
  Corpus(const std::string& path, const Tokenizer& tokenizer, int64_t min_tokens);

  const std::vector<Document>& documents() const { return documents_; }
  int64_t tokens() const { return static_cast<int64_t>(bytes_.size()) / token_bytes_; }

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
  void check_window(int64_t size) const;

  std::string path_;
  int64_t token_bytes_ = 1;
  std::vector<uint8_t> bytes_;
  std::vector<Document> documents_;
};

}  // namespace ovq::tasks
