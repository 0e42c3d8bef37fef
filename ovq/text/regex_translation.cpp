#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>

#include "ovq/text/regex.h"
#include "ovq/text/tokenizer_format.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

// The content of classes. PCRE2's \s also has U+180E; its \w lacks marks, and the fractions and squares that Oniguruma
// has among the first 256 characters.
constexpr std::string_view kSpaces =
    R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNoSpaces =
    R"(\x{00}-\x{08}\x{0e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027})"
    R"(\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
constexpr std::string_view kHexDigits = "0-9A-Fa-f";

constexpr auto kCategories = std::to_array<std::string_view>(
    {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe",
     "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cs", "Co", "Cn"});

constexpr size_t kDeepestGroup = 100;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_set_escape(char c) { return std::string_view("sSwhdDpP").find(c) != std::string_view::npos; }

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  std::string translated() {
    if (take("(?i)")) {
      result_ += "(?i)";
      caseless_.back() = true;
    }
    while (!rest().empty()) element();
    return std::move(result_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }
  char next() const { return at_ < pattern_.size() ? pattern_[at_] : '\0'; }
  bool take(std::string_view text) {
    const bool there = rest().starts_with(text);
    if (there) at_ += text.size();
    return there;
  }
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_format("the pattern ", in_quotes(pattern_), " has ", what, ", which is not supported");
  }

  void element() {
    const char c = next();
    if (c != '\\' && !is_letter(c)) last_letter_ = '\0';
    if (c == '\\') {
      ++at_;
      escape();
    } else if (c == '[') {
      character_class();
    } else if (c == '(') {
      open_group();
    } else if (c == ')') {
      if (caseless_.size() == 1) refuse("a ) without (");
      caseless_.pop_back();
      result_ += c;
      ++at_;
    } else if (c == '{') {
      interval();
    } else if (c == '*' || c == '+' || c == '?' || c == '^' || c == '$' || c == '.' || c == '|') {
      result_ += c;
      ++at_;
    } else {
      literal();
    }
  }

  // Oniguruma's caseless letters may match characters that stand for several, like the ligature of "fi".
  void literal() {
    const CodePoint character = first_code_point(rest());
    if (caseless_.back()) {
      if (character.value >= 0x80) refuse("a character beyond ASCII without case");
      const char lower = static_cast<char>(pattern_[at_] | (is_letter(pattern_[at_]) ? 0x20 : 0));
      const std::string pair{last_letter_, lower};
      for (const char* joined : {"ff", "fi", "fl", "st", "ss"}) {
        if (pair == joined) refuse("\"" + pair + "\" without case");
      }
      last_letter_ = lower;
    }
    result_ += pattern_.substr(at_, character.size);
    at_ += character.size;
  }

  void open_group() {
    if (caseless_.size() == kDeepestGroup) refuse("groups deeper than " + std::to_string(kDeepestGroup));
    bool caseless = caseless_.back();
    bool known = false;
    for (const char* start : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (known || !take(start)) continue;
      known = true;
      result_ += start;
    }
    for (const bool on : {true, false}) {
      const char* start = on ? "(?i:" : "(?-i:";
      if (known || !take(start)) continue;
      known = true;
      result_ += start;
      caseless = on;
    }
    if (!known) {
      if (rest().starts_with("(?") || rest().starts_with("(*")) refuse("the group " + in_quotes(rest().substr(0, 4)));
      result_ += "(?:";  // nothing refers to what it holds
      ++at_;
    }
    caseless_.push_back(caseless);
  }

  // {n}, {n,}, {,m} or {n,m}; anything else is a brace.
  void interval() {
    size_t end = at_ + 1;
    const auto number = [&] {
      const size_t start = end;
      while (end < pattern_.size() && is_digit(pattern_[end])) ++end;
      return std::string(pattern_.substr(start, end - start));
    };
    const std::string least = number();
    const bool comma = end < pattern_.size() && pattern_[end] == ',';
    if (comma) ++end;
    const std::string most = comma ? number() : least;
    if (end == pattern_.size() || pattern_[end] != '}' || (least.empty() && most.empty())) {
      result_ += "\\{";
      ++at_;
      return;
    }
    if (least.size() > 4 || most.size() > 4) refuse("an interval of more than 9999");
    if (!most.empty() && !least.empty() && std::stoi(most) < std::stoi(least))
      refuse("an interval that runs backwards");
    at_ = end + 1;
    if (next() == '+') refuse("a + after an interval");
    if (next() == '?' && !comma) refuse("a ? after a fixed interval");
    result_ += "{" + (least.empty() ? "0" : least) + (comma ? "," + most : "") + "}";
  }

  // After a backslash outside of a class.
  void escape() {
    const char c = next();
    switch (c) {
      case 'b':
      case 'B': {
        const std::string word = "[" + std::string(kWord) + "]";
        const std::string border = "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
        result_ += c == 'b' ? border : "(?!" + border + ")";
        ++at_;
        return;
      }
      case 'A':
      case 'z':
      case 'Z':
        result_ += {'\\', c};
        ++at_;
        return;
      case 'S':
      case 's':
        wrap(kSpaces, c == 'S');
        return;
      case 'W':
      case 'w':
        wrap(kWord, c == 'W');
        return;
      case 'H':
      case 'h':
        wrap(kHexDigits, c == 'H');
        return;
      default:
        result_ += character_escape();
    }
  }
  void wrap(std::string_view content, bool negated) {
    result_ += (negated ? "[^" : "[") + std::string(content) + "]";
    ++at_;
  }

  // After a backslash anywhere: \p{..}, \d, a character by number or name, or one that stands for itself.
  std::string character_escape() {
    if (at_ == pattern_.size()) refuse("a backslash at its end");
    const char c = next();
    switch (c) {
      case 'p':
      case 'P':
        return property();
      case 'd':
      case 'D':
        ++at_;
        return c == 'd' ? "\\p{Nd}" : "\\P{Nd}";
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        ++at_;
        return {'\\', c};
      case 'v':
        ++at_;
        return "\\x{0b}";
      case 'x':
      case 'u':
        return numbered();
      default:
        break;
    }
    if (is_letter(c) || is_digit(c)) refuse("\\" + std::string(1, c));
    const CodePoint character = first_code_point(rest());
    if (character.value >= 0x80 && caseless_.back()) refuse("a character beyond ASCII without case");
    std::string text = (character.value < 0x80 ? "\\" : "") + std::string(rest().substr(0, character.size));
    at_ += character.size;
    return text;
  }

  // \xHH, \x{H...} or \uHHHH
  std::string numbered() {
    const bool wide = next() == 'u';
    ++at_;
    const bool braced = !wide && take("{");
    const size_t most = wide ? 4 : braced ? 6 : 2;
    uint32_t value = 0;
    size_t digits = 0;
    for (; digits < most && std::isxdigit(static_cast<unsigned char>(next())); ++digits, ++at_)
      value = value * 16 + static_cast<uint32_t>(std::stoi(std::string(1, next()), nullptr, 16));
    const bool complete = digits > 0 && (!wide || digits == most) && (!braced || take("}"));
    const bool exists = value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    if (!complete || !exists) refuse("a character by a number that is none");
    if (!wide && !braced && value >= 0x80) refuse("a byte by its number");
    if (caseless_.back()) refuse("a character by its number without case");
    std::array<char, 16> text;
    std::snprintf(text.data(), text.size(), "\\x{%02x}", static_cast<unsigned>(value));
    return text.data();
  }

  // \p{L}, \p{^L}, \P{L}; a name of more than two letters is a script.
  std::string property() {
    bool negated = next() == 'P';
    ++at_;
    if (!take("{")) refuse("a property without braces");
    if (take("^")) negated = !negated;
    const size_t end = rest().find('}');
    if (end == std::string_view::npos) refuse("a property without an end");
    const std::string name(rest().substr(0, end));
    at_ += end + 1;
    const bool category = std::find(kCategories.begin(), kCategories.end(), name) != kCategories.end();
    const bool script =
        name.size() > 2 && std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || c == '_'; });
    if (!category && !script) refuse("the property " + in_quotes(name));
    if (caseless_.back() && (name == "Lu" || name == "Ll" || name == "Lt"))
      refuse("the property " + name + " without case");
    return (negated ? "\\P{" : "\\p{") + (category ? name : "sc:" + name) + "}";
  }

  void character_class() {
    result_ += '[';
    ++at_;
    if (take("^")) result_ += '^';
    if (next() == ']') refuse("a class that begins with ]");
    const size_t first = at_;
    bool after_set = false;  // like \s or \p{L}, which cannot begin or end a range
    while (next() != ']' || at_ == pattern_.size()) {
      if (at_ == pattern_.size()) refuse("a class without an end");
      const char c = next();
      if (c == '-' && after_set && !rest().starts_with("-]")) refuse("a - after a set");
      if (c == '-' && at_ > first && rest().size() > 2 && rest()[1] == '\\' && is_set_escape(rest()[2]))
        refuse("a - before a set");
      after_set = c == '\\' && rest().size() > 1 && is_set_escape(rest()[1]);
      if (c == '[') refuse("a class within a class");
      if (rest().starts_with("&&")) refuse("&& in a class");
      if (c == '\\') {
        ++at_;
        class_escape();
        continue;
      }
      const CodePoint character = first_code_point(rest());
      if (character.value >= 0x80 && caseless_.back()) refuse("a character beyond ASCII without case");
      if (c == '^') result_ += '\\';
      result_ += rest().substr(0, character.size);
      at_ += character.size;
    }
    result_ += ']';
    ++at_;
  }

  // After a backslash within a class.
  void class_escape() {
    const char c = next();
    const std::string_view content = c == 's'   ? kSpaces
                                     : c == 'S' ? kNoSpaces
                                     : c == 'w' ? kWord
                                     : c == 'h' ? kHexDigits
                                                : "";
    if (!content.empty()) {
      result_ += content;
      ++at_;
    } else if (c == 'b') {
      result_ += "\\x{08}";
      ++at_;
    } else {
      result_ += character_escape();
    }
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string result_;
  std::vector<bool> caseless_ = {false};  // for each open group
  char last_letter_ = '\0';
};

}  // namespace

std::string translated_pattern(std::string_view oniguruma) { return PatternTranslator(oniguruma).translated(); }

}  // namespace ovq::text
