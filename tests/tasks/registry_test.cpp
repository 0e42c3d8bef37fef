#include "ovq/tasks/registry.h"

#include <gtest/gtest.h>

#include "ovq/tasks/icl.h"
#include "ovq/tasks/recall.h"
#include "tests/tasks/fixtures.h"

namespace ovq::tasks {
namespace {

using nlohmann::json;
using test::error_of;

std::string make_error(const std::string& name, const json& options = json::object()) {
  return error_of([&] { make_task(name, options); });
}

TEST(Registry, MakesEveryTaskUnderItsName) {
  for (const std::string& name : task_names()) {
    if (name != "text") {
      EXPECT_EQ(make_task(name)->name(), name);
    }
  }
}

TEST(Registry, MetricsAreThoseOfTheTasks) {
  for (const std::string& name : task_names()) {
    const json options = name == "text" ? json{{"train", "nowhere"}} : json::object();
    EXPECT_EQ(make_task(name, options)->metric(), metric_of(name)) << name;
  }
  EXPECT_EQ(error_of([] { metric_of("recal"); }), "[tasks] unknown task \"recal\"; did you mean \"recall\"?");
}

TEST(Registry, OptionsOverrideTheScale) {
  const auto task = make_task("recall", {{"scale", "paper"}, {"key_length", 3}});
  const RecallOptions& options = dynamic_cast<const RecallTask&>(*task).options();
  EXPECT_EQ(options.vocab, 10000);
  EXPECT_EQ(options.key_length, 3);
  EXPECT_EQ(options.value_length, 8);
  EXPECT_EQ(task_options("recall", {{"scale", "small"}, {"vocab", 99}}),
            (json{{"vocab", 99}, {"key_length", 4}, {"value_length", 4}, {"train_query_fraction", 1.0}}));
}

TEST(Registry, ScalesAreThoseOfTheExperiments) {
  EXPECT_EQ(preset("recall", "tiny").train_lengths, (std::vector<int64_t>{32, 64, 128, 256}));
  EXPECT_EQ(preset("recall", "tiny").evaluations.back().length, 4096);
  EXPECT_EQ(preset("recall", "small").train_lengths, (std::vector<int64_t>{64, 128, 256, 512}));
  EXPECT_EQ(preset("recall", "small").evaluations.back().length, 8192);
  EXPECT_EQ(preset("recall", "paper").train_lengths, (std::vector<int64_t>{512, 1024, 2048, 4096}));
  EXPECT_EQ(preset("positional-recall", "paper").evaluations.back().length, 65536);
  EXPECT_EQ(preset("positional-recall", "paper").options["copies"], 4);
  EXPECT_EQ(preset("icl", "paper").options["functions"], 16);
  EXPECT_EQ(preset("icl", "paper").evaluations.back().options["functions"], 128);
  EXPECT_EQ(preset("text", "paper").train_lengths, (std::vector<int64_t>{10000}));
  EXPECT_EQ(preset("text", "paper").evaluations[0].length, 16000);
  EXPECT_EQ(preset("mqar", "paper").options["vocab"], 8192);
}

TEST(Registry, BadNamesAndOptions) {
  EXPECT_EQ(make_error("recal"), "[tasks] unknown task \"recal\"; did you mean \"recall\"?");
  EXPECT_EQ(make_error("banana"),
            "[tasks] unknown task \"banana\"; expected one of recall, positional-recall, icl, mqar, text");
  EXPECT_EQ(make_error("icl", {{"scale", "papre"}}), "[icl] unknown scale \"papre\"; did you mean \"paper\"?");
  EXPECT_EQ(make_error("icl", {{"scale", 3}}), "[icl] scale is 3; expected a text");
  EXPECT_EQ(make_error("icl", {{"function", 3}}), "[icl] unknown option \"function\"; did you mean \"functions\"?");
  EXPECT_EQ(make_error("icl", {{"vocab", 12.5}}), "[icl] vocab is 12.5; expected an integer");
  EXPECT_EQ(make_error("icl", {{"vocab", "many"}}), "[icl] vocab is \"many\"; expected an integer");
  EXPECT_EQ(make_error("mqar", {{"alpha", "x"}}), "[mqar] alpha is \"x\"; expected a number");
  EXPECT_EQ(make_error("mqar", {{"random_filler", 1}}), "[mqar] random_filler is 1; expected true or false");
  EXPECT_EQ(make_error("text", {{"train", 1}}), "[text] train is 1; expected a text");
  EXPECT_EQ(make_error("recall", json::array({1})), "[recall] options are of type array; expected an object");
  EXPECT_EQ(make_error("positional-recall", {{"key_lenght", 1}}),
            "[positional-recall] unknown option \"key_lenght\"; did you mean \"key_length\"?");
}

}  // namespace
}  // namespace ovq::tasks
