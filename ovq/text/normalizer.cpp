#include "ovq/text/normalizer.h"

namespace ovq::text {
namespace {

std::optional<NormalForm> form_named(std::string_view name) {
  if (name == "NFC") return NormalForm::nfc;
  if (name == "NFD") return NormalForm::nfd;
  if (name == "NFKC") return NormalForm::nfkc;
  if (name == "NFKD") return NormalForm::nfkd;
  return std::nullopt;
}

}  // namespace

Pattern::Pattern(const nlohmann::json& value, const std::string& path) {
  FormatObject object(value, path);
  if (object.find("Regex") != nullptr) {
    regex_.emplace(object.text("Regex"));
  } else {
    string_ = object.text("String");
    if (string_.empty()) refuse_format(path, ".String is empty");
  }
  object.finish();
}

std::string_view replaced(std::string_view text, const Pattern& pattern, std::string_view content,
                          std::string& buffer) {
  size_t done = 0;
  bool changed = false;
  pattern.for_each(text, [&](Regex::Match match) {
    if (!changed) buffer.clear();
    changed = true;
    buffer += text.substr(done, match.begin - done);
    buffer += content;
    done = match.end;
  });
  if (!changed) return text;
  buffer += text.substr(done);
  return buffer;
}

Normalizer::Normalizer(const nlohmann::json& value, const std::string& path) { add(value, path); }

void Normalizer::add(const nlohmann::json& value, const std::string& path) {
  FormatObject object(value, path);
  const std::string type = object.text("type");
  if (type == "Sequence") {
    const nlohmann::json& list = object.array("normalizers");
    for (size_t i = 0; i < list.size(); ++i) add(list[i], path + ".normalizers[" + std::to_string(i) + "]");
  } else if (const auto form = form_named(type)) {
    steps_.push_back({.kind = Kind::form, .form = *form});
  } else if (type == "Lowercase") {
    steps_.push_back({.kind = Kind::lower_case});
  } else if (type == "Prepend") {
    steps_.push_back({.kind = Kind::prepend, .content = object.text("prepend")});
  } else if (type == "Replace") {
    const nlohmann::json& pattern = object.at("pattern", "an object");
    steps_.push_back({.kind = Kind::replace,
                      .content = object.text("content"),
                      .pattern = Pattern(pattern, object.path_of("pattern"))});
  } else {
    refuse_format(object.path_of("type"), " is ", in_quotes(type),
                  "; must be NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace or Sequence");
  }
  object.finish();
}

std::string_view Normalizer::apply(std::string_view text, bool prepends, std::string& buffer) const {
  std::string other;
  for (const Step& step : steps_) {
    // `text` may be the content of `buffer`: the next one is made in `other`.
    std::string_view next = text;
    switch (step.kind) {
      case Kind::form:
        next = normal_form(text, step.form, other);
        break;
      case Kind::lower_case:
        other = lower_case(text);
        next = other;
        break;
      case Kind::prepend:
        if (!prepends || text.empty()) break;
        other.assign(step.content).append(text);
        next = other;
        break;
      case Kind::replace:
        next = replaced(text, *step.pattern, step.content, other);
        break;
    }
    if (next.data() == text.data() && next.size() == text.size()) continue;
    buffer.swap(other);
    text = buffer;
  }
  return text;
}

bool Normalizer::adds_first_space() const {
  for (const Step& step : steps_) {
    if (step.kind == Kind::prepend && !step.content.empty()) return true;
  }
  return false;
}

}  // namespace ovq::text
