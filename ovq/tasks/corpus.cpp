#include "ovq/tasks/corpus.h"

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/text/documents.h"

namespace ovq::tasks {

Corpus::Corpus(const std::string& path, const text::Tokenizer& tokenizer, int64_t min_tokens)
    : path_(path), vocab_(tokenizer.vocab()), token_bytes_(text::bytes_of_tokens(vocab_)) {
  if (text::is_token_file(path)) {
    map_tokens(tokenizer);
  } else {
    read_texts(tokenizer);
  }
  int64_t longest = 0;
  const size_t count = documents_.size();
  for (const Document& document : documents_) longest = std::max(longest, document.tokens);
  std::erase_if(documents_, [&](const Document& document) { return document.tokens < min_tokens; });
  check_data(!documents_.empty(), "text", path, " has no document of at least ", min_tokens, " tokens; the longest of ",
             count, " has ", longest);
}

void Corpus::map_tokens(const text::Tokenizer& tokenizer) {
  file_.emplace(path_);
  check_data(file_->tokenizer() == tokenizer.identity(), "text", path_, " was made with another tokenizer, ",
             file_->tokenizer(), "; the task's is ", tokenizer.identity());
  tokens_ = file_->data();
  for (const text::TokenDocument& document : file_->documents()) {
    documents_.push_back(
        {.path = document.name, .start = document.start, .tokens = document.tokens, .text_bytes = document.text_bytes});
  }
}

void Corpus::read_texts(const text::Tokenizer& tokenizer) {
  int64_t start = 0;
  for (const std::string& path : text::document_paths("text", path_)) {
    const std::string content = text::read_text_file("text", path);
    std::vector<int32_t> tokens;
    try {
      tokens = tokenizer.encode_document(content);
    } catch (const std::invalid_argument& error) {
      fail_data("text", path, ": ", error.what());
    }
    documents_.push_back({.path = path,
                          .start = start,
                          .tokens = static_cast<int64_t>(tokens.size()),
                          .text_bytes = static_cast<int64_t>(content.size())});
    start += documents_.back().tokens;
    text::append_tokens(memory_, tokens, token_bytes_);
  }
  memory_.shrink_to_fit();
  tokens_ = memory_.data();
}

int64_t Corpus::tokens() const {
  int64_t count = 0;
  for (const Document& document : documents_) count += document.tokens;
  return count;
}

void Corpus::read(const Document& document, int64_t offset, std::span<int32_t> out) const {
  check(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= document.tokens, "text", "window of ", out.size(),
        " tokens at ", offset, " exceeds ", document.path, ", which has ", document.tokens);
  text::copy_tokens(out, tokens_ + (document.start + offset) * token_bytes_, token_bytes_);
  for (const int32_t token : out) {
    check_data(token >= 0 && token < vocab_, "text", path_, " holds token ", token, "; the tokenizer has ", vocab_);
  }
}

void Corpus::check_window(int64_t size) const {
  int64_t longest = 0;
  for (const Document& document : documents_) longest = std::max(longest, document.tokens);
  check_data(longest >= size, "text", path_, " has no document of at least ", size, " tokens; the longest of ",
             documents_.size(), " has ", longest);
}

int64_t Corpus::overlapping_windows(int64_t size) const {
  check_window(size);
  int64_t count = 0;
  for (const Document& document : documents_) count += std::max<int64_t>(0, document.tokens - size + 1);
  return count;
}

Corpus::Window Corpus::overlapping_window(int64_t size, int64_t index) const {
  for (const Document& document : documents_) {
    const int64_t here = std::max<int64_t>(0, document.tokens - size + 1);
    if (index < here) return {&document, index};
    index -= here;
  }
  fail("text", path_, " has fewer windows of ", size, " tokens than requested");
}

int64_t Corpus::adjacent_windows(int64_t size) const {
  check_window(size);
  int64_t count = 0;
  for (const Document& document : documents_) count += (document.tokens - 1) / (size - 1);
  return count;
}

Corpus::Window Corpus::adjacent_window(int64_t size, int64_t index) const {
  for (const Document& document : documents_) {
    const int64_t here = (document.tokens - 1) / (size - 1);
    if (index < here) return {&document, index * (size - 1)};
    index -= here;
  }
  fail("text", path_, " has fewer windows of ", size, " tokens than requested");
}

}  // namespace ovq::tasks
