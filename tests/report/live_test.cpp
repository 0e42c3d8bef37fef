// The page over runs in progress.
#include "ovq/report/live.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ovq/base/error.h"
#include "ovq/base/json_lines.h"
#include "tests/train/runs.h"

namespace ovq::report {
namespace {

using nlohmann::json;
using train::test::TemporaryDirectory;

void write_run(const std::filesystem::path& directory, int64_t done) {
  std::filesystem::create_directories(directory / "checkpoints/step-1");
  std::ofstream(directory / "run.json") << json{{"steps", 1000}};
  std::ofstream metrics(directory / "metrics.jsonl");
  for (int64_t step = 1; step <= done; ++step)
    metrics << json{{"kind", "step"},   {"step", step}, {"loss", step == 3 ? json() : json(2.0)},
                    {"accuracy", 0.25}, {"rate", 1e-3}, {"tokens", 100000},
                    {"seconds", 0.5}}
            << "\n";
  metrics << json{{"kind", "evaluation"}, {"step", done}, {"length", 512}, {"accuracy", 0.75}} << "\n";
  metrics << json{{"kind", "evaluation"}, {"step", done}, {"length", 512}, {"keep", 0.2}, {"accuracy", 0.5}} << "\n";
  metrics << R"({"kind": "step", "step": )";  // being written
}

bool has(const std::string& page, const std::string& text) { return page.find(text) != std::string::npos; }

TEST(LivePage, ShowsWhereRunsAre) {
  const TemporaryDirectory directory;
  write_run(directory.path() / "group/first", 400);
  write_run(directory.path() / "<second>", 1000);
  const std::string page = live_page(directory.path(), {.refresh_seconds = 7});
  EXPECT_TRUE(has(page, R"(<meta http-equiv="refresh" content="7"/>)"));
  EXPECT_TRUE(has(page, "400 of 1000"));
  EXPECT_TRUE(has(page, "5:00 left"));  // 600 steps of half a second
  EXPECT_TRUE(has(page, ">done<"));
  EXPECT_TRUE(has(page, "0.750 at 512"));
  EXPECT_TRUE(has(page, ">200k<"));  // tokens/s
  EXPECT_TRUE(has(page, "&lt;second&gt;"));
  EXPECT_FALSE(has(page, "<second>"));
  for (const char* title : {"Loss", "Accuracy in training", "Accuracy on test rows", "Learning rate", "Speed"})
    EXPECT_TRUE(has(page, std::string("<h3>") + title + "</h3><svg")) << title;
}

TEST(LivePage, TheLatestRunsOnly) {
  const TemporaryDirectory directory;
  for (const char* name : {"a", "b", "c"}) write_run(directory.path() / name, 2);
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(directory.path() / "b/metrics.jsonl", now - std::chrono::hours(1));
  const std::string page = live_page(directory.path(), {.most_runs = 2});
  EXPECT_TRUE(has(page, ">a<") && has(page, ">c<"));
  EXPECT_FALSE(has(page, ">b<"));
  EXPECT_TRUE(has(live_page(directory.path()), "silent for 1:00:0"));
}

TEST(LivePage, NothingYet) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(has(live_page(directory.path()), "No run has written anything"));
  EXPECT_THROW(live_page(directory.path() / "none"), DataError);
}

}  // namespace
}  // namespace ovq::report
