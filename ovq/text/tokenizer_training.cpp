#include "ovq/text/tokenizer_training.h"

#include <algorithm>

#include "ovq/text/documents.h"
#include "ovq/text/sentencepiece_plugin.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr size_t kLongestLine = 4000;  // bytes; the trainer skips lines that are not much longer

// The lines of documents; long lines are split, before a space if possible.
class Lines {
 public:
  explicit Lines(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  bool next(std::string& line) {
    while (at_ == text_.size()) {
      if (document_ == paths_.size()) return false;
      text_ = read_utf8_file("tokenizer", paths_[document_++]);
      at_ = 0;
    }
    size_t end = std::min(text_.find('\n', at_), text_.size());
    const bool whole = end - at_ <= kLongestLine;
    if (!whole) end = cut(at_ + kLongestLine);
    line.assign(text_, at_, end - at_);
    at_ = whole ? std::min(end + 1, text_.size()) : end;
    return true;
  }

 private:
  size_t cut(size_t most) const {
    const size_t space = text_.rfind(' ', most);
    return space != std::string::npos && space > at_ ? space : at_ + complete_prefix(text_.substr(at_, most - at_));
  }

  std::vector<std::string> paths_;
  size_t document_ = 0;
  std::string text_;
  size_t at_ = 0;
};

}  // namespace

std::string train_tokenizer(const std::vector<std::string>& paths, const TokenizerTraining& options) {
  check_fields("tokenizer", options);
  Lines lines(document_paths("tokenizer", paths));
  return sentencepiece_plugin().train(options, [&](std::string& line) { return lines.next(line); });
}

}  // namespace ovq::text
