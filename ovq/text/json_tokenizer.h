// Byte-pair tokenizers in Hugging Face's format: tokenizer.json, with the tokens that begin and end a document from the
// tokenizer_config.json beside it. GPT-2, Llama, Qwen, SmolLM, Mistral and others; see docs/generate.md. Tokens are the
// same as those of the library `tokenizers`; a file with anything that this one does not know is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::text {

// Contents of files; the last two are empty if there are none.
struct JsonTokenizerFiles {
  std::string tokenizer, config, chat_template;
};

class JsonTokenizer : public Tokenizer {
 public:
  // What the post_processor puts before and after a text: add_special_tokens of the library.
  virtual const std::vector<int32_t>& added_before() const = 0;
  virtual const std::vector<int32_t>& added_after() const = 0;
};

// Text must be UTF-8. DataError if the files cannot be used; `name` stands for them in errors.
std::unique_ptr<JsonTokenizer> make_json_tokenizer(JsonTokenizerFiles files, const std::string& name);

}  // namespace ovq::text
