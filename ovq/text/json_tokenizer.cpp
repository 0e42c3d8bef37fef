#include "ovq/text/json_tokenizer.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "ovq/base/error.h"
#include "ovq/text/added_tokens.h"
#include "ovq/text/bpe.h"
#include "ovq/text/decoder.h"
#include "ovq/text/normalizer.h"
#include "ovq/text/pre_tokenizer.h"
#include "ovq/text/utf8.h"

namespace ovq::text {
namespace {

using nlohmann::json;

BpeOptions bpe_options(const json& value, bool byte_level) {
  FormatObject model(value, "model");
  if (const json* type = model.find("type"); type != nullptr && *type != "BPE") model.refuse("type", *type, "BPE");
  for (const char* field : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const std::string text = model.text(field, ""); !text.empty()) model.refuse(field, text, "empty");
  }
  if (const json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0)
    model.refuse("dropout", *dropout, "null: tokens are the same every time");
  BpeOptions options{.byte_level = byte_level,
                     .ignore_merges = model.flag("ignore_merges", false),
                     .byte_fallback = model.flag("byte_fallback", false),
                     .fuse_unknown = model.flag("fuse_unk", false)};
  if (const json* vocab = model.find("vocab")) model.refuse("vocab", *vocab, "an object");
  if (const json* merges = model.find("merges")) model.refuse("merges", *merges, "a list");
  if (model.find("unk_token") != nullptr) options.unknown = model.text("unk_token");
  model.finish();
  return options;
}

// What the post_processor adds around one text.
struct AddedAround {
  std::vector<int32_t> before, after;
  bool found = false;
};

void read_template(FormatObject& object, int64_t vocab, AddedAround& added) {
  if (added.found) refuse_format(object.path(), " is the second TemplateProcessing; must be the only one");
  object.ignore({"pair", "add_prefix_space", "trim_offsets", "use_regex"});
  const json& tokens = object.at("special_tokens", "an object");
  if (!tokens.is_object()) object.refuse("special_tokens", tokens, "an object");
  bool at_text = false;
  const json& pieces = object.array("single");
  for (size_t i = 0; i < pieces.size(); ++i) {
    FormatObject piece(pieces[i], object.path_of("single") + "[" + std::to_string(i) + "]");
    if (const json* sequence = piece.find("Sequence")) {
      FormatObject text(*sequence, piece.path_of("Sequence"));
      text.ignore({"type_id"});
      if (text.text("id") != "A" || at_text) refuse_format(text.path(), " must be the text \"A\", and only once");
      text.finish();
      at_text = true;
    } else {
      FormatObject special(piece.at("SpecialToken", "an object"), piece.path_of("SpecialToken"));
      special.ignore({"type_id"});
      const std::string name = special.text("id");
      special.finish();
      const auto found = tokens.find(name);
      if (found == tokens.end()) special.refuse("id", name, "one of the special_tokens");
      FormatObject token(*found, object.path_of("special_tokens") + "[" + in_quotes(name) + "]");
      token.ignore({"id", "tokens"});
      for (const json& id : token.array("ids")) {
        if (!id.is_number_integer() || id < 0 || id >= vocab)
          token.refuse("ids", id, "within 0 and " + std::to_string(vocab - 1));
        (at_text ? added.after : added.before).push_back(id.get<int32_t>());
      }
      token.finish();
    }
    piece.finish();
  }
  if (!at_text) refuse_format(object.path_of("single"), " does not have the text");
  added.found = true;
}

void read_post_processor(const json& value, const std::string& path, int64_t vocab, AddedAround& added) {
  FormatObject object(value, path);
  const std::string type = object.text("type");
  if (type == "Sequence") {
    const json& list = object.array("processors");
    for (size_t i = 0; i < list.size(); ++i)
      read_post_processor(list[i], path + ".processors[" + std::to_string(i) + "]", vocab, added);
  } else if (type == "TemplateProcessing") {
    read_template(object, vocab, added);
  } else if (type == "ByteLevel") {
    object.ignore({"add_prefix_space", "trim_offsets", "use_regex"});  // about positions in the text
  } else {
    refuse_format(object.path_of("type"), " is ", in_quotes(type),
                  "; must be TemplateProcessing, ByteLevel or Sequence");
  }
  object.finish();
}

// The parts of a tokenizer_config.json that matter here.
struct TokenizerConfig {
  std::optional<std::string> begin, end, padding;
  std::optional<bool> adds_begin, adds_prefix_space;
  std::string chat_template;
};

// A token of the configuration: a string, or an object with its "content".
std::optional<std::string> config_token(FormatObject& config, const char* field) {
  const json* value = config.find(field);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return FormatObject(*value, field).text("content");
  return config.text(field);
}

TokenizerConfig read_config(const std::string& content) {
  TokenizerConfig read;
  if (content.empty()) return read;
  const json value = read_format_json(content);
  FormatObject config(value, "");
  read.begin = config_token(config, "bos_token");
  read.end = config_token(config, "eos_token");
  read.padding = config_token(config, "pad_token");
  if (config.find("add_bos_token") != nullptr) read.adds_begin = config.flag("add_bos_token");
  if (config.find("add_prefix_space") != nullptr) read.adds_prefix_space = config.flag("add_prefix_space");
  if (config.flag("split_special_tokens", false)) config.refuse("split_special_tokens", true, "false");
  const json* chat = config.find("chat_template");
  if (chat != nullptr && chat->is_array()) {  // several, with names
    for (const json& one : *chat) {
      FormatObject named(one, "chat_template");
      if (named.text("name") == "default") read.chat_template = named.text("template");
    }
  } else if (chat != nullptr) {
    read.chat_template = config.text("chat_template");
  }
  return read;
}

class BpeTokenizer final : public JsonTokenizer {
 public:
  explicit BpeTokenizer(JsonTokenizerFiles files)
      : model_(std::move(files.tokenizer)),
        file_size_(model_.size()),
        config_(std::move(files.config)),
        chat_template_file_(std::move(files.chat_template)) {
    read_tokenizer(read_tokenizer_source(model_));
    try {
      use(read_config(config_));
    } catch (const FormatError& error) {
      refuse_format("tokenizer_config.json: ", error.what());
    }
    const auto text_of = [](std::optional<int32_t> token) { return token ? std::to_string(*token) : "none"; };
    model_ += "\nbegin " + text_of(begin_) + " end " + text_of(end_) + "\n";
  }

  int64_t vocab() const override { return static_cast<int64_t>(tokens_.size()); }
  bool adds_first_space() const override { return decoder_->strips_first_space(); }
  std::optional<int32_t> begin_token() const override { return begin_; }
  std::optional<int32_t> end_token() const override { return end_; }
  std::optional<int32_t> padding_token() const override { return padding_; }
  std::string_view model() const override { return model_; }
  std::string_view chat_template() const override { return chat_template_; }
  const std::vector<int32_t>& added_before() const override { return added_.before; }
  const std::vector<int32_t>& added_after() const override { return added_.after; }

  std::vector<TokenizerFile> files() const override {
    std::vector<TokenizerFile> all = {{kTokenizerJson, std::string_view(model_).substr(0, file_size_)}};
    if (!config_.empty()) all.push_back({kTokenizerConfig, config_});
    if (!chat_template_file_.empty()) all.push_back({kChatTemplate, chat_template_file_});
    return all;
  }

  std::optional<int32_t> token_named(std::string_view name) const override {
    const auto added = added_names_.find(std::string(name));
    return added == added_names_.end() ? bpe_->find(name) : std::optional<int32_t>(added->second);
  }

  std::vector<int32_t> encode(std::string_view text, Place place) const override {
    const size_t valid = valid_prefix(text);
    check(valid == text.size(), "tokenizer", "the text is not UTF-8 at byte ", valid, "; this tokenizer needs it");
    // Calls at the same time have rooms of their own.
    const std::unique_lock lock(space_mutex_, std::try_to_lock);
    Bpe::Space own;
    Bpe::Space& space = lock ? space_ : own;
    std::vector<int32_t> tokens;
    tokens.reserve(text.size() / 4);
    const PreTokenizer::Word word = [&](std::string_view piece) { bpe_->encode(piece, tokens, space); };
    std::string buffer;
    raw_tokens_.split(text, [&](const TextPart& part) {
      if (part.id >= 0) return tokens.push_back(part.id);
      const bool first = part.begin == 0, prepends = place == Place::start || !first;
      const std::string_view changed =
          normalizer_.apply(text.substr(part.begin, part.end - part.begin), prepends, buffer);
      normalized_tokens_.split(changed, [&](const TextPart& inner) {
        if (inner.id >= 0) return tokens.push_back(inner.id);
        pre_tokenizer_.split(changed.substr(inner.begin, inner.end - inner.begin),
                             {.first = first && inner.begin == 0, .prepends = prepends || inner.begin > 0}, word);
      });
    });
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::vector<std::string> spelled;
    for (const int32_t token : tokens) {
      check_token(token);
      const Token& one = tokens_[static_cast<size_t>(token)];
      if (one.exists && !one.special) spelled.push_back(one.spelling);
    }
    return decoder_->decode(std::move(spelled));
  }

  std::string token_bytes(int32_t token) const override {
    check_token(token);
    const Token& one = tokens_[static_cast<size_t>(token)];
    return one.exists && !one.special ? decoder_->token_bytes(one.spelling) : "";
  }

  std::string token_name(int32_t token) const override {
    check_token(token);
    const Token& one = tokens_[static_cast<size_t>(token)];
    return printable(one.special ? one.spelling : token_bytes(token));
  }

 private:
  struct Token {
    std::string spelling;  // as it is decoded
    bool exists = false, special = false;
  };

  // Valid characters as they are, control characters and other bytes by number.
  static std::string printable(std::string_view bytes) {
    constexpr size_t kLongestCharacter = 4;
    const auto byte_names = make_byte_tokenizer();
    std::string name;
    while (!bytes.empty()) {
      const bool valid = valid_prefix(bytes.substr(0, kLongestCharacter)) > 0;
      const CodePoint next = valid ? first_code_point(bytes) : CodePoint{.value = 0, .size = 1};
      const bool shown = next.value >= 0x20 && next.value != 0x7f && next.value != '\\';
      name +=
          shown ? std::string(bytes.substr(0, next.size)) : byte_names->token_name(static_cast<uint8_t>(bytes.front()));
      bytes.remove_prefix(next.size);
    }
    return name;
  }

  void check_token(int32_t token) const {
    check(token >= 0 && token < vocab(), "tokenizer", "token is ", token, "; the tokenizer has ", vocab());
  }

  void read_tokenizer(const TokenizerSource& source) {
    FormatObject file(source.rest, "");
    if (const std::string version = file.text("version", "1.0"); version != "1.0")
      file.refuse("version", version, "\"1.0\"");
    for (const char* field : {"truncation", "padding"}) {
      if (const json* value = file.find(field)) file.refuse(field, *value, "null: texts are encoded as they are");
    }
    if (const json* value = file.find("normalizer")) normalizer_ = Normalizer(*value, "normalizer");
    if (const json* value = file.find("pre_tokenizer")) pre_tokenizer_ = PreTokenizer(*value, "pre_tokenizer");
    const BpeOptions options = bpe_options(file.at("model", "an object"), pre_tokenizer_.byte_level());
    if (!source.has_vocab || !source.has_merges) refuse_format("model must have vocab and merges");
    bpe_.emplace(source, options);
    tokens_.resize(static_cast<size_t>(bpe_->vocab()));
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string_view spelling = bpe_->spelling(static_cast<int32_t>(id));
      if (spelling.data() != nullptr) tokens_[id] = {.spelling = std::string(spelling), .exists = true};
    }
    if (file.find("added_tokens") != nullptr) read_added_tokens(file.array("added_tokens"));
    if (const json* value = file.find("post_processor")) read_post_processor(*value, "post_processor", vocab(), added_);
    if (added_.before.size() > 1)
      refuse_format("post_processor adds ", added_.before.size(), " tokens before a text; must be at most one");
    decoder_.emplace(file.at("decoder", "an object"), "decoder");
    file.finish();
  }

  void read_added_tokens(const json& list) {
    std::vector<AddedToken> raw, normalized;
    int64_t next_id = bpe_->token_count();
    for (size_t i = 0; i < list.size(); ++i) {
      FormatObject object(list[i], "added_tokens[" + std::to_string(i) + "]");
      const std::string content = object.text("content");
      const int64_t id = object.number("id", 0, Bpe::kMostTokens - 1);
      const bool special = object.flag("special");
      if (added_names_.contains(content)) object.refuse("content", content, "a token that is not in the list before");
      // The library gives out numbers itself, whatever the file says.
      const auto known = bpe_->find(content);
      if (id != (known ? *known : next_id))
        refuse_format(object.path_of("id"), " is ", id, ", but ", in_quotes(content), " is ", known ? *known : next_id,
                      known ? " in model.vocab" : ", the first number that is free");
      if (!known) ++next_id;
      AddedToken token{.id = static_cast<int32_t>(id),
                       .content = content,
                       .single_word = object.flag("single_word"),
                       .left_space = object.flag("lstrip"),
                       .right_space = object.flag("rstrip")};
      const bool normalizes = object.flag("normalized");
      object.finish();
      if (normalizes) {
        std::string buffer;
        token.content = std::string(normalizer_.apply(content, true, buffer));
      }
      if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
      Token& place = tokens_[static_cast<size_t>(id)];
      if (place.exists && !known) refuse_format(object.path_of("id"), " is ", id, ", which model.vocab has as well");
      // A special token that the normalizer changes is shown, as the library does.
      place = {.spelling = token.content, .exists = true, .special = special && token.content == content};
      added_names_.emplace(content, token.id);
      (normalizes ? normalized : raw).push_back(std::move(token));
    }
    raw_tokens_ = AddedTokens(std::move(raw));
    normalized_tokens_ = AddedTokens(std::move(normalized));
  }

  std::optional<int32_t> config_number(const char* field, const std::optional<std::string>& token) const {
    if (!token) return std::nullopt;
    const auto number = token_named(*token);
    if (!number) refuse_format(field, " is ", in_quotes(*token), ", which tokenizer.json does not have");
    return number;
  }

  void use(const TokenizerConfig& config) {
    const auto begin = config_number("bos_token", config.begin);
    end_ = config_number("eos_token", config.end);
    padding_ = config_number("pad_token", config.padding);
    if (config.adds_prefix_space &&
        pre_tokenizer_.byte_level_adds_space().value_or(*config.adds_prefix_space) != *config.adds_prefix_space)
      refuse_format("add_prefix_space is ", *config.adds_prefix_space ? "true" : "false",
                    "; the pre_tokenizer of tokenizer.json says otherwise");
    if (config.adds_begin.value_or(false) && !begin) refuse_format("add_bos_token is true, but there is no bos_token");
    if (config.adds_begin) {
      begin_ = *config.adds_begin ? begin : std::nullopt;
    } else if (!added_.before.empty()) {
      begin_ = added_.before.front();
    }
    if (config_.empty() && added_.after.size() == 1) end_ = added_.after.front();
    chat_template_ = chat_template_file_.empty() ? config.chat_template : chat_template_file_;
  }

  std::string model_;     // the file, and the tokens around a document
  size_t file_size_ = 0;  // the part of it that is the file
  std::string config_, chat_template_file_, chat_template_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::optional<Bpe> bpe_;
  std::optional<Decoder> decoder_;
  AddedTokens raw_tokens_, normalized_tokens_;
  std::unordered_map<std::string, int32_t> added_names_;
  std::vector<Token> tokens_;
  AddedAround added_;
  std::optional<int32_t> begin_, end_, padding_;
  mutable std::mutex space_mutex_;
  mutable Bpe::Space space_;
};

}  // namespace

std::unique_ptr<JsonTokenizer> make_json_tokenizer(JsonTokenizerFiles files, const std::string& name) {
  try {
    return std::make_unique<BpeTokenizer>(std::move(files));
  } catch (const FormatError& error) {
    fail_data("tokenizer", name, ": ", error.what());
  }
}

}  // namespace ovq::text
