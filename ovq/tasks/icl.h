// In-context learning of linear functions (paper, appendix B). Each row draws its own functions f(x) = b + a P x, where
// P is a permutation. Examples come in random order; the arrow names the function, and y is the target in each example.
//
//   2 tokens each, a 2, b 1, P swaps:   . 3 5 ->f7[11 7]| 4 9 ->f2[..]| 4 6 ->f7[13 9]|
//
// `.` padding up to the requested length, [..] targets. The integer n is the content token n. As in the paper, x are
// positive integers, uniform in 1 .. x_max, so y lies within b_min + a_min and b_max + a_max x_max, which is within the
// vocabulary. The arrows of a row are drawn from all of them, so that models tested with more functions than in
// training have seen every arrow. Cost: O(row length).
#pragma once

#include "ovq/base/fields.h"
#include "ovq/tasks/task.h"

namespace ovq::tasks {

struct IclOptions {
  int64_t vocab = 128;          // padding, separator, one arrow per function, the rest content
  int64_t functions = 2;        // per row
  int64_t function_tokens = 8;  // number of different arrows
  int64_t tokens = 2;           // of x, and as many of y
  int64_t a_min = 1, a_max = 5, b_min = 1, b_max = 5;
  int64_t x_max = 0;  // 0: the largest for which y fits the vocabulary
};

template <class Fields>
void list_fields(Fields& field, IclOptions& o) {
  field("vocab", o.vocab, "number of different tokens: padding, separator, one arrow per function, the rest content");
  field("functions", o.functions, "functions in one row", at_least(1));
  field("function_tokens", o.function_tokens, "number of different arrows", at_least(1));
  field("tokens", o.tokens, "tokens of x, and of y", at_least(1));
  field("a_min", o.a_min, "smallest factor");
  field("a_max", o.a_max, "largest factor");
  field("b_min", o.b_min, "smallest summand");
  field("b_max", o.b_max, "largest summand");
  field("x_max", o.x_max, "largest number in x", or_zero(at_least(1), "as large as y allows"));
}

class IclTask final : public Task {
 public:
  static constexpr int32_t kPadding = 0, kSeparator = 1, kFirstFunction = 2;

  explicit IclTask(const IclOptions& options);

  const IclOptions& options() const { return options_; }  // with x_max resolved
  std::string name() const override { return "icl"; }
  int64_t vocab() const override { return options_.vocab; }
  std::string group_name() const override {
    return "example";
  }  // index of the example among those of its function, from 0
  std::string token_name(int32_t token) const override;
  int64_t min_length() const override { return example_length(); }
  int64_t row_length(int64_t length, Split) const override { return length; }

  int64_t example_length() const { return 2 * options_.tokens + 2; }
  int64_t first_content() const { return kFirstFunction + options_.function_tokens; }  // the token of the integer 0

 private:
  void fill(const SampleRequest& request, int64_t row, Row out) const override;

  IclOptions options_;
};

}  // namespace ovq::tasks
