// Multi-query associative recall as in the Zoology and Based papers, for comparison with their results: key-value pairs
// of one token each, then every key once more at distances that follow a power law, with fillers in between.
//
//   2 pairs, length 12, fillers shown as 0:   2 8 4 7 0 0 4[7]0 0 0 2[8]0
//
// [..] is the target after the key, and is not in the input. Keys are 1 .. vocab/2 - 1, values vocab/2 .. vocab - 1,
// fillers any token. The queries take slots 0, 1, ... of two tokens after the pairs. The pairs draw them in order,
// without replacement, slot i with weight (i + 1)^(alpha - 1): alpha 1 is uniform, a small alpha keeps queries close.
// Cost: O(length + vocab), and O(pairs log pairs) to sort the draws.
#pragma once

#include "ovq/base/fields.h"
#include "ovq/tasks/task.h"

namespace ovq::tasks {

struct MqarOptions {
  int64_t vocab = 8192;
  int64_t pairs = 0;  // 0: each row draws length/16, length/8 or length/4
  double alpha = 0.01;
  bool random_filler = true;  // otherwise token 0
};

template <class Fields>
void list_fields(Fields& field, MqarOptions& o) {
  field("vocab", o.vocab, "number of different tokens", at_least(8));
  field("pairs", o.pairs, "pairs in a row", or_zero(at_least(1), "length/16, length/8 or length/4 at random"));
  field("alpha", o.alpha, "exponent of the distances from a key to its query");
  field("random_filler", o.random_filler, "random tokens between the queries instead of token 0");
}

class MqarTask final : public Task {
 public:
  explicit MqarTask(const MqarOptions& options);

  const MqarOptions& options() const { return options_; }
  std::string name() const override { return "mqar"; }
  int64_t vocab() const override { return options_.vocab; }
  std::string group_name() const override {
    return "log2 distance";
  }  // of the distance from a key to its query, rounded down
  std::string token_name(int32_t token) const override { return std::to_string(token); }
  int64_t min_length() const override { return options_.pairs ? 4 * options_.pairs : 16; }
  int64_t row_length(int64_t length, Split) const override { return length; }

 private:
  void fill(const SampleRequest& request, int64_t row, Row out) const override;

  MqarOptions options_;
};

}  // namespace ovq::tasks
