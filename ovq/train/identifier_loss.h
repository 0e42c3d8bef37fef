// The loss of identifiers in source code by how long ago they were last spelled: what a memory is for, directly.
//
//   def reader(stream): ... 900 tokens ... reader
//       first  first                       again, 900 tokens after its last occurrence
//
// An identifier is a run of letters, digits and '_' of four characters or more that does not begin with a digit and
// is not part of a longer run; keywords are among them. Its loss is the sum over the tokens that hold a byte of it, its
// distance counts from the first token of its last occurrence in the window to its own first. A run at the very
// beginning or end of a window does not count: it may be cut.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "ovq/text/tokenizer.h"

namespace ovq::train {

struct IdentifierBin {
  int64_t occurrences = 0, tokens = 0;
  double loss_sum = 0;

  double loss() const;           // of an identifier
  double loss_of_token() const;  // of one of its tokens
};

struct IdentifierLoss {
  // The farthest distance of each bin but the last, which has no end; the first bin is of first occurrences.
  static constexpr std::array<int64_t, 4> kFarthest = {64, 256, 1024, 4096};
  std::array<IdentifierBin, kFarthest.size() + 2> bins;

  static size_t bin_of(int64_t distance);
  static std::string bin_name(size_t bin);
};

// Adds up windows.
class IdentifierCounter {
 public:
  explicit IdentifierCounter(const text::Tokenizer& tokenizer);

  // losses[i] is that of tokens[i + 1]; identifiers with a token among the first `first` losses are only remembered.
  void add(std::span<const int32_t> tokens, std::span<const float> losses, int64_t first);

  const IdentifierLoss& result() const { return result_; }

 private:
  std::vector<std::string> bytes_;  // of each token
  IdentifierLoss result_;
};

std::string to_table(const IdentifierLoss& loss);
nlohmann::json to_json(const IdentifierLoss& loss);

}  // namespace ovq::train
