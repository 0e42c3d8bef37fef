// Long text: windows of documents in which every next token is a target.
//
//   bytes, length 8:   T[h e   c a t   s a]     row: "The cat ", targets: "he cat s"
//
// A window lies within one document; documents of fewer than min_document tokens are left out, as in the paper.
// Training windows start anywhere with equal probability, chosen by (seed, step, row). Test windows lie side by side,
// in an order in which any number of first windows is spread over the whole text. Row r of a step is number step * rows
// + r in this order, which repeats after the last window; the seed plays no part. Cost: O(length + documents). The
// corpus is loaded when it is first needed; vocabulary and metric are known without it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "ovq/base/fields.h"
#include "ovq/tasks/corpus.h"
#include "ovq/tasks/task.h"
#include "ovq/text/tokenizer.h"

namespace ovq::tasks {

struct TextOptions {
  std::string train, test;          // text, folder or token file; either may be empty if it is not used
  std::string tokenizer = "bytes";  // or the path of a SentencePiece model
  int64_t min_document = 0;         // tokens
  int64_t bin = 64;                 // positions per group
};

template <class Fields>
void list_fields(Fields& field, TextOptions& o) {
  field("train", o.train, "training text: a text file, a folder of .txt files or a file of tokens");
  field("test", o.test, "test text: a text file, a folder of .txt files or a file of tokens");
  field("tokenizer", o.tokenizer, "bytes, or the path of a SentencePiece model");
  field("min_document", o.min_document, "minimum number of tokens of a document; shorter ones are left out",
        at_least(0));
  field("bin", o.bin, "positions per bin of the loss", at_least(1));
}

class TextTask final : public Task {
 public:
  explicit TextTask(const TextOptions& options);

  const TextOptions& options() const { return options_; }
  std::string name() const override { return "text"; }
  int64_t vocab() const override { return tokenizer_->vocab(); }
  Metric metric() const override { return Metric::cross_entropy; }
  std::string group_name() const override { return "position / " + std::to_string(options_.bin); }
  std::string token_name(int32_t token) const override { return tokenizer_->token_name(token); }
  std::string_view token_gap() const override { return ""; }
  int64_t min_length() const override { return 1; }
  int64_t row_length(int64_t length, Split) const override { return length; }
  const text::Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  int64_t test_rows(int64_t length) const override { return corpus(Split::test).adjacent_windows(length + 1); }

  const Corpus& corpus(Split split) const;  // loaded by the first call, which throws if that fails; thread-safe

 private:
  void fill(const SampleRequest& request, int64_t row, Row out) const override;

  TextOptions options_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  mutable std::mutex reading_;
  mutable std::optional<Corpus> train_, test_;
};

}  // namespace ovq::tasks
