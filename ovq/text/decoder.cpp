#include "ovq/text/decoder.h"

#include "ovq/text/bpe.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

constexpr std::string_view kNoCharacter = "\xef\xbf\xbd";  // U+FFFD

// The byte of a token like <0x0A>; -1 for others.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with(">")) return -1;
  int byte = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    // Rust's parser of numbers, which Hugging Face uses, takes a sign.
    if (digit < 0 && !(c == '+' && &c == &token[3])) return -1;
    byte = byte * 16 + std::max(digit, 0);
  }
  return byte;
}

std::string bytes_or_itself(std::string_view token) { return bytes_of_token(token).value_or(std::string(token)); }

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

std::vector<std::string> without_fallback_bytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto finish = [&] {
    if (bytes.empty()) return;
    if (valid_prefix(bytes) == bytes.size()) {
      result.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) result.emplace_back(kNoCharacter);
    }
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = fallback_byte(token); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      finish();
      result.push_back(token);
    }
  }
  finish();
  return result;
}

}  // namespace

Decoder::Decoder(const nlohmann::json& value, const std::string& path) { add(value, path); }

void Decoder::add(const nlohmann::json& value, const std::string& path) {
  FormatObject object(value, path);
  const std::string type = object.text("type");
  const bool for_tokens = type == "ByteLevel" || type == "Replace" || type == "ByteFallback" || type == "Metaspace";
  if (for_tokens && fused_) refuse_format(path, ": ", type, " follows what joins the tokens to one text");
  if (type == "Sequence") {
    const nlohmann::json& list = object.array("decoders");
    for (size_t i = 0; i < list.size(); ++i) add(list[i], path + ".decoders[" + std::to_string(i) + "]");
  } else if (type == "ByteLevel") {
    object.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    steps_.push_back({.kind = Kind::byte_level});
    fused_ = true;
  } else if (type == "Replace") {
    const nlohmann::json& pattern = object.at("pattern", "an object");
    steps_.push_back({.kind = Kind::replace,
                      .pattern = Pattern(pattern, object.path_of("pattern")),
                      .content = object.text("content")});
  } else if (type == "ByteFallback") {
    steps_.push_back({.kind = Kind::byte_fallback});
  } else if (type == "Fuse") {
    steps_.push_back({.kind = Kind::fuse});
    fused_ = true;
  } else if (type == "Strip") {
    // What is stripped from the end of a text is known only at its end; no published file does it.
    const int64_t start = object.number("start", 0, 1);
    object.number("stop", 0, 0);
    const std::string content = object.text("content");
    if (content != " ") object.refuse("content", content, "a space");
    if (start == 1) steps_.push_back({.kind = Kind::strip, .whole = fused_});
    strips_first_space_ = strips_first_space_ || (start == 1 && fused_);
  } else if (type == "Metaspace") {
    object.ignore({"split", "str_rep"});
    const bool older = object.flag("add_prefix_space", true);
    const std::string scheme = object.text("prepend_scheme", older ? "always" : "never");
    const std::string space = object.text("replacement");
    if (space.empty() || first_code_point(space).size != space.size())
      object.refuse("replacement", space, "one character");
    steps_.push_back(
        {.kind = Kind::metaspace, .pattern = Pattern({{"String", space}}, path), .first_less = scheme != "never"});
    strips_first_space_ = strips_first_space_ || scheme != "never";
  } else {
    refuse_format(object.path_of("type"), " is ", in_quotes(type),
                  "; must be ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
  }
  object.finish();
}

void Decoder::apply(const Step& step, std::vector<std::string>& tokens) const {
  std::string buffer;
  switch (step.kind) {
    case Kind::byte_level: {
      std::string bytes;
      for (const std::string& token : tokens) bytes += bytes_or_itself(token);
      tokens = {repaired_parts(bytes)};
      break;
    }
    case Kind::replace:
      for (std::string& token : tokens) token = std::string(replaced(token, *step.pattern, step.content, buffer));
      break;
    case Kind::byte_fallback:
      tokens = without_fallback_bytes(tokens);
      break;
    case Kind::fuse:
      tokens = {joined(tokens)};
      break;
    case Kind::strip:
      for (std::string& token : tokens) token.erase(0, token.starts_with(' ') ? 1 : 0);
      break;
    case Kind::metaspace:
      for (size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = std::string(replaced(tokens[i], *step.pattern, i == 0 && step.first_less ? "" : " ", buffer));
      break;
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) apply(step, tokens);
  return joined(tokens);
}

std::string Decoder::token_bytes(std::string_view token) const {
  std::string text(token), buffer;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::byte_level:
        text = bytes_or_itself(text);
        break;
      case Kind::replace:
        text = std::string(replaced(text, *step.pattern, step.content, buffer));
        break;
      case Kind::byte_fallback:
        if (const int byte = fallback_byte(text); byte >= 0) text = std::string(1, static_cast<char>(byte));
        break;
      case Kind::strip:
        if (!step.whole && text.starts_with(' ')) text.erase(0, 1);
        break;
      case Kind::metaspace:
        text = std::string(replaced(text, *step.pattern, " ", buffer));
        break;
      case Kind::fuse:
        break;
    }
  }
  return text;
}

}  // namespace ovq::text
