// Figures as SVG: lines with error bands over a pair of axes, with a legend below. No scripts, fonts or other files.
// The colours come from a style sheet (figure_style) with a light and a dark version.
//
// Lines differ in colour (seven that colour-blind people can distinguish, after Okabe and Ito) and marker, from the
// eighth on also in dashes. Every marker has a title with its values, which pages may display.
#pragma once

#include <string>
#include <vector>

#include "ovq/plot/axis.h"

namespace ovq::plot {

struct Point {
  double x = 0, y = 0;
  double deviation = 0;  // over `runs`; 0: no band
  int64_t runs = 0;      // 0: computed, not measured
};

enum class Look {
  measured,   // markers, and a band of one deviation on both sides
  reference,  // a thin dashed line
};

struct Series {
  std::string label;
  std::vector<Point> points;  // sorted by x
  Look look = Look::measured;
};

// A vertical line, such as the longest length of training.
struct Rule {
  double x = 0;
  std::string label;
};

struct Figure {
  std::string title;  // also read by screen readers
  Axis x, y;
  std::vector<Series> series;
  std::vector<Rule> rules;
};

// Scales over the data, including error bands.
Scale x_scale(const Figure& figure);
Scale y_scale(const Figure& figure);

// "0.998 ± 0.001 (3 runs)"
std::string point_text(const Axis& y, const Point& point);

// An <svg> element that fills its container's width. Points outside the axes and values that are not finite are not
// drawn.
std::string to_svg(const Figure& figure);
// The same as a stand-alone file.
std::string to_svg_file(const Figure& figure);
// CSS for the classes in the SVG.
std::string figure_style();

}  // namespace ovq::plot
