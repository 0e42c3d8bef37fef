#include "ovq/tasks/render.h"

#include <gtest/gtest.h>

#include "ovq/tasks/icl.h"
#include "ovq/tasks/mqar.h"
#include "ovq/tasks/recall.h"
#include "ovq/tasks/text.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

// A batch of one row, whose targets are the tokens themselves where `asked` has a 1 for the position before.
Batch one_row(const std::vector<int32_t>& tokens, const std::vector<int>& asked) {
  Batch batch{.rows = 1, .length = static_cast<int64_t>(tokens.size()), .tokens = tokens};
  for (size_t i = 0; i < tokens.size(); ++i) batch.targets.push_back(asked[i] ? tokens[i + 1] : kNoTarget);
  batch.groups = batch.targets;
  return batch;
}

TEST(Render, Recall) {
  const RecallTask task({});
  const Batch batch = one_row({0, 7, 4, 1, 9, 5, 2, 3, 7, 4, 1, 9, 5, 2}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0});
  EXPECT_EQ(render(task, batch, 0), ". 7 4 -> 9 5 | ? 7 4 ->[9 5]|");
}

TEST(Render, Icl) {
  const IclTask task({});  // eight arrows: the integer 0 is token 10
  const Batch batch = one_row({13, 15, 9, 21, 17, 1}, {0, 0, 1, 1, 0, 0});
  EXPECT_EQ(render(task, batch, 0), "3 5 ->f7[11 7]|");
}

TEST(Render, TargetsThatAreNotInputs) {
  const MqarTask task({.vocab = 16});
  const Batch batch{
      .rows = 1, .length = 4, .tokens = {4, 9, 4, 0}, .targets = {-1, -1, 9, -1}, .groups = {-1, -1, 1, -1}};
  EXPECT_EQ(render(task, batch, 0), "4 9 4[9]0");
}

TEST(Render, Text) {
  const test::Folder folder;
  const TextTask task({.train = folder.write("a.txt", "The cat s")});
  EXPECT_EQ(render(task, task.sample({.length = 8}), 0), "T[he cat s]");
}

TEST(Render, BreaksLinesBetweenTokens) {
  const RecallTask task({});
  const Batch batch = task.sample({.length = 300});
  const std::string whole = render(task, batch, 0, 1000000), broken = render(task, batch, 0, 40);
  EXPECT_EQ(whole.find('\n'), std::string::npos);
  size_t start = 0;
  for (size_t end = broken.find('\n'); end != std::string::npos; end = broken.find('\n', start)) {
    EXPECT_LE(end - start, 41u);
    EXPECT_GE(end - start, 30u);
    start = end + 1;
  }
  std::string a, b;
  for (char c : whole) a += c == ' ' ? "" : std::string(1, c);
  for (char c : broken) b += c == ' ' || c == '\n' ? "" : std::string(1, c);
  EXPECT_EQ(a, b);
}

TEST(Render, NoSuchRow) {
  const RecallTask task({});
  const Batch batch = task.sample({.rows = 2, .length = 30});
  EXPECT_EQ(test::error_of([&] { render(task, batch, 2); }), "[render] row is 2; the batch has 2");
}

}  // namespace
}  // namespace ovq::tasks
