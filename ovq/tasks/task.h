// A task is a pure function from the numbers that name a batch to its tokens and targets. It keeps no state between
// calls, so a run can resume at any step and two models see the same data.
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
  std::vector<int32_t> tokens;   // input of the model
  std::vector<int32_t> targets;  // the token to predict after each position; kNoTarget: none
  std::vector<int32_t> groups;   // the metric's group, see Task::group_name(); kNoGroup where there is no target
};

// `length` counts the tokens before the query section; tasks without one have rows of exactly that length.
struct SampleRequest {
  int64_t rows = 1;
  int64_t length = 0;
  uint64_t seed = 0;
  int64_t step = 0;
  Split split = Split::train;
  // Returns only these rows, identical to those of the whole batch. row_count 0: all from first_row on.
  int64_t first_row = 0, row_count = 0;
};

// A row of a batch to fill; initially padding tokens (0) and no targets.
struct Row {
  std::span<int32_t> tokens, targets, groups;

  // Sets `target` for the token at `position`.
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
  virtual std::string group_name() const = 0;                           // what Batch::groups numbers, e.g. "query"
  virtual std::string token_name(int32_t token) const = 0;              // readable
  virtual std::string_view token_gap() const { return " "; }            // separates the names of neighbours
  virtual int64_t min_length() const = 0;                               // of a request
  virtual int64_t row_length(int64_t length, Split split) const = 0;    // including the query section
  virtual const text::Tokenizer* tokenizer() const { return nullptr; }  // nullptr unless the task is text
  virtual int64_t test_rows(int64_t length) const;                      // number of different test rows; 0: no limit

  // The batch for a request. std::invalid_argument if the request cannot be met.
  Batch sample(const SampleRequest& request) const;

 private:
  virtual void fill(const SampleRequest& request, int64_t row, Row out) const = 0;
};

// The seed of one row; differs if any of the numbers that name the row differs.
uint64_t row_seed(const SampleRequest& request, int64_t row);

}  // namespace ovq::tasks
