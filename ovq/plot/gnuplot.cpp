#include "ovq/plot/gnuplot.h"

#include <fmt/format.h>

#include <iterator>

namespace ovq::plot {
namespace {

// The colours of the SVG's light version.
constexpr const char* kLineColours[] = {"#0072b2", "#d55e00", "#009e73", "#b0578d", "#b8860b", "#3a9bdc", "#555555"};
constexpr int kPointTypes[] = {7, 5, 9, 13, 11, 6, 4};

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : c == '\n' ? " " : std::string(1, c);
  return result + "'";
}

// Uses the same ticks as the SVG.
std::string axis_commands(char name, const Axis& axis, const Scale& scale) {
  std::string text = fmt::format("set {}label {} noenhanced\n", name, quoted(axis.label));
  if (axis.spacing != Spacing::linear)
    text += fmt::format("set logscale {} {}\n", name, axis.spacing == Spacing::log2 ? 2 : 10);
  const double edge = 1e-6 * (scale.high() - scale.low());  // keeps a tick at the end inside the range
  text += fmt::format("set {}range [{:.9g}:{:.9g}]\nset {}tics (", name, scale.low(), scale.high() + edge, name);
  for (const Tick& tick : scale.ticks())
    text += fmt::format("{}{} {:.9g}", &tick == &scale.ticks().front() ? "" : ", ", quoted(tick.text), tick.value);
  return text + ") noenhanced\n";
}

constexpr const char* kReferenceStyle = "using 1:2 with lines lc rgb '#666666' lw 1 dt 2";

std::string measured_style(size_t index) {
  return fmt::format("using 1:2:3 with yerrorlines lc rgb '{}' lw 2 pt {}{}",
                     kLineColours[index % std::size(kLineColours)], kPointTypes[index % std::size(kPointTypes)],
                     index < std::size(kLineColours) ? "" : " dt 2");
}

}  // namespace

std::string to_gnuplot(const Figure& figure, const std::filesystem::path& png) {
  std::string text = fmt::format(
      "set terminal pngcairo size 960,600 font 'sans,12'\nset output {}\nset title {} noenhanced\n"
      "set key at screen 0.5, 0.01 center bottom horizontal maxcols 3 noenhanced\nset bmargin {}\n"
      "set grid xtics ytics lt 1 lc rgb '#e2e2e2'\nset bars 0.5\n",
      quoted(png.string()), quoted(figure.title), 5 + (figure.series.size() + 1) / 2);
  text += axis_commands('x', figure.x, x_scale(figure)) + axis_commands('y', figure.y, y_scale(figure));
  for (const Rule& rule : figure.rules) {
    text += fmt::format(
        "set arrow from first {0:.9g}, graph 0 to first {0:.9g}, graph 1 nohead dt 3 lc rgb '#666666'\n"
        "set label {1} at first {0:.9g}, graph 0.97 offset 0.5,0 tc rgb '#666666' noenhanced\n",
        rule.x, quoted(rule.label));
  }
  std::string plots;
  size_t measured = 0;  // number of measured lines so far, to match the SVG's colours
  for (size_t i = 0; i < figure.series.size(); ++i) {
    const Series& series = figure.series[i];
    text += fmt::format("$series{} << END\n", i);
    for (const Point& point : series.points)
      text += fmt::format("{:.9g} {:.9g} {:.9g}\n", point.x, point.y, point.deviation);
    text += "END\n";
    plots +=
        fmt::format("{}$series{} {} title {}", i == 0 ? "plot " : ", ", i,
                    series.look == Look::measured ? measured_style(measured++) : kReferenceStyle, quoted(series.label));
  }
  return text + plots + "\n";
}

}  // namespace ovq::plot
