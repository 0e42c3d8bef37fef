#include "ovq/tasks/tokenizer.h"

#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

#include "ovq/base/error.h"
#include "ovq/tasks/sentencepiece_plugin.h"

namespace ovq::tasks {

namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  int64_t vocab() const override { return 256; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> tokens;
    tokens.reserve(text.size());
    for (char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }

  std::string decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (int32_t token : tokens) {
      check(token >= 0 && token < 256, "tokenizer", "token is ", token, "; bytes are within 0 and 255");
      text.push_back(static_cast<char>(token));
    }
    return text;
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

#ifdef OVQ_SANITIZED
// The sanitizers' dlopen refuses RTLD_DEEPBIND and does not search the program's RPATH; without torch, linking is safe.
MakeSentencePieceTokenizer sentencepiece_plugin() { return ovq_make_sentencepiece_tokenizer; }
#else
// The library beside the program or in the system's path; loaded once, when first needed.
MakeSentencePieceTokenizer sentencepiece_plugin() {
  static const MakeSentencePieceTokenizer make = [] {
    void* library = dlopen("libovq_sentencepiece.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    void* symbol = library == nullptr ? nullptr : dlsym(library, kMakeSentencePieceTokenizer);
    if (symbol == nullptr) throw std::runtime_error(std::string("cannot load SentencePiece: ") + dlerror());
    return reinterpret_cast<MakeSentencePieceTokenizer>(symbol);
  }();
  return make;
}
#endif

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_path) {
  check_data(std::filesystem::is_regular_file(model_path), "tokenizer", model_path,
             " is not a file; expected \"bytes\" or a SentencePiece model");
  return std::unique_ptr<Tokenizer>(sentencepiece_plugin()(model_path.c_str()));
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  return name == "bytes" ? make_byte_tokenizer() : make_sentencepiece_tokenizer(name);
}

}  // namespace ovq::tasks
