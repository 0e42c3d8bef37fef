#include "ovq/text/tokenizer_format.h"

#include <algorithm>
#include <limits>

#include "ovq/base/closest.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 64;
constexpr size_t kMostValues = 2'000'000;  // besides vocabulary and merges; the largest file known has 30,000
constexpr size_t kLongestShown = 60;

// Makes values like json::parse, but not deeper than kDeepest nor more than kMostValues, refuses names that occur
// twice, and leaves aside vocabulary and merges if there is a `source` to put them into.
class FormatReader final : public nlohmann::json_sax<json> {
 public:
  FormatReader(json& root, TokenizerSource* source) : root_(root), source_(source) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool it) override { return value(it); }
  bool number_integer(number_integer_t it) override { return part_ == Part::vocab ? entry(it) : value(it); }
  bool number_float(number_float_t it, const string_t&) override { return value(it); }
  bool binary(binary_t&) override { return false; }

  bool number_unsigned(number_unsigned_t it) override {
    if (part_ != Part::vocab) return value(it);
    return entry(static_cast<int64_t>(std::min<number_unsigned_t>(it, std::numeric_limits<int64_t>::max())));
  }

  bool string(string_t& it) override {
    if (part_ == Part::merges) return merge(it);
    if (part_ == Part::pair) {
      pair_.push_back(stored(it));
      if (pair_.size() > 2) refuse_merge("more than two tokens");
      return true;
    }
    return value(it);
  }

  bool key(string_t& it) override {
    if (part_ == Part::vocab) {
      token_ = stored(it);
      return true;
    }
    if (stack_.back()->contains(it)) refuse_format("the field ", in_quotes(it), " is there twice");
    key_ = it;
    if (stack_.size() == 1) top_ = it;
    return true;
  }

  bool start_object(size_t) override {
    if (is_field("vocab")) {
      refuse_second(source_->has_vocab, "vocab");
      part_ = Part::vocab;
      return true;
    }
    open(json::object());
    return true;
  }
  bool end_object() override {
    if (part_ == Part::vocab) {
      part_ = Part::other;
      return true;
    }
    close();
    return true;
  }

  bool start_array(size_t) override {
    if (is_field("merges")) {
      refuse_second(source_->has_merges, "merges");
      part_ = Part::merges;
      return true;
    }
    if (part_ == Part::merges) {
      part_ = Part::pair;
      pair_.clear();
      return true;
    }
    open(json::array());
    return true;
  }
  bool end_array() override {
    if (part_ == Part::pair) {
      if (pair_.size() != 2) refuse_merge("fewer than two tokens");
      source_->merges.push_back({pair_[0], pair_[1]});
      part_ = Part::merges;
      return true;
    }
    if (part_ == Part::merges) {
      part_ = Part::other;
      return true;
    }
    close();
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    refuse_format("it is not JSON at byte ", position);
  }

 private:
  enum class Part { other, vocab, merges, pair };

  bool is_field(const char* name) const {
    return source_ != nullptr && part_ == Part::other && stack_.size() == 2 && root_.is_object() && top_ == "model" &&
           stack_.back()->is_object() && key_ == name;
  }
  static void refuse_second(bool& there, const char* name) {
    if (there) refuse_format("the field \"", name, "\" is there twice");
    there = true;
  }

  TokenizerSource::Span stored(std::string_view text) {
    const TokenizerSource::Span span{source_->characters.size(), text.size()};
    source_->characters += text;
    return span;
  }

  bool entry(int64_t id) {
    source_->vocab.push_back({token_, id});
    return true;
  }

  bool merge(std::string_view text) {
    if (text.starts_with("#version")) return true;  // the first line of a merges.txt
    const size_t space = text.find(' ');
    if (space == 0 || space >= text.size() - 1 || text.find(' ', space + 1) != std::string_view::npos)
      refuse_merge(in_quotes(text));
    const TokenizerSource::Span left = stored(text.substr(0, space));
    source_->merges.push_back({left, stored(text.substr(space + 1))});
    return true;
  }
  [[noreturn]] void refuse_merge(const std::string& came) const {
    refuse_format("model.merges[", source_->merges.size(), "] is ", came, "; must be two tokens");
  }

  bool value(json it) {
    if (part_ == Part::vocab)
      refuse_format("model.vocab: ", in_quotes(source_->view(token_)), " is ", shown_value(it), "; must be an integer");
    if (part_ != Part::other) refuse_merge(shown_value(it));
    place(std::move(it));
    return true;
  }
  json& place(json it) {
    if (++values_ > kMostValues) refuse_format("it has more than ", kMostValues, " values");
    if (stack_.empty()) return root_ = std::move(it);
    json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(it));
      return parent.back();
    }
    return parent[key_] = std::move(it);
  }
  void open(json it) {
    if (part_ == Part::vocab)
      refuse_format("model.vocab: ", in_quotes(source_->view(token_)), " is a list or object; must be an integer");
    if (part_ != Part::other) refuse_merge("no list of two strings");
    if (stack_.size() == kDeepest) refuse_format("its values are nested deeper than ", kDeepest);
    stack_.push_back(&place(std::move(it)));
  }
  void close() { stack_.pop_back(); }

  json& root_;
  TokenizerSource* source_;
  std::vector<json*> stack_;  // the values that are not closed yet
  std::string key_, top_;     // of the next value, and of the field of the whole file that it is in
  size_t values_ = 0;
  Part part_ = Part::other;
  TokenizerSource::Span token_;
  std::vector<TokenizerSource::Span> pair_;
};

}  // namespace

std::string in_quotes(std::string_view text) {
  const std::string_view start = text.substr(0, std::min(text.size(), kLongestShown));
  const std::string whole(start.substr(0, complete_prefix(start)));
  return json(whole).dump(-1, ' ', false, json::error_handler_t::replace) + (whole.size() < text.size() ? "..." : "");
}

std::string shown_value(const json& value) {
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return value.dump();
}

FormatObject::FormatObject(const json& value, std::string path) : object_(value), path_(std::move(path)) {
  if (!value.is_object())
    refuse_format(path_.empty() ? "it" : path_, " is ", shown_value(value), "; must be an object");
}

const json* FormatObject::find(const std::string& field) {
  known_.push_back(field);
  const auto at = object_.find(field);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

const json& FormatObject::at(const std::string& field, const char* expected) {
  const json* value = find(field);
  if (value == nullptr) refuse_format(path_of(field), " is missing; must be ", expected);
  return *value;
}

const json& FormatObject::array(const std::string& field) {
  const json& value = at(field, "a list");
  if (!value.is_array()) refuse(field, value, "a list");
  return value;
}

bool FormatObject::flag(const std::string& field, std::optional<bool> absent) {
  const json* value = find(field);
  if (value == nullptr && absent) return *absent;
  if (value == nullptr) refuse_format(path_of(field), " is missing; must be true or false");
  if (!value->is_boolean()) refuse(field, *value, "true or false");
  return value->get<bool>();
}

std::string FormatObject::text(const std::string& field, std::optional<std::string> absent) {
  const json* value = find(field);
  if (value == nullptr && absent) return *absent;
  if (value == nullptr) refuse_format(path_of(field), " is missing; must be a string");
  if (!value->is_string()) refuse(field, *value, "a string");
  return value->get<std::string>();
}

int64_t FormatObject::number(const std::string& field, int64_t least, int64_t most) {
  const std::string range = "an integer within " + std::to_string(least) + " and " + std::to_string(most);
  const json& value = at(field, range.c_str());
  const bool fits = value.is_number_integer() && value.get<int64_t>() >= least && value.get<int64_t>() <= most &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(most));
  if (!fits) refuse(field, value, range);
  return value.get<int64_t>();
}

void FormatObject::ignore(std::initializer_list<const char*> fields) {
  known_.insert(known_.end(), fields.begin(), fields.end());
}

void FormatObject::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    const std::string kind = path_.empty() ? "field" : "field of " + path_;
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (!plain || name.size() > kLongestShown) refuse_format("unknown ", kind, " ", in_quotes(name));
    refuse_format(unknown_name(kind, name, known_));
  }
}

void FormatObject::refuse(const std::string& field, const json& came, const std::string& expected) const {
  refuse_format(path_of(field), " is ", shown_value(came), "; must be ", expected);
}

TokenizerSource read_tokenizer_source(std::string_view file) {
  TokenizerSource source;
  FormatReader reader(source.rest, &source);
  json::sax_parse(file.begin(), file.end(), &reader);
  return source;
}

json read_format_json(std::string_view file) {
  json root;
  FormatReader reader(root, nullptr);
  json::sax_parse(file.begin(), file.end(), &reader);
  return root;
}

}  // namespace ovq::text
