#include "ovq/tasks/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "ovq/base/error.h"

namespace ovq::tasks {

RecallTask::RecallTask(const RecallOptions& options) : options_(options) {
  check(options.copies >= 1, "recall", "copies is ", options.copies, "; must be at least 1");
  const std::string op = name();
  check(options.vocab >= kFirstContent + 2 && options.vocab <= INT32_MAX, op.c_str(), "vocab is ", options.vocab,
        "; must be at least ", kFirstContent + 2);
  check(options.key_length >= 1, op.c_str(), "key_length is ", options.key_length, "; must be at least 1");
  check(options.value_length >= 1, op.c_str(), "value_length is ", options.value_length, "; must be at least 1");
  check(options.train_query_fraction > 0 && options.train_query_fraction <= 1, op.c_str(), "train_query_fraction is ",
        options.train_query_fraction, "; must be above 0 and at most 1");
  check(options.test_queries >= 1, op.c_str(), "test_queries is ", options.test_queries, "; must be at least 1");
}

std::string RecallTask::token_name(int32_t token) const {
  switch (token) {
    case kPadding:
      return ".";
    case kArrow:
      return "->";
    case kSeparator:
      return "|";
    case kQuery:
      return "?";
    default:
      return std::to_string(token);
  }
}

int64_t RecallTask::copies(int64_t length) const {
  return std::clamp<int64_t>(length / pair_length(), 1, options_.copies);
}

int64_t RecallTask::keys(int64_t length) const { return length / pair_length() / copies(length); }

int64_t RecallTask::queries(int64_t length, Split split) const {
  const int64_t count = keys(length);
  if (split == Split::test) return std::min(options_.test_queries, count);
  return std::max<int64_t>(1, static_cast<int64_t>(options_.train_query_fraction * static_cast<double>(count)));
}

int64_t RecallTask::row_length(int64_t length, Split split) const {
  return length + 1 + queries(length, split) * copies(length) * pair_length();
}

// `count` distinct sequences of content tokens, concatenated. Only hashes are stored: different hashes mean different
// sequences. With at least twice as many possible sequences as needed, each takes less than two draws on average.
std::vector<int32_t> RecallTask::distinct_sequences(Random& random, int64_t count, int64_t length) const {
  const int64_t content = options_.vocab - kFirstContent;
  const double possible = std::pow(static_cast<double>(content), static_cast<double>(length));
  check(possible >= 2.0 * static_cast<double>(count), name().c_str(), content, " content tokens make ", possible,
        " sequences of ", length, "; ", count, " different ones need at least twice as many");
  std::vector<int32_t> sequences(static_cast<size_t>(count * length));
  std::unordered_set<uint64_t> seen;
  seen.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint64_t hash = 0;
    do {
      hash = 0;
      for (int64_t j = 0; j < length; ++j) {
        const auto token = static_cast<int32_t>(kFirstContent + random.below(content));
        sequences[static_cast<size_t>(i * length + j)] = token;
        hash = hash_numbers({hash, static_cast<uint64_t>(token)});
      }
    } while (!seen.insert(hash).second);
  }
  return sequences;
}

void RecallTask::fill(const SampleRequest& request, int64_t row, Row out) const {
  Random random(row_seed(request, row));
  const int64_t key_length = options_.key_length, value_length = options_.value_length;
  const int64_t copy_count = copies(request.length), key_count = keys(request.length);
  const int64_t pairs = key_count * copy_count;
  const std::vector<int32_t> keys = distinct_sequences(random, key_count, key_length);
  const std::vector<int32_t> values = distinct_sequences(random, pairs, value_length);

  int64_t position = request.length - pairs * pair_length();  // after the padding
  const auto put = [&](int32_t token) { out.tokens[static_cast<size_t>(position++)] = token; };
  const auto put_pair = [&](int64_t key, int64_t value) {
    for (int64_t i = 0; i < key_length; ++i) put(keys[static_cast<size_t>(key * key_length + i)]);
    put(kArrow);
    for (int64_t i = 0; i < value_length; ++i) put(values[static_cast<size_t>(value * value_length + i)]);
    put(kSeparator);
  };

  // The i-th pair of the context has value i. The occurrences of each key are spread at random.
  std::vector<int64_t> order(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i) order[static_cast<size_t>(i)] = i / copy_count;
  random.shuffle(std::span(order));
  std::vector<std::vector<int64_t>> values_of(static_cast<size_t>(key_count));
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t key = order[static_cast<size_t>(i)];
    values_of[static_cast<size_t>(key)].push_back(i);
    put_pair(key, i);
  }

  put(kQuery);
  std::vector<int64_t> asked(static_cast<size_t>(key_count));
  std::iota(asked.begin(), asked.end(), 0);
  random.shuffle(std::span(asked));
  asked.resize(static_cast<size_t>(queries(request.length, request.split)));
  int64_t query = 0;
  for (int64_t key : asked) {
    int64_t occurrence = 0;
    for (int64_t value : values_of[static_cast<size_t>(key)]) {
      const int64_t arrow = position + key_length;
      put_pair(key, value);
      const int64_t group = options_.copies == 1 ? query : occurrence;
      for (int64_t i = arrow; i < arrow + value_length; ++i) {
        out.ask(i, out.tokens[static_cast<size_t>(i + 1)], group);
      }
      ++occurrence;
    }
    ++query;
  }
}

}  // namespace ovq::tasks
