#include "ovq/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "ovq/base/error.h"
#include "ovq/base/files/durable.h"
#include "ovq/base/files/sha256.h"
#include "ovq/text/documents.h"
#include "ovq/text/json_tokenizer.h"
#include "ovq/text/sentencepiece_plugin.h"

namespace ovq::text {

namespace {

constexpr const char* kBytes = "bytes";
constexpr auto kFiles =
    std::to_array({kTokenizerJson, kTokenizerConfig, kChatTemplate, kSentencePieceModel, kBytesMark});

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text, Place) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (int32_t token : tokens) text += token_bytes(token);
    return text;
  }

  std::string token_bytes(int32_t token) const override {
    check(token >= 0 && token < 256, "tokenizer", "token is ", token, "; bytes are within 0 and 255");
    return {static_cast<char>(token)};
  }

  std::string token_name(int32_t token) const override {
    constexpr char kDigits[] = "0123456789abcdef";
    if (token == '\n') return "\\n";
    if (token == '\t') return "\\t";
    if (token == '\\') return "\\\\";
    if (token >= 0x20 && token < 0x7f) return std::string(1, static_cast<char>(token));
    return {'\\', 'x', kDigits[(token >> 4) & 15], kDigits[token & 15]};
  }
};

bool is_json(const std::filesystem::path& path, std::string_view content) {
  return path.extension() == ".json" || content.starts_with('{');
}

// The content of a file beside another; empty if there is none.
std::string beside(const std::filesystem::path& path, const char* name) {
  const std::filesystem::path other = path.parent_path() / name;
  return std::filesystem::exists(other) ? read_text_file("tokenizer", other.string()) : "";
}

// What make_tokenizer takes for the tokenizer in a directory; empty if there is none.
std::string name_in(const std::filesystem::path& folder) {
  for (const char* file : {kTokenizerJson, kSentencePieceModel}) {
    if (std::filesystem::exists(folder / file)) return (folder / file).string();
  }
  return std::filesystem::exists(folder / kBytesMark) ? kBytes : "";
}

}  // namespace

std::string Tokenizer::identity() const {
  return model().empty() ? kBytes : files::sha256(std::as_bytes(std::span(model())));
}

std::vector<int32_t> Tokenizer::encode_document(std::string_view text) const {
  std::vector<int32_t> tokens = encode(text);
  if (const auto begin = begin_token()) tokens.insert(tokens.begin(), *begin);
  if (const auto end = end_token()) tokens.push_back(*end);
  return tokens;
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string model, const std::string& name) {
  return std::unique_ptr<Tokenizer>(sentencepiece_plugin().make_tokenizer(std::move(model), name));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == kBytes) return make_byte_tokenizer();
  if (std::filesystem::is_directory(name)) {
    const std::string inside = name_in(name);
    check_data(!inside.empty(), "tokenizer", name, " has no ", kTokenizerJson, ", ", kSentencePieceModel, " or ",
               kBytesMark);
    return make_tokenizer(inside);
  }
  check_data(std::filesystem::is_regular_file(name), "tokenizer", name,
             " is not a file; expected \"bytes\", a SentencePiece model, a tokenizer.json or a directory with one");
  std::string content = read_text_file("tokenizer", name);
  if (!is_json(name, content)) return make_sentencepiece_tokenizer(std::move(content), name);
  return make_json_tokenizer({.tokenizer = std::move(content),
                              .config = beside(name, kTokenizerConfig),
                              .chat_template = beside(name, kChatTemplate)},
                             name);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory) {
  const std::filesystem::path folder = directory;
  const std::vector<TokenizerFile> files = tokenizer.files();
  for (const auto& [name, content] : files) files::write_file_durably(folder / name, content);
  for (const std::string_view old : kFiles) {  // of an earlier model
    const bool kept =
        std::any_of(files.begin(), files.end(), [&](const TokenizerFile& file) { return file.name == old; });
    if (!kept) files::remove_durably(folder / old);
  }
}

void remove_tokenizer(const std::string& directory) {
  for (const char* file : kFiles) files::remove_durably(std::filesystem::path(directory) / file);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& directory) {
  const std::string inside = name_in(directory);
  if (inside.empty()) return nullptr;
  return make_tokenizer(inside);
}

}  // namespace ovq::text
