#include "ovq/text/text_stream.h"

#include <algorithm>

#include "ovq/base/error.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

// The length of the longest suffix of the text that is a prefix of `stop`.
size_t overlap(std::string_view text, std::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (stop.starts_with(text.substr(text.size() - size))) return size;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, Place place, std::vector<std::string> stops)
    : tokenizer_(tokenizer),
      stops_(std::move(stops)),
      drop_space_(place == Place::start && tokenizer.adds_first_space()) {
  for (const std::string& stop : stops_) check(!stop.empty(), "generate", "a stop string is empty");
}

std::string TextStream::add(int32_t token) {
  if (stopped_) return {};
  std::string added = tokenizer_.token_bytes(token);
  if (drop_space_ && !added.empty()) {
    if (added.front() == ' ') added.erase(0, 1);
    drop_space_ = false;
  }
  bytes_ += added;
  const size_t complete = complete_prefix(bytes_);
  std::string characters = repaired(std::string_view(bytes_).substr(0, complete));
  bytes_.erase(0, complete);
  return released(std::move(characters));
}

std::string TextStream::released(std::string characters) {
  if (stops_.empty()) return characters;
  held_ += characters;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  size_t keep = 0;
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
  } else {
    for (const std::string& stop : stops_) keep = std::max(keep, overlap(held_, stop));
  }
  std::string result = held_.substr(0, held_.size() - keep);
  held_.erase(0, result.size());
  return result;
}

std::string TextStream::finish() {
  if (stopped_) return {};
  const std::string result = held_ + repaired(bytes_);
  held_.clear();
  bytes_.clear();
  return result;
}

}  // namespace ovq::text
