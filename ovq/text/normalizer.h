// The normalizer of a tokenizer.json: changes to a text before it is split. NFC, NFD, NFKC, NFKD, Lowercase, Prepend,
// Replace and sequences of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/regex.h"
#include "ovq/text/tokenizer_format.h"
#include "ovq/text/unicode.h"

namespace ovq::text {

// "pattern" of Replace and Split: a string or a regular expression.
class Pattern {
 public:
  // FormatError unless `value` is {"String": text} or {"Regex": text}, neither empty.
  Pattern(const nlohmann::json& value, const std::string& path);

  template <class Each>
  void for_each(std::string_view text, const Each& each) const {
    if (regex_) {
      for_each_match(*regex_, text, each);
      return;
    }
    for (size_t at = text.find(string_); at != std::string_view::npos; at = text.find(string_, at + string_.size()))
      each(Regex::Match{at, at + string_.size()});
  }

 private:
  std::string string_;
  std::optional<Regex> regex_;
};

// `text` with every match replaced; `text` itself if there is none, otherwise the content of `buffer`.
std::string_view replaced(std::string_view text, const Pattern& pattern, std::string_view content, std::string& buffer);

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  Normalizer(const nlohmann::json& value, const std::string& path);

  // `text` itself or the content of `buffer`. `prepends`: what Prepend adds is added.
  std::string_view apply(std::string_view text, bool prepends, std::string& buffer) const;
  // Whether it adds a space at the start of a text.
  bool adds_first_space() const;

 private:
  enum class Kind { form, lower_case, prepend, replace };
  struct Step {
    Kind kind = Kind::form;
    NormalForm form = NormalForm::nfc;
    std::string content;
    std::optional<Pattern> pattern;
  };

  void add(const nlohmann::json& value, const std::string& path);

  std::vector<Step> steps_;
};

}  // namespace ovq::text
