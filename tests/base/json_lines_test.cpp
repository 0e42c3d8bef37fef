#include "ovq/base/json_lines.h"

#include <gtest/gtest.h>

#include <fstream>

#include "ovq/base/json_file.h"
#include "tests/base/files/fixtures.h"

namespace ovq {
namespace {

using nlohmann::json;

TEST(JsonLines, NumbersCountBlankLinesToo) {
  const std::vector<JsonLine> lines = json_lines("{\"a\": 1}\r\n\n  \t\n[2]\n{\"b\": ");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].number, 1);
  EXPECT_EQ(lines[0].object, (json{{"a", 1}}));
  EXPECT_EQ(lines[1].number, 4);
  EXPECT_TRUE(lines[1].object.is_discarded()) << "a list is no object";
  EXPECT_EQ(lines[2].number, 5);
  EXPECT_TRUE(lines[2].object.is_discarded()) << "cut short";
}

TEST(JsonLines, WhatIsAppendedIsReadBack) {
  const files::test::TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "lines.jsonl";
  EXPECT_TRUE(read_json_lines(file).empty()) << "a missing file has no lines";
  append_json_line(file, {{"step", 1}});
  append_json_line(file, {{"step", 2}});
  std::ofstream(file, std::ios::app) << "{\"step\": 3";
  EXPECT_EQ(read_json_lines(file), (std::vector<json>{{{"step", 1}}, {{"step", 2}}}));
  EXPECT_THROW(append_json_line(directory.path() / "missing" / "lines.jsonl", {}), std::runtime_error);
}

TEST(JsonFile, HasALineForEachFieldAndEachElementOfTheList) {
  const nlohmann::ordered_json object = {{"b", 1}, {"cases", {{{"x", 1}}, {{"x", 2}}}}, {"a", {{"c", {1, 2}}}}};
  const std::string text = to_lines(object, "cases");
  EXPECT_EQ(text, "{\n \"b\": 1,\n \"cases\": [\n  {\"x\":1},\n  {\"x\":2}\n ],\n \"a\": {\"c\":[1,2]}\n}\n");
  EXPECT_EQ(nlohmann::ordered_json::parse(text), object);
  EXPECT_EQ(json::parse(to_lines({{"cases", json::array()}}, "cases")), (json{{"cases", json::array()}}));
}

}  // namespace
}  // namespace ovq
