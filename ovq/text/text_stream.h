// Converts tokens to text as they arrive. Incomplete characters are held back, and so is text that may turn out to be a
// stop string. All output is valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::text {

class TextStream {
 public:
  // The tokenizer must outlive the stream. Place::start: the first token begins a text.
  TextStream(const Tokenizer& tokenizer, Place place, std::vector<std::string> stops = {});

  // Returns the text that can be shown after this token; at a stop string the text before it, afterwards nothing.
  std::string add(int32_t token);
  // Returns the text held back, with incomplete characters as U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string released(std::string characters);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  bool drop_space_;
  std::string bytes_;  // of an incomplete character
  std::string held_;   // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace ovq::text
