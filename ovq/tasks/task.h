// What a task is: a pure function from the numbers that name a batch to its tokens and targets. Nothing is kept between
// calls, so a run can be resumed at any step, and two models see the same data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::text {
class Tokenizer;
}

namespace ovq::tasks {

inline constexpr int32_t kNoTarget = -1;
inline constexpr int32_t kNoGroup = -1;

enum class Split { train, test };

enum class Metric {
  accuracy,       // of single tokens, averaged within a group
  cross_entropy,  // averaged within a group
};

// Row-major [rows, length].
struct Batch {
  int64_t rows = 0, length = 0;
  std::vector<int32_t> tokens;  // what the model reads
  std::vector<int32_t>
      targets;  // what it should say after reading the token of this position; kNoTarget: nothing is asked
  std::vector<int32_t>
      groups;  // what the metric is grouped by, see Task::group_name(); kNoGroup where nothing is asked
};

// `length` counts the tokens before the query section; tasks without one have rows of exactly that length.
struct SampleRequest {
  int64_t rows = 1;
  int64_t length = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t rank = 0, ranks = 1;  // which of several processes asks: each gets rows of its own
  Split split = Split::train;
  // Only these of the batch's rows, which are the same as in the whole batch; 0: all from first_row on.
  int64_t first_row = 0, row_count = 0;
};

// One row of a batch, to be filled. Comes as padding tokens (0) and no targets.
struct Row {
  std::span<int32_t> tokens, targets, groups;

  // Asks for `target` after the token at `position`.
  void ask(int64_t position, int32_t target, int64_t group) {
    targets[static_cast<size_t>(position)] = target;
    groups[static_cast<size_t>(position)] = static_cast<int32_t>(group);
  }
};

class Task {
 public:
  virtual ~Task() = default;

  virtual std::string name() const = 0;
  virtual int64_t vocab() const = 0;
  virtual Metric metric() const { return Metric::accuracy; }
  virtual std::string group_name() const = 0;                           // what Batch::groups counts, e.g. "query"
  virtual std::string token_name(int32_t token) const = 0;              // for people
  virtual std::string_view token_gap() const { return " "; }            // between the names of neighbours
  virtual int64_t min_length() const = 0;                               // of a request
  virtual int64_t row_length(int64_t length, Split split) const = 0;    // tokens of a row, query section included
  virtual const text::Tokenizer* tokenizer() const { return nullptr; }  // of a task that is text
  virtual int64_t test_rows(int64_t length) const;  // how many different test rows there are; 0: no limit

  // The batch of that name. Throws std::invalid_argument for requests that cannot be met.
  Batch sample(const SampleRequest& request) const;

 private:
  virtual void fill(const SampleRequest& request, int64_t row, Row out) const = 0;
};

// The number behind the random choices of one row; differs in any of the numbers that name it.
uint64_t row_seed(const SampleRequest& request, int64_t row);

}  // namespace ovq::tasks
