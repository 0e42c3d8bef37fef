// Figures as SVG: lines with their spread over a pair of axes, a legend below. No script, no fonts, no files: the
// colours are those of a style sheet (figure_style), which knows light and dark.
//
// Lines differ by colour (seven that colour-blind people tell apart, after Okabe and Ito) and marker, and from the
// eighth on by dashes. Every marker has a title with its values; pages can make more of it.
#pragma once

#include <string>
#include <vector>

#include "ovq/plot/axis.h"

namespace ovq::plot {

struct Point {
  double x = 0, y = 0;
  double deviation = 0;  // over `runs`; 0: none to show
  int64_t runs = 0;      // 0: computed, not measured
};

enum class Look {
  measured,   // markers, and a band of one deviation on both sides
  reference,  // a thin dashed line
};

struct Series {
  std::string label;
  std::vector<Point> points;  // in the order of x
  Look look = Look::measured;
};

// A vertical line, such as the longest length of training.
struct Rule {
  double x = 0;
  std::string label;
};

struct Figure {
  std::string title;  // for those who cannot see it
  Axis x, y;
  std::vector<Series> series;
  std::vector<Rule> rules;
};

// Over what is drawn: a line's spread counts.
Scale x_scale(const Figure& figure);
Scale y_scale(const Figure& figure);

// "0.998 ± 0.001 (3 runs)"
std::string point_text(const Axis& y, const Point& point);

// An <svg> element that fills the width it is given. Points that the axes leave out, and numbers that are none, are not
// drawn.
std::string to_svg(const Figure& figure);
// The same as a file of its own.
std::string to_svg_file(const Figure& figure);
// What its classes look like, for a <style>.
std::string figure_style();

}  // namespace ovq::plot
