// In-context recall (paper, appendix B). Pairs fill the context; then some keys are repeated as queries for their
// values.
//
//   recall, key and value of 2:         . . 7 4 -> 9 5 | 6 6 -> 8 4 | ? 6 6 ->[8 4]| 7 4 ->[9 5]|
//   positional-recall, 2 copies of 1:   . 7 -> 9 | 6 -> 8 | 6 -> 5 | 7 -> 4 | ? 6 ->[8]| 6 ->[5]|
//
// `.` padding up to the requested length, `?` start of the query section, [..] targets: only the value tokens there.
// Keys are distinct as whole sequences, and so are values; both use the same content tokens. With copies > 1 every key
// occurs that often (less often in contexts too short for it), each time with another value. Its query repeats it as
// often and asks for the values in their order of appearance. Cost: O(row length) expected.
#pragma once

#include "ovq/base/fields.h"
#include "ovq/base/random.h"
#include "ovq/tasks/task.h"

namespace ovq::tasks {

struct RecallOptions {
  int64_t vocab = 128;  // four special tokens, the rest content
  int64_t key_length = 2, value_length = 2;
  int64_t copies = 1;                 // occurrences of a key: 1 basic, 4 positional recall
  double train_query_fraction = 0.5;  // of the keys, but at least one key
  int64_t test_queries = 6;           // number of keys, or all if there are fewer
};

template <class Fields>
void list_fields(Fields& field, RecallOptions& o) {
  field("vocab", o.vocab, "number of different tokens: four special ones, the rest content", at_least(6));
  field("key_length", o.key_length, "tokens of a key", at_least(1));
  field("value_length", o.value_length, "tokens of a value", at_least(1));
  field("copies", o.copies, "occurrences of a key, each with its own value: 1 in basic, 4 in positional recall",
        at_least(1));
  field("train_query_fraction", o.train_query_fraction, "share of the keys asked for in training; at least one key");
  field("test_queries", o.test_queries, "keys asked for in a test, or all if there are fewer", at_least(1));
}

class RecallTask final : public Task {
 public:
  static constexpr int32_t kPadding = 0, kArrow = 1, kSeparator = 2, kQuery = 3, kFirstContent = 4;

  explicit RecallTask(const RecallOptions& options);

  const RecallOptions& options() const { return options_; }
  std::string name() const override { return options_.copies == 1 ? "recall" : "positional-recall"; }
  int64_t vocab() const override { return options_.vocab; }
  std::string group_name() const override { return options_.copies == 1 ? "query" : "occurrence"; }
  std::string token_name(int32_t token) const override;
  int64_t min_length() const override { return pair_length(); }
  int64_t row_length(int64_t length, Split split) const override;

  int64_t pair_length() const { return options_.key_length + options_.value_length + 2; }
  int64_t copies(int64_t length) const;  // of each key in a context of that length
  int64_t keys(int64_t length) const;
  int64_t queries(int64_t length, Split split) const;  // number of keys

 private:
  void fill(const SampleRequest& request, int64_t row, Row out) const override;
  std::vector<int32_t> distinct_sequences(Random& random, int64_t count, int64_t length) const;

  RecallOptions options_;
};

}  // namespace ovq::tasks
