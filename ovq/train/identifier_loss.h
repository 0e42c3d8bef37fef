// The loss of identifiers in source code by the distance to their last occurrence: a direct measure of memory.
//
//   def reader(stream): ... 900 tokens ... reader
//       first  first                       again, 900 tokens after its last occurrence
//
// An identifier is a run of at least four letters, digits and '_' that does not begin with a digit. Keywords count too.
// Its loss is the sum over the tokens that hold one of its bytes. Its distance is counted from the first token of its
// last occurrence in the window to its own first token. A run at the very beginning or end of a window is left out
// because it may be cut.
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

  double loss() const;           // per identifier
  double loss_of_token() const;  // per token of identifiers
};

struct IdentifierLoss {
  // The largest distance in each bin but the last, which has no limit. The first bin holds first occurrences.
  static constexpr std::array<int64_t, 4> kFarthest = {64, 256, 1024, 4096};
  std::array<IdentifierBin, kFarthest.size() + 2> bins;

  static size_t bin_of(int64_t distance);
  static std::string bin_name(size_t bin);
};

// Adds up windows.
class IdentifierCounter {
 public:
  explicit IdentifierCounter(const text::Tokenizer& tokenizer);

  // losses[i] belongs to tokens[i + 1]. Identifiers with a token among the first `first` losses are remembered but not
  // counted.
  void add(std::span<const int32_t> tokens, std::span<const float> losses, int64_t first);

  const IdentifierLoss& result() const { return result_; }

 private:
  std::vector<std::string> bytes_;  // of each token
  IdentifierLoss result_;
};

std::string to_table(const IdentifierLoss& loss);
nlohmann::json to_json(const IdentifierLoss& loss);

}  // namespace ovq::train
