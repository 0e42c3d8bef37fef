// The patterns of a tokenizer.json, which are in Oniguruma's syntax, run by PCRE2 with its JIT compiler. A pattern is
// translated first: what the two read differently is spelled out (\s, \w, \b, \p{Han}) or refused. The characters of a
// class like \p{L} are those of PCRE2's Unicode version: 14 in Debian 12, 16 in Oniguruma 6.9.10.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ovq::text {

// The pattern as PCRE2 takes it. FormatError for what means something else there, or nothing.
std::string translated_pattern(std::string_view oniguruma);

class Regex {
 public:
  // FormatError if the pattern is empty, is not one, or cannot be translated.
  explicit Regex(std::string_view oniguruma);

  struct Match {
    size_t begin = 0, end = 0;
  };
  // The first match at or after `from` in valid text. std::invalid_argument if PCRE2 gives up, which needs a pattern
  // that takes exponential time. May be called by several threads.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

// Every match in order, as Oniguruma's Rust interface finds them: an empty one does not follow another directly.
template <class Each>
void for_each_match(const Regex& regex, std::string_view text, const Each& each) {
  std::optional<size_t> last_end;
  for (size_t from = 0; from <= text.size();) {
    const auto match = regex.find(text, from);
    if (!match) return;
    if (match->begin == match->end && match->end == last_end) {
      do ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80);
      continue;
    }
    from = match->end;
    last_end = match->end;
    each(*match);
  }
}

}  // namespace ovq::text
