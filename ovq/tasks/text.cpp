#include "ovq/tasks/text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <system_error>
#include <utility>

#include "ovq/base/error.h"
#include "ovq/base/random.h"

namespace ovq::tasks {
namespace {

// The largest quotient of Euclid's algorithm. It is small if the multiples of `step`, modulo `count`, are spread
// evenly. For a step with a common factor, returns the worst value.
int64_t largest_quotient(int64_t step, int64_t count) {
  int64_t a = count, b = step, largest = 0;
  while (b > 0) {
    largest = std::max(largest, a / b);
    a = std::exchange(b, a % b);
  }
  return a == 1 ? largest : count + 1;
}

// A permutation of 0 ... count - 1 whose every prefix is spread evenly: multiples, modulo count, of the step nearest to
// count / phi whose quotients are at most 5.
int64_t spread(int64_t index, int64_t count) {
  const int64_t golden = std::llround(static_cast<double>(count) / std::numbers::phi);
  int64_t step = 1;
  for (int64_t away = 0; away < count; ++away) {
    if (largest_quotient(step = golden + away, count) <= 5) break;
    if (away < golden && largest_quotient(step = golden - away, count) <= 5) break;
  }
  return index % count * step % count;
}

}  // namespace

TextTask::TextTask(const TextOptions& options) : options_(options) {
  check(options.min_document >= 0, "text", "min_document is ", options.min_document, "; must not be negative");
  check(options.bin >= 1, "text", "bin is ", options.bin, "; must be at least 1");
  check(!options.train.empty() || !options.test.empty(), "text",
        "needs train or test; expected a text file or a folder of .txt files");
  std::error_code error;  // paths that do not exist are reported when they are read
  const bool same = std::filesystem::equivalent(options.train, options.test, error) && !error;
  check(!same, "text", "train and test are both ", options.train, "; test must be different text");
  tokenizer_ = text::make_tokenizer(options.tokenizer);
}

const Corpus& TextTask::corpus(Split split) const {
  const std::string& path = split == Split::train ? options_.train : options_.test;
  check(!path.empty(), "text", split == Split::train ? "train" : "test",
        " is not set; expected a text file or a folder of .txt files");
  std::optional<Corpus>& corpus = split == Split::train ? train_ : test_;
  const std::lock_guard lock(reading_);
  if (!corpus) corpus.emplace(path, *tokenizer_, options_.min_document);
  return *corpus;
}

void TextTask::fill(const SampleRequest& request, int64_t row, Row out) const {
  const Corpus& corpus = this->corpus(request.split);
  const int64_t size = request.length + 1;
  Corpus::Window window;
  if (request.split == Split::train) {
    Random random(row_seed(request, row));
    window = corpus.overlapping_window(size, random.below(corpus.overlapping_windows(size)));
  } else {
    const int64_t index = request.step * request.rows + row;
    window = corpus.adjacent_window(size, spread(index, corpus.adjacent_windows(size)));
  }
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  corpus.read(*window.document, window.offset, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, out.tokens.begin());
  for (int64_t i = 0; i < request.length; ++i) out.ask(i, tokens[static_cast<size_t>(i + 1)], i / options_.bin);
}

}  // namespace ovq::tasks
