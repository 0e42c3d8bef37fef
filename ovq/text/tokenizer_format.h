// Reads the parts of a tokenizer.json: objects whose every field must be known, since an unknown one may change tokens.
// Errors are FormatErrors with the path of the field; make_json_tokenizer adds the name of the file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::text {

struct FormatError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void refuse_format(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw FormatError(message.str());
}

// The text in quotation marks for an error: one line, shortened if it is long.
std::string in_quotes(std::string_view text);
// The same for any value.
std::string shown_value(const nlohmann::json& value);

class FormatObject {
 public:
  // `value` must outlive the reader.
  FormatObject(const nlohmann::json& value, std::string path);

  const std::string& path() const { return path_; }
  std::string path_of(const std::string& field) const { return path_.empty() ? field : path_ + "." + field; }

  // nullptr if the field is absent or null.
  const nlohmann::json* find(const std::string& field);
  const nlohmann::json& at(const std::string& field, const char* expected);
  const nlohmann::json& array(const std::string& field);

  bool flag(const std::string& field, std::optional<bool> absent = std::nullopt);
  std::string text(const std::string& field, std::optional<std::string> absent = std::nullopt);
  int64_t number(const std::string& field, int64_t least, int64_t most);

  // These fields may be there, and change nothing.
  void ignore(std::initializer_list<const char*> fields);
  // Refuses the fields that nobody asked for.
  void finish() const;

  [[noreturn]] void refuse(const std::string& field, const nlohmann::json& came, const std::string& expected) const;

 private:
  const nlohmann::json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

// What is in a tokenizer.json. Vocabulary and merges are most of it and never become JSON values.
struct TokenizerSource {
  struct Span {
    size_t start = 0, size = 0;
  };
  struct Entry {
    Span token;
    int64_t id = 0;
  };
  struct Merge {
    Span left, right;
  };

  nlohmann::json rest;       // all but the fields "vocab" and "merges" of "model"
  std::string characters;    // of the spans
  std::vector<Entry> vocab;  // in the order of the file
  std::vector<Merge> merges;
  bool has_vocab = false, has_merges = false;

  std::string_view view(Span span) const { return std::string_view(characters).substr(span.start, span.size); }
};

TokenizerSource read_tokenizer_source(std::string_view file);
// Any other JSON file.
nlohmann::json read_format_json(std::string_view file);

}  // namespace ovq::text
