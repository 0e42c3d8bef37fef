#include "ovq/tasks/corpus.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <system_error>

#include "ovq/base/error.h"

namespace ovq::tasks {

namespace fs = std::filesystem;

std::string read_text_file(const char* op, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  check_data(fs::is_regular_file(path) && file, op, path, " cannot be read; expected a file");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  check_data(!file.bad(), op, path, " cannot be read to its end");
  check_data(!text.empty(), op, path, " is empty");
  return text;
}

namespace {

std::vector<std::string> document_paths(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  check_data(fs::exists(status), "text", path.empty() ? "\"\"" : path,
             " does not exist; expected a text file or a folder of .txt files");
  if (!fs::is_directory(status)) return {path};
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && entry.path().extension() == ".txt") paths.push_back(entry.path().string());
  }
  check_data(!error, "text", path, " cannot be read: ", error.message());
  check_data(!paths.empty(), "text", path, " has no .txt file");
  std::sort(paths.begin(), paths.end());
  return paths;
}

template <class Stored>
void append(std::vector<uint8_t>& bytes, const std::vector<int32_t>& tokens) {
  const size_t before = bytes.size();
  bytes.resize(before + tokens.size() * sizeof(Stored));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto stored = static_cast<Stored>(tokens[i]);
    std::memcpy(bytes.data() + before + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

template <class Stored>
void copy(const uint8_t* bytes, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * sizeof(Stored), sizeof(Stored));
    out[i] = static_cast<int32_t>(stored);
  }
}

template <class Stored>
bool holds_tokens(int64_t vocab) {
  return vocab - 1 <= static_cast<int64_t>(std::numeric_limits<Stored>::max());
}

// The fewest that any token fits into.
int64_t bytes_of_tokens(int64_t vocab) {
  if (holds_tokens<uint8_t>(vocab)) return sizeof(uint8_t);
  return holds_tokens<uint16_t>(vocab) ? sizeof(uint16_t) : sizeof(uint32_t);
}

}  // namespace

Corpus::Corpus(const std::string& path, const Tokenizer& tokenizer, int64_t min_tokens)
    : path_(path), token_bytes_(bytes_of_tokens(tokenizer.vocab())) {
  int64_t longest = 0;
  const std::vector<std::string> paths = document_paths(path);
  for (const std::string& document : paths) {
    const std::vector<int32_t> tokens = tokenizer.encode(read_text_file("text", document));
    const auto count = static_cast<int64_t>(tokens.size());
    longest = std::max(longest, count);
    if (count < min_tokens) continue;
    documents_.push_back({.path = document, .start = this->tokens(), .tokens = count});
    if (token_bytes_ == 1) append<uint8_t>(bytes_, tokens);
    if (token_bytes_ == 2) append<uint16_t>(bytes_, tokens);
    if (token_bytes_ == 4) append<uint32_t>(bytes_, tokens);
  }
  check_data(!documents_.empty(), "text", path, " has no document of ", min_tokens, " tokens; the longest of ",
             paths.size(), " has ", longest);
  bytes_.shrink_to_fit();
}

void Corpus::read(const Document& document, int64_t offset, std::span<int32_t> out) const {
  check(offset >= 0 && offset + static_cast<int64_t>(out.size()) <= document.tokens, "text", "window of ", out.size(),
        " tokens at ", offset, " leaves ", document.path, ", which has ", document.tokens);
  const uint8_t* bytes = bytes_.data() + (document.start + offset) * token_bytes_;
  if (token_bytes_ == 1) copy<uint8_t>(bytes, out);
  if (token_bytes_ == 2) copy<uint16_t>(bytes, out);
  if (token_bytes_ == 4) copy<uint32_t>(bytes, out);
}

void Corpus::check_window(int64_t size) const {
  int64_t longest = 0;
  for (const Document& document : documents_) longest = std::max(longest, document.tokens);
  check_data(longest >= size, "text", path_, " has no document of ", size, " tokens; the longest of ",
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
  fail("text", path_, " has fewer windows of ", size, " tokens than asked for");
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
  fail("text", path_, " has fewer windows of ", size, " tokens than asked for");
}

}  // namespace ovq::tasks
