// Figures as text.
#include "ovq/plot/terminal.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ovq::plot {
namespace {

Figure falling_and_flat() {
  return {.x = {.label = "position"},
          .y = {.label = "loss", .from = 0, .to = 10},
          .series = {{.label = "falling", .points = {{.x = 0, .y = 10}, {.x = 5, .y = 5}, {.x = 10, .y = 0}}},
                     {.label = "flat", .points = {{.x = 0, .y = 5}, {.x = 10, .y = 5}}}}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Terminal, LinesRunBetweenTheirMarks) {
  const auto lines = lines_of(to_terminal(falling_and_flat(), {.columns = 26, .rows = 11}));
  ASSERT_EQ(lines.size(), 17u);
  EXPECT_EQ(lines[0], "loss");
  EXPECT_EQ(lines[1], "10 ┤●");
  EXPECT_EQ(lines[6], "   │■·········●·········■") << "the mark of a point stands over the other line";
  EXPECT_EQ(lines[11], " 0 ┤                   ·●");
  EXPECT_EQ(lines[14], "    position");
  EXPECT_EQ(lines[15], "  ● falling");
  EXPECT_EQ(lines[16], "  ■ flat");
}

TEST(Terminal, LabelsOfTheAxisDoNotRunIntoEachOther) {
  Figure figure = falling_and_flat();
  figure.x = {.label = "position", .from = 0, .to = 10000};
  const auto lines = lines_of(to_terminal(figure, {.columns = 26, .rows = 11}));
  EXPECT_EQ(lines[13], "    0 2000    6000    10k");  // 4000 and 8000 have no room
}

TEST(Terminal, ColoursAreThereOnlyIfTheyAreAskedFor) {
  EXPECT_EQ(to_terminal(falling_and_flat(), {}).find('\033'), std::string::npos);
  EXPECT_NE(to_terminal(falling_and_flat(), {.colours = true}).find("\033[34m●\033[0m"), std::string::npos);
}

TEST(Terminal, WhatIsNoNumberIsLeftOut) {
  Figure figure = falling_and_flat();
  figure.series[0].points[1].y = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(lines_of(to_terminal(figure, {.columns = 26, .rows = 11})).size(), 17u);
  EXPECT_FALSE(to_terminal({}, {.columns = 1, .rows = 1}).empty());
}

}  // namespace
}  // namespace ovq::plot
