// Tokens to text as they come: characters are held back until they are complete, and what may become a stop string
// until it is one or cannot be. All text that comes out is valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::text {

class TextStream {
 public:
  // The tokenizer must outlive it. Place::start: the first token begins a text.
  TextStream(const Tokenizer& tokenizer, Place place, std::vector<std::string> stops = {});

  // What can be shown after this token. After a stop string: what came before it, then nothing more.
  std::string add(int32_t token);
  // What was held back, characters that never became complete as U+FFFD.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::string released(std::string characters);

  const Tokenizer& tokenizer_;
  std::vector<std::string> stops_;
  bool drop_space_;
  std::string bytes_;  // of a character that is not complete
  std::string held_;   // may begin a stop string
  bool stopped_ = false;
};

}  // namespace ovq::text
