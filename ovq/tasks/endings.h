// Multiple-choice questions made from any text: how does a passage continue? The right ending is the sentence that
// follows; the wrong ones are the beginnings of sentences elsewhere in the same document. Useful where the published
// benchmarks are too hard for small models or not available. The output is read by the benchmark `endings`, a line of
// JSON for each question:
//
//   {"context": "...", "endings": ["...", "..."], "label": 1}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ovq::tasks {

struct EndingOptions {
  int64_t questions = 1000;
  int64_t choices = 4;
  int64_t context_words = 48, ending_words = 12;
  uint64_t seed = 0;
};

// Reads text files and folders of .txt files. Longer documents are drawn more often, by their number of sentences.
// DataError if the text is too short.
std::string make_endings(const std::vector<std::string>& texts, const EndingOptions& options);

}  // namespace ovq::tasks
