// Figures: the positions of their elements, and the escaping of text.
#include "ovq/plot/figure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "ovq/plot/gnuplot.h"
#include "ovq/plot/markup.h"

namespace ovq::plot {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

Figure two_lines() {
  return {.title = "two",
          .x = {.label = "tokens", .spacing = Spacing::log2, .numbers = Numbers::tokens},
          .y = {.label = "accuracy", .from = 0, .to = 1},
          .series = {{.label = "a", .points = {{512, 1, 0.1, 3}, {1024, 0.5, 0.1, 3}, {2048, 0, 0, 3}}},
                     {.label = "b", .points = {{512, 0.5, 0, 1}, {2048, 0.25, 0, 1}}}},
          .rules = {{512, "trained"}, {4096, "outside"}}};
}

TEST(Figure, PointsLieWhereTheAxesSay) {
  const std::string svg = to_svg(two_lines());
  // 440 wide: the plot goes from 68 to 424 and from 14 (accuracy 1) to 264 (accuracy 0).
  EXPECT_EQ(count(svg, R"(d="M68.0 14.0L246.0 139.0L424.0 264.0")"), 1u) << svg;
  EXPECT_EQ(count(svg, R"(d="M68.0 139.0L424.0 201.5")"), 1u);
  EXPECT_EQ(count(svg, R"(class="band")"), 1u);  // b has no spread
  EXPECT_EQ(count(svg, "<title>"), 5u);
  EXPECT_EQ(count(svg, "<title>a: 0.500 ± 0.100 (3 runs) at 1,024</title>"), 1u);
  EXPECT_EQ(count(svg, "<title>b: 0.500 at 512</title>"), 1u);
  EXPECT_EQ(count(svg, "trained"), 1u);
  EXPECT_EQ(count(svg, "outside"), 0u);
}

TEST(Figure, WhatHasNoPlaceIsNotDrawn) {
  Figure figure = two_lines();
  figure.series = {{.label = "a", .points = {{512, std::nan(""), 0, 1}, {0, 0.5, 0, 1}, {1024, 1.5, 0, 1}}},
                   {.label = "none"}};
  const std::string svg = to_svg(figure);
  EXPECT_EQ(count(svg, "<title>"), 0u);
  EXPECT_EQ(count(svg, "nan"), 0u);
  EXPECT_EQ(count(svg, "inf"), 0u);
  EXPECT_EQ(count(svg, ">none<"), 1u);  // in the legend
  figure.series.clear();
  EXPECT_EQ(count(to_svg(figure), "nan"), 0u);
}

TEST(Figure, LinesDifferInMoreThanColour) {
  Figure figure = two_lines();
  figure.series.clear();
  for (int i = 0; i < 9; ++i) figure.series.push_back({.label = std::to_string(i), .points = {{512, 0.1 * i, 0, 1}}});
  const std::string svg = to_svg(figure);
  for (const char* look : {R"("c0")", R"("c6")", R"("c0 d1")", R"("c1 d1")"}) EXPECT_EQ(count(svg, look), 2u) << look;
}

TEST(Figure, ManyPointsHaveFewMarkers) {
  Figure figure = two_lines();
  figure.series.resize(1);
  figure.series[0].points.clear();
  for (int i = 0; i < 1000; ++i) figure.series[0].points.push_back({512.0 + i, 0.5});
  const size_t markers = count(to_svg(figure), "<title>");
  EXPECT_GT(markers, 10u);
  EXPECT_LT(markers, 30u);
  EXPECT_EQ(count(to_svg(figure), "at 1,511</title>"), 1u);  // the last one among them
}

TEST(Figure, TextIsEscaped) {
  const std::string evil = R"(</text><script>alert("x" & 'y')</script>)";
  Figure figure = two_lines();
  figure.title = figure.x.label = figure.y.label = figure.series[0].label = figure.rules[0].label = evil;
  for (const std::string& svg : {to_svg(figure), to_svg_file(figure)}) {
    EXPECT_EQ(count(svg, "<script"), 0u);
    EXPECT_GE(count(svg, "&lt;script&gt;alert(&quot;x&quot; &amp; &#39;y&#39;)"), 7u);
  }
  EXPECT_EQ(escaped("a\x01z\n"), "az\n");
}

TEST(Figure, AFileOfItsOwnHasItsStyle) {
  const std::string svg = to_svg_file(two_lines());
  EXPECT_EQ(svg.find(R"(<svg class="figure" xmlns="http://www.w3.org/2000/svg")"), 0u);
  EXPECT_EQ(count(svg, "prefers-color-scheme:dark"), 1u);
}

TEST(Gnuplot, HasEveryPointAndQuotesText) {
  Figure figure{.title = "it's", .x = {.label = "tokens", .spacing = Spacing::log2}, .y = {.label = "y"}};
  figure.series = {
      {.label = "a'b", .points = {{.x = 256, .y = 0.5, .deviation = 0.25, .runs = 3}, {.x = 1024, .y = 1}}},
      {.label = "bound", .points = {{.x = 256, .y = 0.75}}, .look = Look::reference}};
  figure.rules = {{.x = 512, .label = "training"}};
  const std::string script = to_gnuplot(figure, "out/a b.png");
  for (const char* part : {"set output 'out/a b.png'", "set title 'it''s' noenhanced", "set logscale x 2", "'a''b'",
                           "256 0.5 0.25\n1024 1 0\n", "256 0.75 0\n", "with yerrorlines", "with lines", "'training'",
                           "set xlabel 'tokens'"})
    EXPECT_NE(script.find(part), std::string::npos) << part << " in\n" << script;
  EXPECT_EQ(script.find("logscale y"), std::string::npos);
}

}  // namespace
}  // namespace ovq::plot
