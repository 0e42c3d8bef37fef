#include "ovq/tasks/description.h"

#include <gtest/gtest.h>

#include "ovq/tasks/example.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using nlohmann::json;
using test::error_of;

TEST(Description, IsThatOfTheTask) {
  for (const std::string& name : task_names()) {
    json options{{"scale", "small"}};
    if (name == "text") options["train"] = "nowhere";  // never read
    const TaskDescription description = describe_task(name, options);
    const auto task = make_task(name, options);
    EXPECT_EQ(description.name, name);
    EXPECT_EQ(description.metric, task->metric()) << name;
    EXPECT_EQ(description.vocab(), task->vocab()) << name;
    EXPECT_EQ(description.train_lengths, preset(name, "small").train_lengths) << name;
    EXPECT_EQ(description.evaluations.size(), preset(name, "small").evaluations.size()) << name;
  }
  EXPECT_STREQ(metric_name(describe_task("recall", {}).metric), "accuracy");
  EXPECT_STREQ(metric_name(describe_task("text", {}).metric), "loss");
}

TEST(Description, OptionsOverrideTheScale) {
  EXPECT_EQ(describe_task("recall", {{"vocab", 99}}).vocab(), 99);
  EXPECT_EQ(describe_task("recall", {{"scale", "small"}}).vocab(), 640);
}

TEST(Description, BadNames) {
  EXPECT_EQ(error_of([] { describe_task("recal", {}); }), "[tasks] unknown task \"recal\"; did you mean \"recall\"?");
  EXPECT_EQ(error_of([] {
              describe_task("icl", {{"scale", "papre"}});
            }),
            "[icl] unknown scale \"papre\"; did you mean \"paper\"?");
  EXPECT_EQ(error_of([] { describe_task("icl", {{"scale", 3}}); }), "[icl] scale is 3; expected a text");
}

TEST(Example, IsASampleOfTheTask) {
  const Example shortest = draw_example({.task = "recall"});
  EXPECT_EQ(shortest.batch.length, shortest.task->row_length(32, Split::train));
  const Example test = draw_example(
      {.task = "recall", .options = {{"vocab", 99}}, .length = 48, .step = 3, .seed = 5, .split = Split::test});
  const Batch expected = test.task->sample({.length = 48, .seed = 5, .step = 3, .split = Split::test});
  EXPECT_EQ(test.batch.tokens, expected.tokens);
  const json object = to_json(test);
  EXPECT_EQ(object.at("vocab"), 99);
  EXPECT_EQ(object.at("targets"), expected.targets);
  EXPECT_EQ(to_text(test).find("recall (tiny): vocabulary 99, "), 0u) << to_text(test);
}

}  // namespace
}  // namespace ovq::tasks
