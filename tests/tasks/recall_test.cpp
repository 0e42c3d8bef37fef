#include "ovq/tasks/recall.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using test::error_of;
using test::row_of;
using Sequence = std::vector<int32_t>;

struct Pair {
  Sequence key, value;
  size_t arrow = 0;  // position
};

struct Parsed {
  int64_t padding = 0;
  std::vector<Pair> context, queries;
};

// Reads tokens only.
Parsed parse(std::span<const int32_t> tokens) {
  Parsed parsed;
  Pair pair;
  bool in_value = false, in_queries = false;
  for (size_t i = 0; i < tokens.size(); ++i) {
    switch (tokens[i]) {
      case RecallTask::kPadding:
        ++parsed.padding;
        break;
      case RecallTask::kQuery:
        in_queries = true;
        break;
      case RecallTask::kArrow:
        in_value = true;
        pair.arrow = i;
        break;
      case RecallTask::kSeparator:
        (in_queries ? parsed.queries : parsed.context).push_back(pair);
        pair = {};
        in_value = false;
        break;
      default:
        (in_value ? pair.value : pair.key).push_back(tokens[i]);
    }
  }
  return parsed;
}

// Answers queries from the context alone: the n-th time a key is shown, with its n-th value. Returns the share of
// correct targets.
double solve(const Batch& batch) {
  int64_t right = 0, asked = 0;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto targets = row_of(batch, batch.targets, row);
    const Parsed parsed = parse(row_of(batch, batch.tokens, row));
    std::map<Sequence, std::vector<Sequence>> values;
    for (const Pair& pair : parsed.context) values[pair.key].push_back(pair.value);
    std::map<Sequence, size_t> shown;
    for (const Pair& query : parsed.queries) {
      const Sequence& answer = values.at(query.key).at(shown[query.key]++);
      for (size_t i = 0; i < answer.size(); ++i) right += targets[query.arrow + i] == answer[i];
    }
    for (int32_t target : targets) asked += target != kNoTarget;
  }
  return static_cast<double>(right) / static_cast<double>(asked);
}

TEST(Recall, ContextAloneAnswersEveryTarget) {
  const RecallTask task({.vocab = 40, .key_length = 2, .value_length = 3});
  for (Split split : {Split::train, Split::test}) {
    for (int64_t length : {7, 8, 13, 14, 50, 300}) {
      const SampleRequest request{.rows = 4, .length = length, .split = split};
      const Batch batch = task.sample(request);
      const int64_t targets = test::expect_sound(task, request, batch);
      EXPECT_EQ(targets, 4 * 3 * task.queries(length, split));
      test::expect_shifted(batch);
      EXPECT_EQ(solve(batch), 1.0);
    }
  }
}

TEST(Recall, KeysAndValuesAreUniqueAndLengthsExact) {
  const RecallTask task({.vocab = 24, .key_length = 2, .value_length = 2});
  const Batch batch = task.sample({.rows = 5, .length = 601});
  for (int64_t row = 0; row < batch.rows; ++row) {
    const auto tokens = row_of(batch, batch.tokens, row);
    EXPECT_EQ(tokens[601], RecallTask::kQuery);
    const Parsed parsed = parse(tokens);
    EXPECT_EQ(parsed.padding, 1);
    ASSERT_EQ(parsed.context.size(), 100u);
    EXPECT_EQ(parsed.queries.size(), 50u);
    std::set<Sequence> keys, values, asked;
    for (const Pair& pair : parsed.context) {
      EXPECT_EQ(pair.key.size(), 2u);
      EXPECT_EQ(pair.value.size(), 2u);
      keys.insert(pair.key);
      values.insert(pair.value);
    }
    for (const Pair& pair : parsed.queries) asked.insert(pair.key);
    EXPECT_EQ(keys.size(), 100u);
    EXPECT_EQ(values.size(), 100u);
    EXPECT_EQ(asked.size(), 50u);
  }
}

TEST(Recall, QueryCountsAndGroups) {
  const RecallTask task({.key_length = 2, .value_length = 2});
  EXPECT_EQ(task.queries(16, Split::test), 2);  // fewer pairs than six
  EXPECT_EQ(task.queries(2048, Split::test), 6);
  EXPECT_EQ(task.queries(16, Split::train), 1);
  EXPECT_EQ(task.queries(128, Split::train), 10);  // of 21
  EXPECT_EQ(RecallTask({.train_query_fraction = 1}).queries(128, Split::train), 21);
  const Batch batch = task.sample({.rows = 2, .length = 128, .split = Split::test});
  for (int64_t row = 0; row < 2; ++row) {
    std::map<int32_t, int> sizes;
    int32_t last = 0;
    for (int32_t group : row_of(batch, batch.groups, row)) {
      if (group == kNoGroup) continue;
      EXPECT_GE(group, last);
      ++sizes[last = group];
    }
    EXPECT_EQ(sizes, (std::map<int32_t, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}, {4, 2}, {5, 2}}));
  }
}

TEST(PositionalRecall, ContextAloneAnswersEveryTarget) {
  const RecallTask task({.vocab = 60, .copies = 4, .test_queries = 1});
  for (Split split : {Split::train, Split::test}) {
    for (int64_t length : {6, 18, 24, 47, 48, 200}) {
      const SampleRequest request{.rows = 4, .length = length, .split = split};
      const Batch batch = task.sample(request);
      test::expect_sound(task, request, batch);
      test::expect_shifted(batch);
      EXPECT_EQ(solve(batch), 1.0);
    }
  }
}

TEST(PositionalRecall, EveryKeyOccursFourTimesAndOneIsAsked) {
  const RecallTask task({.vocab = 60, .copies = 4, .test_queries = 1});
  EXPECT_EQ(task.name(), "positional-recall");
  const Batch batch = task.sample({.rows = 3, .length = 200, .split = Split::test});  // 8 keys, 8 tokens of padding
  for (int64_t row = 0; row < batch.rows; ++row) {
    const Parsed parsed = parse(row_of(batch, batch.tokens, row));
    EXPECT_EQ(parsed.padding, 8);
    std::map<Sequence, int> occurrences;
    std::set<Sequence> values, asked;
    for (const Pair& pair : parsed.context) {
      ++occurrences[pair.key];
      values.insert(pair.value);
    }
    EXPECT_EQ(occurrences.size(), 8u);
    for (const auto& [key, count] : occurrences) EXPECT_EQ(count, 4);
    EXPECT_EQ(values.size(), 32u);
    for (const Pair& pair : parsed.queries) asked.insert(pair.key);
    EXPECT_EQ(parsed.queries.size(), 4u);
    EXPECT_EQ(asked.size(), 1u);
    std::vector<int32_t> groups;
    for (int32_t group : row_of(batch, batch.groups, row)) {
      if (group != kNoGroup) groups.push_back(group);
    }
    EXPECT_EQ(groups, (std::vector<int32_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  }
}

TEST(PositionalRecall, ShortContextsRepeatLess) {
  const RecallTask task({.copies = 4});
  EXPECT_EQ(task.copies(18), 3);
  EXPECT_EQ(task.keys(18), 1);
  EXPECT_EQ(task.copies(24), 4);
  EXPECT_EQ(task.keys(47), 1);
  EXPECT_EQ(task.keys(48), 2);
}

TEST(Recall, BadOptions) {
  const auto error = [](const RecallOptions& options) { return error_of([&] { RecallTask{options}; }); };
  EXPECT_EQ(error({.vocab = 5}), "[recall] vocab is 5; must be at least 6");
  EXPECT_EQ(error({.key_length = 0}), "[recall] key_length is 0; must be at least 1");
  EXPECT_EQ(error({.value_length = 0}), "[recall] value_length is 0; must be at least 1");
  EXPECT_EQ(error({.copies = 0}), "[recall] copies is 0; must be at least 1");
  EXPECT_EQ(error({.train_query_fraction = 0}), "[recall] train_query_fraction is 0; must be above 0 and at most 1");
  EXPECT_EQ(error({.copies = 4, .test_queries = 0}), "[positional-recall] test_queries is 0; must be at least 1");
}

TEST(Recall, TooFewContentTokens) {
  const RecallTask task({.vocab = 10, .key_length = 1, .value_length = 1});
  EXPECT_EQ(error_of([&] { task.sample({.length = 16}); }),
            "[recall] 6 content tokens make 6 sequences of 1; 4 different ones need at least twice as many");
}

}  // namespace
}  // namespace ovq::tasks
