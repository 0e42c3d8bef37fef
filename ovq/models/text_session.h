// A session (session.h) that reads and writes text with the model's tokenizer.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ovq/models/generate.h"
#include "ovq/models/storage.h"
#include "ovq/text/tokenizer.h"

namespace ovq::models {

struct TextModel {
  std::shared_ptr<LanguageModel> model;
  std::shared_ptr<const text::Tokenizer> tokenizer;
};

// Loads a model's directory with the tokenizer beside its weights, or with `tokenizer` instead: "bytes" or the path of
// a SentencePiece model. std::runtime_error if there is no tokenizer or its size is not the model's.
TextModel load_text_model(const std::filesystem::path& directory, const std::string& tokenizer = "",
                          StateDtype weights = StateDtype::float32);

struct WrittenToken {
  int32_t token = 0;
  std::string text;            // text to show now; incomplete characters and possible stop strings are held back
  double log_probability = 0;  // under the model, if requested
};

enum class WritingEnd { tokens, end_token, stop_string, interrupted };
const char* name_of_end(WritingEnd end);

struct WriteOptions {
  GenerateOptions generate;
  std::vector<std::string> stops;  // end the text and are not shown
  bool ignore_end = false;         // go on after the token that ends a document
  bool log_probabilities = false;
  std::function<bool(const WrittenToken&)> each;  // may be empty; false: stop
};

struct Written {
  int64_t tokens = 0;
  WritingEnd end = WritingEnd::tokens;
  std::string rest;  // text held back when it was interrupted; the model has read its tokens
};

class TextSession {
 public:
  // `dtype`: storage of a new state; a loaded state is converted to it.
  explicit TextSession(TextModel model, StateDtype dtype = StateDtype::float32);
  TextSession(const TextSession&) = delete;
  TextSession& operator=(const TextSession&) = delete;

  // Appends text. At the start it first reads the token that begins a document, if the tokenizer has one. Returns the
  // number of tokens read. std::invalid_argument if the tokenizer rejects the text.
  int64_t read(std::string_view text, const ReadOptions& options = {});

  // Generates text. std::invalid_argument if nothing has been read or an option is wrong.
  Written write(const WriteOptions& options);

  int64_t position() const { return session_.position(); }
  // Number of tokens that the last read() left unread; saved states store it too.
  int64_t unread() const { return session_.unread(); }
  int64_t state_bytes() const { return state_.nbytes(); }
  int64_t weight_bytes() const { return model_->weight_bytes(); }
  // Bytes of keys and values of as many tokens, stored like the state; see inspect.h.
  int64_t kv_cache_bytes() const;

  // A file that continues from here, with this model only; see state_file.h.
  void save(const std::filesystem::path& path);
  void load(const std::filesystem::path& path);

  // A point to return to; its cost is that of ModelState::snapshot.
  struct Mark {
    ModelState state;
    Session::Continuation continuation;
  };
  Mark mark();
  void return_to(const Mark& mark);

 private:
  bool at_start() const { return position() <= (tokenizer_->begin_token() ? 1 : 0); }

  std::shared_ptr<LanguageModel> model_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  ModelState state_;
  Session session_;
  std::string fingerprint_;  // of the model; computed when first needed
};

}  // namespace ovq::models
